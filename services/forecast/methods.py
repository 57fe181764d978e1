"""Forecasting methods, each over all series and all origins at once.

A method takes ``values`` [series, time] (NaN before a series begins) and a horizon in windows, and returns an array of
the same shape whose column t is the forecast, made at t from nothing after t, of time t + horizon; NaN where the history
is too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.forecast.autoregression import Autoregression
from services.forecast.settling import Settling

Array = NDArray[np.float64]


class Method(Protocol):
    """A way to forecast."""

    @property
    def name(self) -> str:
        """How it is called in forecasts."""
        ...

    def forecast(self, values: Array, horizon: int) -> Array:
        """Forecasts of all origins; see the module's text."""
        ...


@dataclass(frozen=True, slots=True)
class Persistence:
    """The last value stays: the baseline that every other method must beat."""

    name: str = "persistence"

    def forecast(self, values: Array, horizon: int) -> Array:
        """The value at the origin."""
        del horizon
        return values


@dataclass(frozen=True, slots=True)
class SeasonalNaive:
    """The value of the same place in the newest season that is complete at the origin."""

    period: int
    name: str

    def forecast(self, values: Array, horizon: int) -> Array:
        """The value ``period`` x ceil(horizon / period) before the target."""
        back = self.period * -(-horizon // self.period) - horizon
        result = np.full_like(values, np.nan)
        if back < values.shape[1]:
            result[:, back:] = values[:, : values.shape[1] - back]
        return result


@dataclass(frozen=True, slots=True)
class DampedTrend:
    """Exponential smoothing with a damped trend (Gardner & McKenzie, Management Science 31(10), 1985).

    level_t = a y_t + (1 - a)(level + phi trend); trend_t = b (level_t - level) + (1 - b) phi trend;
    forecast = level + (phi + ... + phi^h) trend. With ``beta`` 0 it is simple exponential smoothing.
    """

    alpha: float
    beta: float
    phi: float
    name: str

    def forecast(self, values: Array, horizon: int) -> Array:
        """Smoothed over time, never below zero: demand is not negative."""
        reach = float(np.sum(self.phi ** np.arange(1, horizon + 1)))
        result = np.full_like(values, np.nan)
        level = np.full(values.shape[0], np.nan)
        trend = np.zeros(values.shape[0])
        for t in range(values.shape[1]):
            value = values[:, t]
            carried = level + self.phi * trend
            new = np.where(np.isnan(level), value, self.alpha * value + (1 - self.alpha) * carried)
            going = ~np.isnan(level) & ~np.isnan(new)
            step = np.where(going, new - level, 0.0)
            trend = np.where(going, self.beta * step + (1 - self.beta) * self.phi * trend, 0.0)
            level = new
            result[:, t] = level + reach * trend
        return np.maximum(result, 0.0)


def standard_methods(window_s: float, periods_s: tuple[float, ...], windows: int) -> list[Method]:
    """Persistence first, then smoothing, a seasonal method for each period that fits twice into the history, and those
    that learn from the history."""
    methods: list[Method] = [
        Persistence(),
        DampedTrend(0.5, 0.0, 1.0, "smoothing"),
        DampedTrend(0.6, 0.2, 0.9, "damped_trend"),
        Settling(),
    ]
    seasons = {period_s: round(period_s / window_s) for period_s in periods_s}
    seasons = {period_s: period for period_s, period in seasons.items() if period >= 2 and 2 * period <= windows}
    methods += [SeasonalNaive(period, f"seasonal_{period_s:.0f}s") for period_s, period in seasons.items()]
    return [*methods, Autoregression(tuple(seasons.values()))]
