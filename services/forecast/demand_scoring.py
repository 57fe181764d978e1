"""Forecasts of recorded demand at every origin of the last fifth of each series, and how good they were.

Every forecast, choice of method and band is made from what was known at its origin (rolling origin); nothing is fitted to
the last fifth beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.backtest import Backtest, standard_methods
from services.forecast.conformal import band
from services.forecast.demand_series import Series, carried_forward
from services.forecast.past import Array
from services.forecast.rolling import Policy

SERVED = "served"
TEST_SHARE = 0.2
CHANGED = 0.10
_ROUNDING = 1e-12
# As the service is set by default.
SEASONS_S = (3600.0, 86_400.0, 604_800.0)
# A last value older than this many windows (or the horizon) is no origin to forecast from.
_OLDEST = 6
# Series handled together, and windows of all of them, to bound memory: methods x series x time.
_TOGETHER = 32
_WINDOWS_TOGETHER = 2_000_000
# A horizon is the nearest number of windows where that is so near to it.
NEAR = 0.05


class UnfitHorizonError(ValueError):
    """The series is sampled more coarsely than the horizon, or is no longer than it."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One series at one horizon: all [target] of its last fifth where something was measured and forecast.

    ``origin`` is the last value known; ``forecasts`` by method, ``served`` among them; ``low`` and ``high`` bound the 80 %
    band of what serves and ``low_last`` and ``high_last`` that of persistence, NaN where there is none. ``missing``
    targets were measured but had no forecast. ``largest`` is the largest value of the whole series.
    """

    name: str
    value: Array
    origin: Array
    forecasts: dict[str, Array]
    low: Array
    high: Array
    low_last: Array
    high_last: Array
    missing: int
    largest: float


def check_horizon(series: Series, horizon_s: float) -> None:
    """Raise UnfitHorizonError where the windows of ``series`` are longer than ``horizon_s``, or all of them are not."""
    if horizon_s < series.window_s * 0.999:
        raise UnfitHorizonError(f"a value every {series.window_s:g} s says nothing about {horizon_s:g} s ahead")
    if windows_ahead(horizon_s, series.window_s) >= len(series.values):
        raise UnfitHorizonError(
            f"{len(series.values)} windows of {series.window_s:g} s are no longer than {horizon_s:.7g} s"
        )


def windows_ahead(horizon_s: float, window_s: float) -> int:
    """Windows that ``horizon_s`` is: the nearest number where it is within 5 %, else the next, so that nothing is forecast from
    nearer than was asked for."""
    exact = horizon_s / window_s
    nearest = round(exact)
    return max(1, nearest if abs(nearest - exact) <= NEAR * exact else math.ceil(exact))


def score_all(series: Sequence[Series], horizon_s: float, policy: Policy | None = None) -> list[Scored]:
    """Forecast each of ``series`` ``horizon_s`` seconds ahead (`windows_ahead`), in their order; UnfitHorizonError where one is
    too coarse or too short.

    Series of the same window and seasons are handled together, those of about one length: time is looped over, series are not.
    """
    alike: dict[tuple[float, tuple[str, ...]], list[int]] = {}
    for place, one in enumerate(series):
        check_horizon(one, horizon_s)
        methods = standard_methods(one.window_s, SEASONS_S, len(one.values))
        alike.setdefault((one.window_s, tuple(method.name for method in methods)), []).append(place)
    result: dict[int, Scored] = {}
    for places in alike.values():
        places.sort(key=lambda place: -len(series[place].values))
        while places:
            together = max(1, min(_TOGETHER, _WINDOWS_TOGETHER // len(series[places[0]].values)))
            part, places[:together] = places[:together], []
            result.update(zip(part, _score_alike([series[i] for i in part], horizon_s, policy), strict=True))
    return [result[place] for place in range(len(series))]


def _stacked(rows: Sequence[Array]) -> Array:
    """``rows`` of which the first is the longest, [row, window]: NaN behind the end of the others."""
    stacked = np.full((len(rows), len(rows[0])), np.nan)
    for place, row in enumerate(rows):
        stacked[place, : len(row)] = row
    return stacked


def _score_alike(series: Sequence[Series], horizon_s: float, policy: Policy | None) -> list[Scored]:
    """As `score_all`; the first is the longest. What is behind the end of a series changes nothing before it."""
    window_s = series[0].window_s
    horizon = windows_ahead(horizon_s, window_s)
    values = _stacked([one.values for one in series])
    times = values.shape[1]
    most = max(horizon, _OLDEST)
    methods = standard_methods(window_s, SEASONS_S, len(series[-1].values))
    test = Backtest.of(values, horizon, methods, policy or Policy(), inputs=carried_forward(values, most))
    ceiling = _stacked([_ceiling(one) for one in series])
    by_method = {method.name: test.made[index] for index, method in enumerate(methods)}
    by_method[SERVED] = test.served
    # What is known of the capacity at the origin bounds the forecast made there.
    made = {name: _by_target(np.minimum(forecast, ceiling), horizon) for name, forecast in by_method.items()}
    low, high = (_by_target(np.minimum(bound, ceiling), horizon) for bound in (test.low, test.high))
    low_last, high_last = band(made["persistence"], values - made["persistence"], horizon)
    lengths = np.array([len(one.values) for one in series])
    tested = np.maximum(1, np.round(lengths * TEST_SHARE))
    measured = (np.arange(times) >= (lengths - tested)[:, None]) & ~np.isnan(values)
    both = measured & np.isfinite(made[SERVED]) & np.isfinite(made["persistence"])
    return [
        Scored(
            one.name,
            values[row, both[row]],
            made["persistence"][row, both[row]],
            {name: forecast[row, both[row]] for name, forecast in made.items()},
            low[row, both[row]],
            high[row, both[row]],
            low_last[row, both[row]],
            high_last[row, both[row]],
            int(measured[row].sum() - both[row].sum()),
            float(np.nanmax(values[row])),
        )
        for row, one in enumerate(series)
    ]


def _by_target(made: Array, horizon: int) -> Array:
    moved = np.full_like(made, np.nan)
    if made.shape[1] > horizon:
        moved[:, horizon:] = made[:, :-horizon]
    return moved


def _ceiling(series: Series) -> Array:
    """The capacity known at each window, [window]; infinite before one is known and once demand went beyond it."""
    if series.capacity is None:
        return np.full(len(series.values), np.inf)
    known = carried_forward(series.capacity[None], len(series.values))[0]
    beyond = np.maximum.accumulate(np.nan_to_num(series.values) > np.nan_to_num(known, nan=np.inf))
    return np.where(np.isnan(known) | beyond, np.inf, known)


@dataclass(frozen=True, slots=True)
class Sums:
    """What the figures of one method are made of; sums over series are pooled figures."""

    error: float
    error_last: float
    volume: float
    error_changed: float
    error_last_changed: float
    volume_changed: float
    pinball: float
    inside: int
    banded: int
    targets: int
    changed: int

    @classmethod
    def of(cls, scored: Scored, method: str) -> Sums:
        """Over the targets for which ``method`` has a forecast."""
        made = scored.forecasts[method]
        known = np.isfinite(made)
        value, error = scored.value[known], np.abs(scored.value - made)[known]
        last = np.abs(scored.value - scored.origin)[known]
        changed = last > CHANGED * np.abs(scored.origin[known]) + _rounding(scored)
        pinball, inside, banded = _band_sums(scored, method)
        return cls(
            float(error.sum()),
            float(last.sum()),
            float(value.sum()),
            float(error[changed].sum()),
            float(last[changed].sum()),
            float(value[changed].sum()),
            pinball,
            inside,
            banded,
            len(value),
            int(changed.sum()),
        )


def _rounding(scored: Scored) -> float:
    """What sums of the series' values may be off by; demand has no unit of its own."""
    return _ROUNDING * scored.largest


def _band_sums(scored: Scored, method: str) -> tuple[float, int, int]:
    if method == SERVED:
        low, high = scored.low, scored.high
    elif method == "persistence":
        low, high = scored.low_last, scored.high_last
    else:
        return 0.0, 0, 0
    known: NDArray[np.bool_] = np.isfinite(low) & np.isfinite(high)
    value, low, high = scored.value[known], low[known], high[known]
    # Demand is counted: a bound that is hit exactly is inside.
    near = _rounding(scored)
    inside = int(np.sum((value >= low - near) & (value <= high + near)))
    losses = [
        np.maximum(level * (value - bound), (level - 1) * (value - bound))
        for level, bound in ((0.1, low), (0.5, scored.forecasts[method][known]), (0.9, high))
    ]
    return float(np.mean(losses, axis=0).sum()), inside, int(known.sum())


def pooled(parts: Sequence[Sums]) -> Sums:
    """The sums over all of ``parts``."""
    names = Sums.__slots__
    return Sums(**{name: sum(getattr(part, name) for part in parts) for name in names})
