"""Rows of ``meridian.result/1`` from an evaluation of the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meridian.result import Row
from services.telemetry.index.evaluation import Draws, Evaluation, Score, subject_of
from services.telemetry.index.features import Array
from services.telemetry.index.matrix import Matrix, UnknownName

WITHIN = 0.1
_RESAMPLINGS = 400
_TOO_FEW = "all of its cells were probed, or there are not more than that"
Slicing = tuple[str, Callable[[Score], str]]
SLICES: Sequence[Slicing] = (
    ("chip", lambda score: score.cell[0]),
    ("task", lambda score: score.cell[1].task),
)
FINER_SLICES: Sequence[Slicing] = (
    ("precision", lambda score: score.cell[1].precision),
    ("n_accel", lambda score: str(score.cell[1].n_accel)),
    ("group", lambda score: score.cell[1].group),
)


def rows_of(evaluation: Evaluation, matrix: Matrix, draws: Draws) -> list[Row]:
    """Every figure: pooled with an interval over chips, per chip, per task; what was left aside; the reference chip.

    ``mape_ratio``, ``median_error_ratio``, ``within_10_percent_ratio`` and, where there is a band,
    ``band_90_coverage_ratio``. The interval is a bootstrap over chips (95 %), since chips are what is drawn anew.
    """
    subjects: dict[str, list[Score]] = {}
    for score in evaluation.scores:
        subjects.setdefault(score.subject, []).append(score)
    rows = []
    for subject in sorted(subjects, key=lambda name: (subjects[name][0].baseline, name)):
        scores = subjects[subject]
        rows += _figures(subject, "all", scores, draws)
    missing = [(subject_of(count), _TOO_FEW) for count in evaluation.probe_counts if subject_of(count) not in subjects]
    if "noise_floor" not in subjects:
        missing.append(("noise_floor", "no cell was measured twice"))
    for subject, reason in missing:
        baseline = subject == "noise_floor"
        rows += [Row(subject, measure, None, n=0, baseline=baseline, reason=reason) for measure in _MEASURES]
    for name, key in (*SLICES, *FINER_SLICES):
        everywhere = sorted({key(score) for score in evaluation.scores})
        for subject, scores in subjects.items():
            parts: dict[str, list[Score]] = {}
            for score in scores:
                parts.setdefault(key(score), []).append(score)
            if (name, key) in FINER_SLICES and len(everywhere) < 2:
                continue
            for value in everywhere:
                part = f"{name}={value or 'unstated'}"
                if value in parts:
                    rows += _figures(subject, part, parts[value], None)
                elif subject.startswith("index_"):
                    rows += [Row(subject, measure, None, part, n=0, reason=_TOO_FEW) for measure in _MEASURES]
    rows.append(
        Row("reference_chip", "cells_count", _cells_of(matrix, evaluation.reference), f"chip={evaluation.reference}")
    )
    rows.append(Row("rows_used", "rows_count", len(matrix.runs)))
    rows.append(Row("rows_rejected", "rows_count", len(matrix.rejected)))
    rows.append(Row("cells_without_another_chip", "cells_count", evaluation.unmatched))
    if evaluation.limited:
        rows.append(Row("fit_limited", "chips_count", evaluation.limited))
    if evaluation.unstated:
        rows.append(Row("precision_unstated", "cells_count", evaluation.unstated))
        rows.append(Row("precision_unstated", "single_precision_probability_ratio", evaluation.single_precision))
    rows += [
        Row("taken_as_time", "rows_count", sum(run.column.task == task for run in matrix.runs), f"task={task}")
        for task in sorted(evaluation.times)
    ]
    rows += _left_aside("chip_unknown", matrix.unknown)
    rows += _left_aside("chip_without_facts", evaluation.unusable)
    return rows


def _left_aside(subject: str, names: Iterable[UnknownName]) -> list[Row]:
    rows = []
    for unknown in names:
        detail = unknown.reason + (f": {', '.join(unknown.candidates)}" if unknown.candidates else "")
        rows.append(Row(subject, "rows_count", unknown.rows, f"chip={unknown.name or '(empty)'}", reason=detail))
    return rows


def _cells_of(matrix: Matrix, chip_id: str) -> float:
    return sum(1 for other, _ in matrix.cells() if other == chip_id)


@dataclass(frozen=True, slots=True)
class _Table:
    """Scores as arrays, in the order of their errors."""

    errors: Array
    inside: Array
    weights: Array
    chips: NDArray[np.int64]

    @classmethod
    def of(cls, scores: Sequence[Score]) -> _Table:
        errors = np.array([score.error for score in scores])
        order = np.argsort(errors, kind="stable")
        chips = np.unique([score.cell[0] for score in scores], return_inverse=True)[1]
        inside = np.array([bool(score.inside) for score in scores], dtype=np.float64)
        weights = np.array([score.weight for score in scores])
        return cls(errors[order], inside[order], weights[order], chips[order])

    def resampled(self, draws: Draws) -> _Table:
        """The same scores as often as their chip is drawn."""
        count = int(self.chips.max()) + 1
        times = np.bincount(draws.integers(0, count, count), minlength=count)
        return _Table(self.errors, self.inside, self.weights * times[self.chips], self.chips)


def _figures(subject: str, part: str, scores: Sequence[Score], draws: Draws | None) -> list[Row]:
    table = _Table.of(scores)
    measures = dict(_MEASURES)
    if scores[0].inside is not None:
        measures["band_90_coverage_ratio"] = _coverage
    count = len({score.cell for score in scores})
    samples: list[list[float]] = []
    if draws is not None and table.chips.max() > 0:
        for _ in range(_RESAMPLINGS):
            # One at a time: all of a large table would be gigabytes.
            drawn = table.resampled(draws)
            samples.append([figure(drawn) for figure in measures.values()])
    rows = []
    for number, (measure, figure) in enumerate(measures.items()):
        low = high = None
        if samples:
            low, high = (float(bound) for bound in np.percentile([each[number] for each in samples], (2.5, 97.5)))
        rows.append(Row(subject, measure, figure(table), part, low, high, count, scores[0].baseline))
    return rows


def _mape(table: _Table) -> float:
    return float(np.average(table.errors, weights=table.weights))


def _within(table: _Table) -> float:
    return float(np.average(table.errors <= WITHIN, weights=table.weights))


def _coverage(table: _Table) -> float:
    return float(np.average(table.inside, weights=table.weights))


def _median(table: _Table) -> float:
    cumulated = np.cumsum(table.weights)
    half = cumulated[-1] / 2
    first = int(np.searchsorted(cumulated, half - 1e-9))
    later = int(np.searchsorted(cumulated, half + 1e-9))
    return float((table.errors[first] + table.errors[min(later, len(table.errors) - 1)]) / 2)


_MEASURES: Mapping[str, Callable[[_Table], float]] = {
    "mape_ratio": _mape,
    "median_error_ratio": _median,
    "within_10_percent_ratio": _within,
}
