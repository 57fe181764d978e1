"""Forecasting methods. Each advances over all series at once, window by window, and keeps only what it needs to go on.

A `Method` is the description; `Method.start` gives a `Forecaster` that holds the state of all series. After each window
it gives a forecast [horizon, series] for each of its horizons, made from nothing after that window; NaN where the history
is too short. Forecasting thus costs the same after the tenth window and after the ten thousandth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.forecast.past import Array, Past, Rows, rearranged


class Forecaster(Protocol):
    """A method at work."""

    def advance(self, past: Past) -> Array:
        """Forecasts [horizon, series] after the newest window of ``past``, which is taken into account once."""
        ...

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``; -1 is new."""
        ...


class Method(Protocol):
    """A way to forecast."""

    @property
    def name(self) -> str:
        """How it is called in forecasts."""
        ...

    @property
    def reach(self) -> int:
        """Windows before the horizon that it looks back on at most."""
        ...

    def start(self, horizons: tuple[int, ...], series: int) -> Forecaster:
        """Begin with series that have no history; ``horizons`` in windows."""
        ...


def forecast_history(method: Method, values: Array, horizon: int) -> Array:
    """Forecasts of all origins of ``values`` [series, time]: column t is the forecast, made at t, of time t + horizon."""
    past = Past(method.reach + horizon + 2, len(values))
    forecaster = method.start((horizon,), len(values))
    result = np.full_like(values, np.nan)
    for t in range(values.shape[1]):
        past.append(values[:, t])
        result[:, t] = forecaster.advance(past)[0]
    return result


@dataclass(frozen=True, slots=True)
class Persistence:
    """The last value stays: the baseline that every other method must beat."""

    name: str = "persistence"
    reach: int = 0

    def start(self, horizons: tuple[int, ...], series: int) -> Forecaster:
        """Nothing is kept."""
        del series
        return _Persisting(len(horizons))


class _Persisting:
    def __init__(self, horizons: int) -> None:
        self._horizons = horizons

    def advance(self, past: Past) -> Array:
        return np.broadcast_to(past.back(0), (self._horizons, past.series))

    def rearrange(self, rows: Rows) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SeasonalNaive:
    """The value of the same place in the newest season that is complete at the origin."""

    period: int
    name: str

    @property
    def reach(self) -> int:
        """One season."""
        return self.period

    def start(self, horizons: tuple[int, ...], series: int) -> Forecaster:
        """The value ``period`` x ceil(horizon / period) before the target."""
        del series
        return _Seasonal(tuple(self.period * -(-horizon // self.period) - horizon for horizon in horizons))


class _Seasonal:
    def __init__(self, ages: tuple[int, ...]) -> None:
        self._ages = ages

    def advance(self, past: Past) -> Array:
        return np.stack([past.back(age) for age in self._ages])

    def rearrange(self, rows: Rows) -> None:
        pass


@dataclass(frozen=True, slots=True)
class DampedTrend:
    """Exponential smoothing with a damped trend (Gardner & McKenzie, Management Science 31(10), 1985).

    level_t = a y_t + (1 - a)(level + phi trend); trend_t = b (level_t - level) + (1 - b) phi trend;
    forecast = level + (phi + ... + phi^h) trend, never below zero. With ``beta`` 0 it is simple exponential smoothing.
    """

    alpha: float
    beta: float
    phi: float
    name: str
    reach: int = 0

    def start(self, horizons: tuple[int, ...], series: int) -> Forecaster:
        """Level unknown, no trend."""
        return _Smoothing(self, horizons, series)


class _Smoothing:
    def __init__(self, method: DampedTrend, horizons: tuple[int, ...], series: int) -> None:
        self._alpha, self._beta, self._phi = method.alpha, method.beta, method.phi
        self._reach = np.array([[np.sum(method.phi ** np.arange(1, horizon + 1))] for horizon in horizons])
        self._level: Array = np.full(series, np.nan)
        self._trend: Array = np.zeros(series)

    def advance(self, past: Past) -> Array:
        value = past.back(0)
        carried = self._level + self._phi * self._trend if self._beta else self._level
        new = carried + self._alpha * (value - carried)
        # NaN where a series begins, or after a gap.
        going = ~np.isnan(new)
        if not going.all():
            new = np.where(going, new, value)
        if self._beta:
            trend = self._beta * (new - self._level) + (1 - self._beta) * self._phi * self._trend
            self._trend = trend if going.all() else np.where(going, trend, 0.0)
        self._level = new
        return np.maximum(new + self._reach * self._trend, 0.0)

    def rearrange(self, rows: Rows) -> None:
        self._level = rearranged(self._level, rows, np.nan)
        self._trend = rearranged(self._trend, rows, 0.0)


@dataclass(frozen=True, slots=True)
class RollingMedian:
    """The median of the last ``windows``, taken anew every ``refit``: what demand that comes and goes mostly is, often nothing.

    Of all constants it has the least absolute error; of demand that moves all the time it knows less than the last value
    does. It says nothing where less than half of its windows are known, or less than half of those are just the median.
    """

    windows: int = 144
    name: str = "median"
    refit: int = 6

    @property
    def reach(self) -> int:
        """All but the newest of its windows."""
        return self.windows - 1

    def start(self, horizons: tuple[int, ...], series: int) -> Forecaster:
        """No median yet."""
        return _Median(self, len(horizons), series)


class _Median:
    def __init__(self, method: RollingMedian, horizons: int, series: int) -> None:
        self._method, self._horizons = method, horizons
        self._median: Array = np.full(series, np.nan)
        self._to_go = 0

    def advance(self, past: Past) -> Array:
        if self._to_go == 0:
            self._median, self._to_go = self._of(past), self._method.refit
        self._to_go -= 1
        return np.broadcast_to(self._median, (self._horizons, past.series))

    def _of(self, past: Past) -> Array:
        windows = self._method.windows
        # NaN sorts behind all numbers.
        values = np.sort(past.run(windows - 1, 0), axis=0)
        known = np.count_nonzero(~np.isnan(values), axis=0)
        last, series = np.maximum(known - 1, 0), np.arange(past.series)
        middle = (values[last // 2, series] + values[(last + 1) // 2, series]) / 2
        usual = 2 * np.count_nonzero(values == middle, axis=0) >= known
        return np.where(usual & (2 * known >= windows), middle, np.nan)

    def rearrange(self, rows: Rows) -> None:
        self._median = rearranged(self._median, rows, np.nan)
