"""Tasks whose values are times: they fall as chips get faster, so they are taken as their inverse, and that is said.

Steps: (1) log-values of a task, and what the expected sensitivities say of its chips, both less the mean of their column;
(2) their correlation; (3) a task measured on at least ``_LEAST_CHIPS`` chips that are at least ``_LEAST_SPREAD`` apart is a time
if that is below ``_FALLING``, of more chips below what says as much (Fisher's transformation). A table of fewer chips is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meridian.hardware import Chip
from services.telemetry.index.cells import Cell, Encoder
from services.telemetry.index.covariance import expected, same_column
from services.telemetry.index.matrix import Matrix

_LEAST_CHIPS = 4
_LEAST_SPREAD = math.log(2.0)
_FALLING = -0.8
# However many chips there are. Of throughputs in published tables of 4 to 28 chips the least was 0.34.
_FALLING_OF_MANY = -0.3


def tasks_in_time(cells: Mapping[Cell, float], chips: Mapping[str, Chip]) -> frozenset[str]:
    """Tasks of ``cells`` ((chip id, column) -> value) whose values are times."""
    tasks: dict[str, list[Cell]] = {}
    for cell in cells:
        tasks.setdefault(cell[1].task, []).append(cell)
    found = set()
    for task, members in tasks.items():
        chips_of_task = len({chip_id for chip_id, _ in members})
        if chips_of_task < _LEAST_CHIPS:
            continue
        encoded = Encoder.of(members, chips).encode(members)
        same = same_column(encoded, encoded)
        centre = np.eye(len(members)) - same / same.sum(axis=1, keepdims=True)
        values = centre @ np.log(np.array([cells[cell] for cell in members]))
        speeds = centre @ expected(encoded)
        if float(np.ptp(speeds)) < _LEAST_SPREAD or not values.any():
            continue
        if values @ speeds / math.sqrt((values @ values) * (speeds @ speeds)) < _falling(chips_of_task):
            found.add(task)
    return frozenset(found)


def _falling(chips: int) -> float:
    """The correlation over so many chips that is as far from none as ``_FALLING`` is over ``_LEAST_CHIPS``."""
    say = math.sqrt((_LEAST_CHIPS - 3) / (chips - 3))
    return min(_FALLING_OF_MANY, math.tanh(math.atanh(_FALLING) * say))


def as_throughput(matrix: Matrix, times: frozenset[str]) -> Matrix:
    """``matrix`` with the values of the tasks ``times`` inverted."""
    if not times:
        return matrix
    return replace(
        matrix,
        runs=tuple(
            replace(run, throughput=1 / run.throughput) if run.column.task in times else run for run in matrix.runs
        ),
    )
