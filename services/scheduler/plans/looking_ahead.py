"""Until when a choice of the greatest sum stays the choice, while what a restart leaves of each job's goodput (its factor) grows.

Where every job that runs keeps its configuration, what the choice is worth does not change as jobs get older, and what any other is worth
only grows. So who is best with the factors of a later time, too, is best all the time until then: one more solution takes the place of
those of all rounds in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.table import Ints

_FIRST_ROUNDS = 8.0
_LEAST_ROUNDS = 2.0
_FURTHER = 4.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """The choice is the same until ``until_s`` (minus infinity: not known). ``rounds``: how far it is worth looking next time,
    0 as far as can be."""

    until_s: float = -np.inf
    rounds: float = 0.0


def looked_ahead(
    choice: Ints,
    choose: Callable[[float], Ints | None],
    now_s: float,
    later_s: float,
    interval_s: float,
    before: Outlook | None,
) -> Outlook:
    """Until when ``choose`` (the choice (J) of the greatest sum with the factors of a time, None: not proven) gives ``choice``, at most
    ``later_s``.

    Steps: 1. as far as can be; 2. where that is another choice, in the next round with the same jobs (``before`` is their outlook) some
    rounds of ``interval_s`` ahead, more each time that it was the same, else fewer.
    """
    rounds = 0.0 if before is None else before.rounds
    if later_s <= now_s + interval_s:
        return Outlook(rounds=rounds)
    until_s = min(now_s + rounds * interval_s, later_s) if rounds else later_s
    if _same(choose(until_s), choice):
        return Outlook(until_s, rounds * _FURTHER)
    return Outlook(rounds=max(rounds / _FURTHER, _LEAST_ROUNDS) if rounds else _FIRST_ROUNDS)


def _same(later: Ints | None, choice: Ints) -> bool:
    return later is not None and np.array_equal(later, choice)
