"""How long is thought about a question: the core counts and asks no clock, so the service says when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

FOLLOWED_S = 3.0
"""How long futures are followed for one answer where each of their moments is decided."""
DECIDED_S = 6.0
"""So long after a question was asked no more is decided for it; its asker waits a little longer (the gateway 10 s)."""


class AnswerTime:
    """What is left of the time for one answer, since it was asked for."""

    def __init__(self) -> None:
        self._asked_s = time.monotonic()

    def to_follow(self, part: float) -> bool:
        """Whether futures may be followed on, of which this part is reached."""
        return self._spent_s() < part * FOLLOWED_S

    def to_decide(self) -> bool:
        """Whether anything may be decided on."""
        return self._spent_s() < DECIDED_S

    def shared(self, number: int, count: int) -> Callable[[float], bool]:
        """For the search with this number (from 0), of so many that share what is left: whether it may go on in a part of it."""
        begun_s = self._spent_s()
        share_s = max(DECIDED_S - begun_s, 0.0) / (count - number)
        return lambda part: self._spent_s() < begun_s + part * share_s

    def _spent_s(self) -> float:
        return time.monotonic() - self._asked_s
