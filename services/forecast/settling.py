"""Forecasting what a change in the middle of a window leaves for the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.past import Array, Past, Rows, rearranged

# Shares of the last change that are tried: beyond the value, and beyond the next whole number.
_BEYOND_VALUE = np.array([[0.25], [0.5], [1.0]])
_BEYOND_WHOLE = np.array([[0.0], [0.25], [0.5]])


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
    reach: int = 1

    def start(self, horizons: tuple[int, ...], series: int) -> _Settling:
        """Nothing was better so far."""
        return _Settling(horizons, series, self.margin)


class _Settling:
    def __init__(self, horizons: tuple[int, ...], series: int, margin: float) -> None:
        self._horizons = horizons
        self._margin = margin
        # Sums of absolute errors where the value was no whole number: [horizon, candidate, series]; 0 is the last value.
        self._costs: Array = np.zeros((len(horizons), 7, series))

    def advance(self, past: Past) -> Array:
        value, before = past.back(0), past.back(1)
        for place, horizon in enumerate(self._horizons):
            self._score(place, value, past.back(horizon), past.back(horizon + 1))
        result = np.tile(value, (len(self._horizons), 1))
        at = np.flatnonzero(_between(value, before))
        if at.size:
            made = _candidates(value[at], before[at])
            costs = self._costs[:, :, at]
            costs[:, 0] *= 1 - self._margin
            best = np.argmin(costs, axis=1)
            result[:, at] = made[best, np.arange(at.size)]
        return result

    def _score(self, place: int, value: Array, origin: Array, before: Array) -> None:
        at = np.flatnonzero(_between(origin, before) & ~np.isnan(value))
        if at.size:
            self._costs[place][:, at] += np.abs(value[at] - _candidates(origin[at], before[at]))

    def rearrange(self, rows: Rows) -> None:
        self._costs = rearranged(self._costs, rows, 0.0)


def _between(value: Array, before: Array) -> NDArray[np.bool_]:
    """Where a value is no whole number and has just changed (which is never so where one is unknown)."""
    moved = np.abs(value - before) > 0
    if not moved.any():
        return moved
    found: NDArray[np.bool_] = moved & (np.abs(value - np.rint(value)) > 1e-6)
    return found


def _candidates(value: Array, before: Array) -> Array:
    moved = value - before
    whole = np.where(moved > 0, np.ceil(value), np.floor(value))
    made = np.concatenate([value[None], value + _BEYOND_VALUE * moved, whole + _BEYOND_WHOLE * moved])
    result: Array = np.maximum(0.0, made)
    return result
