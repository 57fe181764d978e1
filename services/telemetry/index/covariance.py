"""What makes the log-throughputs of two cells move together, as a sum of components with variances to be learned.

Each component is a product of how alike two chips are and how alike two columns are. With ``line`` the product of a
feature, ``near`` a Gaussian of the distance between feature vectors, and ``chip``, ``task``, ``precision``, ``group``
1 where that is the same:

  line x (1, task, precision), all lines x task x precision  sensitivities: shared, and a task's own, shrunk to the shared
  near x (1, task, precision, both)                          what chips of one kind have in common beyond the lines
  chip x (1, task, precision, both)                          the chip's own level, seen only through probe runs
  kin x (chip, near, all lines)                              what tasks with words of their names in common share
  scale x (link, link x task, all lines, chip, chip x task)  how well a chip scales, growing with log2 of their number
  group x (chip, chip x task, all lines)                     drift of software between groups
  series x (chip, all lines)                                 what tasks share that differ in a number (a batch size)

The lines are the sensitivity-weighted normalisation, about ``SENSITIVITIES``; the rest says how far it can be trusted,
and what a probe run on one task says about another.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from services.telemetry.index.cells import Codes, Encoded
from services.telemetry.index.features import NAMES as FEATURES
from services.telemetry.index.features import Array

SENSITIVITIES: Mapping[str, float] = {"peak": 0.25, "bandwidth": 0.45, "vector_fp32": 0.15, "tdp": 0.15}
"""Expected change of log-throughput with the logarithm of a fact, before anything is measured; they add up to 1, since a
chip that is twice as fast in everything does twice the work."""
NAMES = FEATURES[:-1]
"""The link between chips matters only where there are several."""
NEARNESS = 2.0
"""Length scale of ``near``, in units of the features together (a factor of e in one fact is 1)."""
COMPONENTS: Sequence[tuple[str, float]] = (
    *((f"line:{name}", 0.05) for name in NAMES),
    *((f"line:{name} x task", 0.02) for name in NAMES),
    *((f"line:{name} x precision", 0.01) for name in NAMES),
    ("lines x task x precision", 0.01),
    ("near", 0.01),
    ("near x task", 0.005),
    ("near x precision", 0.005),
    ("near x task x precision", 0.002),
    ("chip", 0.01),
    ("chip x precision", 0.003),
    ("chip x task", 0.003),
    ("chip x task x precision", 0.002),
    ("chip x kin", 0.005),
    ("near x kin", 0.003),
    ("lines x kin", 0.02),
    ("link x scale", 0.003),
    ("link x task x scale", 0.002),
    ("lines x scale", 0.0005),
    ("chip x scale", 0.001),
    ("chip x task x scale", 0.0005),
    ("chip x group", 0.003),
    ("chip x group x task", 0.003),
    ("lines x group", 0.003),
    ("chip x series", 0.005),
    ("lines x series", 0.01),
)
"""Name and prior variance (in squared logarithms) of each component."""
SERIES_OCTAVES = 3.0
"""Tasks of a series (batch sizes, lengths) are alike over so many doublings."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
NOISE_VARIANCE = 0.001
"""Prior variance of a cell's own error."""


def each_component(a: Encoded, b: Encoded) -> Iterator[Array]:
    """(len(a), len(b)) products of likeness, one after the other in the order of ``COMPONENTS``."""
    task, precision = _same(a.task, b.task), _same(a.precision, b.precision)
    chip, group = _same(a.chip, b.chip), _same(a.group, b.group)
    scale = np.minimum.outer(a.log_scale, b.log_scale)
    own_a, own_b = a.features[:, : len(NAMES)], b.features[:, : len(NAMES)]
    line = own_a @ own_b.T / len(NAMES)
    link = np.outer(a.features[:, -1], b.features[:, -1])
    near = np.exp(-0.5 * _squared_distance(own_a, own_b) / NEARNESS**2)
    both = task * precision
    kin = _kin(a, b)
    for likeness in (None, task, precision):
        for k in range(len(NAMES)):
            product = np.outer(own_a[:, k], own_b[:, k])
            yield product if likeness is None else product * likeness
    yield line * both
    yield near
    yield near * task
    yield near * precision
    yield near * both
    yield chip
    yield chip * precision
    yield chip * task
    yield chip * both
    yield chip * kin
    yield near * kin
    yield line * kin
    yield link * scale
    yield link * task * scale
    yield line * scale
    yield chip * scale
    yield chip * task * scale
    yield chip * group
    yield chip * group * task
    yield line * group
    numbers = series(a, b)
    yield chip * numbers
    yield line * numbers


