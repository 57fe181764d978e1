"""How what waits flows into what comes free, told cheaply: accelerators node by node, cpus and memory by domain.

A prediction looks at a thousand ends and starts. Deciding each of them by the whole policy costs milliseconds apiece; here one
costs microseconds, as only what decides when a unit starts is followed:

1. Nodes that are alike (same domain, same accelerator models) are a pool, with its nodes sorted by how many accelerators are
   free. A unit may go to the pools with nodes that its demand's filters allow; a gang stays in one pool unless it may span.
2. Ranks go where the node scores of most policies would put them: to the tightest node that holds all that are left, else to
   the one that holds most (best fit). Cpus and memory must suffice in sum.
3. At each end the units that wait are asked in the order of the policy, each class until one of it has no room: nothing that
   starts makes room. Where nothing may overtake (strict), the first without room closes its partition. Where room is reserved
   (easy, conservative), a pool is kept for the first without room, from when enough has ended there by number: others go
   there if they are thought to end before, or if so much is free besides (Lifka, JSSPP 1995: EASY).

4. Ends that lie in the same twentieth of the time since now are taken as one: so there are at most some 260 moments to look
   at in 30 days, and the answer says between which ends a start lies.

It knows neither limits, shares of devices, ports, nor topology: `speaks_for` says whether it may be asked.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster, RunningUnit
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.policy import Policy
from services.scheduler.core.pools import SLACK, Held, Kept, Nodes, Pool
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import UNBOUNDED, Ints

_TOGETHER = 0.05
_LEAST_WIDTH_S = 1.0
_LOOKED_AT = 200
"""Units of a class among which one is looked for that is short enough."""


def speaks_for(cluster: Cluster, policy: Policy, units: Iterable[PendingUnit]) -> bool:
    """Whether nothing but room and order decides about these units and those that run."""
    if policy.planner or policy.preemptions or policy.limits:
        return False
    demands = {unit.demand for unit in units} | {item.unit.demand for item in cluster.running.values()}
    return all(_plain(demand) for demand in demands)


def _plain(demand: Demand) -> bool:
    special = demand.resources or demand.topology_required or demand.service_port or demand.avoid
    return not special and (demand.device_milli >= 1000 or not demand.accelerators)


Room = tuple[int, int, bool]
"""(number of the set of pools, accelerators of a rank, whether it may span them)."""


@dataclass(slots=True, eq=False)
class _Class:
    """Units with equal demands: (place in the order, unit, how long it is thought to run). ``whole`` are the accelerators of one,
    ``room`` is what its room depends on."""

    demand: Demand
    pools: list[Pool]
    units: list[tuple[int, PendingUnit, float]]
    whole: int
    room: Room

    def start(self, end_s: float, kept: Mapping[Pool, Kept]) -> tuple[Held | None, float]:
        """Take room for a unit that is thought to end at ``end_s``. Without room: None, and how early it would have to end to
        go where room is kept for others."""
        demand, least_s, whole = self.demand, -math.inf, self.whole
        for pool in self.pools:
            if pool.free < whole or pool.ranks(demand) < demand.ranks:
                continue
            reservation = kept.get(pool)
            if reservation is not None and end_s > reservation.start_s:
                if not reservation.lets(demand):
                    least_s = max(least_s, reservation.start_s)
                    continue
                reservation.accelerators -= whole
                reservation.cpus -= demand.ranks * demand.cpus
            return Held(demand, [(pool, demand.ranks, pool.take(demand, demand.ranks))]), 0.0
        return (self._span(kept) if demand.cross_domain else None), least_s

    def _span(self, kept: Mapping[Pool, Kept]) -> Held | None:
        demand = self.demand
        free = [pool for pool in self.pools if pool not in kept]
        counts = [pool.ranks(demand) for pool in free]
        if sum(counts) < demand.ranks:
            return None
        parts, left = [], demand.ranks
        for count, number in sorted(((count, number) for number, count in enumerate(counts)), reverse=True):
            taken, pool = min(count, left), free[number]
            if taken:
                parts.append((pool, taken, pool.take(demand, taken)))
                left -= taken
        return Held(demand, parts)

    def keep(self) -> Kept | None:
        """The pool where there is room first for one of the class, by number."""
        demand, best = self.demand, None
        accelerators, cpus = demand.ranks * demand.accelerators, demand.ranks * demand.cpus
        for pool in self.pools:
            free, free_cpus = pool.free, pool.cpus
            for end_s, _, more, more_cpus in pool.ends:
                if best is not None and end_s >= best.start_s:
                    break
                free += more
                free_cpus += more_cpus
                if free >= accelerators and free_cpus + SLACK >= cpus:
                    best = Kept(pool, end_s, free - accelerators, free_cpus - cpus)
                    break
        return best


def pools_of(cluster: Cluster, pool_of: Ints, demand: Demand) -> list[int]:
    """Numbers of the pools with nodes that a demand may use; ``pool_of`` are those of the nodes (N)."""
    allowed = np.logical_or.reduce([item.allowed for item in cluster.candidates(demand)])
    found: list[int] = np.unique(pool_of[allowed]).tolist()
    return found


class Layout:
    """Which nodes are alike, and which of them the units may use: what is the same in every course of things. ``units`` wait,
    in the order of the policy; ``discipline`` is the policy's."""

    def __init__(self, cluster: Cluster, units: Sequence[PendingUnit], discipline: str) -> None:
        self.units, self.strict = units, discipline == "strict"
        self.reserving = discipline in {"easy", "conservative"}
        self._view, table = cluster.view, cluster.table
        kinds = np.column_stack([table.node_domain, table.devices > 0])
        _, numbers = np.unique(kinds, axis=0, return_inverse=True)
        self.pool_of = numbers.reshape(-1)
        self._counts = int(self.pool_of.max(initial=-1)) + 1
        self._most = int(table.device_totals.max(initial=0))
        self.pools_of = {demand: pools_of(cluster, self.pool_of, demand) for demand in {unit.demand for unit in units}}
        self.running = [(item.unit.demand, self._holding(item)) for item in cluster.running.values()]
        self.place_of = {unit.key: place for place, unit in enumerate(units)}
        self._waiting = self._classes()
        self._level_of: dict[int, int] = {}
        self._now = self._free()

    def _classes(self) -> list[tuple[Demand, list[tuple[int, PendingUnit, float]], int]]:
        """(demand, units with their places, number of its set of pools), by the first place."""
        by_demand: dict[Demand, list[tuple[int, PendingUnit, float]]] = {}
        for place, unit in enumerate(self.units):
            by_demand.setdefault(unit.demand, []).append((place, unit, estimated_s(unit, "expected")))
        groups: dict[tuple[int, ...], int] = {}
        found = [
            (demand, units, groups.setdefault(tuple(self.pools_of[demand]), len(groups)))
            for demand, units in by_demand.items()
        ]
        self.groups = list(groups)
        """Sets of pools, by number."""
        return found

    def waiting(self, pools: Sequence[Pool]) -> list[_Class]:
        """What waits, anew."""
        return [
            _Class(
                demand,
                [pools[number] for number in self.groups[group]],
                list(units),
                demand.ranks * demand.accelerators,
                (group, demand.accelerators, demand.cross_domain),
            )
            for demand, units, group in self._waiting
        ]

    def pools(self) -> list[Pool]:
        """What is free now, anew; nodes that take no work have no place in it."""
        pools, level_of = self._now, dict(self._level_of)
        return [
            Pool([set(rows) for rows in pool.levels], level_of, pool.free, pool.cpus, pool.memory_bytes)
            for pool in pools
        ]

    def _free(self) -> list[Pool]:
        view = self._view
        level_of = self._level_of
        found = [Pool([set() for _ in range(self._most + 1)], level_of) for _ in range(self._counts)]
        up = np.flatnonzero(view.up)
        of = self.pool_of[up]
        free = np.maximum(view.free_device_totals[up], 0)
        for row, number, level in zip(up.tolist(), of.tolist(), free.tolist(), strict=True):
            level_of[row] = level
            found[number].levels[level].add(row)
        cpus = np.bincount(of, view.free_cpus[up], self._counts).tolist()
        memory = np.bincount(of, view.free_memory_bytes[up], self._counts).tolist()
        counts = np.bincount(of, free, self._counts).tolist()
        for number, pool in enumerate(found):
            pool.free, pool.cpus, pool.memory_bytes = int(counts[number]), cpus[number], memory[number]
        return found

    def _holding(self, running: RunningUnit) -> list[tuple[int, int, Nodes]]:
        """(number of the pool, ranks, nodes) of a unit that runs, on nodes that take work."""
        up, pool_of = self._view.up, self.pool_of
        return [
            (int(pool_of[row]), 1, ((row, len(devices)),) if devices else ())
            for row, devices in running.rows
            if up[row]
        ]


