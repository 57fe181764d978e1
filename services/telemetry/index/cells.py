"""Cells (chip, column) as arrays: codes of what they share, scale, and features of the chip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meridian.hardware import Chip
from services.telemetry.index import features
from services.telemetry.index.features import Array
from services.telemetry.index.matrix import UNSTATED, Column
from services.telemetry.index.precision import UNDECIDED

Codes = NDArray[np.int64]
Cell = tuple[str, Column]


@dataclass(frozen=True, slots=True)
class Encoded:
    """``n`` cells; codes are equal where the thing is the same, features are (n, d) about the middle."""

    chip: Codes
    task: Codes
    precision: Codes
    group: Codes
    column: Codes
    log_scale: Array
    features: Array
    distant: Array
    """The same features, held at the edge only much farther out."""
    task_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.chip)


_MARGIN = math.log(2.0)
"""Beyond what the training chips span by more than this factor, a fact is held at the edge: no learned line reaches that
far."""
_EXPECTED_MARGIN = math.log(8.0)
"""The same for what the expected sensitivities say."""


@dataclass(slots=True)
class Encoder:
    """Gives codes in the order of first sight, and features relative to the middle of the cells it was made from."""

    chips: Mapping[str, Chip]
    mean: Array
    lowest: Array
    highest: Array
    single: float = UNDECIDED
    """Probability of single precision where the precision is not stated."""
    _codes: dict[tuple[str, object], int] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Sequence[Cell], chips: Mapping[str, Chip], single: float = UNDECIDED) -> Encoder:
        """The encoder whose middle and span come from ``cells``; chips are looked up in ``chips`` by id.

        ``single``: probability of single precision where none is stated.
        """
        raw = _raw(cells, chips, single)
        known = ~np.isnan(raw)
        mean = np.where(known, raw, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        filled = np.where(known, raw, mean)
        return cls(chips, mean, filled.min(axis=0), filled.max(axis=0), single)

    def encode(self, cells: Sequence[Cell]) -> Encoded:
        """The arrays of ``cells``; a fact nobody states stands at the mean."""
        raw = _raw(cells, self.chips, self.single)
        return Encoded(
            chip=self._code("chip", [chip_id for chip_id, _ in cells]),
            task=self._code("task", [column.task for _, column in cells]),
            precision=self._code("precision", [column.precision for _, column in cells]),
            group=self._code("group", [column.group for _, column in cells]),
            column=self._code("column", [column for _, column in cells]),
            log_scale=np.log2(np.array([column.n_accel for _, column in cells], dtype=np.float64)),
            features=self._held(raw, _MARGIN),
            distant=self._held(raw, _EXPECTED_MARGIN),
            task_names=tuple(column.task for _, column in cells),
        )

    def _held(self, raw: Array, margin: float) -> Array:
        held: Array = np.nan_to_num(np.clip(raw, self.lowest - margin, self.highest + margin) - self.mean)
        return held

    def _code(self, kind: str, values: Sequence[object]) -> Codes:
        codes = self._codes
        return np.array([codes.setdefault((kind, value), len(codes)) for value in values], dtype=np.int64)


def _raw(cells: Sequence[Cell], chips: Mapping[str, Chip], single: float) -> Array:
    known: dict[tuple[str, str], Array] = {}
    for chip_id, column in cells:
        key = (chip_id, column.precision)
        if key not in known:
            share = single if column.precision == UNSTATED else 0.0
            known[key] = features.vector(chips[chip_id], column.precision, share)
    if not cells:
        return np.zeros((0, len(features.NAMES)))
    return np.array([known[chip_id, column.precision] for chip_id, column in cells])
