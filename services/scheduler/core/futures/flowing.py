"""What waits as a course of things asks it (outflow.py): classes of equal demands, and kinds of classes that fail together."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from services.scheduler.core.futures.pools import SLACK, Kept, Part, Pool
from services.scheduler.core.state import Demand

Held = tuple[Demand, Sequence[Part]]
"""What a unit holds."""


@dataclass(slots=True, eq=False)
class Kind:
    """Classes of a partition that may use the same pools and want as many accelerators: where these do not suffice for one, they
    do not for the others. While a moment lasts nothing is given back, so pools are looked at from where the last one left off.

    A pool has enough nodes where ``room & mask >= least`` (`Sizes`); ``at`` is the first that may hold all ranks. ``together`` are
    sets of pools over which ranks may be spread; ``alone`` says that there are none, and accelerators are wanted.
    ``numbers`` are those of its classes, ``heads`` the places of the first units of those that are still asked, as a heap;
    ``by_time`` those of all units, the shortest first (where room is reserved; else empty).
    """

    pools: Sequence[Pool]
    ranks: int
    each: int
    mask: int
    least: int
    together: Sequence[Sequence[Pool]]
    partition: frozenset[str]
    by_time: Sequence[tuple[float, int]] = ()
    numbers: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    at: int = 0
    alone: bool = field(init=False)
    _shortest: int = 0

    def __post_init__(self) -> None:
        self.alone = bool(self.each) and not self.together

    def ask(self, classes: Sequence[Class]) -> None:
        """All of its ``classes`` (by number) that have units are asked again, from the first on."""
        heads = []
        for number in self.numbers:
            item = classes[number]
            item.index = 0
            if item.units:
                heads.append(item.units[0])
        heapq.heapify(heads)
        self.heads = heads

    def has_room(self) -> bool:
        """Whether there are so many accelerators, by number of nodes."""
        mask, least, pools, at = self.mask, self.least, self.pools, self.at
        if at < len(pools) and pools[at].room & mask >= least:
            return True
        for later in range(at + 1, len(pools)):
            if pools[later].room & mask >= least:
                self.at = later
                return True
        self.at = len(pools)
        if not self.together:
            return False
        return not self.each or any(sum([pool.room & mask for pool in some]) >= least for some in self.together)

    def left(self) -> Sequence[Pool]:
        """The pools that may hold all ranks; to be asked after `has_room`."""
        return self.pools[self.at :] if self.at else self.pools

    def shut(self, at_s: float, kept: Mapping[int, Kept], started: Sequence[int]) -> bool:
        """Whether whatever would suffice is kept for others, and no unit would be over before; to be asked after `has_room`,
        of those that are not spread and want accelerators (`alone`). ``started`` says by place which units have started."""
        by_time, mask, least = self.by_time, self.mask, self.least
        whole = self.ranks * self.each
        while self._shortest < len(by_time) and started[by_time[self._shortest][1]]:
            self._shortest += 1
        end_s = at_s + (by_time[self._shortest][0] if self._shortest < len(by_time) else math.inf)
        for pool in self.left():
            if pool.room & mask >= least:
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
    before_s: float = -math.inf
    cpus: float = field(init=False)
    memory_bytes: int = field(init=False)
    """What all ranks want together."""

    def __post_init__(self) -> None:
        self.cpus = self.demand.ranks * self.demand.cpus
        self.memory_bytes = self.demand.ranks * self.demand.memory_bytes

    def start(self, end_s: float, kept: Mapping[int, Kept]) -> Held | None:
        """Take room for a unit that is thought to end at ``end_s``; ``kept`` is room for others, by pool. Without room: None;
        ``before_s`` says how early it would have to end to go where room is kept."""
        demand, kind, least_s = self.demand, self.kind, -math.inf
        ranks, mask, least = kind.ranks, kind.mask, kind.least
        cpus, memory_bytes, pools = self.cpus, self.memory_bytes, kind.pools
        for at in range(kind.at, len(pools)):
            pool = pools[at]
            if (
                pool.room & mask < least
                or (cpus and pool.cpus < cpus and (pool.cpus + SLACK) // demand.cpus < ranks)
                or (memory_bytes and pool.memory_bytes < memory_bytes)
            ):
                continue
            if kept:
                reservation = kept.get(pool.number)
                if reservation is not None and end_s > reservation.start_s:
                    if not reservation.lets(demand):
                        least_s = max(least_s, reservation.start_s)
                        continue
                    reservation.accelerators -= ranks * demand.accelerators
                    reservation.cpus -= cpus
            return demand, ((pool.number, ranks, pool.take(demand, ranks)),)
        for together in kind.together:
            held = self._span([pool for pool in together if pool.number not in kept])
            if held is not None:
                return held
        self.before_s = least_s
        return None

    def _span(self, free: Sequence[Pool]) -> Held | None:
        demand = self.demand
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

    def keep(self) -> Sequence[Kept]:
        """The pool, or the pools together, where there is room first for one of the class, by number; none where there never is."""
        demand, kind, best = self.demand, self.kind, None
        accelerators, cpus = demand.ranks * demand.accelerators, self.cpus
        for pool in kind.pools:
            if pool.whole & kind.mask < kind.least:
                continue
            free, free_cpus = pool.free, pool.cpus
            for end_s, _, more, more_cpus in pool.ends:
                if best is not None and end_s >= best.start_s:
                    break
                free += more
                free_cpus += more_cpus
                if free >= accelerators and free_cpus + SLACK >= cpus:
                    best = Kept(pool.number, end_s, free - accelerators, free_cpus - cpus)
                    break
        found: Sequence[Kept] = () if best is None else (best,)
        for together in kind.together:
            if sum([pool.whole & kind.mask for pool in together]) >= kind.least:
                found = self._keep_some(together, found)
        return found

    def _keep_some(self, together: Sequence[Pool], found: Sequence[Kept]) -> Sequence[Kept]:
        """What is kept when the ranks are spread over these pools; ``found`` where that is no earlier."""
        demand = self.demand
        then = {pool.number: [pool.free, pool.cpus] for pool in together}
        ends = heapq.merge(*[[(end, pool.number) for end in pool.ends] for pool in together])
        for end_s, over in groupby(ends, key=lambda end: end[0][0]):
            if found and end_s >= found[0].start_s:
                break
            for (_, _, more, more_cpus), number in over:
                then[number][0] += more
                then[number][1] += more_cpus
            left, kept = demand.ranks, []
            for pool, (free, cpus) in then.items():
                ranks = left
                if demand.accelerators:
                    ranks = min(ranks, int(free // demand.accelerators))
                if demand.cpus > 0:
                    ranks = min(ranks, int((cpus + SLACK) // demand.cpus))
                if ranks > 0:
                    left -= ranks
                    kept.append(Kept(pool, end_s, int(free) - ranks * demand.accelerators, cpus - ranks * demand.cpus))
            if not left:
                return kept
        return found
