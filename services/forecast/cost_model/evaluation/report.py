"""The rows of a result: every measure of the cost model, pooled and per group, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meridian.result import Row
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.evaluation.runs import Run
from services.forecast.cost_model.evaluation.scores import (
    Draw,
    TimeScore,
    by_group,
    calibrated_as_advised,
    calibrated_draws,
    cold_spreads,
    constant_mfu,
    layout_regrets,
    memory_score,
    predicted_steps,
    ran_and_fits,
    time_score,
    within_band,
)
from services.forecast.cost_model.evaluation.table import Rejected

COLD, CALIBRATED, CALCULON = "cost_model", "cost_model_calibrated", "calculon"
CONSTANT, CONSTANT_CALIBRATED = "constant_mfu_of_test_rows", "constant_mfu_of_calibrating_rows"
# After the runs that `--measure` names, of all of a group.
ADVISED, CONSTANT_ADVISED = "cost_model_calibrated_as_advised", "constant_mfu_of_advised_rows"
_TIME_MEASURES = (
    ("step_time_mape_ratio", "mape"),
    ("step_time_bias_ratio", "bias"),
    ("step_time_within_8_percent_share", "within_8"),
    ("step_time_within_10_percent_share", "within_10"),
)
NO_CALCULON = (
    "not run: the distribution named calculon on PyPI is another program (producers and consumers); "
    "calculon-ai/calculon is not published there"
)


def rows_of(
    runs: Sequence[Run],
    rejected: Sequence[Rejected],
    efficiency: Efficiency,
    probes: int,
    draws: np.random.Generator,
) -> list[Row]:
    """All rows. ``probes`` runs of each group calibrate; the calibrated score is of the others, over several drawings of the runs that
    can be measured, and where all of them can be (as advised)."""
    timed = [run for run in runs if run.step_s is not None]
    rows = [
        Row("input", "rows_used_count", float(len(runs)), n=len(runs) + len(rejected)),
        Row("input", "rows_rejected_count", float(len(rejected)), n=len(runs) + len(rejected)),
        Row("input", "rows_without_step_time_count", float(len(runs) - len(timed)), n=len(runs)),
        Row("input", "rows_with_derived_fields_count", float(sum(bool(run.derived) for run in runs)), n=len(runs)),
    ]
    slices = {"all": list(range(len(timed))), **{f"group={g}": p for g, p in by_group(timed).items()}}
    cold = np.asarray(predicted_steps(timed, efficiency))
    spreads = cold_spreads(timed, efficiency)
    constant = np.asarray(constant_mfu(timed))
    after = calibrated_draws(timed, efficiency, probes, draws) if probes else []
    advised = calibrated_as_advised(timed, efficiency, probes) if probes else None
    for name, members in slices.items():
        rows += _time_rows(COLD, name, timed, members, cold, baseline=False)
        rows += _cold_band(name, timed, members, cold, spreads)
        if probes:
            rows += _calibrated_band(name, timed, members, after)
            rows += _calibrated_rows(CALIBRATED, name, timed, members, [draw.predicted_s for draw in after], probes)
            rows += _calibrated_rows(
                CONSTANT_CALIBRATED, name, timed, members, [draw.constant_s for draw in after], probes
            )
        if advised is not None:
            rows += _calibrated_rows(ADVISED, name, timed, members, [advised.predicted_s], probes)
            rows += _calibrated_rows(CONSTANT_ADVISED, name, timed, members, [advised.constant_s], probes)
        rows += _time_rows(CONSTANT, name, timed, members, constant, baseline=True)
        rows.append(Row(CALCULON, "step_time_mape_ratio", None, name, n=0, baseline=True, reason=NO_CALCULON))
        chosen = [timed[p] for p in members]
        rows += _regret_rows(COLD, name, chosen, cold[members], baseline=False)
        rows += _regret_rows(CONSTANT, name, chosen, constant[members], baseline=True)
    for name in ("all", *(f"group={group}" for group in by_group(runs))):
        rows += _memory_rows(name, [run for run in runs if name in ("all", f"group={run.group}")])
    return rows


def _time_rows(
    subject: str, name: str, runs: Sequence[Run], members: list[int], predicted: np.ndarray, *, baseline: bool
) -> list[Row]:
    if not members:
        return [
            Row(subject, measure, None, name, n=0, baseline=baseline, reason=_NO_TIMES) for measure, _ in _TIME_MEASURES
        ]
    score = time_score(predicted[members], [runs[p].step_s or np.nan for p in members])
    return [
        Row(subject, measure, getattr(score, field), name, n=score.count, baseline=baseline)
        for measure, field in _TIME_MEASURES
    ]


_NO_TIMES = "no row states a step time"
_BAND = "step_time_within_two_standard_deviations_share"


def _cold_band(
    name: str, runs: Sequence[Run], members: list[int], predicted: np.ndarray, spreads: np.ndarray
) -> list[Row]:
    if not members:
        return [Row(COLD, _BAND, None, name, n=0, reason=_NO_TIMES)]
    measured = np.array([runs[p].step_s or np.nan for p in members])
    return [Row(COLD, _BAND, within_band(predicted[members], measured, spreads[members]), name, n=len(members))]


def _calibrated_band(name: str, runs: Sequence[Run], members: list[int], draws: Sequence[Draw]) -> list[Row]:
    shares, count = [], 0
    for draw in draws:
        held = [p for p in members if not np.isnan(draw.predicted_s[p])]
        if held:
            measured = np.array([runs[p].step_s or np.nan for p in held])
            shares.append(within_band(draw.predicted_s[held], measured, draw.spread[held]))
            count = len(held)
    if not shares:
        return [Row(CALIBRATED, _BAND, None, name, n=0, reason="no group has more rows than calibrate it")]
    return [Row(CALIBRATED, _BAND, float(np.mean(shares)), name, min(shares), max(shares), n=count)]


def _calibrated_rows(
    subject: str, name: str, runs: Sequence[Run], members: list[int], draws: list[np.ndarray], probes: int
) -> list[Row]:
    scores: list[TimeScore] = []
    baseline = subject in {CONSTANT_CALIBRATED, CONSTANT_ADVISED}
    for predicted in draws:
        held = [p for p in members if not np.isnan(predicted[p])]
        if held:
            scores.append(time_score(predicted[held], [runs[p].step_s or np.nan for p in held]))
    if not scores:
        reason = f"no group has more than {probes} rows with a step time"
        return [
            Row(subject, measure, None, name, n=0, baseline=baseline, reason=reason) for measure, _ in _TIME_MEASURES
        ]
    rows = []
    for measure, field in _TIME_MEASURES:
        values = [getattr(score, field) for score in scores]
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        rows.append(
            Row(
                subject,
                measure,
                float(np.mean(values)),
                name,
                low,
                high,
                n=scores[0].count,
                baseline=baseline,
            )
        )
    return rows


def _regret_rows(subject: str, name: str, runs: Sequence[Run], predicted: np.ndarray, *, baseline: bool) -> list[Row]:
    regrets = layout_regrets(runs, predicted.tolist())
    measures = ("layout_regret_mean_ratio", "layout_regret_max_ratio", "layout_regret_within_5_percent_share")
    if not regrets:
        reason = "no two layouts of one model, batch and number of accelerators"
        return [Row(subject, measure, None, name, n=0, baseline=baseline, reason=reason) for measure in measures]
    values = (float(np.mean(regrets)), max(regrets), float(np.mean(np.asarray(regrets) <= 0.05)))
    return [
        Row(subject, measure, value, name, n=len(regrets), baseline=baseline)
        for measure, value in zip(measures, values, strict=True)
    ]


def _memory_rows(name: str, runs: Sequence[Run]) -> list[Row]:
    ran = ran_and_fits(runs)
    share = sum(ran) / len(ran) if ran else None
    reason = None if ran else "no row states step_s or mem_gib"
    recalled = Row(COLD, "memory_ran_said_to_fit_share", share, name, n=len(ran), reason=reason)
    return [*_stated_memory_rows(name, runs), recalled]


def _stated_memory_rows(name: str, runs: Sequence[Run]) -> list[Row]:
    score = memory_score(runs)
    measures = (
        "memory_mape_ratio",
        "memory_bias_ratio",
        "memory_verdict_precision_share",
        "memory_fits_precision_share",
    )
    if score is None:
        return [Row(COLD, measure, None, name, n=0, reason="no row states mem_gib") for measure in measures]
    values = (score.mape, score.bias, score.precision, score.precision_fits)
    counts = (score.count, score.count, score.verdicts, score.said_fits)
    return [
        Row(COLD, measure, value, name, n=count, reason=None if value is not None else "no row of that kind")
        for measure, value, count in zip(measures, values, counts, strict=True)
    ]
