"""What a cycle decides: who is placed, who is taken off, who waits and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.memory import Memory
from services.scheduler.core.profile import Reservation
from services.scheduler.core.state import PlacedRank, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit's ranks and why they are where they are. ``unit`` is what is placed (a planner may have changed its size)."""

    key: UnitKey
    ranks: tuple[PlacedRank, ...]
    explanation: Explanation | None
    unit: PendingUnit
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running unit that is taken off, and for whom (None: a planner's plan)."""

    key: UnitKey
    reason: str
    beneficiary: UnitKey | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A unit that stays in the queue: ``position`` counts from 1 in this cycle's order. ``start_s`` is when its
    reservation begins, 0 without one."""

    key: UnitKey
    position: int
    explanation: Explanation
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Blocked:
    """Units that wait for the same reason; ``places`` are their places in the cycle's order."""

    units: tuple[PendingUnit, ...]
    explanation: Explanation
    start_s: float = 0.0
    reason: str = ""


def _by_age(unit: PendingUnit) -> tuple[Any, ...]:
    return unit.queued_at_s, unit.key


@dataclass(slots=True)
class Decisions:
    """What a cycle decided, in order. ``classes`` is the number of different demands it judged."""

    policy_version: str
    placed: tuple[Placement, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    classes: int = 0
    memory: Memory | None = None
    partial: bool = False
    """Whether only some units were looked at: those that waited before wait as they did."""
    most: int = 0
    """After so many placements it could stop (0: never)."""
    cut: bool = False
    """Whether it did, with units left to be looked at."""
    _waiting: tuple[Waiting, ...] | None = field(default=None, repr=False)
    _place: Callable[[PendingUnit], tuple[Any, ...]] = field(default=_by_age, repr=False)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Every unit that was looked at and waits, in the order of the policy; to be asked for before the next change."""
        if self._waiting is None:
            rows = [(self._place(unit), unit.key, group) for group in self.blocked for unit in group.units]
            rows.sort(key=lambda row: row[:2])
            self._waiting = tuple(
                Waiting(key, place, group.explanation, group.start_s) for place, (_, key, group) in enumerate(rows, 1)
            )
        return self._waiting
