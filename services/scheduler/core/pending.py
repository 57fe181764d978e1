"""Waiting units in lanes: a lane holds the units of one tenant, queue and demand, in order.

Units of a lane differ only in what they say about themselves, so criteria that depend on the unit alone sort the lane once,
when a unit enters. Criteria that depend on the tenant are the same for a whole lane at any moment. A cycle therefore looks
only at the first units of lanes: choosing the next of 100,000 units costs as much as there are lanes, and a demand that has
no room takes all its lanes out of the cycle at once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Floats
from services.scheduler.core.waiting_unit import Order, OrderContext, PendingUnit, Shares

Key = tuple[float | tuple[float, ...], ...]
Entry = tuple[Key, float, UnitKey, PendingUnit]
LaneKey = tuple[str, str, Demand]

_NO_CONTEXT = OrderContext(Shares({}, 1.0, 1.0, {}))


class Lane:
    """The waiting units of one tenant, queue and demand, sorted by the criteria that depend on the unit alone."""

    __slots__ = ("_durations", "demand", "entries", "fresh", "queue", "tenant_id")

    def __init__(self, tenant_id: str, queue: str, demand: Demand) -> None:
        self.tenant_id, self.queue, self.demand = tenant_id, queue, demand
        self.entries: list[Entry] = []
        self.fresh = True
        """Whether a unit entered since a cycle last looked."""
        self._durations: dict[str, Floats] = {}

    def durations(self, estimate: str) -> Floats:
        """The units' estimated run times left, in order; ``estimate`` is "limit" or "expected"."""
        found = self._durations.get(estimate)
        if found is None:
            left = [estimated_s(entry[3], estimate) for entry in self.entries]
            found = self._durations[estimate] = np.array(left)
        return found

    def entered(self, place: int) -> None:
        """There is another entry at ``place``."""
        unit = self.entries[place][3]
        for estimate, values in self._durations.items():
            left = np.array((estimated_s(unit, estimate),))
            self._durations[estimate] = np.concatenate((values[:place], left, values[place:]))

    def left(self, place: int) -> None:
        """The entry at ``place`` is gone."""
        for estimate, values in self._durations.items():
            self._durations[estimate] = np.concatenate((values[:place], values[place + 1 :]))

    def changed(self) -> None:
        """The entries are others than before."""
        self._durations.clear()


def estimated_s(unit: PendingUnit, estimate: str) -> float:
    """How long the unit is thought to run from now: by its user's limit, by prediction ("expected"), or by the upper end of
    its band ("high"), whichever is known."""
    if estimate == "limit":
        whole = unit.limit_s if unit.limit_s != np.inf else unit.expected_s
    elif estimate == "high" and unit.high_s != np.inf:
        whole = unit.high_s
    else:
        whole = unit.expected_s if unit.expected_s != np.inf else unit.limit_s
    return max(whole - unit.attained_s, 0.0) if whole != np.inf else whole


def by_demand(lanes: Iterable[Lane]) -> dict[Demand, list[Lane]]:
    """Lanes with equal demands together."""
    found: dict[Demand, list[Lane]] = {}
    for lane in lanes:
        found.setdefault(lane.demand, []).append(lane)
    return found


