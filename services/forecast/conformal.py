"""Bands that calibrate themselves on line: the offsets of a quantile follow the errors as they become known.

Quantile tracking (Angelopoulos, Candes & Tibshirani, Conformal PID Control for Time Series Prediction, NeurIPS 2023,
section 2.1): after an error e, the offset q for level a moves by step x (a - 1[e < q]). Its long-run share of errors below
is a whatever the errors are. The step follows the size of the series' own recent errors.
"""

from __future__ import annotations

import numpy as np

from services.forecast.methods import Array

# Step of the tracking, in mean sizes of recent errors, and over how many errors that mean fades.
STEP = 0.15
_FADES_OVER = 100.0


def tracked_offsets(errors: Array, level: float, step: float = STEP) -> Array:
    """For each time the offset [series, time] made of the errors known up to then; NaN before there is one.

    ``errors`` [series, time] are value - forecast, at the time of the target; NaN where there is none.
    """
    offset = np.full(len(errors), np.nan)
    size = np.zeros(len(errors))
    weight = np.zeros(len(errors))
    result = np.empty_like(errors)
    for t in range(errors.shape[1]):
        error = errors[:, t]
        known = ~np.isnan(error)
        first = known & np.isnan(offset)
        offset[first] = 0.0
        fade = np.where(known, 1 / _FADES_OVER, 0.0)
        size += fade * (np.abs(np.where(known, error, 0.0)) - size)
        weight += fade * (1.0 - weight)
        scale = size / np.maximum(weight, 1e-12)
        # On a tie, as on demand that mostly stands still, the offset is right where it is.
        direction = np.where(error > offset, level, np.where(error < offset, level - 1.0, 0.0))
        offset = np.where(known, offset + step * scale * direction, offset)
        result[:, t] = offset
    return result


def band(forecast: Array, errors: Array, horizon: int, share: float = 0.8, step: float = STEP) -> tuple[Array, Array]:
    """Lower and upper bounds, by target [series, time], of forecasts given by target: made ``horizon`` windows before.

    The bounds of a target use only errors known ``horizon`` windows before it; never below 0, never past the forecast.
    """
    tail = (1 - share) / 2
    low, high = (np.full_like(forecast, np.nan) for _ in range(2))
    if forecast.shape[1] > horizon:
        for bound, level in ((low, tail), (high, 1 - tail)):
            bound[:, horizon:] = forecast[:, horizon:] + tracked_offsets(errors, level, step)[:, :-horizon]
    return np.maximum(0.0, np.minimum(low, forecast)), np.maximum(high, forecast)
