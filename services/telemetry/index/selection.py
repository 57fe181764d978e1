"""Of a large table the cells that a fit rests on: those of the chips nearest to the one that is predicted. Pure.

The cost of a fit grows with the cube of its cells, so it has at most ``MOST_CELLS``. Steps: (1) of each column that is asked for, the
cells of the chips nearest by their facts, as many of each column; (2) what is left of the limit, other columns of the nearest chips.
Chips far off say little of a chip when nearer ones are there (Datta et al., Hierarchical nearest-neighbor Gaussian process models
for large geostatistical datasets, 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meridian.hardware import Chip
from services.telemetry.index import features
from services.telemetry.index.cells import Cell
from services.telemetry.index.matrix import Column

MOST_CELLS = 1500
"""Cells (chip, column) that a fit rests on at most."""
LEAST_CHIPS = 2
"""Of each column that is asked for at least so many chips, whatever the limit."""
MOST_COLUMNS = 1500
"""More columns than these cannot be told of one chip together."""


def nearest_cells(
    training: Mapping[Cell, float], wanted: Sequence[Cell], chips: Mapping[str, Chip], most: int = MOST_CELLS
) -> dict[Cell, float]:
    """At most ``most`` cells of ``training``, for predicting the cells ``wanted`` of one chip; all of them if they are no more.

    Every column of ``wanted`` is among them (with ``LEAST_CHIPS`` of each they may be more than ``most``).
    """
    if len(training) <= most:
        return dict(training)
    chip_id, first = wanted[0]
    distance = _distances(chips, chip_id, {other for other, _ in training}, first.precision)
    nearest = sorted(training, key=lambda cell: (distance[cell[0]], cell[0]))
    columns = {column for _, column in wanted}
    each = max(LEAST_CHIPS, most // len(columns))
    counts: dict[Column, int] = dict.fromkeys(columns, 0)
    chosen: dict[Cell, float] = {}
    for cell in nearest:
        if counts.get(cell[1], each) < each:
            counts[cell[1]] += 1
            chosen[cell] = training[cell]
    for cell in nearest:
        if len(chosen) >= most:
            break
        chosen.setdefault(cell, training[cell])
    return chosen


def _distances(chips: Mapping[str, Chip], chip_id: str, others: set[str], precision: str) -> dict[str, float]:
    """How far the facts of each of ``others`` are from those of a chip, on average over the facts that both state."""
    own = features.vector(chips[chip_id], precision)
    found = {}
    for other in others:
        apart = (features.vector(chips[other], precision) - own) ** 2
        stated = np.isfinite(apart)
        # The mean: one of which little is stated is no nearer for it.
        found[other] = float(apart[stated].mean()) if stated.any() else np.inf
    return found
