"""Waiting units in lanes: a lane holds the units of one tenant, queue and demand, in order.

Units of a lane differ only in what they say about themselves, so criteria that depend on the unit alone sort the lane once,
when a unit enters. Criteria that depend on the tenant are the same for a whole lane at any moment. A cycle therefore looks
only at the first units of lanes: choosing the next of 100,000 units costs as much as there are lanes, and a demand that has
no room takes all its lanes out of the cycle at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
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
        self._units: dict[UnitKey, PendingUnit] = {}
        self._static = tuple(plugin for plugin in self.order if plugin.per == "unit")
        self.settled = len(self._static) == len(self.order)
        """Whether all criteria depend on the unit alone."""
        self._timed = any(plugin.per == "time" for plugin in self.order)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: UnitKey) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[PendingUnit]:
        return iter(self._units.values())

    def units(self) -> list[PendingUnit]:
        """All of them; quicker than one after the other."""
        return list(self._units.values())

    def in_order(self) -> list[PendingUnit]:
        """All of them in the order of the policy, where all criteria depend on the unit alone (`settled`)."""
        return [entry[3] for entry in sorted(entry for lane in self.lanes.values() for entry in lane.entries)]

    def get(self, key: UnitKey) -> PendingUnit | None:
        """The unit, if it waits."""
        return self._units.get(key)

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
                other._entries[entry[2]], other._units[entry[2]] = (mine, entry), entry[3]
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
        self._entries[unit.key], self._units[unit.key] = (lane, entry), unit

    def remove(self, key: UnitKey) -> PendingUnit | None:
        """A unit waits no more; None when it did not."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        self.added.pop(key, None)
        del self._units[key]
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
