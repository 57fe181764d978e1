"""Bands that calibrate themselves on line: the offsets of a quantile follow the errors as they become known.

Quantile tracking (Angelopoulos, Candes & Tibshirani, Conformal PID Control for Time Series Prediction, NeurIPS 2023,
section 2.1): after an error e, the offset q of the upper bound moves by step x (1[e > q] - 0.1), so that one in ten errors
is past it in the long run whatever the errors are; the lower one likewise. Errors and offsets are measured in the spread
that was expected of the forecast: the size of the series' own recent errors, and what the structure of its jobs leaves
open at that moment.

A bound that is hit exactly holds its target. Where demand mostly stays as it is, few errors are left to be past a bound on
either side, and a band of both 10 % bounds holds far more than its share. So the share that each bound leaves out follows the
targets that the whole band held (adaptive conformal inference, Gibbs & Candes, NeurIPS 2021, with half of the
miscoverage on either side): it grows while the band holds too many. A band never leaves out its own forecast, so it
holds no fewer than are forecast exactly.

Errors of forecasts far ahead are alike for as long as their horizons overlap, and known that much later. All steps are
the smaller, and what is averaged the longer, the more windows a horizon has beyond six (`pace_of`).
"""

from __future__ import annotations

import numpy as np

from services.forecast.past import Array, Rows, rearranged

# Step of the tracking, in spreads, and over how many errors the mean size of errors fades.
STEP = 0.15
_FADES_OVER = 100.0
# Step by which the share that a bound leaves out follows the coverage, and its limits, over the share it is to leave out.
_GAIN = 0.002
_LEAST, _MOST, _NEVER_MORE = 0.2, 2.5, 0.45
# Of a normal distribution: where the offsets begin.
_LEVELS = {0.8: 1.2816}


# Horizon, in windows, from which on errors that overlap count less: the step was chosen at horizons up to it.
_OVERLAP = 6.0


def pace_of(horizon: int) -> float:
    """What an error of forecasts ``horizon`` windows ahead counts: those of horizons that overlap say nearly the same.

    A long horizon's errors come in runs of its length, and all of them before any shows in a bound: at full steps the bounds
    swing from far too wide to far too narrow.
    """
    return min(1.0, _OVERLAP / horizon)


class Tracking:
    """Offsets of the lower and upper bound of bands that are to hold ``share`` of the targets, [..., series].

    ``pace``: what one error counts (`pace_of`), of a shape that goes with [..., series].
    """

    def __init__(
        self, shape: tuple[int, ...], share: float = 0.8, step: float = STEP, pace: Array | float = 1.0
    ) -> None:
        self._tail, self._step, self._pace = (1 - share) / 2, step * pace, pace
        bounds = len(shape) * (1,)
        # What each bound moves towards the other at every error; it moves a whole step outwards when one is past it.
        self._tails: Array = np.full(shape, self._tail)
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
        fade = known * (self._pace / _FADES_OVER)
        self._size += fade * (np.abs(np.where(known, errors, 0.0)) - self._size)
        self._weight += fade * (1.0 - self._weight)
        # A bound that is hit exactly holds its target. Where nothing was ever missed there is no spread to measure in.
        reached = self._offsets * np.where(np.isnan(spread), 0.0, spread)
        past_low, past_high = errors < reached[0], errors > reached[1]
        moves = np.stack([self._tails - past_low, past_high - self._tails])
        self._offsets += np.where(known & (spread > 0), self._step * moves, 0.0)
        left_out = (errors < np.minimum(reached[0], 0.0)) | (errors > np.maximum(reached[1], 0.0))
        follows = self._tails + self._pace * _GAIN * (2 * self._tail - left_out)
        most = min(_MOST * self._tail, _NEVER_MORE)
        self._tails = np.where(known, np.clip(follows, _LEAST * self._tail, most), self._tails)

    def rearrange(self, rows: Rows) -> None:
        """Series i is the one that was at ``rows[i]``; -1 is new."""
        self._offsets = rearranged(self._offsets, rows, np.nan)
        self._offsets = np.where(np.isnan(self._offsets), self._start, self._offsets)
        self._tails = rearranged(self._tails, rows, self._tail)
        self._size, self._weight = rearranged(self._size, rows, 0.0), rearranged(self._weight, rows, 0.0)


def band(forecast: Array, errors: Array, horizon: int, share: float = 0.8, step: float = STEP) -> tuple[Array, Array]:
    """Lower and upper bounds, by target [series, time], of forecasts given by target: made ``horizon`` windows before.

    ``errors`` are value - forecast by target, NaN where there is none. The bounds of a target use only those known
    ``horizon`` windows before it; NaN before any is.
    """
    tracking = Tracking((len(forecast),), share, step, pace_of(horizon))
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
