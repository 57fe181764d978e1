"""Bands that calibrate themselves on line: the offsets of a quantile follow the errors as they become known.

Quantile tracking (Angelopoulos, Candes & Tibshirani, Conformal PID Control for Time Series Prediction, NeurIPS 2023,
section 2.1): after an error e, the offset q of the upper bound moves by step x (1[e > q] - 0.1), so that one in ten errors
is past it in the long run whatever the errors are; the lower one likewise. Errors and offsets are measured in the spread
that was expected of the forecast: the size of the series' own recent errors, and what the structure of its jobs leaves
open at that moment.
"""

from __future__ import annotations

import numpy as np

from services.forecast.past import Array, Rows, rearranged

# Step of the tracking, in spreads, and over how many errors the mean size of errors fades.
STEP = 0.15
_FADES_OVER = 100.0
# Of a normal distribution: where the offsets begin.
_LEVELS = {0.8: 1.2816}


class Tracking:
    """Offsets of the lower and upper bound of bands that are to hold ``share`` of the targets, [..., series]."""

    def __init__(self, shape: tuple[int, ...], share: float = 0.8, step: float = STEP) -> None:
        tail = (1 - share) / 2
        self._step = step
        bounds = len(shape) * (1,)
        # What each bound moves towards the other at every error, and a whole step outwards when one is past it.
        self._inward = np.array([tail, -tail]).reshape(2, *bounds)
        start = _LEVELS.get(round(share, 6), 1.0)
        self._start = np.array([-start, start]).reshape(2, *bounds)
        self._offsets: Array = np.broadcast_to(self._start, (2, *shape)).copy()
        self._size: Array = np.zeros(shape)
        self._weight: Array = np.zeros(shape)

    def spread(self, expected: Array | None = None) -> Array:
        """What a forecast made now may be off by: by the recent errors, and by what is ``expected`` (NaN: nothing is)."""
        size: Array = self._size / np.maximum(self._weight, 1e-12)
        if expected is None:
            return size
        return np.where(~np.isnan(expected), np.hypot(size, expected), size)

    def bounds(self, forecast: Array, spread: Array) -> tuple[Array, Array]:
        """The band of forecasts made now; never below 0, and it always holds its forecast."""
        low, high = forecast + self._offsets * spread
        return np.maximum(0.0, np.minimum(low, forecast)), np.maximum(high, forecast)

    def advance(self, errors: Array, spread: Array) -> None:
        """Take in ``errors``, value - forecast (NaN: none), of forecasts whose `spread` was ``spread`` when made."""
        known = ~np.isnan(errors)
        fade = known / _FADES_OVER
        self._size += fade * (np.abs(np.where(known, errors, 0.0)) - self._size)
        self._weight += fade * (1.0 - self._weight)
        # A bound that is hit exactly holds its target. Where nothing was ever missed there is no spread to measure in.
        reached = self._offsets * np.where(np.isnan(spread), 0.0, spread)
        past_low, past_high = errors < reached[0], errors > reached[1]
        moves = np.stack([past_low * -1.0, past_high * 1.0]) + self._inward
        self._offsets += np.where(known & (spread > 0), self._step * moves, 0.0)

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``; -1 is new."""
        self._offsets = rearranged(self._offsets, rows, np.nan)
        self._offsets = np.where(np.isnan(self._offsets), self._start, self._offsets)
        self._size, self._weight = rearranged(self._size, rows, 0.0), rearranged(self._weight, rows, 0.0)


def band(forecast: Array, errors: Array, horizon: int, share: float = 0.8, step: float = STEP) -> tuple[Array, Array]:
    """Lower and upper bounds, by target [series, time], of forecasts given by target: made ``horizon`` windows before.

    ``errors`` are value - forecast by target, NaN where there is none. The bounds of a target use only those known
    ``horizon`` windows before it; NaN before any is.
    """
    tracking = Tracking((len(forecast),), share, step)
    low, high = (np.full_like(forecast, np.nan) for _ in range(2))
    times = forecast.shape[1]
    spreads = np.full((times, len(forecast)), np.nan)
    known = np.zeros(len(forecast), np.bool_)
    for t in range(times):
        tracking.advance(errors[:, t], spreads[t])
        known |= ~np.isnan(errors[:, t])
        if t + horizon < times:
            spreads[t + horizon] = tracking.spread()
            bounds = tracking.bounds(forecast[:, t + horizon], spreads[t + horizon])
            low[:, t + horizon], high[:, t + horizon] = (np.where(known, bound, np.nan) for bound in bounds)
    return low, high
