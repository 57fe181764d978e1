"""How long something takes: repeated until it can be trusted, the median of what was seen."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timed:
    """Median seconds of one run, the spread (greatest less smallest, over the median), and how many runs."""

    seconds: float
    spread: float
    runs: int


def timed(
    work: Callable[[], None],
    clock: Callable[[], float],
    *,
    budget_s: float,
    fewest: int = 3,
    most: int = 50,
) -> Timed:
    """Run ``work`` once unseen, then again until ``budget_s`` is used up (``fewest`` to ``most`` times).

    ``work`` returns when it is done (accelerators: synchronised); ``clock`` gives seconds.
    """
    work()
    taken: list[float] = []
    start = clock()
    while len(taken) < fewest or (len(taken) < most and clock() - start < budget_s):
        before = clock()
        work()
        taken.append(max(clock() - before, 1e-9))
    middle = statistics.median(taken)
    return Timed(middle, (max(taken) - min(taken)) / middle, len(taken))
