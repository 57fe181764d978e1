"""At which rate work comes, per user and size: pure. Counts fade; a slow one steadies a fast one.

`chosen` is how much comes within a horizon, as the single number with the least absolute error: a rate is a mean, and where work
comes in rare bursts the middle is that nothing comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.forecast.past import Array
from services.forecast.run_times import Index

# Nobody knows a rate after one arrival: it is that of a watch of at least so long.
LEAST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Mean ages of what is counted, in seconds, and the share of the fast count in the rate."""

    fast_s: float = 4 * 3600.0
    slow_s: float = 10 * 86_400.0
    fast_share: float = 0.2


class Arrivals:
    """Fading counts of arrivals and of the accelerators they asked for, by kind: numbers from 0."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._times = np.array([[self._memory.fast_s], [self._memory.slow_s]])
        # Of the fast memory and of the slow one.
        self._counts: Array = np.zeros((2, 0))
        self._amounts: Array = np.zeros((2, 0))
        # How long arrivals have been counted.
        self._seen_s = 0.0

    def advance(self, passed_s: float) -> None:
        """So much time passed in which arrivals were counted."""
        fade = np.exp(-passed_s / self._times)
        self._counts = self._counts * fade
        self._amounts = self._amounts * fade
        self._seen_s += passed_s

    def count(self, kinds: Index, accelerators: Array, ages_s: Array) -> None:
        """These came, so long ago."""
        most = int(kinds.max(initial=-1)) + 1
        if most > self._counts.shape[1]:
            more = np.zeros((2, max(most, 16) - self._counts.shape[1] + self._counts.shape[1] // 2))
            self._counts = np.concatenate([self._counts, more], axis=1)
            self._amounts = np.concatenate([self._amounts, more], axis=1)
        width = self._counts.shape[1]
        for memory, time_s in enumerate(self._times[:, 0]):
            weights = np.exp(-ages_s / time_s)
            self._counts[memory] += np.bincount(kinds, weights, width)
            self._amounts[memory] += np.bincount(kinds, weights * accelerators, width)

    def rates(self) -> tuple[Array, Array]:
        """Arrivals per second and mean accelerators of one, by kind."""
        # Of an exponential kernel that has been filled for ``seen_s`` only.
        filled = self._times * -np.expm1(-self._seen_s / self._times)
        by_memory = self._counts / np.maximum(filled, 1e-9)
        share = self._memory.fast_share
        # As if nothing had come in what is missing of the first day.
        by_memory *= min(1.0, self._seen_s / LEAST_S)
        rate = share * by_memory[0] + (1 - share) * by_memory[1]
        # Accelerators of one, by the longer memory.
        amount = np.where(self._counts[1] > 0, self._amounts[1] / np.maximum(self._counts[1], 1e-12), 0.0)
        return rate, amount


# What may be said of the arrivals of a horizon, as shares of (what the rates expect, as many as in the horizon before).
_SHARES = np.array(
    [(1, 0), (0.75, 0.25), (0.5, 0.5), (0.25, 0.75), (0, 1), (0.75, 0), (0.5, 0), (0.25, 0), (0.5, 0.25), (0, 0)]
)
# Over how many origins errors fade, as in the choice of methods.
_RECENT = 1440.0


def chosen(expected: Array, arrived: Array, horizon: int) -> Array:
    """Arrivals within ``horizon`` windows of each origin, [series, origin], NaN before two horizons have passed.

    ``expected`` by the rates and ``arrived`` are [series, origin]. Each origin takes the shares of the two that had the
    least absolute error over the origins whose arrivals are known by then.
    """
    series, origins = expected.shape
    made = np.full((len(_SHARES), series, origins), np.nan)
    made[:, :, horizon:] = (
        _SHARES[:, :1, None] * expected[None, :, horizon:] + _SHARES[:, 1:, None] * arrived[None, :, :-horizon]
    )
    missed = np.abs(arrived - made)
    result = np.full_like(expected, np.nan)
    so_far: Array = np.zeros((len(_SHARES), series))
    for origin in range(2 * horizon, origins):
        so_far = so_far * (1 - 1 / _RECENT) + missed[:, :, origin - horizon]
        result[:, origin] = made[np.argmin(so_far, axis=0), np.arange(series), origin]
    return result
