"""A linear forecaster of the change: each series learns from its own past how its next change follows from its last ones.

Steps, for a horizon of h windows:
1. Features at the origin t, in units of demand: the changes over the last 1, 2, 3, 6, 12, 36 and 144 windows, the distance
   to the mean so far, and for each season the change that followed at the same place one season before.
2. Ridge regression of y(t + h) - y(t) on them, over the targets known so far, refitted every ``refit`` windows, the large
   errors weighted down (Huber's weights against the fit before). Origins less than h / 4 apart say nearly the same and
   are not all used.
3. What it adds is halved or dropped where that was better so far (by absolute error, since that is what is scored).
4. Never below 0, nor above the largest value so far by more than the change itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.forecast.past import Array, Past, Rows, rearranged

LAGS = (1, 2, 3, 6, 12, 36, 144)
_GAINS = np.array([0.0, 0.5, 1.0])[:, None, None]
_RIDGE = 1e-2
# Of series without any movement, whose sums of squares are zero.
_LEAST_RIDGE = 1e-250
_MEMORY = 1440.0


@dataclass(frozen=True, slots=True)
class Autoregression:
    """See the module; ``periods`` are the seasons in windows."""

    periods: tuple[int, ...]
    name: str = "autoregression"
    refit: int = 72

    @property
    def reach(self) -> int:
        """The longest lag before the oldest origin of a fit."""
        return max(LAGS[-1], *self.periods, 0) + self.refit

    def start(self, horizons: tuple[int, ...], series: int) -> _Regressing:
        """Nothing learned."""
        return _Regressing(self, horizons, series)


class _Regressing:
    def __init__(self, method: Autoregression, horizons: tuple[int, ...], series: int) -> None:
        self._refit = method.refit
        self._horizons = horizons
        self._windows = 0
        self._total: Array = np.zeros(series)
        self._known: Array = np.zeros(series)
        self._highest: Array = np.full(series, np.nan)
        self._fits = [_Fit(horizon, tuple(p for p in method.periods if horizon < p), series) for horizon in horizons]
        # Changes that were forecast, by origin: [window modulo the longest horizon + 1, horizon, series].
        self._made: Array = np.zeros((max(horizons) + 1, len(horizons), series))
        self._costs: Array = np.zeros((3, len(horizons), series))

    def advance(self, past: Past) -> Array:
        value = past.back(0)
        known = ~np.isnan(value)
        self._total += np.where(known, value, 0.0)
        self._known += known
        self._highest = np.fmax(self._highest, value)
        mean = self._total / np.maximum(1.0, self._known)
        if self._windows and self._windows % self._refit == 0:
            for fit in self._fits:
                fit.learn(past, self._refit, mean)
        self._score(past, value)
        common = [value - past.back(lag) for lag in LAGS]
        common.append(value - mean)
        change = np.stack([fit.change(common, past) for fit in self._fits])
        change = np.where(~np.isnan(change), change, 0.0)
        self._made[self._windows % len(self._made)] = change
        gain = _GAINS[np.argmin(self._costs, axis=0), 0, 0]
        self._windows += 1
        result: Array = np.minimum(np.maximum(value + gain * change, 0.0), self._highest + np.abs(change))
        return result

    def _score(self, past: Past, value: Array) -> None:
        """Step 3: what each gain would have missed by."""
        for place, horizon in enumerate(self._horizons):
            if self._windows < horizon:
                continue
            origin = past.back(horizon)
            change = self._made[(self._windows - horizon) % len(self._made), place]
            if not change.any():
                continue
            missed = np.abs(value - np.maximum(0.0, origin + _GAINS[:, 0] * change))
            self._costs[:, place] += np.where(~np.isnan(missed), missed, 0.0)

    def rearrange(self, rows: Rows) -> None:
        self._total, self._known = rearranged(self._total, rows, 0.0), rearranged(self._known, rows, 0.0)
        self._highest = rearranged(self._highest, rows, np.nan)
        self._made, self._costs = rearranged(self._made, rows, 0.0), rearranged(self._costs, rows, 0.0)
        for fit in self._fits:
            fit.rearrange(rows)


def _or_none(change: Array) -> Array:
    """The change of a season before, none where that is not known: what else an origin tells is not lost for it."""
    result: Array = np.where(np.isnan(change), 0.0, change)
    return result


class _Fit:
    """The regression of one horizon."""

    def __init__(self, horizon: int, periods: tuple[int, ...], series: int) -> None:
        self._horizon, self._periods = horizon, periods
        count = len(LAGS) + 1 + len(periods)
        self._gram: Array = np.zeros((count, count, series))
        self._cross: Array = np.zeros((count, series))
        self._weights: Array = np.zeros((count, series))

    def change(self, common: list[Array], past: Past) -> Array:
        """The change that is expected after the newest window, [series]; NaN where a feature is unknown."""
        result = np.zeros(past.series)
        own = [_or_none(past.back(period - self._horizon) - past.back(period)) for period in self._periods]
        # Feature by feature: a product of matrices would round differently with the number of series.
        for weight, feature in zip(self._weights, (*common, *own), strict=True):
            result += weight * feature
        return result

    def learn(self, past: Past, refit: int, mean: Array) -> None:
        """Take in the targets of the last ``refit`` windows."""
        h, stride = self._horizon, max(1, self._horizon // 4)
        first = refit - 1 + h

        def at(shift: int) -> Array:
            return past.run(first + shift, h + shift, stride)

        origin = at(0)
        features = np.stack(
            [origin - at(lag) for lag in LAGS]
            + [origin - mean]
            + [_or_none(at(period - h) - at(period)) for period in self._periods]
        )
        goal = at(-h) - origin
        usable = np.isfinite(goal) & np.isfinite(features).all(axis=0)
        if not usable.any():
            return
        if not usable.all():
            features, goal = np.where(usable, features, 0.0), np.where(usable, goal, 0.0)
        missed = goal.copy()
        for weight, feature in zip(self._weights, features, strict=True):
            missed -= weight * feature
        missed = np.abs(missed)
        size = np.broadcast_to(missed.mean(axis=0), missed.shape)
        trust = np.where(usable, np.divide(size, missed, out=np.ones_like(missed), where=missed > size), 0.0)
        fade = np.exp(-refit / _MEMORY)
        count = len(features)
        self._gram *= fade
        self._cross *= fade
        for one in range(count):
            weighted = features[one] * trust
            self._cross[one] += np.einsum("ts,ts->s", weighted, goal)
            for other in range(one, count):
                added = np.einsum("ts,ts->s", weighted, features[other])
                self._gram[one, other] += added
                if other != one:
                    self._gram[other, one] += added
        self._solve()

    def _solve(self) -> None:
        count = len(self._gram)
        gram = np.ascontiguousarray(np.moveaxis(self._gram, -1, 0))
        mean = np.trace(gram, axis1=1, axis2=2)[:, None, None] / count
        solved = np.linalg.solve(
            gram + np.maximum(_RIDGE * mean, _LEAST_RIDGE) * np.eye(count), self._cross.T[:, :, None]
        )
        self._weights = np.ascontiguousarray(solved[:, :, 0].T)

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``."""
        self._gram, self._cross = rearranged(self._gram, rows, 0.0), rearranged(self._cross, rows, 0.0)
        self._weights = rearranged(self._weights, rows, 0.0)
