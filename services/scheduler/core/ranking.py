"""The units that run, in the policy's order as if they waited: who is behind whom decides who may be taken off.

`ranked` sorts them; `KeptRanking` keeps them sorted from cycle to cycle, as sorting costs more than most cycles decide.

Steps of the latter:
1. What begins and ends is noted as it happens. A unit gets its place when somebody asks next: its estimates are known by then.
2. Where the keys of all criteria last (`Order.lasting`), a place is good until `Order.changes_at_s`.
3. Where the time to the end is the only criterion (`Order.by_end`), all keys fall alike: units stand by when they end, and what
   is left of that is worked out where it is compared. One that outlives its estimate gets another place.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Container, Sequence
from dataclasses import replace

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import Order, OrderContext, PendingUnit, Shares

Key = tuple[float | tuple[float, ...], ...]
Place = tuple[Key, float, UnitKey]
"""The place of a unit in the policy's order: its keys, then its age, then its name."""
Ranked = tuple[Key, float, UnitKey, "RunningUnit"]

RANKING = "ranking"
"""The fact of a cycle, and what is watched on the cluster."""
PLACE = "place"
"""With the name of a unit that waits: what a cycle knows of its place."""
_SLACK_S = 1e-6
_EARLY_S = 1e-3
"""Times are sums, and not exact: so long before a key is to change it is worked out in each cycle."""


class Ranking:
    """Running units in order, the first to be taken off last. ``entries`` are their places, with them."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Ranked]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def behind(self, place: Place) -> int:
        """How many stand behind the place of a unit that waits."""
        return len(self.entries) - bisect_left(self.entries, place)

    def last(self, past: int, until: int) -> list[RunningUnit]:
        """Those from the end on, the last first, from the ``past``-th to before the ``until``-th (0 is the last)."""
        size = len(self.entries)
        part = self.entries[max(size - until, 0) : size - past]
        part.reverse()
        return [entry[3] for entry in part]

    def keyed(self, until: int) -> list[tuple[Key, RunningUnit]]:
        """`last` from the end on to before the ``until``-th, each with its key."""
        part = self.entries[max(len(self.entries) - until, 0) :]
        part.reverse()
        return [(entry[0], entry[3]) for entry in part]

    def only(self, left: Container[UnitKey]) -> Ranking:
        """The same without units that are not ``left``."""
        return Ranking([entry for entry in self.entries if entry[2] in left])


class ByEnd(Ranking):
    """The same where the first item of an entry is when it is thought to end."""

    __slots__ = ("_now_s",)

    def __init__(self, entries: list[Ranked], now_s: float) -> None:
        super().__init__(entries)
        self._now_s = now_s

    def behind(self, place: Place) -> int:
        return len(self.entries) - bisect_left(self.entries, place, key=self._place)

    def keyed(self, until: int) -> list[tuple[Key, RunningUnit]]:
        part = self.entries[max(len(self.entries) - until, 0) :]
        part.reverse()
        return [((entry[0][0] - self._now_s,), entry[3]) for entry in part]  # type: ignore[operator]

    def only(self, left: Container[UnitKey]) -> Ranking:
        return ByEnd([entry for entry in self.entries if entry[2] in left], self._now_s)

    def _place(self, entry: Ranked) -> Place:
        return (entry[0][0] - self._now_s,), entry[1], entry[2]  # type: ignore[operator]


def ranked(running: Sequence[RunningUnit], context: OrderContext) -> Ranking:
    """The running units in the policy's order, worked out once in a cycle: the one that is kept, or sorted anew."""
    found: Ranking | None = context.cache.get(RANKING)
    if found is None:
        kept: KeptRanking | None = context.facts.get(RANKING)
        found = context.cache[RANKING] = _sorted(running, context) if kept is None else kept.ranking
    return found


def ranked_still(running: Sequence[RunningUnit], context: OrderContext) -> Ranking:
    """The same without units that were taken off in this cycle. ``running`` are those that are left."""
    known: tuple[int, Ranking] | None = context.cache.get("still")
    if known is None or known[0] != len(running):
        found, left = ranked(running, context), context.facts["running"]
        known = context.cache["still"] = len(running), found if len(left) == len(found) else found.only(left)
    return known[1]


def _sorted(running: Sequence[RunningUnit], context: OrderContext) -> Ranking:
    keys = running_keys(context.facts["order"], running, context)
    found = [(key, item.unit.queued_at_s, item.unit.key, item) for key, item in zip(keys, running, strict=True)]
    found.sort()
    return Ranking(found)


def running_key(orders: Sequence[Order], item: RunningUnit, context: OrderContext) -> Key:
    """The key that a running unit would have if it waited now."""
    key: list[float | tuple[float, ...]] = []
    state: PendingUnit | None = None
    for plugin in orders:
        quick = getattr(plugin, "running_key", None)
        if quick is not None:
            key.append(float(quick(item, context)))
            continue
        if state is None:
            state = replace(item.unit, attained_s=item.ran_s(context.now_s), served_s=item.service_s(context.now_s))
        key.append(plugin.key(state, context))
    return tuple(key)