BALANCE_VARIANCE, BALANCE_BY_TASK_VARIANCE = 0.05, 0.03
"""Of the share that compute has in the expected sensitivities (the rest is memory): shared, and a task's own."""


def balance(a: Encoded, b: Encoded) -> Array:
    """(len(a), len(b)) covariance of a roofline's balance: more of the peak is as much less of the bandwidth.

    Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model (2009).
    """
    peak, bandwidth = NAMES.index("peak"), NAMES.index("bandwidth")
    ratio = np.outer(a.features[:, peak] - a.features[:, bandwidth], b.features[:, peak] - b.features[:, bandwidth])
    return ratio * (BALANCE_VARIANCE + BALANCE_BY_TASK_VARIANCE * _same(a.task, b.task))


def components(a: Encoded, b: Encoded) -> Array:
    """(components, len(a), len(b)) products of likeness, in the order of ``COMPONENTS``."""
    return np.array(list(each_component(a, b)))


def expected(a: Encoded) -> Array:
    """(len(a),) log-throughput that ``SENSITIVITIES`` say, relative to the middle of the features."""
    weights = np.array([SENSITIVITIES.get(name, 0.0) for name in FEATURES])
    answer: Array = a.distant @ weights
    return answer


def same_column(a: Encoded, b: Encoded) -> Array:
    """1 where two cells are of one column."""
    return _same(a.column, b.column)


def _same(a: Codes, b: Codes) -> Array:
    equal: Array = (a[:, None] == b[None, :]).astype(np.float64)
    return equal


def words_of(task: str) -> frozenset[str]:
    """Words and numbers of a task's name, without what is in brackets ("ResNet-50 (batch size 16)": resnet, 50)."""
    return frozenset(re.findall(r"[^\W\d_]+|\d+", task.lower().split("(")[0]))


def _kin(a: Encoded, b: Encoded) -> Array:
    """Words that two tasks' names have in common, of all their words (Tanimoto's, which is a covariance)."""
    names = sorted({*a.task_names, *b.task_names})
    words = [words_of(name) for name in names]
    alike = np.array([[len(one & other) / max(1, len(one | other)) for other in words] for one in words])
    number = {name: position for position, name in enumerate(names)}
    chosen: Array = alike[np.ix_([number[name] for name in a.task_names], [number[name] for name in b.task_names])]
    return chosen


def series(a: Encoded, b: Encoded) -> Array:
    """How near two tasks are whose names differ in their numbers only ("ResNet-50 (batch size 16)" and "... 64)")."""
    names = sorted({*a.task_names, *b.task_names})
    skeletons = [_NUMBER.sub("#", name.lower()) for name in names]
    sizes = [[math.log2(max(float(each), 1e-9)) for each in _NUMBER.findall(name)] for name in names]
    alike = np.zeros((len(names), len(names)))
    several = [skeleton for skeleton, members in Counter(skeletons).items() if members > 1]
    for i, j in np.argwhere(np.array(skeletons)[:, None] == np.array(skeletons)[None, :]):
        if skeletons[i] not in several:
            continue
        octaves = sum((one - other) ** 2 for one, other in zip(sizes[i], sizes[j], strict=True))
        alike[i, j] = math.exp(-0.5 * octaves / SERIES_OCTAVES**2)
    number = {name: position for position, name in enumerate(names)}
    chosen: Array = alike[np.ix_([number[name] for name in a.task_names], [number[name] for name in b.task_names])]
    return chosen


def _squared_distance(a: Array, b: Array) -> Array:
    squared: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    return np.maximum(squared, 0.0)
