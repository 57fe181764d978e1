"""Rows of a result for the phases of a file of curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meridian.result import Row
from services.forecast.phases.curve import Array, Curve
from services.forecast.phases.scoring import (
    RunScore,
    accuracy,
    detect,
    fixed_fractions,
    macro_f1,
    majority,
    score,
    served,
    where_told,
)
from services.forecast.phases.table import Curves
from services.forecast.phases.truth import SHARE_OF_PEAK, Boundaries, UnknownPhasesError, boundaries

SENSITIVITY = (0.05, 0.10, 0.20)
# Draws of noise with which the truth is found again.
_DRAWS = 5
AWARE, ALONE, SERVED = "schedule_aware", "telemetry_only", "as_served"
MAJORITY, FIXED = "majority_class", "fixed_fraction"


@dataclass(frozen=True, slots=True)
class Judged:
    """Runs whose phases are known, and those whose phases are not, with the reason."""

    curves: list[Curve]
    truths: list[Boundaries]
    unknown: dict[str, str]


def judge(found: Curves) -> Judged:
    """Apply the rule of ``truth`` to every curve."""
    curves, truths, unknown = [], [], dict(found.unusable)
    for curve in found.curves:
        try:
            truths.append(boundaries(curve))
        except UnknownPhasesError as error:
            unknown[curve.run] = str(error)
        else:
            curves.append(curve)
    return Judged(curves, truths, unknown)


def rows_of(found: Curves, judged: Judged, chance: np.random.Generator) -> list[Row]:
    """Every figure, for all runs, each family and each run; ``chance`` draws noise with which the truth is found again."""
    rows = [
        Row("curves", "runs_scored_count", float(len(judged.curves)), n=len(judged.curves)),
        Row("curves", "runs_unknown_count", float(len(judged.unknown)), n=len(judged.unknown)),
        Row("curves", "lines_left_aside_count", float(found.left_aside.total), n=found.left_aside.total),
        Row("curves", "cells_taken_for_empty_count", float(found.unread.total), n=found.unread.total),
    ]
    told = {
        AWARE: [detect(curve, schedule_known=True)[0] for curve in judged.curves],
        ALONE: [detect(curve, schedule_known=False)[0] for curve in judged.curves],
        FIXED: [fixed_fractions(curve) for curve in judged.curves],
    }
    as_served = [served(curve) for curve in judged.curves]
    other = _other_shares(judged, told[AWARE])
    again = [[noisier(curve, chance) for _ in range(_DRAWS)] for curve in judged.curves]
    families = sorted({curve.family for curve in judged.curves})
    slices: list[tuple[str, list[int]]] = [("all", list(range(len(judged.curves))))]
    slices += [
        (f"family={family}", [i for i, curve in enumerate(judged.curves) if curve.family == family])
        for family in families
    ]
    slices += [(f"run={curve.run}", [i]) for i, curve in enumerate(judged.curves)]
    for name, members in slices:
        if members:
            rows += _slice_rows(name, members, judged, told, as_served, other)
            if not name.startswith("run="):
                picked = [(judged.curves[i], judged.truths[i], again[i]) for i in members]
                rows += [replace(row, slice=name) for row in _noise_rows(picked)]
    for run, reason in judged.unknown.items():
        rows += [Row(AWARE, "accuracy_within_2pct_ratio", None, f"run={run}", n=0, reason=f"unknown: {reason}")]
    return rows


def _served_rows(curves: Sequence[Curve], truths: Sequence[Boundaries], told: Sequence[Array]) -> list[Row]:
    """What the service tells, which says nothing where the reports do not carry a phase; each run weighs the same."""
    size = len(curves)
    tables = [where_told(*each) for each in zip(curves, truths, told, strict=True)]
    known = [table for table in tables if table is not None]
    share = float(np.mean([np.mean(~np.isnan(each)) for each in told]))
    rows = [Row(SERVED, "told_ratio", share, n=size)]
    for measure, figure in (("accuracy_where_told_ratio", accuracy), ("macro_f1_where_told_ratio", macro_f1)):
        value = figure(known) if known else None
        rows.append(Row(SERVED, measure, value, n=len(known), reason=None if known else "nothing is told"))
    return rows


def _slice_rows(
    name: str,
    members: list[int],
    judged: Judged,
    told: dict[str, list[Array]],
    as_served: list[Array],
    other: dict[float, list[tuple[Boundaries, Array]]],
) -> list[Row]:
    curves, truths = [judged.curves[i] for i in members], [judged.truths[i] for i in members]
    most = majority(curves, truths)
    tellers = {subject: [answers[i] for i in members] for subject, answers in told.items()}
    tellers[MAJORITY] = [np.full(len(curve.step), float(most)) for curve in curves]
    rows: list[Row] = []
    for subject, answers in tellers.items():
        scores = [score(*each) for each in zip(curves, truths, answers, strict=True)]
        baseline = subject in {MAJORITY, FIXED}
        rows += [replace(row, slice=name, baseline=baseline) for row in _figures(subject, scores)]
    rows += [replace(row, slice=name) for row in _served_rows(curves, truths, [as_served[i] for i in members])]
    if not name.startswith("run="):
        picked = {share: [found[i] for i in members] for share, found in other.items()}
        rows += [replace(row, slice=name) for row in _truth_rows(curves, truths, picked)]
    else:
        rows += [replace(row, slice=name) for row in _boundary_rows(curves[0], truths[0])]
    return rows


def _figures(subject: str, scores: Sequence[RunScore]) -> list[Row]:
    size = len(scores)
    tolerant, exact = [each.tolerant for each in scores], [each.exact for each in scores]
    per_run = sorted(float(np.trace(table)) for table in tolerant)
    rows = [
        Row(subject, "accuracy_within_2pct_ratio", accuracy(tolerant), low=per_run[0], high=per_run[-1], n=size),
        Row(subject, "accuracy_exact_ratio", accuracy(exact), n=size),
        Row(subject, "macro_f1_within_2pct_ratio", macro_f1(tolerant), n=size),
        Row(subject, "macro_f1_exact_ratio", macro_f1(exact), n=size),
        Row(subject, "boundaries_missed_count", float(sum(each.missed for each in scores)), n=size),
        Row(subject, "stable_false_count", float(sum(each.false for each in scores)), n=size),
        Row(subject, "stable_taken_back_count", float(sum(each.taken_back for each in scores)), n=size),
    ]
    for boundary in ("warm_up_end", "stable_onset"):
        delays = [each.delays[boundary] for each in scores if boundary in each.delays]
        measure = f"{boundary}_delay_median_share_of_run_ratio"
        if delays:
            low, high = min(delays), max(delays)
            rows.append(Row(subject, measure, float(np.median(delays)), low=low, high=high, n=len(delays)))
        else:
            rows.append(Row(subject, measure, None, n=0, reason="no run in which both are"))
    return rows


def _other_shares(judged: Judged, aware: Sequence[Array]) -> dict[float, list[tuple[Boundaries, Array]]]:
    """The truth of each run at other shares of the peak, and the table (see `RunScore`, with tolerance) of what is told at them."""
    found: dict[float, list[tuple[Boundaries, Array]]] = {}
    for share in SENSITIVITY:
        found[share] = []
        for curve, known in zip(judged.curves, aware, strict=True):
            told = known if share == SHARE_OF_PEAK else detect(curve, schedule_known=True, share_of_peak=share)[0]
            truth = boundaries(curve, share)
            found[share].append((truth, score(curve, truth, told).tolerant))
    return found


def _truth_rows(
    curves: Sequence[Curve], truths: Sequence[Boundaries], other: dict[float, list[tuple[Boundaries, Array]]]
) -> list[Row]:
    """How firm the truth is: told from every other sample, and with other shares of the peak."""
    rows = [_agreement("truth_from_half_the_samples", curves, truths, lambda curve: boundaries(_halved(curve)))]
    for share, found in other.items():
        never = float(np.mean([not np.isfinite(truth.stable_from) for truth, _ in found]))
        rows.append(Row(f"truth_at_{round(share * 100)}pct_of_peak", "never_stable_ratio", never, n=len(found)))
        subject = f"{AWARE}_at_{round(share * 100)}pct_of_peak"
        tables = [table for _, table in found]
        rows.append(Row(subject, "accuracy_within_2pct_ratio", accuracy(tables), n=len(tables)))
    return rows


def noisier(curve: Curve, chance: np.random.Generator) -> Curve:
    """``curve`` with as much noise again as it has: normal, of the size of the scatter of neighbouring samples."""
    jumps = np.diff(curve.loss)
    size = 1.4826 * float(np.median(np.abs(jumps - np.median(jumps)))) / np.sqrt(2)
    return replace(curve, loss=curve.loss + chance.normal(0.0, size, len(curve.loss)))


def _noise_rows(runs: Sequence[tuple[Curve, Boundaries, list[Curve]]]) -> list[Row]:
    """How much of the truth is noise: the same rule on the same runs with as much noise again (`noisier`)."""
    tables = []
    for curve, truth, again in runs:
        for other in again:
            try:
                tables.append(score(curve, truth, boundaries(other).phase_at(curve.step)).tolerant)
            except UnknownPhasesError:
                continue
    subject, size = "truth_with_noise_again", len(tables)
    if not tables:
        return [Row(subject, "accuracy_within_2pct_ratio", None, n=0, reason="the noise hides the fall of the loss")]
    return [
        Row(subject, "accuracy_within_2pct_ratio", accuracy(tables), n=size),
        Row(subject, "macro_f1_within_2pct_ratio", macro_f1(tables), n=size),
    ]


def _halved(curve: Curve) -> Curve:
    every = slice(None, None, 2)
    lr, gbs = (None if column is None else column[every] for column in (curve.lr, curve.gbs))
    return replace(curve, step=curve.step[every], loss=curve.loss[every], lr=lr, gbs=gbs)


def _agreement(
    subject: str, curves: Sequence[Curve], truths: Sequence[Boundaries], other: Callable[[Curve], Boundaries]
) -> Row:
    tables = []
    for curve, truth in zip(curves, truths, strict=True):
        try:
            tables.append(score(curve, truth, other(curve).phase_at(curve.step)).tolerant)
        except UnknownPhasesError:
            continue
    if not tables:
        return Row(subject, "accuracy_within_2pct_ratio", None, n=0, reason="half the samples are too few")
    return Row(subject, "accuracy_within_2pct_ratio", accuracy(tables), n=len(tables))


def _boundary_rows(curve: Curve, truth: Boundaries) -> list[Row]:
    stable = truth.stable_from
    return [
        Row("truth", "warm_up_until_step_count", truth.warm_up_until),
        Row(
            "truth",
            "stable_from_step_count",
            stable if np.isfinite(stable) else None,
            reason=None if np.isfinite(stable) else "never stable by the rule",
        ),
        Row("truth", "length_step_count", curve.length),
    ]
