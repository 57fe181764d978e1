"""One scheduling cycle as a pure function: ``(cluster, policy, time) -> decisions``, each with its explanation.

Steps:
1. A planner, if the policy has one, says which units should run; what does not agree with it is taken off (planning.py).
2. Order the units that wait (pending.py) and take them in turn. A limit may hold a unit back (admission.py).
3. Units with equal demands are one class: it is judged once, and again only where nodes were touched (placement.py).
   The domain is chosen by its scores, then nodes in it; what a unit takes is seen by all that follow.
4. A unit without room may take others off (preemption.py); else it waits by the policy's discipline: behind it go all that
   fit (greedy), none (strict), or those that disturb no reservation (profile.py).
5. A class without room takes all its units out of the cycle at once. When nothing came free since the last cycle, only
   units that came since are looked at.

The cluster is left as it was; `Cluster.apply` carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from services.scheduler.core.admission import Gate
from services.scheduler.core.book import Book
from services.scheduler.core.cluster import Cluster, Memory, RunningUnit
from services.scheduler.core.explanation import Explanation, Ranking, best_of
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.pending import Lane, Selection, estimated_s
from services.scheduler.core.placement import Candidates, Choice
from services.scheduler.core.planning import Target
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import Preemption, best, find_room
from services.scheduler.core.profile import Profile, Reservation
from services.scheduler.core.queue import OrderContext, PendingUnit
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import Table, table_of
from services.scheduler.core.tenants_objectives import state_tenant


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What one cycle decides on, for callers that keep no `Cluster`. ``ledger`` is only read."""

    table: Table
    ledger: Ledger
    pending: Sequence[PendingUnit]
    now_s: float = 0.0

    def cluster(self, policy: Policy) -> Cluster:
        """A cluster in this state."""
        cluster = Cluster(self.table, policy, self.ledger)
        cluster.tenants = {name: replace(usage) for name, usage in self.ledger.tenants.items()}
        cluster.extend(self.pending)
        return cluster


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit's ranks and why they are where they are. ``unit`` is what is placed (a planner may have changed its size)."""

    key: UnitKey
    ranks: tuple[PlacedRank, ...]
    explanation: Explanation | None
    unit: PendingUnit
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running unit that is taken off, and for whom (None: a planner's plan)."""

    key: UnitKey
    reason: str
    beneficiary: UnitKey | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A unit that stays in the queue: ``position`` counts from 1 in this cycle's order. ``start_s`` is when its
    reservation begins, 0 without one."""

    key: UnitKey
    position: int
    explanation: Explanation
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Blocked:
    """Units that wait for the same reason; ``places`` are their places in the cycle's order."""

    units: tuple[PendingUnit, ...]
    explanation: Explanation
    start_s: float = 0.0
    reason: str = ""


def _by_age(unit: PendingUnit) -> tuple[Any, ...]:
    return unit.queued_at_s, unit.key


@dataclass(slots=True)
class Decisions:
    """What a cycle decided, in order. ``classes`` is the number of different demands it judged."""

    policy_version: str
    placed: tuple[Placement, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    classes: int = 0
    memory: Memory | None = None
    partial: bool = False
    """Whether only new units were looked at: those that waited before wait as they did."""
    _waiting: tuple[Waiting, ...] | None = field(default=None, repr=False)
    _place: Callable[[PendingUnit], tuple[Any, ...]] = field(default=_by_age, repr=False)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Every unit that was looked at and waits, in the order of the policy; to be asked for before the next change."""
        if self._waiting is None:
            rows = [(self._place(unit), unit.key, group) for group in self.blocked for unit in group.units]
            rows.sort(key=lambda row: row[:2])
            self._waiting = tuple(
                Waiting(key, place, group.explanation, group.start_s) for place, (_, key, group) in enumerate(rows, 1)
            )
        return self._waiting


def snapshot_of(book: Book, now_s: float, table: Table | None = None) -> Snapshot:
    """The book as a cycle at ``now_s`` sees it; ``table`` saves building the arrays when the fleet is unchanged."""
    return Snapshot(table or table_of(book.fleet), book.ledger, book.eligible(now_s), now_s)


def decide(state: Cluster | Snapshot, policy: Policy, now_s: float | None = None, *, explain: bool = True) -> Decisions:
    """Decide about the units that wait. PolicyError when the policy names an unknown plugin.

    ``explain`` False leaves out explanations and the account of who waits (the simulator reads neither).
    """
    if isinstance(state, Snapshot):
        if now_s is None:
            now_s = state.now_s
        state = state.cluster(policy)
    state.use(policy)
    return _Cycle(state, policy, now_s or 0.0, explain=explain).run()


_NOTHING = np.zeros((0, 0))
_UNEXPLAINED = Explanation(
    "", 0, (), (), Ranking((), (), _NOTHING, _NOTHING, _NOTHING.astype(np.int64)), blocked="not explained"
)


class _Cycle:
    """The steps of the module, over one cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, now_s: float, *, explain: bool) -> None:
        self._cluster, self._policy, self._now_s, self._explain = cluster, policy, now_s, explain
        self._stages = cluster.stages = cluster.stages or stages_of(policy)
        self._per_tenant = cluster.plugins.per_tenant
        self._running: dict[UnitKey, RunningUnit] = (
            dict(cluster.running) if policy.preemptions or policy.planner else (cluster.running)
        )
        facts = {**cluster.view.facts, "running": self._running, "order": cluster.pending.order, "cluster": cluster}
        self._context = OrderContext(cluster.shares(), now_s, facts)
        self._placed: list[Placement] = []
        self._preempted: list[Preempted] = []
        self._blocked: list[Blocked] = []
        self._seen: dict[Demand, Explanation | None] = {}
        self._gates: tuple[Gate, ...] = ()
        self._profile: Profile | None = None
        self._base: Profile | None = None
        self._unplanned: set[UnitKey] = set()
        self._no_room: set[Demand] = set()
        self._awaited: set[Demand] = set()
        self._too_long: dict[Demand, float] = {}
        self._reserved: dict[frozenset[str], int] = {}
        self._last_reserved: tuple[object, ...] | None = None
        self._reserving = policy.discipline in {"easy", "conservative"}
        self._duration = policy.backfill_estimate or policy.estimate
        self._shortest = policy.backfill_order == "shortest"
        self._later: list[PendingUnit] = []
        self._depth = policy.reservation_depth if policy.discipline == "easy" else 1_000_000_000
        self._new: list[RunningUnit] = []
        self._runs: list[RunningUnit] | None = None

    def run(self) -> Decisions:
        """Decide."""
        cluster = self._cluster
        view = cluster.view
        view.begin()
        try:
            if self._stages.planner is not None:
                self._carry_out(self._stages.planner.plan(cluster, self._context))
                partial = False
            elif self._policy.discipline == "conservative":
                partial = self._conserve()
            else:
                partial = self._select()
        finally:
            view.rollback()
        return Decisions(
            cluster.version,
            tuple(self._placed),
            tuple(self._preempted),
            tuple(self._blocked),
            self._profile.reservations if self._profile is not None else (),
            len(self._seen),
            self._memory(),
            partial,
            _place=self._position,
        )

    def _memory(self) -> Memory | None:
        if self._preempted or self._stages.planner:
            return None
        if self._stages.preemptions and not (
            self._policy.discipline == "greedy"
            and all(getattr(plugin, "settled", False) for plugin in self._stages.preemptions)
            and all(item.per == "unit" for item in self._cluster.pending.order)
        ):
            return None
        if self._policy.discipline == "conservative":
            return Memory(self._cluster.stamp, self._profile, (frozenset(self._unplanned),))
        if self._reserving:
            reservations = self._profile.reservations if self._profile is not None else ()
            return Memory(self._cluster.stamp, self._base, reservations, self._last_reserved)
        return Memory(self._cluster.stamp) if self._settled else None

    @property
    def _settled(self) -> bool:
        """Whether those who wait go on waiting, and in the same order, while nothing comes free."""
        if self._stages.limits or self._policy.discipline == "strict":
            return False
        # The order may change by itself; in a greedy cycle that makes no room for any of them.
        return self._policy.discipline == "greedy" or all(item.per == "unit" for item in self._cluster.pending.order)

    # -- in order ----------------------------------------------------------------------------------------------------

    def _select(self) -> bool:
        cluster = self._cluster
        lanes, partial = self._lanes()
        self._gates = tuple([limit.open(self._context) for limit in self._stages.limits])
        if self._only_room and self._policy.discipline == "greedy":
            lanes = self._with_room(cluster.pending.lanes.values() if lanes is None else lanes)
            if not lanes:
                return partial
        selection = Selection(cluster.pending, self._context, lanes)
        if self._shortest:
            for partition, count in self._reserved.items():
                if count >= self._depth:
                    self._put_off(partition, selection)
        while (unit := selection.pop()) is not None:
            reason = next((text for gate in self._gates if (text := gate.refuses(unit))), "")
            if reason:
                if not self._relieve(unit, selection):
                    self._hold((unit, *self._dropped(selection)), self._held_back(unit.demand), reason=reason)
                continue
            if not self._try(unit, selection):
                self._wait(unit, selection)
        self._shortest_first(selection)
        return partial

    @property
    def _only_room(self) -> bool:
        """Whether only room counts: nothing is taken off for a unit, no limit holds one back, nobody asks who waits. Then
        there is never more room in the cycle than when it begins."""
        return not (self._explain or self._gates or self._stages.preemptions)

    def _with_room(self, lanes: Iterable[Lane]) -> list[Lane]:
        """The lanes whose demand has room now."""
        found: dict[Demand, bool] = {}
        out = []
        for lane in lanes:
            room = found.get(lane.demand)
            if room is None:
                room = found[lane.demand] = self._has_room(lane.demand)
            if room:
                out.append(lane)
        return out

    def _has_room(self, demand: Demand) -> bool:
        return any(candidates.has_room() for candidates in self._cluster.candidates(demand))

    def _lanes(self) -> tuple[list[Lane] | None, bool]:
        """The lanes to look at: all of them (None), or those with new units when nothing came free since."""
        memory = self._cluster.memory
        if memory is None:
            return None, False
        late = False
        if memory.profile is not None:
            change = memory.profile.follow(self._cluster.view, self._running.values(), self._now_s)
            if change is not None:
                self._base = memory.profile
            late = change is None or change.late
        if late or not self._settled or memory.stamp != self._cluster.stamp:
            return None, False
        fresh = [lane for lane in self._cluster.pending.lanes.values() if lane.fresh]
        if memory.last_reserved is not None:
            first = min((self._position(lane.entries[0][3]) for lane in fresh), default=None)
            if (first is not None and first < memory.last_reserved) or not self._renew(memory.reserved):
                return None, False
        return fresh, True

    def _renew(self, reservations: Sequence[Reservation]) -> bool:
        """Make the reservations of the last cycle again; False when they are not as they were."""
        for before in reservations:
            unit = self._cluster.pending.get(before.key)
            start_s = self._reserve(unit, self._cluster.candidates(unit.demand)) if unit is not None else 0.0
            now = self._profile.reservation(before.key) if self._profile is not None else None
            if not start_s or now is None or (now.start_s, now.choice.rows) != (before.start_s, before.choice.rows):
                self._profile = self._last_reserved = None
                self._reserved.clear()
                return False
        return True

    def _conserve(self) -> bool:
        """Conservative backfilling: every unit keeps the reservation it has, or gets an earlier one.

        When everything went as expected, only new units and those whose time has come are looked at. When something came
        free, each unit in turn gives its reservation up and gets the earliest one beside those of all others
        ("compression"). When something did not end as expected, all reservations are made anew.
        """
        memory, cluster = self._cluster.memory, self._cluster
        units: Iterable[PendingUnit] | None = None
        self._gates = tuple(limit.open(self._context) for limit in self._stages.limits)
        if memory is not None and memory.profile is not None:
            profile = memory.profile.copy()
            change = profile.follow(cluster.view, self._running.values(), self._now_s)
            if change is not None and not change.late:
                self._profile = profile
                if not change.freed and self._settled:
                    self._unplanned = set(*memory.reserved)
                    units = self._due(profile)
        if self._profile is None:
            self._profile = Profile(cluster.view, self._running.values(), self._now_s, self._policy.estimate)
        selection = Selection(cluster.pending, self._context, None if units is None else [])
        partial = units is not None
        if units is None:
            self._unplanned.clear()
            for reservation in self._profile.reservations:
                if reservation.key not in cluster.pending:
                    self._profile.drop(reservation.key)
            units = iter(selection.pop, None)
        for unit in units:
            self._profile.drop(unit.key)
            self._unplanned.discard(unit.key)
            reason = next((text for gate in self._gates if (text := gate.refuses(unit))), "")
            if self._relieve(unit, selection) if reason else self._try(unit, selection):
                continue
            start_s = 0.0 if reason else self._reserve(unit, cluster.candidates(unit.demand))
            if not start_s:
                self._unplanned.add(unit.key)
            self._hold((unit,), self._explained(unit.demand), start_s, reason)
        return partial

    def _due(self, profile: Profile) -> list[PendingUnit] | None:
        """Units that are new or whose reservations begin now, in order; None when others left the queue."""
        pending = self._cluster.pending
        new = [
            unit
            for unit in pending.added.values()
            if unit.key not in self._unplanned and profile.reservation(unit.key) is None
        ]
        if len(pending) != len(new) + len(profile.reservations) + len(self._unplanned):
            return None
        for key in profile.due(self._now_s):
            unit = pending.get(key)
            if unit is None:
                return None
            new.append(unit)
        return sorted(new, key=self._position)

    def _position(self, unit: PendingUnit) -> tuple[object, ...]:
        return self._cluster.pending.key(unit, self._context), unit.queued_at_s, unit.key

    def _try(self, unit: PendingUnit, selection: Selection) -> bool:
        if self._per_tenant:
            state_tenant(self._cluster.view, unit.tenant_id)
        group = self._cluster.candidates(unit.demand)
        if self._seen.get(unit.demand) is None:
            self._seen.setdefault(unit.demand, None)
            found = self._room(unit, group)
            if found is not None:
                self._place(unit, group, *found)
                selection.charge(unit)
                return True
        return self._preempt(unit, group, selection)

    def _room(self, unit: PendingUnit, group: Sequence[Candidates]) -> tuple[Candidates, Choice] | None:
        """Where a unit may go now; nowhere, if that would disturb a reservation."""
        if not self._reserving:
            return best(group)
        demand = unit.demand
        if demand in self._no_room:
            return None
        if self._profile is None:
            chosen = best(group)
            if chosen is None:
                self._found_full(demand, group)
            return chosen
        duration_s = estimated_s(unit, self._duration)
        if duration_s >= self._too_long.get(demand, np.inf):
            return None
        found: list[tuple[Candidates, Choice]] = []
        room = False
        for candidates in group:
            choice = candidates.choose()
            if choice is None:
                continue
            room = True
            limit = self._profile.window(candidates, duration_s)
            if limit is not None:
                choice = candidates.choose(limit)
            if choice is not None:
                found.append((candidates, choice))
        if not room:
            self._found_full(demand, group)
        if not found and self._policy.discipline == "easy":
            # What is longer disturbs the same reservations: they only grow in number within a cycle.
            self._too_long[demand] = duration_s
        return max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score), default=None)

    def _found_full(self, demand: Demand, group: Sequence[Candidates]) -> None:
        """There is no room for the demand now. If it may be reserved for, its places are judged as they are now."""
        self._no_room.add(demand)
        if demand in self._awaited or self._reserved.get(demand.domains, 0) < self._depth:
            for candidates in group:
                candidates.refresh()

    def _place(
        self, unit: PendingUnit, group: Sequence[Candidates], candidates: Candidates, choice: Choice, reason: str = ""
    ) -> None:
        explanation = _among(group, candidates.explain(choice)) if self._explain else None
        ranks = candidates.take(choice)
        self._placed.append(Placement(unit.key, ranks, explanation, unit, reason))
        for gate in self._gates:
            gate.charge(unit)
        if self._reserving:
            running = self._begun(unit, ranks)
            if self._profile is not None:
                self._profile.begin(running, self._now_s)
            else:
                self._new.append(running)

    def _preempt(self, unit: PendingUnit, group: Sequence[Candidates], selection: Selection) -> bool:
        for plugin in self._stages.preemptions:
            if self._runs is None:
                self._runs = list(self._running.values())
            victims = plugin.victims(unit, self._runs, self._context)
            if not victims:
                continue
            found = find_room(self._cluster, group, victims)
            if found is None:
                continue
            off, candidates, choice = found
            for victim in off:
                for gate in self._gates:
                    gate.charge(victim.unit, -1)
            self._take_off(off, plugin, unit, selection)
            self._place(unit, group, candidates, choice)
            selection.charge(unit)
            return True
        return False

    def _relieve(self, unit: PendingUnit, selection: Selection) -> bool:
        """Take units off so that the limits let this one pass and it has room; nothing changes when it is in vain."""
        if self._per_tenant:
            state_tenant(self._cluster.view, unit.tenant_id)
        group = self._cluster.candidates(unit.demand)
        for plugin in self._stages.preemptions:
            ask = getattr(plugin, "relieve", None)
            off = list(ask(unit, list(self._running.values()), self._context)) if ask is not None else []
            if not off:
                continue
            self._shift(off, -1)
            found: tuple[list[RunningUnit], Candidates, Choice] | None = None
            if not any(gate.refuses(unit) for gate in self._gates):
                chosen = best(group)
                found = ([], *chosen) if chosen is not None else None
                if found is None:
                    left = [item for key, item in self._running.items() if key not in {gone.unit.key for gone in off}]
                    found = find_room(self._cluster, group, plugin.victims(unit, left, self._context))
            if found is None:
                self._shift(off, 1)
                continue
            more, candidates, choice = found
            for victim in more:
                for gate in self._gates:
                    gate.charge(victim.unit, -1)
            self._take_off((*off, *more), plugin, unit, selection)
            self._place(unit, group, candidates, choice)
            selection.charge(unit)
            return True
        return False

    def _take_off(
        self, victims: Sequence[RunningUnit], plugin: Preemption, unit: PendingUnit, selection: Selection
    ) -> None:
        """Record that victims, whose nodes are given back already, are taken off for a unit."""
        why = f"taken off by {plugin.name} preemption for {unit.key}"
        self._runs = None
        for victim in victims:
            del self._running[victim.unit.key]
            if self._profile is not None:
                self._profile.end(victim, self._now_s)
            self._preempted.append(Preempted(victim.unit.key, why, unit.key))
            selection.charge(victim.unit, -1)
        # What had no room may have some now.
        self._seen = dict.fromkeys(self._seen)
        self._too_long.clear()
        self._no_room.clear()

    def _shift(self, units: Sequence[RunningUnit], sign: int) -> None:
        """Put running units off their nodes (-1) or back (1), for the view and the limits alike."""
        for running in units:
            move = self._cluster.view.give if sign < 0 else self._cluster.view.occupy
            for row, devices in running.rows:
                move(row, running.unit.demand, devices)
            for gate in self._gates:
                gate.charge(running.unit, sign)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, unit: PendingUnit, selection: Selection) -> None:
        group = self._cluster.candidates(unit.demand)
        explanation = self._explained(unit.demand)
        discipline = self._policy.discipline
        if discipline == "strict":
            partition = unit.demand.domains
            self._hold((unit,), explanation)
            if not self._explain:
                selection.close(lambda lane: lane.demand.domains == partition)
                return
            behind = tuple(selection.drop_where(lambda lane: lane.demand.domains == partition))
            why = f"behind {unit.key} in the order, which waits: {explanation.blocked}"
            self._hold(behind, replace(explanation, found_stage="order"), reason=why)
            return
        if self._reserving:
            self._wait_with_reservations(unit, group, explanation, selection)
            return
        # Units behind it in the lane have no better claim to push others out.
        self._hold((unit, *self._dropped(selection)), explanation)

    def _wait_with_reservations(
        self, unit: PendingUnit, group: Sequence[Candidates], explanation: Explanation, selection: Selection
    ) -> None:
        partition = unit.demand.domains
        start_s = 0.0
        if self._reserved.get(partition, 0) < self._depth:
            start_s = self._reserve(unit, group)
            self._hold((unit,), explanation, start_s)
            if start_s:
                if self._reserved[partition] >= self._depth:
                    if self._shortest:
                        self._put_off(partition, selection)
                    elif self._only_room:
                        # The others must fit now, or wait.
                        selection.close(
                            lambda lane: lane.demand.domains == partition and not self._may_fit(lane.demand)
                        )
                return
        else:
            self._hold((unit,), explanation)
        profile = self._profile
        if profile is None or unit.demand in self._no_room:
            # No room at all now, whatever is reserved.
            if not start_s and self._reserved.get(partition, 0) >= self._depth:
                self._hold(self._dropped(selection), explanation)
            return
        # There is room that is reserved: only shorter units can use it, with one reservation only those that end before it.
        limit_s = np.nextafter(estimated_s(unit, self._duration), 0.0)
        if len(profile.reservations) == 1:
            limit_s = min(limit_s, profile.reserved_from_s - self._now_s)
        self._hold(tuple(selection.skip_longer_than(limit_s, self._duration)), explanation)

    def _may_fit(self, demand: Demand) -> bool:
        """Whether the demand has room by number; what is awaited is asked in its turn."""
        if demand in self._no_room:
            return False
        return demand in self._awaited or self._has_room(demand)

    def _dropped(self, selection: Selection) -> Sequence[PendingUnit]:
        """Take the rest of the last unit's lane out of the cycle; who that is, if it is asked for."""
        if self._explain:
            return selection.drop()
        selection.close_lane()
        return ()

    def _put_off(self, partition: frozenset[str], selection: Selection) -> None:
        """The others of a partition that has its reservations are asked after all that need not overtake, by length."""
        self._later += selection.drop_where(lambda lane: lane.demand.domains == partition)

    def _shortest_first(self, selection: Selection) -> None:
        units = [(estimated_s(unit, self._duration), self._position(unit), unit) for unit in self._later]
        for _, _, unit in sorted(units, key=lambda item: item[:2]):
            reason = next((text for gate in self._gates if (text := gate.refuses(unit))), "")
            if reason or not self._try(unit, selection):
                self._hold((unit,), self._explained(unit.demand), reason=reason)

    def _reserve(self, unit: PendingUnit, group: Sequence[Candidates]) -> float:
        """Reserve nodes for a unit; returns when, 0 when it can never start."""
        if self._profile is None:
            self._profile = self._future().copy()
        duration_s = estimated_s(unit, self._policy.estimate)
        best_start: tuple[float, float, Candidates, Choice] | None = None
        for candidates in group:
            found = self._profile.earliest(candidates, duration_s)
            if found is not None:
                start_s, choice = found
                if best_start is None or (start_s, -choice.score) < best_start[:2]:
                    best_start = (start_s, -choice.score, candidates, choice)
        if best_start is None:
            return 0.0
        start_s, _, candidates, choice = best_start
        self._profile.reserve(unit.key, start_s, duration_s, candidates, choice)
        self._awaited.add(unit.demand)
        partition = unit.demand.domains
        self._reserved[partition] = self._reserved.get(partition, 0) + 1
        self._last_reserved = self._position(unit)
        return start_s

    def _future(self) -> Profile:
        """What is free when, with what runs and what was placed in this cycle."""
        if self._base is None:
            running = [*self._running.values(), *self._new]
            self._base = Profile(self._cluster.view, running, self._now_s, self._policy.estimate)
        else:
            for unit in self._new:
                self._base.begin(unit, self._now_s)
        self._new.clear()
        return self._base

    def _begun(self, unit: PendingUnit, ranks: tuple[PlacedRank, ...]) -> RunningUnit:
        """A placed unit as it will run."""
        return RunningUnit(
            unit,
            ranks,
            self._now_s,
            self._cluster.rows_of(ranks),
            expected_end_s=self._now_s + estimated_s(unit, "expected"),
            limit_end_s=self._now_s + estimated_s(unit, "limit"),
        )

    def _hold(
        self, units: Sequence[PendingUnit], explanation: Explanation, start_s: float = 0.0, reason: str = ""
    ) -> None:
        if units and self._explain:
            if reason:
                explanation = replace(explanation, blocked=reason)
            self._blocked.append(Blocked(tuple(units), explanation, start_s, reason))

    def _held_back(self, demand: Demand) -> Explanation:
        """The explanation of a unit that a limit holds back: it says nothing about room for others of its demand."""
        known = demand in self._seen
        before = self._seen.get(demand)
        found = self._explained(demand)
        if known:
            self._seen[demand] = before
        else:
            self._seen.pop(demand, None)
        return found

    def _explained(self, demand: Demand) -> Explanation:
        found = self._seen.get(demand)
        if found is None and not self._explain:
            found = _UNEXPLAINED
            if not self._reserving:
                self._seen[demand] = found
        if found is None:
            group = self._cluster.candidates(demand)
            roomiest = max(group, key=lambda item: int(item.domain_fits.max(initial=0)))
            found = _among(group, roomiest.explain_waiting())
            if not self._reserving:
                self._seen[demand] = found
        return found

    # -- by plan -----------------------------------------------------------------------------------------------------

    def _carry_out(self, targets: Sequence[Target]) -> None:
        cluster = self._cluster
        wanted = {target.key: target for target in targets}
        for running in list(self._running.values()):
            target = wanted.get(running.unit.key)
            if target is not None and _agrees(running, target, cluster.table):
                continue
            if not running.unit.preemptible:
                continue
            for row, devices in running.rows:
                cluster.view.give(row, running.unit.demand, devices)
            del self._running[running.unit.key]
            why = "the plan gives it nothing" if target is None else f"the plan gives it another place: {target.reason}"
            self._preempted.append(Preempted(running.unit.key, why))
        off = {item.key for item in self._preempted}
        for target in targets:
            if target.key in self._running:
                continue
            unit = cluster.pending.get(target.key)
            if unit is None:
                before = cluster.running.get(target.key)
                if before is None or target.key not in off:
                    continue
                unit = replace(
                    before.unit, attained_s=before.ran_s(self._now_s), served_s=before.service_s(self._now_s)
                )
            unit = _fitted(unit, target)
            if self._per_tenant:
                state_tenant(cluster.view, unit.tenant_id)
            group = cluster.candidates(unit.demand)
            found = best(group)
            if found is not None:
                self._place(unit, group, *found, reason=target.reason)
        if not self._explain:
            return
        begun = {item.key for item in self._placed}
        says = getattr(self._stages.planner, "says", None)
        why = "" if says is None else says(cluster, self._now_s)
        for unit in cluster.pending:
            if unit.key in begun:
                continue
            target = wanted.get(unit.key)
            explanation = self._explained(unit.demand if target is None else _fitted(unit, target).demand)
            if target is None and why and explanation.found_stage == "capacity":
                self._hold((unit,), replace(explanation, found="", found_stage="plan"), reason=why)
            else:
                self._hold((unit,), explanation)


def _agrees(running: RunningUnit, target: Target, table: Table) -> bool:
    demand = running.unit.demand
    if target.ranks and target.ranks != demand.ranks:
        return False
    if target.domain_id and any(rank.domain_id != target.domain_id for rank in running.ranks):
        return False
    if target.model and running.rows:
        row, devices = running.rows[0]
        held = {table.models[column].model for index, column in table.devices_of[row] if index in devices}
        return held <= {target.model}
    return True


def _fitted(unit: PendingUnit, target: Target) -> PendingUnit:
    """The unit with the demand that the plan gives it."""
    demand = unit.demand
    if target.ranks and target.ranks != demand.ranks:
        demand = replace(demand, ranks=target.ranks)
    if target.model:
        demand = replace(demand, accelerator_types=(target.model,))
    if target.domain_id:
        demand = replace(demand, domains=frozenset({target.domain_id}))
    return unit if demand is unit.demand else replace(unit, demand=demand)


def _among(alternatives: Sequence[Candidates], explanation: Explanation) -> Explanation:
    """The explanation with the domains of all alternatives beside the one that was chosen."""
    if len(alternatives) == 1:
        return explanation
    return replace(explanation, domains=best_of([item.domain_ranking() for item in alternatives]))
