"""How much may be decided again in one search for counterfactuals: so many decisions, for as long as who asks goes on."""

from __future__ import annotations

from collections.abc import Callable

from services.scheduler.core.errors import GivenUpError

MOST_DECISIONS = 200
"""Decisions made again in one search."""


def _for_ever(part: float) -> bool:
    return True


class Allowance:
    """What one search may use. `part` says how much of it (0-1) may be used up by then, so that what is tried first leaves
    something to what is tried later.

    ``goes_on`` is asked before each unit that a decision looks at whether there is time left for this part of the search; by
    default nothing but the number of decisions bounds it, so that the same question has the same answer.
    """

    def __init__(self, most: int = MOST_DECISIONS, goes_on: Callable[[float], bool] = _for_ever) -> None:
        self.decisions = 0
        self._most, self._goes_on, self._part = most, goes_on, 1.0

    def part(self, part: float) -> None:
        """Until now this part of everything may be used up."""
        self._part = part

    def decide(self) -> None:
        """One decision more; GivenUpError when there is none left."""
        if self.decisions >= self._part * self._most or not self.goes_on():
            raise GivenUpError
        self.decisions += 1

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return self._goes_on(self._part)