class Pending:
    """All waiting units, in lanes. ``order`` are the criteria of the policy."""

    def __init__(self, order: Sequence[Order] = ()) -> None:
        self.order = tuple(order)
        self.lanes: dict[LaneKey, Lane] = {}
        self.alike: dict[Demand, list[Lane]] = {}
        """The lanes by demand."""
        self.added: dict[UnitKey, PendingUnit] = {}
        """What entered since a cycle last looked."""
        self._fresh: list[Lane] = []
        self._entries: dict[UnitKey, tuple[Lane, Entry]] = {}
        self._static = tuple(plugin for plugin in self.order if plugin.per == "unit")
        self.settled = len(self._static) == len(self.order)
        """Whether all criteria depend on the unit alone."""
        self._timed = any(plugin.per == "time" for plugin in self.order)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: UnitKey) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[PendingUnit]:
        return (entry[3] for _, entry in self._entries.values())

    def units(self) -> list[PendingUnit]:
        """All of them; quicker than one after the other."""
        return [entry[3] for _, entry in self._entries.values()]

    def in_order(self) -> list[PendingUnit]:
        """All of them in the order of the policy, where all criteria depend on the unit alone (`settled`)."""
        return [entry[3] for entry in sorted(entry for lane in self.lanes.values() for entry in lane.entries)]

    def get(self, key: UnitKey) -> PendingUnit | None:
        """The unit, if it waits."""
        found = self._entries.get(key)
        return None if found is None else found[1][3]

    def copy(self) -> Pending:
        """The same units in the same order, to be changed without changing these."""
        other = Pending(self.order)
        for name, lane in self.lanes.items():
            mine = other.lanes[name] = Lane(*name)
            mine.entries, mine.fresh = list(lane.entries), lane.fresh
            other.alike.setdefault(mine.demand, []).append(mine)
            if mine.fresh:
                other._fresh.append(mine)
            for entry in mine.entries:
                other._entries[entry[2]] = (mine, entry)
        other.added = dict(self.added)
        return other

    def add(self, unit: PendingUnit) -> None:
        """A unit begins to wait; one with the same key is replaced."""
        if unit.key in self._entries:
            self.remove(unit.key)
        name = (unit.tenant_id, unit.queue, unit.demand)
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(*name)
            self.alike.setdefault(unit.demand, []).append(lane)
        entry = (self._static_key(unit), unit.queued_at_s, unit.key, unit)
        if self._timed or (lane.entries and lane.entries[-1][:3] < entry[:3]):
            # Criteria of time are sorted by when a cycle begins: keys of before cannot be compared.
            place = len(lane.entries)
        else:
            place = bisect_left(lane.entries, entry[:3], key=_position)
        lane.entries.insert(place, entry)
        lane.entered(place)
        lane.fresh = True
        self._fresh.append(lane)
        self.added[unit.key] = unit
        self._entries[unit.key] = (lane, entry)

    def remove(self, key: UnitKey) -> PendingUnit | None:
        """A unit waits no more; None when it did not."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        self.added.pop(key, None)
        lane, entry = found
        place = 0 if self._timed else bisect_left(lane.entries, entry[:3], key=_position)
        if place >= len(lane.entries) or lane.entries[place][2] != key:
            # Criteria of time: a lane is in order only after `sort_timed`.
            place = next(number for number, other in enumerate(lane.entries) if other[2] == key)
        del lane.entries[place]
        lane.left(place)
        if not lane.entries:
            del self.lanes[lane.tenant_id, lane.queue, lane.demand]
            self.alike[lane.demand].remove(lane)
            if not self.alike[lane.demand]:
                del self.alike[lane.demand]
        return entry[3]

    def reorder(self, order: Sequence[Order]) -> None:
        """Other criteria apply from now on."""
        units = list(self)
        self.__init__(order)  # type: ignore[misc]
        for unit in units:
            self.add(unit)

    def looked(self) -> None:
        """A cycle has looked at all that waits."""
        self.added.clear()
        for lane in self._fresh:
            lane.fresh = False
        self._fresh.clear()

    def sort_timed(self, context: OrderContext, lanes: Sequence[Lane] | None = None) -> None:
        """Put lanes (all, or those given) in order whose criteria change with time."""
        if not self._timed:
            return
        lanes = list(self.lanes.values()) if lanes is None else lanes
        units = [entry[3] for lane in lanes for entry in lane.entries]
        columns = [_column(plugin, lanes, units, context) for plugin in self.order]
        place = 0
        keys = list(zip(*columns, strict=True))
        for lane in lanes:
            size = len(lane.entries)
            entries = [
                (key, unit.queued_at_s, unit.key, unit)
                for key, unit in zip(keys[place : place + size], units[place : place + size], strict=True)
            ]
            place += size
            entries.sort(key=_position)
            for entry in entries:
                self._entries[entry[2]] = (lane, entry)
            lane.entries = entries
            lane.changed()

    def key(self, unit: PendingUnit, context: OrderContext) -> Key:
        """The unit's key by all criteria."""
        return tuple([plugin.key(unit, context) for plugin in self.order])

    def _static_key(self, unit: PendingUnit) -> Key:
        return tuple([plugin.key(unit, _NO_CONTEXT) for plugin in self._static])


def _column(plugin: Order, lanes: Sequence[Lane], units: Sequence[PendingUnit], context: OrderContext) -> list[Any]:
    """The keys of all units of lanes by one criterion."""
    many = getattr(plugin, "keys", None)
    if many is not None:
        found: list[Any] = many(units, context).tolist()
        return found
    if plugin.per in {"tenant", "placements"}:
        return [key for lane in lanes for key in [plugin.key(lane.entries[0][3], context)] * len(lane.entries)]
    return [plugin.key(unit, context) for unit in units]


def _position(entry: Entry) -> tuple[Key, float, UnitKey]:
    return entry[:3]


class Selection:
    """The order of one cycle. `pop` gives the next unit; `drop` takes the rest of its lane out of the cycle.

    1. The first units of the lanes of one tenant and queue stand in a heap of their own: what their keys owe to the tenant is
       the same for all of them at any moment, so this heap stays right whatever is placed.
    2. The first units of these heaps stand in a heap by their whole keys. `pop` takes the smallest; the next of its tenant
       enters.
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
            self._enter(group)
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
        self._enter(0)

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
