"""Which arithmetic cells ran in whose precision is not stated: weighed by likelihood over the table, never guessed.

Steps: (1) for each task with columns of unstated precision, its log-throughputs less what the expected sensitivities say,
with the peak of 16 bits and with that of single precision; (2) the likelihood of what is left under either, with room
for another balance of compute and memory and for what chips have of their own; (3) the log-odds of single precision,
both being equally likely beforehand, on average over the tasks, since a table tends to have one precision and a task
alone says little; they count the less the fewer chips there are, and two say nothing: either explains any difference.
The peak of such a cell is the geometric mean of both peaks with these weights: for a line in the logarithms the same as
averaging its predictions over both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from meridian.hardware import Chip
from services.telemetry.index import features
from services.telemetry.index.features import Array
from services.telemetry.index.matrix import UNSTATED, Column

UNDECIDED = 0.5
"""Probability of single precision before anything is measured."""
_PEAK_SENSITIVITY, _BANDWIDTH_SENSITIVITY = 0.4, 0.6
_SENSITIVITY_VARIANCE = 0.05
_SAY_NOTHING = 2
"""So many chips cannot tell one peak from another."""
_CHIP_VARIANCE = 0.06
_CELL_VARIANCE = 0.01
_OFFSET_VARIANCE = 25.0
_SUREST = 0.98
"""No likelihood of so rough a model is believed further."""


def single_precision(cells: Mapping[tuple[str, Column], float], chips: Mapping[str, Chip]) -> float:
    """Probability that cells without a stated precision ran in single precision; ``UNDECIDED`` if nothing tells.

    ``cells`` ((chip id, column) -> throughput); only those whose precision is ``UNSTATED`` are looked at.
    """
    tasks: dict[str, list[tuple[str, Column]]] = {}
    for cell in cells:
        if cell[1].precision == UNSTATED and features.usable(chips[cell[0]], UNSTATED):
            tasks.setdefault(cell[1].task, []).append(cell)
    odds = [0.0]
    for members in tasks.values():
        logs = np.log(np.array([cells[cell] for cell in members]))
        single, half = (
            _log_likelihood(members, logs, np.array([_facts(chips[chip_id], name) for chip_id, _ in members]))
            for name in ("fp32", "fp16")
        )
        count = len({chip_id for chip_id, _ in members})
        odds.append((single - half) * max(0, count - _SAY_NOTHING) / (count + _SAY_NOTHING))
    bound = math.log(_SUREST / (1 - _SUREST))
    return 1 / (1 + math.exp(-min(bound, max(-bound, sum(odds) / max(1, len(tasks))))))


def _facts(chip: Chip, precision: str) -> tuple[float, float]:
    peak, bandwidth = features.peak_flops(chip, precision), chip.bandwidth_bytes_per_s
    assert peak is not None, chip.id
    assert bandwidth is not None, chip.id
    return math.log(peak), math.log(bandwidth)


def _log_likelihood(members: list[tuple[str, Column]], logs: Array, facts: Array) -> float:
    """Of ``logs`` (n,) of one task given ``facts`` (n, 2), but for a constant that both hypotheses share."""
    facts = facts - facts.mean(axis=0)
    left = logs - facts @ np.array([_PEAK_SENSITIVITY, _BANDWIDTH_SENSITIVITY])
    chip = np.unique([chip_id for chip_id, _ in members], return_inverse=True)[1]
    column = np.unique([str(column) for _, column in members], return_inverse=True)[1]
    same = (column[:, None] == column[None]).astype(np.float64)
    left = left - (same @ left) / same.sum(axis=1)
    # The balance of compute and memory may be another; the sum of both sensitivities stays.
    balance = facts[:, 0] - facts[:, 1]
    covariance = (
        _OFFSET_VARIANCE * same
        + _SENSITIVITY_VARIANCE * np.outer(balance, balance)
        + _CHIP_VARIANCE * (chip[:, None] == chip[None])
        + _CELL_VARIANCE * np.eye(len(members))
    )
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, left)
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum())
