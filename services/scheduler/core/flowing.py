"""What waits as a course of things asks it (outflow.py): classes of equal demands, and kinds of classes that fail together."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.scheduler.core.pools import SLACK, Kept, Part, Pool
from services.scheduler.core.state import Demand

Held = tuple[Demand, Sequence[Part]]
"""What a unit holds."""


@dataclass(slots=True, eq=False)
class Kind:
    """Classes of a partition that may use the same pools and want as many accelerators: where these do not suffice for one, they
    do not for the others. While a moment lasts nothing is given back, so pools are looked at from where the last one left off.

    ``size`` is the number of the accelerators of a rank among the `Sizes`, ``at`` the first pool that may hold all ranks.
    ``heads`` are the places of the first units of the classes that are still asked, as a heap; ``by_time`` those of all units,
    the shortest first (where room is reserved; else empty).
    """

    pools: Sequence[Pool]
    ranks: int
    each: int
    size: int
    spanning: bool
    partition: frozenset[str]
    by_time: Sequence[tuple[float, int]] = ()
    classes: list[Class] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    at: int = 0
    _shortest: int = 0

    def ask(self) -> None:
        """All classes that have units are asked again, from the first on."""
        for item in self.classes:
            item.index = 0
        self.heads = [item.units[0] for item in self.classes if item.units]
        heapq.heapify(self.heads)

    def has_room(self) -> bool:
        """Whether there are so many accelerators, by number of nodes."""
        size, ranks, pools, at = self.size, self.ranks, self.pools, self.at
        while at < len(pools):
            if pools[at].counts[size] >= ranks:
                self.at = at
                return True
            at += 1
        self.at = at
        return self.spanning and (not size or sum([pool.counts[size] for pool in pools]) >= ranks)

    def left(self) -> Sequence[Pool]:
        """The pools that may hold all ranks; to be asked after `has_room`."""
        return self.pools[self.at :] if self.at else self.pools

    def shut(self, at_s: float, kept: Mapping[int, Kept], started: Sequence[int]) -> bool:
        """Whether whatever would suffice is kept for others, and no unit would be over before. ``started`` says by place which
        units have started."""
        if self.spanning or not self.each:
            return False
        by_time, ranks, size = self.by_time, self.ranks, self.size
        whole = ranks * self.each
        while self._shortest < len(by_time) and started[by_time[self._shortest][1]]:
            self._shortest += 1
        end_s = at_s + (by_time[self._shortest][0] if self._shortest < len(by_time) else math.inf)
        for pool in self.left():
            if pool.counts[size] >= ranks:
                reservation = kept.get(pool.number)
                if reservation is None or end_s <= reservation.start_s or whole <= reservation.accelerators:
                    return False
        return True


@dataclass(slots=True, eq=False)
class Class:
    """Units with equal demands: their places in the order. ``index`` is that of the unit whose turn it is."""

    demand: Demand
    units: list[int]
    kind: Kind
    index: int = 0

    def start(self, end_s: float, kept: Mapping[int, Kept]) -> tuple[Held | None, float]:
        """Take room for a unit that is thought to end at ``end_s``; ``kept`` is room for others, by pool. Without room: None,
        and how early it would have to end to go where room is kept."""
        demand, kind, least_s = self.demand, self.kind, -math.inf
        ranks, size = kind.ranks, kind.size
        cpus, memory_bytes = demand.cpus, demand.memory_bytes
        for pool in kind.left():
            if (
                pool.counts[size] < ranks
                or (cpus > 0 and (pool.cpus + SLACK) // cpus < ranks)
                or (memory_bytes > 0 and pool.memory_bytes // memory_bytes < ranks)
            ):
                continue
            reservation = kept.get(pool.number) if kept else None
            if reservation is not None and end_s > reservation.start_s:
                if not reservation.lets(demand):
                    least_s = max(least_s, reservation.start_s)
                    continue
                reservation.accelerators -= ranks * demand.accelerators
                reservation.cpus -= ranks * cpus
            return (demand, ((pool.number, ranks, pool.take(demand, ranks)),)), 0.0
        return (self._span(kept) if demand.cross_domain else None), least_s

    def _span(self, kept: Mapping[int, Kept]) -> Held | None:
        demand = self.demand
        free = [pool for pool in self.kind.pools if pool.number not in kept]
        counts = [pool.ranks(demand) for pool in free]
        if sum(counts) < demand.ranks:
            return None
        parts, left = [], demand.ranks
        for count, number in sorted(((count, number) for number, count in enumerate(counts)), reverse=True):
            taken, pool = min(count, left), free[number]
            if taken:
                parts.append((pool.number, taken, pool.take(demand, taken)))
                left -= taken
        return demand, parts

    def keep(self) -> Kept | None:
        """The pool where there is room first for one of the class, by number."""
        demand, best = self.demand, None
        accelerators, cpus = demand.ranks * demand.accelerators, demand.ranks * demand.cpus
        for pool in self.kind.pools:
            free, free_cpus = pool.free, pool.cpus
            for end_s, _, more, more_cpus in pool.ends:
                if best is not None and end_s >= best.start_s:
                    break
                free += more
                free_cpus += more_cpus
                if free >= accelerators and free_cpus + SLACK >= cpus:
                    best = Kept(pool.number, end_s, free - accelerators, free_cpus - cpus)
                    break
        return best
