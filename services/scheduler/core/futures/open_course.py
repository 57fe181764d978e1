"""A course of things (outflow.py) with one place in the order left open: what a unit would find there, moment by moment.

Steps:
1. In the place stands a unit that never starts. When its turn comes, what is free then and what is kept for others is written
   down: by numbers only, as where which node is does not matter to whether there is room.
2. Whoever is asked about in that place starts at the first moment at which that suffices for it. Until then it takes nothing,
   so all others went their ways as if it were there - in the last place, and under a policy that keeps nothing for who waits
   (greedy) in any. `fits_in` says so.
3. The course is followed only as far as a question needs it; a later one goes on from there.

So many questions about units in the same place cost one course, and each a look at its moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from services.scheduler.core.futures.flowing import Class, Held
from services.scheduler.core.futures.layout import Layout
from services.scheduler.core.futures.outflow import Course
from services.scheduler.core.futures.pools import Kept, Pool, Sizes, by_sums
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit

_MOST_ALIKE = 100
"""Units that want the same as the one asked about, up to which all of them are asked at each moment (fewer than outflow.py
looks at)."""
OPEN = PendingUnit(UnitKey("", -1), "", 0, 0.0, Demand(1, domains=frozenset({""})))
"""Stands in the open place; in a partition of its own."""


def fits_in(order: Sequence[PendingUnit], unit: PendingUnit, discipline: str) -> bool:
    """Whether an open course says when ``unit``, one of those in ``order``, starts."""
    if discipline in {"greedy", "strict"}:
        return discipline == "greedy" or order[-1] is unit
    return order[-1] is unit and sum(item.demand == unit.demand for item in order) <= _MOST_ALIKE


def with_open_place(order: Sequence[PendingUnit], unit: PendingUnit) -> list[PendingUnit]:
    """The order with an open place where ``unit`` stands."""
    return [OPEN if item is unit else item for item in order]


class Stand(NamedTuple):
    """What is free in a pool: accelerators, cpus, memory, and the room of its nodes (`Sizes`)."""

    free: int
    cpus: float
    memory_bytes: float
    room: int

    def ranks(self, demand: Demand, sizes: Sizes) -> int:
        """See `Pool.ranks`."""
        most = by_sums(demand, self.cpus, self.memory_bytes)
        return min(most, sizes.ranks(self.room, demand.accelerators)) if most else most


@dataclass(slots=True)
class Moment:
    """What there is in the open place when its turn comes: in the pools, by number, and of those what is kept for others.
    ``closed`` are the partitions in which somebody before it waits on (strict); ``cause`` as in `Course`."""

    first_s: float
    at_s: float
    cause: int
    pools: list[Stand]
    kept: Mapping[int, Kept]
    closed: frozenset[frozenset[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one course says of a unit; the fields are those of `Course`."""

    until_s: float
    cycles: int
    exhausted: bool
    found: Mapping[UnitKey, tuple[float, float]] = field(default_factory=dict)
    cause: Mapping[UnitKey, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Turn(Class):
    """The class of the open place: it never starts, and notes what there was when it was asked. ``course`` are its pools."""

    course: Sequence[Pool] = ()
    stands: list[Stand] = field(default_factory=list)
    seen: Mapping[int, Kept] = field(default_factory=dict)

    def start(self, end_s: float, kept: Mapping[int, Kept]) -> Held | None:
        self.stands = [Stand(pool.free, pool.cpus, pool.memory_bytes, pool.room) for pool in self.course]
        self.seen = kept
        return None

    def keep(self) -> Sequence[Kept]:
        return ()


class OpenCourse(Course):
    """See the module. ``layout`` is made of `with_open_place`; ``ends`` and ``lasts`` are as for `Course` (the run time in the
    open place is not used)."""

    def __init__(
        self, layout: Layout, now_s: float, ends: Sequence[float], lasts: Sequence[float], horizon_s: float
    ) -> None:
        super().__init__(layout, now_s, ends, lasts)
        self._horizon_s = horizon_s
        place = next(place for place, unit in enumerate(layout.units) if unit is OPEN)
        number = layout.class_of[place]
        item = self._classes[number]
        # It has its turn whatever is free: as one that spans, and wants nothing.
        kind = replace(item.kind, together=[self._pools])
        self._turn = _Turn(item.demand, item.units, kind, course=self._pools)
        self._classes[number] = self._turn
        self._kinds[self._kinds.index(item.kind)] = kind
        self._moments: list[Moment] = []
        self._standing: dict[frozenset[str], list[int]] = {}
        if layout.strict:
            for before, unit in enumerate(layout.units):
                if unit is not OPEN:
                    self._standing.setdefault(unit.demand.domains, []).append(before)
            for places in self._standing.values():
                places.reverse()
        self._left = {before for places in self._standing.values() for before in places}

    def ask(self, asked: Asked) -> Answer | None:
        """When the unit starts; None when it cannot be said here, as times meet to the last digit."""
        number, sizes = 0, self._layout.sizes
        while number < len(self._moments) or self._further():
            moment = self._moments[number]
            number += 1
            starts = asked.starts_at(moment, sizes)
            if starts is None:
                return None
            if starts:
                found = {asked.unit.key: (moment.first_s, moment.at_s)}
                return Answer(moment.at_s, number, False, found, {asked.unit.key: moment.cause})
        return Answer(self.until_s, number, self.exhausted)

    def first_end_s(self) -> float:
        """When the first of those that ran at the beginning ends; infinite: never. To be asked before anything else."""
        return self._ends_s[0] if self._ends_s else math.inf

    def _further(self) -> bool:
        """Go on to the next moment, as `Course.run` does; False when there is none."""
        ends_s = self._ends_s
        first_s = at_s = self._now_s
        if self._moments:
            self.exhausted = not ends_s
            if not ends_s or ends_s[0] == math.inf or ends_s[0] > self._horizon_s:
                return False
            first_s, at_s = self._next_ends()
        self._start(first_s, at_s, self._left)
        self.until_s = at_s
        turn = self._turn
        closed = self._closed() if self._standing else frozenset()
        self._moments.append(Moment(first_s, at_s, self._last, turn.stands, turn.seen, closed))
        return True

    def _closed(self) -> frozenset[frozenset[str]]:
        for places in self._standing.values():
            while places and places[-1] not in self._left:
                places.pop()
        return frozenset([partition for partition, places in self._standing.items() if places])


@dataclass(frozen=True, slots=True)
class Asked:
    """A unit that is asked about in the open place; ``pools`` (numbers) are those that it may use, ``together`` the sets of them over
    which its ranks may be spread; ``alike`` says whether others before it want the same; ``lasts_s`` is how long it is thought to run."""

    unit: PendingUnit
    pools: Sequence[int]
    together: Sequence[Sequence[int]]
    alike: bool
    lasts_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lasts_s", estimated_s(self.unit, "expected"))

    def starts_at(self, moment: Moment, sizes: Sizes) -> bool | None:
        """Whether it starts at this moment, as `outflow` decides it. None when that rests on how a sum is rounded: those
        behind another of their class are passed over by the time that is left, others judged by when they end."""
        demand = self.unit.demand
        if demand.domains in moment.closed:
            return False
        end_s, whole = moment.at_s + self.lasts_s, demand.ranks * demand.accelerators
        if self.alike:
            begins = [item.start_s for number, item in moment.kept.items() if number in self.pools]
            if any((end_s > start_s) == (self.lasts_s <= start_s - moment.at_s) for start_s in begins):
                return None
        for number in self.pools:
            pool, kept = moment.pools[number], moment.kept.get(number)
            if pool.free < whole or pool.ranks(demand, sizes) < demand.ranks:
                continue
            if kept is None or end_s <= kept.start_s or kept.lets(demand):
                return True
        for numbers in self.together:
            free = [moment.pools[number] for number in numbers if number not in moment.kept]
            if sum(pool.ranks(demand, sizes) for pool in free) >= demand.ranks:
                return True
        return False
