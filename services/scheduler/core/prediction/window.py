"""The last finished jobs of a group, kept both in order of time and in order of size: exact quantiles at a small, fixed cost."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import accumulate


class Window:
    """Natural logarithms of the last ``capacity`` values of a group; adding is O(capacity), a quantile O(1)."""

    __slots__ = ("_sums", "capacity", "ordered", "recent", "total")

    def __init__(self, capacity: int, logs: Iterable[float] = (), total: float = 0.0) -> None:
        self.capacity = capacity
        self.recent: deque[float] = deque(logs)
        self.ordered = sorted(self.recent)
        self.total = total
        """Sum of the values themselves (not of their logarithms)."""
        self._sums: list[float] | None = None

    def add(self, log_value: float) -> None:
        """Remember a value, forgetting the oldest beyond the capacity."""
        self._sums = None
        self.recent.append(log_value)
        insort(self.ordered, log_value)
        self.total += math.exp(log_value)
        if len(self.recent) > self.capacity:
            oldest = self.recent.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.total -= math.exp(oldest)

    def band(self, low_level: float, high_level: float) -> tuple[float, float, float]:
        """`quantile` at ``low_level`` < 0.5, at 0.5 and at ``high_level`` > 0.5."""
        ordered = self.ordered
        n = len(ordered)
        half = n >> 1
        median = ordered[half] if n & 1 else 0.5 * (ordered[half - 1] + ordered[half])
        position = (n + 1) * low_level - 1.0
        if position <= 0.0:
            low = ordered[0]
        else:
            index = int(position)
            low = ordered[index]
            low += (position - index) * (ordered[index + 1] - low)
        position = (n + 1) * high_level - 1.0
        if position >= n - 1:
            return low, median, ordered[-1]
        index = int(position)
        high = ordered[index]
        return low, median, high + (position - index) * (ordered[index + 1] - high)

    def above(self, log_value: float) -> int:
        """Index in ``ordered`` of the first value greater than ``log_value``."""
        return bisect_right(self.ordered, log_value)

    def mean_from(self, first: int) -> float:
        """Mean of the values (not logarithms) of ``ordered[first:]``, which is not empty."""
        sums = self._sums
        if sums is None:
            sums = self._sums = list(accumulate(map(math.exp, reversed(self.ordered))))
        return sums[len(sums) - 1 - first] / (len(sums) - first)


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
