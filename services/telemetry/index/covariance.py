"""What makes the log-throughputs of two cells move together, as a sum of components with variances to be learned.

Each component is a product of how alike two chips are and how alike two columns are. With ``lin`` a feature's product,
``near`` a Gaussian of the distance between feature vectors, ``chip``, ``task``, ``precision``, ``group`` being the same:

  lin, lin x task, lin x precision, all x task x precision   sensitivities: shared, and the task's own, shrunk to the shared
  near x (1, task, precision, both)                          what chips of one kind have in common beyond the lines
  chip x (1, task, precision, both)                          the chip's own level, seen only through probe runs
  chip x scale, chip x task x scale, lin x scale             how well a chip scales, growing with log2 of the number of chips
  chip x group (x task), lin x group                         drift of software between groups

Linear components are the sensitivity-weighted normalisation; the rest says how far it can be trusted, and what a probe
run on one task says about another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.telemetry.index.cells import Codes, Encoded
from services.telemetry.index.features import NAMES, Array

NEARNESS = 2.0
"""Length scale of ``near``, in standard deviations of the features together."""
COMPONENTS: Sequence[tuple[str, float]] = (
    *((f"lin:{name}", 0.05) for name in NAMES),
    *((f"lin:{name} x task", 0.01) for name in NAMES),
    *((f"lin:{name} x precision", 0.01) for name in NAMES),
    ("lin x task x precision", 0.01),
    ("near", 0.01),
    ("near x task", 0.005),
    ("near x precision", 0.005),
    ("near x task x precision", 0.002),
    ("chip", 0.01),
    ("chip x precision", 0.003),
    ("chip x task", 0.003),
    ("chip x task x precision", 0.002),
    ("chip x scale", 0.0005),
    ("chip x task x scale", 0.0003),
    ("lin x scale", 0.0005),
    ("chip x group", 0.003),
    ("chip x group x task", 0.003),
    ("lin x group", 0.003),
)
"""Name and prior variance (in squared logarithms) of each component."""
NOISE_VARIANCE = 0.001
"""Prior variance of a cell's own error."""


def components(a: Encoded, b: Encoded) -> Array:
    """(components, len(a), len(b)) products of likeness, in the order of ``COMPONENTS``."""
    task, precision = _same(a.task, b.task), _same(a.precision, b.precision)
    chip, group = _same(a.chip, b.chip), _same(a.group, b.group)
    scale = np.minimum.outer(a.log_scale, b.log_scale)
    lines = [np.outer(a.features[:, k], b.features[:, k]) for k in range(len(NAMES))]
    line = a.features @ b.features.T / len(NAMES)
    near = np.exp(-0.5 * _squared_distance(a.features, b.features) / NEARNESS**2)
    both = task * precision
    return np.array(
        [
            *lines,
            *(each * task for each in lines),
            *(each * precision for each in lines),
            line * both,
            near,
            near * task,
            near * precision,
            near * both,
            chip,
            chip * precision,
            chip * task,
            chip * both,
            chip * scale,
            chip * task * scale,
            line * scale,
            chip * group,
            chip * group * task,
            line * group,
        ]
    )


def same_column(a: Encoded, b: Encoded) -> Array:
    """1 where two cells are of one column."""
    return _same(a.column, b.column)


def _same(a: Codes, b: Codes) -> Array:
    equal: Array = (a[:, None] == b[None, :]).astype(np.float64)
    return equal


def _squared_distance(a: Array, b: Array) -> Array:
    squared: Array = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return squared
