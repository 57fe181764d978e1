"""Rows of a result for forecasts of recorded demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meridian.result import Row
from services.forecast.demand_scoring import (
    NEAR,
    SERVED,
    Scored,
    Sums,
    UnfitHorizonError,
    check_horizon,
    pooled,
    score_all,
    windows_ahead,
)
from services.forecast.demand_series import DemandTable
from services.forecast.past import Array

PERSISTENCE = "persistence"
_DRAWS = 500


def rows_of(table: DemandTable, horizons: Sequence[tuple[str, float]], draws: np.random.Generator) -> list[Row]:
    """Every figure of every method for all series and for each, at each of ``horizons`` (name, seconds).

    ``accuracy`` is 1 - WAPE, ``skill`` 1 - sum|error| / sum|error of persistence|; intervals of pooled figures are
    bootstrapped over series (95 %).
    """
    rows = [
        Row("series", "series_usable_count", float(len(table.series)), n=len(table.series)),
        Row("series", "series_unknown_count", float(len(table.unusable)), n=len(table.unusable)),
        Row("series", "lines_left_aside_count", float(table.left_aside.total), n=table.left_aside.total),
        Row("series", "cells_taken_for_empty_count", float(table.unread.total), n=table.unread.total),
    ]
    for label, horizon_s in horizons:
        unknown = dict(table.unusable)
        fit = []
        for one in table.series:
            try:
                check_horizon(one, horizon_s)
            except UnfitHorizonError as error:
                unknown[one.name] = str(error)
            else:
                fit.append(one)
        results = score_all(fit, horizon_s)
        scored = [each for each in results if len(each.value)]
        empty = (each.name for each in results if not len(each.value))
        unknown |= dict.fromkeys(empty, "nothing in its last fifth was both forecast and measured")
        ahead = [one.window_s * windows_ahead(horizon_s, one.window_s) for one in fit]
        if ahead:
            rows.append(Row("series", f"ahead_{label}_s", max(ahead), low=min(ahead), high=max(ahead), n=len(ahead)))
        rows += _horizon_rows(label, scored, draws)
        rows += [
            Row(SERVED, f"accuracy_{label}_ratio", None, f"series={name}", n=0, reason=f"unknown: {reason}")
            for name, reason in unknown.items()
        ]
    return rows


def unfit(table: DemandTable, horizons: Sequence[tuple[str, float]]) -> list[str]:
    """A sentence for each series and horizon at which it cannot be judged."""
    found = []
    for one in table.series:
        for label, horizon_s in horizons:
            try:
                check_horizon(one, horizon_s)
            except UnfitHorizonError as error:
                found.append(f"series {one.name} is not judged {label} ahead: {error}")
    return found


def further_ahead(table: DemandTable, horizons: Sequence[tuple[str, float]]) -> list[str]:
    """A sentence for each series and horizon that is not nearly a whole number of its windows."""
    found = []
    for one in table.series:
        for label, horizon_s in horizons:
            windows = windows_ahead(horizon_s, one.window_s)
            if windows * one.window_s > (1 + NEAR) * horizon_s >= (1 + NEAR) * one.window_s:
                found.append(
                    f"series {one.name}: {label} is forecast {windows * one.window_s:g} s ahead,"
                    f" {windows} windows of {one.window_s:g} s"
                )
    return found


def _horizon_rows(label: str, scored: Sequence[Scored], draws: np.random.Generator) -> list[Row]:
    if not scored:
        return [Row(SERVED, f"accuracy_{label}_ratio", None, n=0, reason="no series can be judged at this horizon")]
    methods = [SERVED, *sorted({name for each in scored for name in each.forecasts} - {SERVED})]
    missing = sum(each.missing for each in scored)
    rows = [Row("series", f"targets_without_forecast_{label}_count", float(missing), n=len(scored))]
    for method in methods:
        parts = [Sums.of(each, method) for each in scored if method in each.forecasts]
        rows += _figures(method, label, "all", parts, draws)
        rows += _medians(method, label, parts)
    for each in scored:
        for method in (SERVED, PERSISTENCE):
            rows += _figures(method, label, f"series={each.name}", [Sums.of(each, method)], None)
    return rows


_RATIOS: tuple[tuple[str, Callable[[Sums], float], Callable[[Sums], float], bool, str], ...] = (
    ("accuracy", lambda s: s.error, lambda s: s.volume, True, "demand was zero throughout"),
    ("skill_over_persistence", lambda s: s.error, lambda s: s.error_last, True, "persistence made no error"),
    ("wape_changed", lambda s: s.error_changed, lambda s: s.volume_changed, False, "no window changed by over 10 %"),
    (
        "wape_changed_to_persistence",
        lambda s: s.error_changed,
        lambda s: s.error_last_changed,
        False,
        "no window changed by over 10 %",
    ),
    ("changed_share", lambda s: float(s.changed), lambda s: float(s.targets), False, "no target"),
)
_BAND_RATIOS: tuple[tuple[str, Callable[[Sums], float], Callable[[Sums], float], bool, str], ...] = (
    ("pinball_to_volume", lambda s: s.pinball, lambda s: s.volume, False, "demand was zero throughout"),
    ("coverage_80", lambda s: float(s.inside), lambda s: float(s.banded), False, "no band"),
)


def _figures(
    method: str, label: str, where: str, parts: Sequence[Sums], draws: np.random.Generator | None
) -> list[Row]:
    banded = method in (SERVED, PERSISTENCE)
    rows = []
    for name, top, bottom, rest, reason in (*_RATIOS, *(_BAND_RATIOS if banded else ())):
        tops, bottoms = np.array([top(part) for part in parts]), np.array([bottom(part) for part in parts])
        value = _ratio(tops.sum(), bottoms.sum(), rest)
        low = high = None
        if draws is not None and len(parts) > 1 and value is not None:
            low, high = _interval(tops, bottoms, rest, draws)
        rows.append(
            Row(
                method,
                f"{name}_{label}_ratio",
                value,
                where,
                low,
                high,
                n=pooled(parts).targets,
                baseline=method != SERVED,
                reason=None if value is not None else reason if pooled(parts).targets else "no target",
            )
        )
    return rows


def _ratio(top: float, bottom: float, rest: bool) -> float | None:
    if bottom <= 0:
        return None
    return float(1 - top / bottom if rest else top / bottom)


def _interval(tops: Array, bottoms: Array, rest: bool, draws: np.random.Generator) -> tuple[float | None, float | None]:
    picked = draws.integers(0, len(tops), (_DRAWS, len(tops)))
    over = bottoms[picked].sum(axis=1)
    values = tops[picked].sum(axis=1)[over > 0] / over[over > 0]
    values = 1 - values if rest else values
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _medians(method: str, label: str, parts: Sequence[Sums]) -> list[Row]:
    rows = []
    for name, wholes, reason in (
        ("accuracy", [part.volume for part in parts], "demand was zero throughout"),
        ("skill_over_persistence", [part.error_last for part in parts], "persistence made no error in any series"),
    ):
        values = [1 - part.error / whole for part, whole in zip(parts, wholes, strict=True) if whole > 0]
        middle = float(np.median(values)) if values else None
        rows.append(
            Row(
                method,
                f"{name}_median_series_{label}_ratio",
                middle,
                low=min(values, default=None),
                high=max(values, default=None),
                n=len(values),
                baseline=method != SERVED,
                reason=None if values else reason if pooled(parts).targets else "no target",
            )
        )
    return rows