class Course:
    """One course of things from ``now_s`` on. ``ends`` says when those that run end, in the order of ``layout.running``; ``lasts``
    how long the others will run, in that of ``layout.units``.

    ``found`` gives for each start the first and last of the ends that were taken as one, ``cause`` the place in
    ``layout.running`` of the run whose end alone it was (-1: several, or one that waits now), ``until_s`` how far was looked,
    ``cycles`` the moments that were, ``exhausted`` says that nothing runs any more.
    """

    def __init__(self, layout: Layout, now_s: float, ends: Sequence[float], lasts: Sequence[float]) -> None:
        self.found: dict[UnitKey, tuple[float, float]] = {}
        self.cause: dict[UnitKey, int] = {}
        self._last = -1
        self.until_s = now_s
        self.cycles = 0
        self.exhausted = False
        self._layout, self._now_s, self._lasts = layout, now_s, lasts
        self._pools = pools = layout.pools()
        self._waiting = layout.waiting(pools)
        self._ends: list[tuple[float, int, Held]] = []
        for number, ((demand, parts), end_s) in enumerate(zip(layout.running, ends, strict=True)):
            held = Held(demand, [(pools[place], ranks, nodes) for place, ranks, nodes in parts])
            self._ends.append((end_s, number, held))
        self._number = len(self._ends)
        self._ends.sort()
        if layout.reserving:
            for entry in self._ends:
                self._note(*entry)

    @staticmethod
    def _note(end_s: float, number: int, held: Held) -> None:
        demand = held.demand
        for pool, ranks, _ in held.parts:
            pool.ends.append((end_s, number, ranks * demand.accelerators, ranks * demand.cpus))

    def _will_end(self, end_s: float, held: Held) -> None:
        self._number += 1
        heapq.heappush(self._ends, (end_s, self._number, held))
        if self._layout.reserving:
            demand = held.demand
            for pool, ranks, _ in held.parts:
                insort(pool.ends, (end_s, self._number, ranks * demand.accelerators, ranks * demand.cpus))

    def _over(self, end_s: float, number: int, held: Held) -> None:
        held.end()
        if self._layout.reserving:
            for pool, _, _ in held.parts:
                place = bisect_left(pool.ends, (end_s, number))
                del pool.ends[place]

    def run(self, wanted: Collection[UnitKey], horizon_s: float) -> Course:
        """Follow it until all wanted units have started, or the horizon."""
        ends = self._ends
        first_s = at_s = self._now_s
        left = set(wanted)
        while True:
            self._start(first_s, at_s, left)
            self.cycles += 1
            if not left:
                return self
            self.until_s = at_s
            if not ends or ends[0][0] == math.inf:
                self.exhausted = not ends
                return self
            if ends[0][0] > horizon_s:
                return self
            first_s, at_s = self._next_ends()

    def _next_ends(self) -> tuple[float, float]:
        """Let those end that end next and are taken as one: the first and the last of their times."""
        ends = self._ends
        first_s = at_s = ends[0][0]
        until_s = first_s + max(_TOGETHER * (first_s - self._now_s), _LEAST_WIDTH_S)
        over: list[int] = []
        while ends and ends[0][0] <= until_s:
            at_s, number, held = heapq.heappop(ends)
            self._over(at_s, number, held)
            over.append(number)
        self._last = over[0] if len(over) == 1 and over[0] < len(self._layout.running) else -1
        return first_s, at_s

    def _start(self, first_s: float, at_s: float, left: set[UnitKey]) -> None:
        most: dict[Room, int] = {}
        heads = self._heads(most)
        if not heads:
            return
        strict, reserving = self._layout.strict, self._layout.reserving
        closed: set[frozenset[str]] = set()
        kept: dict[Pool, Kept] = {}
        empty = False
        while heads:
            _, number, index = heads[0]
            item = self._waiting[number]
            partition = item.demand.domains
            place, unit, estimate_s = item.units[index]
            room = most.get(item.room)
            if room is None:
                room = most[item.room] = self._most(*item.room)
            if room < item.demand.ranks or (strict and partition in closed):
                held, latest_s = None, -math.inf
            else:
                held, latest_s = item.start(at_s + estimate_s, kept)
            if held is None:
                if reserving and partition not in closed:
                    reservation = item.keep()
                    if reservation is not None and reservation.pool not in kept:
                        kept[reservation.pool] = reservation
                closed.add(partition)
                index = self._shorter(item, index + 1, latest_s - at_s) if latest_s > at_s else -1
            else:
                most.clear()
                del item.units[index]
                self._will_end(at_s + self._lasts[place], held)
                if unit.key in left:
                    left.remove(unit.key)
                    self.found[unit.key] = first_s, at_s
                    self.cause[unit.key] = self._last
                empty = empty or not item.units
            if 0 <= index < len(item.units):
                heapq.heapreplace(heads, (item.units[index][0], number, index))
            else:
                heapq.heappop(heads)
        if empty:
            self._waiting = [item for item in self._waiting if item.units]

    def _heads(self, most: dict[Room, int]) -> list[tuple[int, int, int]]:
        """The first units of the classes that may have room, as a heap of (place, class, 0). Those without room only matter
        where the first of them closes its partition."""
        layout = self._layout
        closing = layout.strict or layout.reserving
        heads: list[tuple[int, int, int]] = []
        first: dict[frozenset[str], tuple[int, int, int]] = {}
        for number, item in enumerate(self._waiting):
            count = most.get(item.room)
            if count is None:
                count = most[item.room] = self._most(*item.room)
            if count >= item.demand.ranks:
                heads.append((item.units[0][0], number, 0))
            elif closing:
                head = item.units[0][0], number, 0
                partition = item.demand.domains
                if partition not in first or head < first[partition]:
                    first[partition] = head
        if heads:
            heads += first.values()
            heapq.heapify(heads)
        return heads

    def _most(self, group: int, each: int, together: bool) -> int:
        """Ranks of so many accelerators that fit in one pool of a set, or in all of them."""
        if not each:
            return UNBOUNDED
        counts = [self._pools[number].counted(each) for number in self._layout.groups[group]]
        return sum(counts) if together else max(counts, default=0)

    @staticmethod
    def _shorter(item: _Class, index: int, most_s: float) -> int:
        """The next unit of a class that is thought to run at most ``most_s``; -1 when there is none among the next few."""
        if most_s <= 0:
            return -1
        units = item.units
        return next(
            (place for place in range(index, min(index + _LOOKED_AT, len(units))) if units[place][2] <= most_s), -1
        )
