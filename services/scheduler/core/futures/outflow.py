"""How what waits flows into what comes free, told cheaply: accelerators node by node, cpus and memory by domain.

A prediction looks at a thousand ends and starts. Deciding each of them by the whole policy costs milliseconds apiece; here one
costs microseconds, as only what decides when a unit starts is followed:

1. Nodes that are alike (same domain, same accelerator models) are a pool, with its nodes sorted by how many accelerators are
   free. A unit may go to the pools with nodes that its demand's filters allow; a gang stays in one pool unless it may span.
2. Ranks go where the node scores of most policies would put them: to the tightest node that holds all that are left, else to
   the one that holds most (best fit). Cpus and memory must suffice in sum.
3. At each end the units that wait are asked in the order of the policy, each class until one of it has no room: nothing that
   starts makes room. Where nothing may overtake (strict), the first without room closes its partition. Where room is reserved
   (easy, conservative), a pool - several together where it may span them - is kept for the first without room that would fit
   if nothing ran, from when enough has ended there by number: others go there if they are thought to end before, or if so
   much is free besides (Lifka, JSSPP 1995: EASY).

4. Ends that lie in the same twentieth of the time since now are taken as one: so there are at most some 260 moments to look
   at in 30 days, and the answer says between which ends a start lies.

It knows neither limits, shares of devices, ports, nor topology: `speaks_for` says whether it may be asked.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.futures.flowing import Class, Kind
from services.scheduler.core.futures.layout import Layout
from services.scheduler.core.futures.pools import Kept
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.unlike import plans
from services.scheduler.core.waiting_unit import PendingUnit

_TOGETHER = 0.05
_LEAST_WIDTH_S = 1.0
_LOOKED_AT = 200
"""Units of a class among which one is looked for that is short enough."""
_time = itemgetter(0)


def speaks_for(cluster: Cluster, policy: Policy, units: Iterable[PendingUnit]) -> bool:
    """Whether nothing but room and order decides about these units and those that run."""
    if plans(cluster, policy) or policy.preemptions or policy.limits:
        return False
    demands = {unit.demand for unit in units} | {item.unit.demand for item in cluster.running.values()}
    return all(_plain(demand) for demand in demands)


def _plain(demand: Demand) -> bool:
    special = demand.resources or demand.topology_required or demand.service_port or demand.avoid
    return not special and (demand.device_milli >= 1000 or not demand.accelerators)


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
        self._classes, self._kinds = layout.waiting(pools)
        self._started = bytearray(len(layout.units))
        self._number = len(layout.running)
        in_time = sorted(zip(ends, range(self._number), layout.running, strict=True))
        # Two lists, as times alone are found quicker than with what ends then.
        self._ends_s = [end_s for end_s, _, _ in in_time]
        self._ending = [(number, held) for _, number, held in in_time]
        if layout.reserving:
            for end_s, number, _ in in_time:
                for pool, accelerators, cpus in layout.endings[number]:
                    pools[pool].ends.append((end_s, number, accelerators, cpus))

    def run(self, wanted: Collection[UnitKey], horizon_s: float) -> Course:
        """Follow it until all wanted units have started, or the horizon."""
        ends_s = self._ends_s
        first_s = at_s = self._now_s
        left = {place for place, unit in enumerate(self._layout.units) if unit.key in wanted}
        while True:
            self._start(first_s, at_s, left)
            self.cycles += 1
            if not left:
                return self
            self.until_s = at_s
            if not ends_s or ends_s[0] == math.inf:
                self.exhausted = not ends_s
                return self
            if ends_s[0] > horizon_s:
                return self
            first_s, at_s = self._next_ends()

    def _next_ends(self) -> tuple[float, float]:
        """Let those end that end next and are taken as one: the first and the last of their times."""
        ends_s, ending, pools = self._ends_s, self._ending, self._pools
        first_s = ends_s[0]
        until_s = first_s + max(_TOGETHER * (first_s - self._now_s), _LEAST_WIDTH_S)
        count = bisect_right(ends_s, until_s)
        last_s, over = ends_s[count - 1], ending[:count]
        del ends_s[:count], ending[:count]
        for _, (demand, parts) in over:
            for pool, ranks, nodes in parts:
                pools[pool].give(demand, ranks, nodes)
        if self._layout.reserving:
            for each in pools:
                del each.ends[: bisect_right(each.ends, until_s, key=_time)]
        number = over[0][0]
        self._last = number if count == 1 and number < len(self._layout.running) else -1
        return first_s, last_s

    def _start(self, first_s: float, at_s: float, left: set[int]) -> None:
        """Start what fits, in order. ``left`` are the places of wanted units; those that start are taken out."""
        heads = []
        for kind in self._kinds:
            kind.at = 0
            heads.append(kind.heads[0])
        heapify(heads)
        layout, classes, lasts = self._layout, self._classes, self._lasts
        class_of, estimates_s, strict = layout.class_of, layout.estimates_s, layout.strict
        reserving, started, pools = layout.reserving, self._started, self._pools
        ends_s, ending = self._ends_s, self._ending
        closing = strict or reserving
        closed: set[frozenset[str]] = set()
        kept: dict[int, Kept] = {}
        again: dict[Kind, None] = {}
        while heads:
            place = heads[0]
            item = classes[class_of[place]]
            kind = item.kind
            if (
                (strict and kind.partition in closed)
                or not kind.has_room()
                or (kept and kind.alone and kind.pools[kind.at].number in kept and kind.shut(at_s, kept, started))
            ):
                if closing and kind.partition not in closed:
                    self._close(item, closed, kept)
                heappop(heads)
                continue
            held = item.start(at_s + estimates_s[place], kept)
            index, units = item.index, item.units
            if held is None:
                if closing and kind.partition not in closed:
                    self._close(item, closed, kept)
                again[kind] = None
                item.index = index = self._shorter(item, item.before_s - at_s) if item.before_s > at_s else -1
            else:
                del units[index]
                started[place] = True
                end_s, demand = at_s + lasts[place], held[0]
                self._number = number = self._number + 1
                behind = bisect_right(ends_s, end_s)
                ends_s.insert(behind, end_s)
                ending.insert(behind, (number, held))
                if reserving:
                    for pool, ranks, _ in held[1]:
                        insort(pools[pool].ends, (end_s, number, ranks * demand.accelerators, ranks * demand.cpus))
                if place in left:
                    left.remove(place)
                    key = layout.units[place].key
                    self.found[key], self.cause[key] = (first_s, at_s), self._last
            if 0 <= index < len(units):
                heapreplace(kind.heads, units[index])
            else:
                heappop(kind.heads)
            if kind.heads:
                heapreplace(heads, kind.heads[0])
            else:
                heappop(heads)
        for kind in again:
            kind.ask(classes)
        self._kinds = [kind for kind in self._kinds if kind.heads]

    def _close(self, item: Class, closed: set[frozenset[str]], kept: dict[int, Kept]) -> None:
        """A unit of the class is the first without room in its partition. For one that never has room nothing is reserved."""
        if self._layout.reserving:
            reservations = item.keep()
            if not reservations:
                return
            for reservation in reservations:
                kept.setdefault(reservation.pool, reservation)
        closed.add(item.kind.partition)

    def _shorter(self, item: Class, most_s: float) -> int:
        """The next unit of a class that is thought to run at most ``most_s``; -1 when there is none among the next few."""
        estimates_s, units = self._layout.estimates_s, item.units
        for index in range(item.index + 1, min(item.index + 1 + _LOOKED_AT, len(units))):
            if estimates_s[units[index]] <= most_s:
                return index
        return -1
