"""The last finished jobs of a group, kept both in order of time and in order of size: exact quantiles at a small, fixed cost."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable


class Window:
    """Natural logarithms of the last ``capacity`` values of a group; adding is O(capacity), a quantile O(1)."""

    __slots__ = ("capacity", "ordered", "recent", "total")

    def __init__(self, capacity: int, logs: Iterable[float] = (), total: float = 0.0) -> None:
        self.capacity = capacity
        self.recent: deque[float] = deque(logs)
        self.ordered = sorted(self.recent)
        self.total = total
        """Sum of the values themselves (not of their logarithms)."""

    def add(self, log_value: float) -> None:
        """Remember a value, forgetting the oldest beyond the capacity."""
        self.recent.append(log_value)
        insort(self.ordered, log_value)
        self.total += math.exp(log_value)
        if len(self.recent) > self.capacity:
            oldest = self.recent.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.total -= math.exp(oldest)

    def above(self, log_value: float) -> int:
        """Index in ``ordered`` of the first value greater than ``log_value``."""
        return bisect_right(self.ordered, log_value)


def quantile(ordered: list[float], level: float, first: int = 0) -> float:
    """The quantile ``level`` of ``ordered[first:]`` (ascending, not empty), at position (n + 1) level - 1, interpolated.

    Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50(4), 1996, definition 6.
    """
    n = len(ordered) - first
    position = (n + 1) * level - 1.0
    if position <= 0.0:
        return ordered[first]
    if position >= n - 1:
        return ordered[-1]
    lower = int(position)
    value = ordered[first + lower]
    return value + (position - lower) * (ordered[first + lower + 1] - value)


def tail_exponent(ordered: list[float]) -> float:
    """Exponent of a Pareto tail from the greatest fifth of ``ordered`` (ascending logarithms), within [0.5, 3].

    Hill, "A Simple General Approach to Inference About the Tail of a Distribution", Annals of Statistics 3(5), 1975;
    with one pseudo-observation of exponent 1, so that few values do not claim much.
    """
    k = len(ordered) // 5
    if k == 0:
        return 1.0
    threshold = ordered[-k - 1]
    return min(max((k + 1) / (1.0 + sum(ordered[-k:]) - k * threshold), 0.5), 3.0)
