"""What a cycle knows while it decides, and what every way of deciding does with it: place, take off, let wait, explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from services.scheduler.core.admission import Gate
from services.scheduler.core.choosing import Choice
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.deciding.decisions import Blocked, Placement, Preempted
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.explaining.explanation import MOVED, NO_RANKING, Explanation, best_of
from services.scheduler.core.pending import Key, Lane, estimated_s
from services.scheduler.core.placement import Candidates, would_do
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import Preemption
from services.scheduler.core.profile import Profile
from services.scheduler.core.ranking import RANKING, KeptRanking
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.unlike import begin_cycle
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

_UNEXPLAINED = Explanation("", 0, (), (), NO_RANKING, blocked="not explained")


class State:
    """See the module. One cycle over one cluster, which is in a trial (`View.begin`) while it lasts."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        now_s: float,
        *,
        explain: bool,
        keep_memory: bool,
        most: int,
        goes_on: Callable[[], bool] | None = None,
    ) -> None:
        self._keep_memory, self._goes_on = keep_memory, goes_on
        self._cluster, self._policy, self._now_s, self._explain = cluster, policy, now_s, explain
        self._stages = begin_cycle(cluster, policy)
        self._most = most if self._can_be_cut else 0
        self._cut = False
        self._per_tenant = cluster.plugins.per_tenant
        self._running: dict[UnitKey, RunningUnit] = (
            dict(cluster.running) if self._stages.preemptions or self._stages.planner else (cluster.running)
        )
        self._kept = self._kept_ranking()
        facts = {**cluster.view.facts, "running": self._running, "order": cluster.pending.order, "cluster": cluster}
        facts[RANKING] = self._kept
        self._context = OrderContext(cluster.shares(), now_s, facts)
        self._placed: list[Placement] = []
        self._preempted: list[Preempted] = []
        self._blocked: list[Blocked] = []
        self._seen: dict[Demand, Explanation | None] = {}
        self._said: dict[Demand, Explanation] = {}
        self._said_at = 0, 0
        """How many were placed and taken off when ``_said`` was begun."""
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
        self._leaving_out = False
        self._hopeless: list[Lane] = []
        """Lanes that are left out: with all that could be taken off for them they would have no room."""
        self._beyond = False
        """Whether the last unit was out of reach of a place: so are all of its demand that come after it."""
        self._unasked = False
        self._some: list[Lane] | None = None
        """The lanes of the partitions that are looked at, where that are not all."""
        self._roomy: dict[Demand, None] = {}
        """Demands that had room by number when they were asked last, where only room counts."""
        self._unbegun: list[RunningUnit] = []

    def _kept_ranking(self) -> KeptRanking | None:
        """The units that run, in order, as they were kept since the last cycle; None where all are sorted anew. Who forgets the
        last cycle may have changed their estimates."""
        cluster = self._cluster
        if self._keep_memory or not self._stages.preemptions or not self._stages.promises.kept:
            return None
        if cluster.memory is None:
            cluster.unwatch(RANKING)
            return None
        kept = cluster.watch(RANKING, cluster.version, lambda: KeptRanking(cluster.pending.order))
        return kept.at(self._now_s)

    @property
    def _settled(self) -> bool:
        """Whether those who wait go on waiting, and in the same order, while nothing comes free."""
        if self._stages.limits or self._policy.discipline == "strict":
            return False
        # The order may change by itself; in a greedy cycle that makes no room for any of them.
        return self._policy.discipline == "greedy" or all(item.per == "unit" for item in self._cluster.pending.order)

    @property
    def _steady(self) -> bool:
        """Whether who found no place, with all that could be taken off for it, finds one only where something changes."""
        return self._settled and self._stages.promises.steady

    @property
    def _can_be_cut(self) -> bool:
        """Whether cycles by this policy may leave some units to the next one, which then decides as one cycle would."""
        stages = self._stages
        if (stages.planner and not stages.follows) or stages.preemptions or self._policy.discipline == "conservative":
            return False
        if stages.limits and self._cluster.view.facts.get("index"):
            # What is placed counts as the most that it may get until the next cycle, then as what it got.
            return False
        return not any(getattr(item, "compares", False) for item in (*self._cluster.pending.order, *stages.limits))

    @property
    def _has_done_enough(self) -> bool:
        """Whether the rest may be left to the next cycle, which then decides as this one would have: as long as nobody was promised
        or given anything but nodes that were free."""
        return 0 < self._most <= len(self._placed) and not self._reserved and self._profile is None

    @property
    def _only_room(self) -> bool:
        """Whether only room counts: nothing is taken off for a unit, no limit holds one back, nobody asks who waits. Then
        there is never more room in the cycle than when it begins."""
        return not (self._explain or self._gates or self._stages.preemptions)

    def _ask_whether_to_go_on(self) -> None:
        if self._goes_on is not None and not self._goes_on():
            raise GivenUpError

    def _position(self, unit: PendingUnit) -> tuple[Key, float, UnitKey]:
        return self._cluster.pending.key(unit, self._context), unit.queued_at_s, unit.key

    def _has_room(self, demand: Demand) -> bool:
        return has_room(self._cluster.candidates(demand))

    # -- placing and taking off ----------------------------------------------------------------------------------------

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
            if self._profile is None:
                self._new.append(running)
            elif self._policy.discipline == "easy" and self._only_room:
                self._unbegun.append(running)
            else:
                self._profile.begin(running, self._now_s)

    def _take_off(
        self,
        victims: Sequence[RunningUnit],
        plugin: Preemption,
        unit: PendingUnit,
        selection: Selection,
        *,
        moved: bool = False,
    ) -> None:
        """Record that victims, whose nodes are given back already, are taken off for a unit."""
        why = f"{MOVED} for {unit.key}" if moved else f"taken off by {plugin.name} preemption for {unit.key}"
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

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _hold(
        self, units: Sequence[PendingUnit], explanation: Explanation, start_s: float = 0.0, reason: str = ""
    ) -> None:
        if units and self._explain:
            if reason:
                explanation = replace(explanation, blocked=reason)
            self._blocked.append(Blocked(tuple(units), explanation, start_s, reason))

    def _dropped(self, selection: Selection) -> Sequence[PendingUnit]:
        """Take the rest of the last unit's lane out of the cycle; who that is, if it is asked for."""
        if self._explain:
            return selection.drop()
        selection.close_lane()
        return ()

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
            found = self._said_already(demand)
            if not self._reserving:
                self._seen[demand] = found
        return found

    def _said_already(self, demand: Demand) -> Explanation:
        """The explanation of a demand without room: made once until somebody is placed or taken off."""
        moment = len(self._placed), len(self._preempted)
        if self._said_at != moment or self._per_tenant:
            self._said.clear()
            self._said_at = moment
        found = self._said.get(demand)
        if found is None:
            group = self._cluster.candidates(demand)
            found = self._said[demand] = _among(group, would_do(group).explain_waiting())
        return found


def has_room(alternatives: Sequence[Candidates]) -> bool:
    """Whether one of the alternatives has room, by number alone."""
    if len(alternatives) == 1:
        return alternatives[0].has_room()
    return any(candidates.has_room() for candidates in alternatives)


def _among(alternatives: Sequence[Candidates], explanation: Explanation) -> Explanation:
    """The explanation with the domains of all alternatives beside the one that was chosen."""
    if len(alternatives) == 1:
        return explanation
    return replace(explanation, domains=best_of([item.domain_ranking() for item in alternatives]))
