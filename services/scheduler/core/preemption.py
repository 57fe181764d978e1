"""Preemption: which running units may lose their nodes to a unit that waits.

A preemption plugin has a ``name`` and ``victims(unit, running, context)``: the running units that may be taken off for
``unit``, in the order in which to take them. ``settled`` True promises that a unit which could take nobody off can take
nobody off later either, until capacity comes free or the order of running units changes (`Order.changes_at_s`): begins of
runs alone give it no better claim; with ``settled_by`` only under orders whose first criterion that is. `find_room` takes whole units (never a part of a gang), as few as needed. It may
also have ``relieve(unit, running, context)``: all that must be taken off so that the limits let ``unit`` pass; and
``out_of_reach(unit, running, context, place)``: True when all ``victims`` together could not give it enough room, which is asked
first because it costs less (for one unit True, it is True for all that the order puts behind it with the same demand).
``moves(unit, group, context)``: how units that run make room by going to other nodes (room_by_moving.py), asked when its
``victims`` gave none.
``steady`` True promises that a unit which found no room, with all that it could take off, finds it only where something changes:
units end, or fall in the order (`Order.steady`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.choosing import Choice
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.placement import Candidates, best
from services.scheduler.core.ranking import PLACE, Key, Place, Ranking, ranked, ranked_still
from services.scheduler.core.reach import Reach
from services.scheduler.core.room_by_moving import MovePreemption
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.reclaim import ReclaimPreemption
from services.scheduler.core.selection.settings import flag_of
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools
from services.scheduler.core.waiting_unit import Order, OrderContext, PendingUnit


class Preemption(Protocol):
    """See the module."""

    name: str

    def victims(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        """Units that may be taken off for ``unit``, first those that are to go first."""
        ...


class PriorityPreemption:
    """Units of lower priority: the lowest first, then those that lose least work (time times accelerators)."""

    name = "priority"
    settled = True
    settled_by = "priority"
    """Under another order one of lower priority may stand before a unit that waits, begin, and then be taken off for it."""

    def victims(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        lower = [item for item in running if item.unit.preemptible and item.unit.priority < unit.priority]
        return sorted(lower, key=lambda item: (item.unit.priority, lost_work(item, context.now_s), item.unit.key))


class OrderPreemption:
    """Units that the policy's own order puts behind the waiting one, as if they waited too: the last first. With the order
    `shortest_remaining` this is preemptive SRPT, with `least_attained` Tiresias.

    Two options keep units from pushing each other out all the time. ``margin_s``: a victim must have run at least so long in
    this run, its restart not counted, or two with long restarts would take turns at nothing else. ``ratio``: where keys of the
    first criterion that tells the two apart have a ratio (remaining time, remaining work; `Order`: ``scale``), the victim's must
    be at least so many times that of the waiting one; points in time, levels and priorities have none, so any difference is
    enough; with a ratio above 1 the age that breaks ties takes nobody off. Jobs of unknown length look ever longer as they run,
    so that those of like age overtake each other again and again; each time costs a restart. ``alike_ratio`` takes the place of ``ratio`` between units of one tenant that ask for the same and name
    neither user nor program: nothing but their predictions tells them apart.

    ``smallest_first`` decides between units that the first criterion does not put apart, by the ratio: of those that hold enough
    accelerators (CPUs, for a unit without accelerators) the one with fewest goes first, then those that hold too few, the
    greatest first. Else a large gang goes for a small unit, and small ones that slip into its place keep it from coming back.
    """

    name = "order"
    settled = True

    def __init__(
        self,
        margin_s: float = 0.0,
        ratio: float = 1.0,
        *,
        alike_ratio: float | None = None,
        smallest_first: bool = False,
    ) -> None:
        self.margin_s, self.ratio, self.smallest_first = margin_s, ratio, smallest_first
        self.alike_ratio = ratio if alike_ratio is None else alike_ratio

    @property
    def steady(self) -> bool:
        """Not with a margin, which ends with time alone; a ratio is between keys that both change."""
        return not self.margin_s and self.ratio == self.alike_ratio == 1.0

    def configured(self, options: Mapping[str, Any]) -> OrderPreemption:
        """With ``margin_s`` (seconds, at least 0), ``ratio`` and ``alike_ratio`` (at least 1; without the second it is the first)
        and ``smallest_first`` (true or false)."""
        refuse_unknown(self.name, options, ("margin_s", "ratio", "alike_ratio", "smallest_first"))
        smallest_first = flag_of("options.order.smallest_first", options.get("smallest_first", False))
        amounts = {name: value for name, value in options.items() if name != "smallest_first"}
        numbers = numbers_of(self.name, amounts, margin_s=0.0, ratio=1.0, alike_ratio=1.0)
        return OrderPreemption(**numbers, smallest_first=smallest_first)

    def victims(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        ranking = ranked(running, context)
        orders: Sequence[Order] = context.facts["order"]
        own = _place(unit, context)
        left = context.facts["running"]
        behind = []
        for key, item in ranking.keyed(ranking.behind(own)):
            steady = not self.margin_s or item.settled_s(context.now_s) >= self.margin_s
            if steady and item.unit.preemptible and item.unit.key in left:
                behind.append((key, item))
        if self.ratio > 1.0 or self.alike_ratio > 1.0:
            behind = [(key, item) for key, item in behind if self._apart(item.unit, unit, key, own[0], orders)]
        if self.smallest_first and len(behind) > 1:
            return self._smallest_first(behind, unit, orders[0])
        return [item for _, item in behind]

    def out_of_reach(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext, place: Place | None = None
    ) -> bool:
        """Whether all units behind it, if all could be taken off, hold too little for it (reach.py). ``place`` is its place in
        the order, when the caller knows it."""
        ranking = ranked_still(running, context)
        known: tuple[int, Reach] | None = context.cache.get(("reach", unit.demand))
        # Units that were taken off in this cycle are room by now.
        if known is None or known[0] != len(running):
            reach = self._reach(unit.demand, ranking, context)
            known = context.cache["reach", unit.demand] = len(running), reach
        first = ranking.behind(place or _place(unit, context))
        return not first or not known[1].covers(unit.demand, first)

    @staticmethod
    def _reach(demand: Demand, ranking: Ranking, context: OrderContext) -> Reach:
        """What the units of the ranking could free on nodes that qualify for the demand."""
        cluster: Cluster = context.facts["cluster"]
        allowed = allowed_nodes(cluster.candidates(demand))
        name = "reach", len(ranking), allowed.tobytes()
        found: Reach | None = context.cache.get(name)
        if found is None:
            found = context.cache[name] = Reach(cluster.view, ranking.last, allowed)
        return found

    def _apart(
        self,
        victim: PendingUnit,
        unit: PendingUnit,
        theirs: Sequence[float | tuple[float, ...]],
        own: Sequence[float | tuple[float, ...]],
        orders: Sequence[Order],
    ) -> bool:
        """Whether the first criterion that differs puts the victim far enough behind."""
        for plugin, their, ours in zip(orders, theirs, own, strict=True):
            if their != ours:
                return _behind_by(self.alike_ratio if _alike(victim, unit) else self.ratio, plugin, their, ours)
        return False

    def _smallest_first(
        self, behind: Sequence[tuple[Key, RunningUnit]], unit: PendingUnit, first: Order
    ) -> list[RunningUnit]:
        """The units, each with its key, last by the first criterion first; those alike, as the class says for what ``unit`` asks
        for. Alike are those that the last of them is not far enough behind."""
        by_devices = unit.devices > 0
        wanted = _size(unit, by_devices)
        groups: list[tuple[float | tuple[float, ...], list[RunningUnit]]] = []
        for (key, *_), item in behind:
            if groups and (groups[-1][0] == key or not _behind_by(self.ratio, first, groups[-1][0], key)):
                groups[-1][1].append(item)
            else:
                groups.append((key, [item]))
        found: list[RunningUnit] = []
        for _, alike in groups:
            held = [(_size(item.unit, by_devices), item) for item in alike]
            held.sort(key=lambda pair: (pair[0] < wanted, pair[0] if pair[0] >= wanted else -pair[0]))
            found += [item for _, item in held]
        return found


def _alike(one: PendingUnit, other: PendingUnit) -> bool:
    """Whether nothing but predictions tells the two apart."""
    return one.nameless and other.nameless and one.tenant_id == other.tenant_id and one.demand == other.demand


def _behind_by(ratio: float, plugin: Order, their: float | tuple[float, ...], ours: float | tuple[float, ...]) -> bool:
    """Whether ``their`` key, the greater one, is ``ratio`` times ours, or the keys have no ratio (`Order`: ``scale``)."""
    scale = getattr(plugin, "scale", "")
    if isinstance(their, tuple) or isinstance(ours, tuple) or scale not in ("amount", "logarithm"):
        return True
    return their - ours >= math.log(ratio) if scale == "logarithm" else their >= ratio * ours


def _size(unit: PendingUnit, by_devices: bool) -> float:
    """Accelerators, or CPUs where none are asked for."""
    return unit.devices if by_devices else unit.demand.ranks * unit.demand.cpus


def _place(unit: PendingUnit, context: OrderContext) -> Place:
    """The unit's place in the policy's order."""
    known: Place | None = context.cache.get((PLACE, unit.key))
    if known is not None:
        return known
    return tuple([plugin.key(unit, context) for plugin in context.facts["order"]]), unit.queued_at_s, unit.key


def allowed_nodes(alternatives: Sequence[Candidates]) -> Bools:
    """Nodes (N) that qualify for one of the alternatives, whatever is free on them."""
    useful = alternatives[0].allowed
    for candidates in alternatives[1:]:
        useful = useful | candidates.allowed
    return useful


PREEMPTIONS: dict[str, Preemption] = {}


def register(plugin: Preemption) -> None:
    """Make a preemption known by its name; PolicyError when the name is taken."""
    if plugin.name in PREEMPTIONS:
        raise PolicyError(f"a preemption {plugin.name!r} exists already")
    PREEMPTIONS[plugin.name] = plugin


register(PriorityPreemption())
register(OrderPreemption())
register(ReclaimPreemption())
register(MovePreemption())


def preemptions(names: Iterable[str]) -> tuple[Preemption, ...]:
    """The preemption plugins of these names; PolicyError when one does not exist."""
    try:
        return tuple(PREEMPTIONS[name] for name in names)
    except KeyError as error:
        known = ", ".join(sorted(PREEMPTIONS))
        raise PolicyError(f"there is no preemption {error.args[0]!r}; known are {known}") from None


def lost_work(running: RunningUnit, now_s: float) -> float:
    """Accelerator-seconds that an interruption now would cost."""
    return running.lost_s(now_s) * max(running.unit.devices, 1.0)


def find_room(
    cluster: Cluster, alternatives: Sequence[Candidates], victims: Sequence[RunningUnit]
) -> tuple[list[RunningUnit], Candidates, Choice] | None:
    """The victims to take off so that the unit fits, with its place; None when all of them are not enough.

    Steps:
    1. Count what the victims would free, in their order, until the unit may have room (necessary: whole accelerators).
    2. Take them off and look for a place; while there is none, take the next ones.
    3. Put back those that hold nothing on the nodes of that place, then, last first, each without which it fits too.
    The view is left without the chosen victims; the caller has begun a trial on it. Nothing is changed when None comes back.
    """
    useful = allowed_nodes(alternatives)
    near = victims
    if np.count_nonzero(useful) < len(useful):
        there = set(np.flatnonzero(useful).tolist())
        near = [victim for victim in victims if any(row in there for row, _ in victim.rows)]
    least = _least_prefix(cluster, alternatives, near)
    if least is None:
        return None
    needed, spot = least
    # One rank fits on the node that got room last: those on other nodes need not go, unless something else is short.
    off = [victim for victim in near[:needed] if spot is None or any(row == spot for row, _ in victim.rows)]
    gone = {victim.unit.key for victim in off}
    for victim in off:
        _give(cluster, victim)
    found = best(alternatives)
    for victim in near if found is None else ():
        if victim.unit.key in gone:
            continue
        _give(cluster, victim)
        off.append(victim)
        found = best(alternatives)
        if found is not None:
            break
    if found is None:
        for victim in off:
            _occupy(cluster, victim)
        return None
    return _fewest(cluster, alternatives, off, found)


def _fewest(
    cluster: Cluster, alternatives: Sequence[Candidates], off: list[RunningUnit], found: tuple[Candidates, Choice]
) -> tuple[list[RunningUnit], Candidates, Choice]:
    """Step 3 of `find_room`: of the victims that were taken off for the place ``found``, those that must go."""
    rows = {row for row, _ in found[1].rows}
    here: list[RunningUnit] = []
    elsewhere: list[RunningUnit] = []
    for victim in off:
        if any(row in rows for row, _ in victim.rows):
            here.append(victim)
        else:
            elsewhere.append(victim)
            _occupy(cluster, victim)
    if elsewhere and best(alternatives) is None:
        # Nodes may share an address with its ports, and units are kept apart by more than nodes.
        for victim in elsewhere:
            _give(cluster, victim)
        here = off
    if len(here) == len(off) == 1:
        return here, *found
    needed = here[-1:]
    for victim in reversed(here[:-1]):
        _occupy(cluster, victim)
        if best(alternatives) is None:
            _give(cluster, victim)
            needed.insert(0, victim)
    there = best(alternatives)
    assert there is not None
    return needed, *there


def _least_prefix(
    cluster: Cluster, alternatives: Sequence[Candidates], victims: Sequence[RunningUnit]
) -> tuple[int, int | None] | None:
    """How many victims at least must go, judged by whole accelerators alone, and for a single rank the node that has room
    then; None when all of them free too few."""
    demand = alternatives[0].demand
    if not victims:
        return None
    if not demand.accelerators or demand.device_milli < 1000:
        return 1, None
    free = cluster.view.free_device_totals
    gained: dict[int, int] = {}
    ranks = 0
    if demand.ranks > 1:
        for candidates in alternatives:
            candidates.refresh()
        ranks = max(int(candidates.fits.sum()) for candidates in alternatives)
    for number, victim in enumerate(victims, 1):
        for row, devices in victim.rows:
            before = gained.get(row, 0)
            after = gained[row] = before + len(devices)
            here = free.item(row)
            ranks += (here + after) // demand.accelerators - (here + before) // demand.accelerators
            if ranks >= demand.ranks:
                return number, (row if demand.ranks == 1 else None)
    return None


def _give(cluster: Cluster, running: RunningUnit) -> None:
    for row, devices in running.rows:
        cluster.view.give(row, running.unit.demand, devices)


def _occupy(cluster: Cluster, running: RunningUnit) -> None:
    for row, devices in running.rows:
        cluster.view.occupy(row, running.unit.demand, devices)
