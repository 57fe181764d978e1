"""A linear forecaster of the change: each series learns from its own past how its next change follows from its last ones.

Steps, for a horizon of h windows:
1. Features at the origin t, in units of demand: the changes over the last 1, 2, 3, 6, 12, 36 and 144 windows, the distance
   to the mean so far, and for each season the change that followed at the same place one season before.
2. Ridge regression of y(t + h) - y(t) on them, over all targets known so far, refitted every ``refit`` windows, the large
   errors weighted down (Huber's weights against the fit before).
3. What it adds is halved or dropped where that was better so far (by absolute error, since that is what is scored).
4. Never below 0, nor above the largest value so far by more than the change itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


LAGS = (1, 2, 3, 6, 12, 36, 144)
_GAINS = (0.0, 0.5, 1.0)
_RIDGE = 1e-2
_MEMORY = 1440.0


@dataclass(frozen=True, slots=True)
class Autoregression:
    """See the module; ``periods`` are the seasons in windows."""

    periods: tuple[int, ...]
    name: str = "autoregression"
    refit: int = 72

    def forecast(self, values: Array, horizon: int) -> Array:
        """Forecasts of all origins, [series, time]."""
        features = self._features(values, horizon)
        series, times = values.shape
        future = np.full_like(values, np.nan)
        if times > horizon:
            future[:, :-horizon] = values[:, horizon:] - values[:, :-horizon]
        ready = np.isfinite(features).all(axis=1)
        usable = ready & np.isfinite(future)
        future = np.where(usable, future, 0.0)
        features = np.nan_to_num(features)
        count = features.shape[1]
        gram, cross = np.zeros((series, count, count)), np.zeros((series, count, 1))
        weights = np.zeros((series, 1, count))
        change = np.zeros_like(values)
        fade = np.exp(-self.refit / _MEMORY)
        for start in range(0, times, self.refit):
            # Known at ``start``: targets up to there, so origins before start - horizon.
            first, last = max(0, start - self.refit - horizon), max(0, start - horizon)
            if last > first:
                part = np.ascontiguousarray(features[:, :, first:last])
                goal = np.ascontiguousarray(future[:, first:last])
                miss = np.abs(goal - (weights @ part)[:, 0])
                size = np.maximum(np.mean(miss, axis=1, keepdims=True), 1e-12)
                trust = np.where(usable[:, first:last], np.minimum(1.0, size / np.maximum(miss, 1e-12)), 0.0)
                weighted = part * trust[:, None]
                gram = fade * gram + weighted @ part.transpose(0, 2, 1)
                cross = fade * cross + weighted @ goal[:, :, None]
                mean = np.trace(gram, axis1=1, axis2=2)[:, None, None] / count
                solved = np.linalg.solve(gram + (_RIDGE * mean + 1e-9) * np.eye(count), cross)
                weights = solved.transpose(0, 2, 1)
            # Feature by feature: a product of matrices would round differently with the number of origins.
            block = slice(start, start + self.refit)
            for place in range(count):
                change[:, block] += weights[:, 0, place, None] * features[:, place, block]
        change = np.where(ready, change, 0.0)
        best = self._gains(values, change, horizon)
        highest = np.fmax.accumulate(values, axis=1)
        return np.clip(values + best * change, 0.0, highest + np.abs(change))

    def _features(self, values: Array, horizon: int) -> Array:
        times = values.shape[1]
        parts = []
        for lag in LAGS:
            moved = np.zeros_like(values)
            if lag < times:
                moved[:, lag:] = values[:, lag:] - values[:, :-lag]
            parts.append(moved)
        known = np.isfinite(values)
        mean = np.cumsum(np.where(known, values, 0.0), axis=1) / np.maximum(1, np.cumsum(known, axis=1))
        parts.append(values - mean)
        for period in self.periods:
            if horizon < period:
                seasonal = np.zeros_like(values)
                if period < times:
                    seasonal[:, period:] = values[:, horizon : times - period + horizon] - values[:, : times - period]
                parts.append(seasonal)
        return np.stack(parts, axis=1)

    def _gains(self, values: Array, change: Array, horizon: int) -> Array:
        """The share of the change with the least absolute error so far, for each origin."""
        if values.shape[1] <= horizon:
            return np.zeros_like(values)
        goal, at = values[:, horizon:], values[:, :-horizon]
        best = np.zeros_like(values)
        least = np.cumsum(np.nan_to_num(np.abs(goal - at)), axis=1)
        for gain in _GAINS[1:]:
            made = np.maximum(0.0, at + gain * change[:, :-horizon])
            cost = np.cumsum(np.nan_to_num(np.abs(goal - made)), axis=1)
            better = cost < least
            best[:, horizon:] = np.where(better, gain, best[:, horizon:])
            least = np.where(better, cost, least)
        return best
