"""The order of one cycle: which of the units that wait in lanes (pending.py) is next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from services.scheduler.core.pending import Key, Lane, Pending
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit


class Selection:
    """The order of one cycle. `pop` gives the next unit; `drop` takes the rest of its lane out of the cycle.

    1. The first units of the lanes of one tenant and queue stand in a heap of their own: what their keys owe to the tenant is
       the same for all of them at any moment, so this heap stays right whatever is placed.
    2. The first units of these heaps stand in a heap by their whole keys. `pop` takes the smallest; the next of its tenant
       enters with the next `pop`, when what was placed counts for the tenant.
    3. When a tenant or queue was charged since an entry was made, its key may have grown: it is made anew and enters again.
    This is exact because within a cycle keys only grow (see `Order`); after a preemption all entries are made anew.
    """

    def __init__(self, pending: Pending, context: OrderContext, lanes: Sequence[Lane] | None = None) -> None:
        pending.sort_timed(context, lanes)
        self._pending, self._context = pending, context
        self._lanes = list(pending.lanes.values()) if lanes is None else list(lanes)
        self._told = [tell for plugin in pending.order if (tell := getattr(plugin, "charged", None)) is not None]
        self._settled = pending.settled
        self._all_change = any(plugin.per == "placements" for plugin in pending.order)
        self._next = [0] * len(self._lanes)
        self._dropped = [False] * len(self._lanes)
        self._aside: list[int] = []
        self._charges: dict[str, int] = {}
        self._lane = -1
        self._entering = -1
        """The heap of whose tenant nothing stands in the other one, as a unit of it was popped last; -1: none."""
        number_of: dict[tuple[str, str], int] = {}
        if self._settled:
            # Nothing that is placed changes a key: one heap for all.
            self._group_of = [0] * len(self._lanes)
            self._groups: list[list[tuple[Key, float, UnitKey, int]]] = [[]]
        else:
            self._group_of = [
                number_of.setdefault((lane.tenant_id, lane.queue), len(number_of)) for lane in self._lanes
            ]
            self._groups = [[] for _ in number_of]
        for number, lane in enumerate(self._lanes):
            if lane.entries:
                self._groups[self._group_of[number]].append((*lane.entries[0][:3], number))
        self._heap: list[tuple[Key, float, UnitKey, int, int]] = []
        for group, waiting in enumerate(self._groups):
            heapq.heapify(waiting)
            self._enter(group)

    @property
    def lane(self) -> Lane:
        """The lane of the unit that was popped last."""
        return self._lanes[self._lane]

    def place_of(self, unit: PendingUnit) -> tuple[Key, float, UnitKey] | None:
        """The place in the order of the unit that was popped last; None for others, and where placements may change it."""
        if not self._settled or self._lane < 0:
            return None
        entry = self.lane.entries[self._next[self._lane] - 1]
        return entry[:3] if entry[3] is unit else None

    def pop(self) -> PendingUnit | None:
        """The next unit; None when there is none left."""
        heap = self._heap
        if self._entering >= 0:
            self._enter(self._entering)
            self._entering = -1
        while heap:
            _, _, key, group, stamp = heapq.heappop(heap)
            waiting = self._clean(group)
            if not waiting:
                continue
            number = waiting[0][3]
            lane = self._lanes[number]
            if waiting[0][2] != key or stamp != self._stamp(lane):
                self._enter(group)
                continue
            place = self._next[number]
            unit = lane.entries[place][3]
            self._next[number] = place + 1
            self._lane = number
            if place + 1 < len(lane.entries):
                heapq.heapreplace(waiting, (*lane.entries[place + 1][:3], number))
            else:
                heapq.heappop(waiting)
            self._entering = group
            return unit
        return None

    def add_aside(self, lanes: Sequence[Lane]) -> None:
        """More lanes, not to be looked at before `bring_back`; like that only where all criteria depend on the unit alone."""
        assert self._settled
        for lane in lanes:
            self._aside.append(len(self._lanes))
            self._lanes.append(lane)
            self._group_of.append(0)
            self._next.append(0)
            self._dropped.append(True)

    def set_aside(self, demand: Demand) -> None:
        """Take the rest of the last unit's lane out of the cycle, and that of all lanes of a demand until `bring_back`."""
        self._dropped[self._lane] = True
        for number, lane in enumerate(self._lanes):
            if lane.demand is demand and not self._dropped[number]:
                self._dropped[number] = True
                self._aside.append(number)

    def bring_back(self, place: tuple[Key, float, UnitKey]) -> None:
        """Look again at the lanes set aside whose next units come after ``place``: those before it had their turn."""
        for number in self._aside:
            entries, following = self._lanes[number].entries, self._next[number]
            if following < len(entries) and entries[following][:3] > place:
                self._dropped[number] = False
        self._aside.clear()
        waiting = [
            (*lane.entries[self._next[number]][:3], number)
            for number, lane in enumerate(self._lanes)
            if not self._dropped[number] and self._next[number] < len(lane.entries)
        ]
        heapq.heapify(waiting)
        self._groups[0] = waiting
        self._heap.clear()
        self._entering = 0

    def rest(self) -> list[PendingUnit]:
        """The units of the last unit's lane that are still to come, in order."""
        return [entry[3] for entry in self.lane.entries[self._next[self._lane] :]]

    def skip_longer_than(self, limit_s: float, estimate: str) -> list[PendingUnit]:
        """In the last unit's lane, go on with the next unit that is thought to run at most ``limit_s``; returns the
        units that are passed over."""
        number, lane = self._lane, self.lane
        start = self._next[number]
        short = np.flatnonzero(lane.durations(estimate)[start:] <= limit_s)
        end = start + int(short[0]) if len(short) else len(lane.entries)
        passed = [entry[3] for entry in lane.entries[start:end]]
        self._next[number] = end
        if passed:
            group = self._group_of[number]
            waiting = [entry for entry in self._groups[group] if entry[3] != number]
            if end < len(lane.entries):
                waiting.append((*lane.entries[end][:3], number))
            heapq.heapify(waiting)
            self._groups[group] = waiting
        return passed

    def drop(self) -> list[PendingUnit]:
        """Take the rest of the last unit's lane out of the cycle; returns it."""
        rest = self.rest()
        self._dropped[self._lane] = True
        return rest

    def close_lane(self) -> None:
        """Take the rest of the last unit's lane out of the cycle."""
        self._dropped[self._lane] = True

    def close(self, unwanted: Callable[[Lane], bool]) -> None:
        """Take the rest of several lanes out of the cycle."""
        for number, lane in enumerate(self._lanes):
            if not self._dropped[number] and unwanted(lane):
                self._dropped[number] = True

    def drop_where(self, unwanted: Callable[[Lane], bool]) -> list[PendingUnit]:
        """Take the rest of several lanes out of the cycle; returns their units."""
        out = []
        for number, lane in enumerate(self._lanes):
            if not self._dropped[number] and unwanted(lane):
                out += [entry[3] for entry in lane.entries[self._next[number] :]]
                self._dropped[number] = True
        return out

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """The unit was placed (with ``sign`` -1: preempted): the shares of its tenant and queue change."""
        self._context.shares.charge(unit.tenant_id, unit.demand, sign)
        if self._settled and not self._told:
            return
        for name in {unit.tenant_id, unit.queue, ""}:
            self._charges[name] = self._charges.get(name, 0) + 1
        fallen = [tell(unit, sign, self._context) for tell in self._told]
        if sign < 0 or any(fallen):
            self._heap.clear()
            self._entering = -1
            for group in range(len(self._groups)):
                self._enter(group)

    def _clean(self, group: int) -> list[tuple[Key, float, UnitKey, int]]:
        """The heap of a tenant and queue without lanes that were dropped."""
        waiting = self._groups[group]
        while waiting and self._dropped[waiting[0][3]]:
            heapq.heappop(waiting)
        return waiting

    def _enter(self, group: int) -> None:
        waiting = self._clean(group)
        if waiting:
            whole, queued_at_s, key, number = waiting[0]
            if self._settled:
                heapq.heappush(self._heap, (whole, queued_at_s, key, group, 0))
                return
            lane = self._lanes[number]
            unit = lane.entries[self._next[number]][3]
            whole = self._pending.key(unit, self._context)
            heapq.heappush(self._heap, (whole, queued_at_s, key, group, self._stamp(lane)))

    def _stamp(self, lane: Lane) -> int:
        """Grows when the keys of the lane may have grown."""
        if self._settled:
            return 0
        if self._all_change:
            return self._charges.get("", 0)
        of_queue = self._charges.get(lane.queue, 0) if lane.queue and lane.queue != lane.tenant_id else 0
        return self._charges.get(lane.tenant_id, 0) + of_queue