def running_keys(orders: Sequence[Order], running: Sequence[RunningUnit], context: OrderContext) -> list[Key]:
    """`running_key` of many units."""
    columns: list[Sequence[float]] = []
    for plugin in orders:
        many, quick = getattr(plugin, "running_keys", None), getattr(plugin, "running_key", None)
        if many is not None:
            columns.append(many(running, context))
        elif quick is not None:
            columns.append([float(quick(item, context)) for item in running])
        else:
            return [running_key(orders, item, context) for item in running]
    return list(zip(*columns, strict=True))


def can_be_kept(orders: Sequence[Order]) -> bool:
    """Whether `KeptRanking` knows how to keep this order."""
    return bool(_by_end(orders)) or (bool(orders) and all(getattr(plugin, "lasting", False) for plugin in orders))


def _by_end(orders: Sequence[Order]) -> str:
    """The estimate of the end that alone decides the order; empty where it is another order."""
    return str(getattr(orders[0], "by_end", "")) if len(orders) == 1 else ""


class KeptRanking:
    """See the module; an observer of a cluster (`Cluster.watch`). Estimates of units must not change while it is kept."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = tuple(orders)
        self._by_end = _by_end(orders)
        self._changes = [ask for plugin in orders if (ask := getattr(plugin, "changes_at_s", None)) is not None]
        self._entries: list[Ranked] = []
        self._known: dict[UnitKey, Ranked] = {}
        self._new: dict[UnitKey, RunningUnit] = {}
        self._due: list[tuple[float, int, RunningUnit]] = []
        """When places may be others."""
        self._ends: list[tuple[float, int, RunningUnit]] = []
        self._late: dict[UnitKey, RunningUnit] = {}
        self._pushed = 0
        self._unsure_until_s = -math.inf
        """Until then two units end so close to each other that what is left of both may be the same number."""
        self._context = OrderContext(Shares({}, 1.0, 1.0, {}))
        self.ranking = Ranking(self._entries)

    # -- observing -----------------------------------------------------------------------------------------------------

    def began(self, running: RunningUnit) -> None:
        """See `Observer`."""
        self._new[running.unit.key] = running

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """See `Observer`."""
        key = running.unit.key
        self._late.pop(key, None)
        if self._new.pop(key, None) is None:
            self._remove(key)

    # -- asking --------------------------------------------------------------------------------------------------------

    def at(self, now_s: float) -> KeptRanking | None:
        """Bring it up to date; None when all must be sorted anew now."""
        due, again = self._due, []
        while due and due[0][0] <= now_s:
            running = heapq.heappop(due)[2]
            if self._is_known(running):
                self._remove(running.unit.key)
                again.append(running)
        self._context.now_s = now_s
        if again or self._new:
            for running in (*again, *self._new.values()):
                self._enter(running, now_s)
            self._new.clear()
        ends = self._ends
        while ends and ends[0][0] <= now_s + _SLACK_S:
            running = heapq.heappop(ends)[2]
            if self._is_known(running):
                self._late[running.unit.key] = running
        if self._by_end:
            self.ranking = ByEnd(self._entries, now_s)
            return None if now_s < self._unsure_until_s else self
        return self

    def place(self, key: UnitKey) -> Place:
        """The place of a unit that runs."""
        entry = self._known[key]
        if not self._by_end:
            return entry[:3]
        return (entry[0][0] - self._context.now_s,), entry[1], entry[2]  # type: ignore[operator]

    def late(self) -> list[RunningUnit]:
        """Units that have outlived an estimate."""
        return list(self._late.values())

    def _is_known(self, running: RunningUnit) -> bool:
        entry = self._known.get(running.unit.key)
        return entry is not None and entry[3] is running

    def _remove(self, key: UnitKey) -> None:
        entry = self._known.pop(key, None)
        if entry is not None:
            del self._entries[bisect_left(self._entries, entry)]

    def _enter(self, running: RunningUnit, now_s: float) -> None:
        unit = running.unit
        if self._by_end:
            at_s = running.end_s(now_s, self._by_end)
            key: Key = (at_s,)
        else:
            at_s = min((ask(running, now_s) for ask in self._changes), default=math.inf)
            key = running_key(self._orders, running, self._context)
        entry = (key, unit.queued_at_s, unit.key, running)
        self._known[unit.key] = entry
        insort(self._entries, entry)
        if self._by_end:
            self._look_beside(entry)
        if at_s < math.inf:
            self._push(self._due, at_s - _EARLY_S, running)
        end_s = min(running.expected_end_s, running.limit_end_s)
        if end_s < math.inf:
            self._push(self._ends, end_s, running)

    def _look_beside(self, entry: Ranked) -> None:
        """Note ends that differ by next to nothing."""
        end_s: float = entry[0][0]  # type: ignore[assignment]
        place = bisect_left(self._entries, entry)
        for other in self._entries[max(place - 1, 0) : place + 2]:
            their_s: float = other[0][0]  # type: ignore[assignment]
            if 0.0 < abs(their_s - end_s) < _SLACK_S:
                self._unsure_until_s = max(self._unsure_until_s, their_s, end_s)

    def _push(self, heap: list[tuple[float, int, RunningUnit]], at_s: float, running: RunningUnit) -> None:
        self._pushed += 1
        heapq.heappush(heap, (at_s, self._pushed, running))
