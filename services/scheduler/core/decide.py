"""One scheduling cycle as a pure function: ``(cluster, policy, time) -> decisions``, each with its explanation.

Steps:
1. A planner, if the policy has one or follows one now (unlike.py), says which units should run; what does not agree with it is
   taken off (deciding/by_plan.py).
2. Order the units that wait (pending.py, cycle_order.py) and take them in turn. A limit may hold a unit back (admission.py).
3. Units with equal demands are one class: it is judged once, and again only where nodes were touched (placement.py).
   The domain is chosen by its scores, then nodes in it; what a unit takes is seen by all that follow.
4. A unit without room may take others off (preemption.py); else it waits by the policy's discipline: behind it go all that
   fit (greedy), none (strict), or those that disturb no reservation (deciding/reserving.py, profile.py).
5. A cycle may be bounded: after so many placements the rest is left to the next one, where that decides alike (`decide`).
6. A class without room takes all its units out of the cycle at once. When nothing came free since the last cycle, only
   units that came since are looked at.

The cluster is left as it was; `Cluster.apply` carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from services.scheduler.core.book import Book
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.deciding.by_plan import ByPlan
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.deciding.taking_off import TakingOff
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.memory import Memory
from services.scheduler.core.pending import Lane, estimated_s
from services.scheduler.core.policy import Policy
from services.scheduler.core.profile import Profile
from services.scheduler.core.table import Table, table_of
from services.scheduler.core.tenants_objectives import state_tenant
from services.scheduler.core.waiting_unit import PendingUnit


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


def snapshot_of(book: Book, now_s: float, table: Table | None = None) -> Snapshot:
    """The book as a cycle at ``now_s`` sees it; ``table`` saves building the arrays when the fleet is unchanged."""
    return Snapshot(table or table_of(book.fleet), book.ledger, book.eligible(now_s), now_s)


def decide(
    state: Cluster | Snapshot,
    policy: Policy,
    now_s: float | None = None,
    *,
    explain: bool = True,
    keep_memory: bool = True,
    most: int = 0,
    goes_on: Callable[[], bool] | None = None,
) -> Decisions:
    """Decide about the units that wait. PolicyError when the policy names an unknown plugin.

    ``explain`` False leaves out explanations, the account of who waits, and under EASY the reservations while nothing has room
    for anybody (the simulator reads none of them). ``keep_memory`` False lets the cycle go on with what the last one remembered
    instead of a copy of it: for a caller that applies the decisions before it asks again. If it does not, reservations are made
    anew. With both False the decisions list no reservations.

    ``most`` > 0 bounds the cycle: after so many placements it ends (`Decisions.cut`), and the next one, asked at the same time of a
    cluster to which nothing but these decisions happened, goes on where it ended. It counts, and asks no clock, so a cycle decides
    the same whenever it is asked. A cycle that may take others off, goes by a planner, makes reservations for all or has an order or limit that
    ``compares`` is never cut; one that reserves for the first that wait is not once it has reserved.

    ``goes_on`` is asked before each unit (a planner is not interrupted): GivenUpError when it says no. It is for questions, whose
    cluster is thrown away then.
    """
    if isinstance(state, Snapshot):
        if now_s is None:
            now_s = state.now_s
        state = state.cluster(policy)
    state.use(policy)
    return _Cycle(
        state, policy, now_s or 0.0, explain=explain, keep_memory=keep_memory, most=most, goes_on=goes_on
    ).run()


class _Cycle(TakingOff, ByPlan):
    """The steps of the module, over one cluster."""

    def run(self) -> Decisions:
        """Decide."""
        cluster = self._cluster
        view = cluster.view
        view.begin()
        try:
            if self._stages.planner is not None:
                self._carry_out(self._stages.planner.plan(cluster, self._context))
                if self._stages.follows:
                    self._others_in_turn()
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
            self._profile.reservations if self._profile is not None and (self._explain or self._keep_memory) else (),
            len(self._seen),
            self._memory(),
            partial or self._cut,
            self._most,
            self._cut,
            _place=self._position,
        )

    def _memory(self) -> Memory | None:
        if self._cut:
            return None
        if self._stages.planner or (self._preempted and not (self._steady and self._policy.discipline == "greedy")):
            return None
        if self._stages.preemptions and not (self._policy.discipline == "greedy" and self._stages.promises.settled):
            return None
        if self._policy.discipline == "conservative":
            return Memory(self._cluster.stamp, self._profile, (frozenset(self._unplanned),))
        if self._reserving:
            before, base = self._cluster.memory, self._base
            if base is None and self._unasked and before is not None:
                base = before.profile
            reservations = self._profile.reservations if self._profile is not None else ()
            return Memory(
                self._cluster.stamp,
                base,
                reservations,
                self._last_reserved,
                self._unasked,
                since=self._cluster.view.mark,
                at_s=self._now_s,
                some=self._some is not None,
            )
        if not self._settled:
            return None
        return Memory(
            self._cluster.stamp, room_left=bool(self._preempted), since=self._cluster.view.mark, at_s=self._now_s
        )

    # -- in order ------------------------------------------------------------------------------------------------------

    def _select(self) -> bool:
        cluster = self._cluster
        self._gates = tuple([limit.open(self._context) for limit in self._stages.limits])
        if self._only_room and self._reserving:
            known = self._find_roomy()
            if self._unasked:
                return known
        lanes, partial = self._lanes()
        if self._only_room and self._policy.discipline == "greedy":
            lanes = self._with_room(cluster.pending.lanes.values() if lanes is None else lanes)
            if not lanes:
                return partial
            self._roomy = {lane.demand: None for lane in lanes}
        elif self._may_leave_out:
            self._leaving_out = True
            lanes = self._with_a_chance(lanes)
            if not lanes:
                return partial
        selection = Selection(cluster.pending, self._context, lanes)
        if self._hopeless:
            selection.add_aside(self._hopeless)
        if self._shortest:
            for partition, count in self._reserved.items():
                if count >= self._depth:
                    self._put_off(partition, selection)
        self._in_turn(selection)
        self._shortest_first(selection)
        return partial

    def _in_turn(self, selection: Selection) -> None:
        while (unit := selection.pop()) is not None:
            self._ask_whether_to_go_on()
            if self._has_done_enough:
                self._cut = True
                return
            reason = next((text for gate in self._gates if (text := gate.refuses(unit))), "")
            if reason:
                if not self._relieve(unit, selection):
                    self._hold((unit, *self._dropped(selection)), self._held_back(unit.demand), reason=reason)
                continue
            if not self._try(unit, selection):
                self._wait(unit, selection)
            elif self._roomy and not self._still_roomy(selection):
                self._unasked = self._reserving
                return

    def _others_in_turn(self) -> None:
        """Units without accelerators in the order of the policy, where the planner is followed for the others alone."""
        pending = self._cluster.pending
        lanes = [lane for lane in pending.lanes.values() if not lane.demand.accelerators]
        self._in_turn(Selection(pending, self._context, lanes))

    def _lanes(self) -> tuple[list[Lane] | None, bool]:
        """The lanes to look at: all of them (None), or those with new units when nothing came free since."""
        memory = self._cluster.memory
        if memory is None:
            return None, False
        late = not self._follow(memory) or memory.unasked or memory.room_left or memory.some
        if self._some is not None:
            return self._some, True
        if late or not self._settled or memory.stamp != self._cluster.stamp:
            return None, False
        fresh = [lane for lane in self._cluster.pending.lanes.values() if lane.fresh]
        if memory.last_reserved is not None:
            first = min((self._position(lane.entries[0][3]) for lane in fresh), default=None)
            if (first is not None and first < memory.last_reserved) or not self._renew(memory.reserved):
                return None, False
        return fresh, True

    def _follow(self, memory: Memory) -> bool:
        """Bring the future that was known up to date; whether it came as expected."""
        if memory.profile is None:
            return True
        change = memory.profile.follow(self._cluster.view, self._running.values(), self._now_s)
        if change is not None:
            self._base = memory.profile
        return change is not None and not change.late

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
        if self._beyond:
            selection.set_aside(unit.demand)
            return
        # Units behind it in the lane have no better claim to push others out.
        self._hold((unit, *self._dropped(selection)), explanation)

    def _shortest_first(self, selection: Selection) -> None:
        later = self._later
        if later and self._only_room:
            fits = {demand: self._may_fit(demand) for demand in {unit.demand for unit in later}}
            later = [unit for unit in later if fits[unit.demand]]
        units = [(estimated_s(unit, self._duration), self._position(unit), unit) for unit in later]
        for _, _, unit in sorted(units, key=lambda item: item[:2]):
            self._ask_whether_to_go_on()
            reason = next((text for gate in self._gates if (text := gate.refuses(unit))), "")
            if reason or not self._try(unit, selection):
                self._hold((unit,), self._explained(unit.demand), reason=reason)

    # -- conservative backfilling --------------------------------------------------------------------------------------

    def _conserve(self) -> bool:
        """Conservative backfilling: every unit keeps the reservation it has, or gets an earlier one.

        When everything went as expected, only new units and those whose time has come are looked at. When something came
        free, each unit in turn gives its reservation up and gets the earliest one beside those of all others
        ("compression", Mu'alem and Feitelson 2001). It goes through the queue once: who could use what one behind it gave up
        waits for the next time. When something did not end as expected, all reservations are made anew.
        """
        memory, cluster = self._cluster.memory, self._cluster
        units: Iterable[PendingUnit] | None = None
        self._gates = tuple(limit.open(self._context) for limit in self._stages.limits)
        if memory is not None and memory.profile is not None:
            if not self._keep_memory:
                cluster.forget()
            profile = memory.profile.copy() if self._keep_memory else memory.profile
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
            self._ask_whether_to_go_on()
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
