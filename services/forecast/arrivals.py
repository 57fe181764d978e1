"""At which rate work comes, per user and size: pure. Counts fade; a slow one steadies a fast one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.forecast.past import Array
from services.forecast.run_times import Index


@dataclass(frozen=True, slots=True)
class Memory:
    """Mean ages of what is counted, in seconds, and the share of the fast count in the rate."""

    fast_s: float = 3600.0
    slow_s: float = 86_400.0
    fast_share: float = 0.5


class Arrivals:
    """Fading counts of arrivals and of the accelerators they asked for, by class of `RunTimes`."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._times = np.array([[self._memory.fast_s], [self._memory.slow_s]])
        # [fast and slow, class]
        self._counts: Array = np.zeros((2, 0))
        self._amounts: Array = np.zeros((2, 0))
        # How long arrivals have been counted.
        self._seen_s = 0.0

    def advance(self, passed_s: float, classes: Index, accelerators: Array) -> None:
        """So much time passed, in which these came."""
        fade = np.exp(-passed_s / self._times)
        most = int(classes.max(initial=-1)) + 1
        if most > self._counts.shape[1]:
            more = np.zeros((2, most - self._counts.shape[1]))
            self._counts = np.concatenate([self._counts, more], axis=1)
            self._amounts = np.concatenate([self._amounts, more], axis=1)
        self._counts = self._counts * fade
        self._amounts = self._amounts * fade
        width = self._counts.shape[1]
        # They came half-way through, in the mean.
        share = np.sqrt(fade)
        self._counts += share * np.bincount(classes, minlength=width)
        self._amounts += share * np.bincount(classes, accelerators, width)
        self._seen_s += passed_s

    def rates(self) -> tuple[Array, Array]:
        """Arrivals per second and mean accelerators of one, by class."""
        # Of an exponential kernel that has been filled for ``seen_s`` only.
        filled = self._times * -np.expm1(-self._seen_s / self._times)
        by_memory = self._counts / np.maximum(filled, 1e-9)
        share = self._memory.fast_share
        rate = share * by_memory[0] + (1 - share) * by_memory[1]
        amount = np.where(self._counts[1] > 0, self._amounts[1] / np.maximum(self._counts[1], 1e-12), 0.0)
        return rate, amount
