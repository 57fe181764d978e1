"""Forecasting what a change in the middle of a window leaves for the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settling:
    """What a change in the middle of a window leaves for the next one.

    The value of a window is a mean over it, so a change of a whole number of accelerators at an instant within it shows as
    a fraction, and the rest comes in the next window. Where the last value is no whole number, the forecast is the next
    whole number in the direction of the last change plus a share of that change, whichever was best so far by absolute
    error; otherwise, and where nothing of this was better by ``margin``, it is the last value.
    """

    name: str = "settling"
    margin: float = 0.01

    def forecast(self, values: Array, horizon: int) -> Array:
        """Forecasts of all origins, [series, time]."""
        moved = np.zeros_like(values)
        moved[:, 1:] = values[:, 1:] - values[:, :-1]
        rounded = np.rint(values)
        between = (np.abs(values - rounded) > 1e-6) & (np.nan_to_num(moved) != 0)
        whole = np.where(moved > 0, np.ceil(values), np.floor(values))
        moved = np.nan_to_num(moved)
        made = [values]
        made += [np.where(between, values + share * moved, values) for share in (0.25, 0.5, 1.0)]
        made += [np.where(between, whole + share * moved, values) for share in (0.0, 0.25, 0.5)]
        forecasts = np.maximum(0.0, np.stack(made))
        if values.shape[1] <= horizon:
            return values
        costs = np.zeros_like(forecasts)
        costs[:, :, horizon:] = np.nan_to_num(np.abs(values[None, :, horizon:] - forecasts[:, :, :-horizon]))
        total = np.cumsum(costs, axis=2)
        total[0] *= 1 - self.margin
        best = np.argmin(total, axis=0)
        chosen: Array = np.take_along_axis(forecasts, best[None], axis=0)[0]
        return chosen
