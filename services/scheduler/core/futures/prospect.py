"""When a waiting unit is thought to start: the cluster followed forward from what runs and waits now.

Steps:
1. Five futures, three where much runs and waits, 25 where little does, with run times drawn from their predictions
   (scenario.py); nobody new arrives. Units begin in the order of the policy, where each that begins counts for its tenant
   (`order_of_starts`).
2. Where none behind it can come before the one asked about (strict, conservative), those are left out.
3. Each future goes from end to end. Where nothing but room and order decides, only those are followed (outflow.py). Under
   other policies the same core decides at each end, on a copy; with reservations as if whatever fits might go, as a profile
   at each step would cost far more than the answer is worth. Ends that lie close together are taken as one, closer where
   the freed capacity makes a start likely: so a future costs at most as many moments as it was given, and the answer says
   between which ends it lies.
4. The start is the median over the futures, the band goes from the earliest to the latest (of 25: from the third to the
   third last, the quantiles 0.1 and 0.9); without a start in time it is "later than".
5. Where the end of the same run begins the unit in every future, that run is what it waits for: the start and the band are
   the quantiles of what is left of it, not those of a few draws.

Where a planner decides in rounds, futures go from round to round instead: what ends between two is there for the next. There are
three of them. The time for all decisions is bounded by who asks (``patience``): what was not followed far enough says so.

Courses of 3 may be kept between questions (kept_courses.py): then a second one on the same state costs only its own unit.

It is a prediction: those who come later with a better claim may delay the unit. track_record.py moves the ends of the band by
how earlier predictions turned out; bench/prospect.py measures both.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.futures.kept_courses import Drawn, KeptCourses
from services.scheduler.core.futures.layout import Layout
from services.scheduler.core.futures.open_course import Answer
from services.scheduler.core.futures.outflow import Course, speaks_for
from services.scheduler.core.futures.scenario import COARSE, FINE, Scenario, quantiles, scenarios
from services.scheduler.core.futures.spans import Spans, spans_of_runs, spans_of_waiting
from services.scheduler.core.planning import Rounds
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import UnitKey
from services.scheduler.core.unlike import plans, stages_now
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

_CELLS = 600_000
"""Nodes times classes that all cycles together look at (about 0.15 s)."""
_LEAST_CYCLES, _MOST_CYCLES = 16, 400
_DAY_S = 86_400.0
_BAND = np.array([[0.1], [0.5], [0.9]])
_COARSER = 1.5
_TOGETHER = 0.05
_MOST_FINE = 500
"""Units that run or stand before the last one asked about, up to which there are five futures."""
_MOST_REPEATED, _ROUNDS = 100, 5
"""The same, up to which the run times of the five are drawn so many times."""


Patience = Callable[[float], bool]


def _for_ever(part: float) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Prospect:
    """Seconds since 1970: the start is thought to be at ``start_s``, between ``low_s`` and ``high_s``; infinite when it is later
    than what was simulated, ``later_than_s``. ``never`` says that nothing that runs or waits stands in the way of a decision
    any more and it still does not fit. ``cycles`` is the number of moments that were looked at; ``note`` says for people why it ended
    before a start was found, where that was not the horizon."""

    key: UnitKey
    start_s: float
    low_s: float
    high_s: float
    later_than_s: float = 0.0
    never: bool = False
    cycles: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before a unit in the order of the policy."""

    units: int
    accelerators: float


def order_of(cluster: Cluster, now_s: float) -> list[PendingUnit]:
    """All waiting units in the order of the policy, as their tenants' shares are now."""
    if cluster.pending.settled:
        return cluster.pending.in_order()
    facts = {**cluster.view.facts, "running": cluster.running, "order": cluster.pending.order, "cluster": cluster}
    context = OrderContext(cluster.shares(), now_s, facts)
    key = cluster.pending.key
    return sorted(cluster.pending, key=lambda unit: (key(unit, context), unit.queued_at_s, unit.key))


def order_of_starts(cluster: Cluster, now_s: float) -> list[PendingUnit]:
    """All waiting units in the order in which they would begin if there were room for one after the other: as in a cycle, what
    begins counts for its tenant, so that tenants take turns. As `order_of` under policies whose criteria depend on more than
    units and their tenants."""
    pending = cluster.pending
    if pending.settled or any(
        plugin.per not in {"unit", "tenant"} or hasattr(plugin, "charged") for plugin in pending.order
    ):
        return order_of(cluster, now_s)
    facts = {**cluster.view.facts, "running": cluster.running, "order": pending.order, "cluster": cluster}
    selection = Selection(pending, OrderContext(cluster.shares(), now_s, facts))
    found: list[PendingUnit] = []
    while (unit := selection.pop()) is not None:
        selection.charge(unit)
        found.append(unit)
    return found


def ahead_of(order: Collection[PendingUnit], key: UnitKey) -> Ahead:
    """What stands before the unit."""
    units, accelerators = 0, 0.0
    for unit in order:
        if unit.key == key:
            break
        units += 1
        accelerators += unit.devices
    return Ahead(units, accelerators)


def prospects(
    cluster: Cluster,
    policy: Policy,
    now_s: float,
    keys: Collection[UnitKey],
    *,
    horizon_s: float = 30 * _DAY_S,
    seed: int = 0,
    kept: KeptCourses | None = None,
    order: Sequence[PendingUnit] | None = None,
    patience: Patience = _for_ever,
) -> dict[UnitKey, Prospect]:
    """When each of these waiting units is thought to start; the cluster is left as it is. Keys that do not wait are left out.
    ``seed`` is that of the run times that are drawn. What is asked about one unit is said by ``kept`` courses where they
    speak for it, and else as without them. ``order`` is that of `order_of_starts`, where it is known. ``patience`` is asked, before
    each decision and each unit in it, whether there is time left for this part (0-1) of them."""
    if order is None:
        order = order_of_starts(cluster, now_s)
    last = max((place for place, unit in enumerate(order) if unit.key in keys), default=-1)
    if last < 0:
        return {}
    wanted = {unit.key for unit in order[: last + 1] if unit.key in keys}
    until_s = now_s + horizon_s
    matter = last + len(cluster.running)
    levels = FINE if matter <= _MOST_FINE else COARSE
    followed = order[: last + 1] if policy.discipline in {"strict", "conservative"} else order
    if speaks_for(cluster, policy, followed):
        rounds = _ROUNDS if matter <= _MOST_REPEATED else 1
        draw = partial(_draw, cluster, followed, levels, seed, rounds, now_s)
        if kept is not None and len(wanted) == 1:
            said = kept.ask(
                cluster, policy.discipline, followed, order[last], now_s, horizon_s, draw, (levels, seed, rounds)
            )
            if said is not None:
                key = order[last].key
                found = _of_one_run(_together(key, said.answers), said.answers, said.left, said.at_s)
                return {key: _not_before(found, now_s)}
        layout = Layout(cluster, followed, policy.discipline)
        left, all_ends, all_lasts = draw()
        courses = [
            Course(layout, now_s, ends, lasts).run(wanted, until_s)
            for ends, lasts in zip(all_ends.tolist(), all_lasts.tolist(), strict=True)
        ]
        return {key: _of_one_run(_together(key, courses), courses, left, now_s) for key in wanted}
    base = cluster.copy()
    if policy.discipline != "greedy" and not plans(cluster, policy):
        for unit in order[last + 1 :]:
            base.withdraw(unit.key)
        if policy.discipline != "strict":
            policy = replace(policy, discipline="greedy")
    base.use(policy)
    base.forget()
    for _, _, demand in base.pending.lanes:
        base.candidates(demand)
    classes = len({demand for _, _, demand in base.pending.lanes})
    cycles = _CELLS // max(classes * len(base.table.nodes), 1)
    cycles = min(max(cycles, _LEAST_CYCLES), _MOST_CYCLES)
    need = sum(unit.devices or unit.demand.ranks for unit in order[: last + 1])
    planner = stages_now(base, policy).planner
    planned = planner if isinstance(planner, Rounds) else None
    courses_of = scenarios([*base.running, *(unit.key for unit in order)], levels if planned is None else COARSE, seed)
    futures: list[_Future] = []
    for number, scenario in enumerate(courses_of, 1):
        future = _Future(base, policy, now_s, scenario, max(cycles // len(courses_of), 1), until_s, need)
        goes_on = partial(patience, number / len(courses_of))
        if planned is not None:
            futures.append(future.run_in_rounds(planned, wanted, goes_on))
        else:
            futures.append(future.run(wanted, goes_on))
    return {key: _together(key, futures) for key in wanted}


def _draw(
    cluster: Cluster, followed: Sequence[PendingUnit], levels: Sequence[float], seed: int, rounds: int, now_s: float
) -> Drawn:
    """Run times by future."""
    running = len(cluster.running)
    parts = quantiles(running + len(followed), levels, seed, rounds)
    left = spans_of_runs(cluster.running.values(), now_s)
    return left, now_s + left.left_s(parts[:, :running]), spans_of_waiting(followed).left_s(parts[:, running:])


def _not_before(said: Prospect, now_s: float) -> Prospect:
    """What was drawn a little earlier, as of now."""
    if said.low_s >= now_s:
        return said
    return replace(said, low_s=now_s, start_s=max(said.start_s, now_s), high_s=max(said.high_s, now_s))


def _of_one_run(said: Prospect, courses: Sequence[Course | Answer], left: Spans, now_s: float) -> Prospect:
    """The prediction of who waits for the same run in every course; any other as it is."""
    causes = {course.cause.get(said.key, -1) for course in courses}
    run = min(causes)
    if len(causes) > 1 or run < 0:
        return said
    low_s, start_s, high_s = (now_s + left.left_s(_BAND)[:, run]).tolist()
    return replace(said, low_s=low_s, start_s=start_s, high_s=high_s)


def _together(key: UnitKey, futures: Sequence[_Future | Course | Answer]) -> Prospect:
    cycles = sum(future.cycles for future in futures)
    never_s = math.inf, math.inf
    spans = sorted(future.found.get(key, never_s) for future in futures)
    outside = len(spans) // 10
    start_s, low_s = spans[len(spans) // 2][1], spans[outside][0]
    high_s = max(span[1] for span in spans[: len(spans) - outside])
    later = 0.0 if start_s < math.inf else min(future.until_s for future in futures if key not in future.found)
    never = start_s == math.inf and all(future.exhausted for future in futures if key not in future.found)
    notes = [future.note for future in futures if isinstance(future, _Future) and future.note]
    return Prospect(
        key, start_s, low_s, high_s, later, never, cycles, notes[0] if notes and start_s == math.inf else ""
    )


class _Future:
    """One future; see the module. ``found`` gives for each start the first and last of the ends that were taken as one."""

    def __init__(
        self,
        base: Cluster,
        policy: Policy,
        now_s: float,
        scenario: Scenario,
        cycles: int,
        horizon_s: float,
        need: float,
    ) -> None:
        self._cluster, self._policy, self._now_s = base.copy(), policy, now_s
        self._scenario, self._allowed, self._horizon_s, self._need = scenario, cycles, horizon_s, need
        self.found: dict[UnitKey, tuple[float, float]] = {}
        self.until_s = now_s
        self.cycles = 0
        self.exhausted = False
        self.note = ""
        self._ends = [(scenario.end_s(item, now_s), key) for key, item in self._cluster.running.items()]
        heapq.heapify(self._ends)

    def run(self, wanted: Collection[UnitKey], goes_on: Callable[[], bool]) -> _Future:
        """Simulate until all wanted units have started, or no longer than allowed; ``goes_on`` says whether there is time for one
        more unit."""
        try:
            self._run(wanted, goes_on)
        except GivenUpError:
            self.note = f"there was time to decide {self.cycles} times on what runs and waits, and no further"
        return self

    def _run(self, wanted: Collection[UnitKey], goes_on: Callable[[], bool]) -> None:
        ends = self._ends
        width_s = (self._enough_s() - self._now_s) / max(self._allowed / 2, 1.0)
        first_s = at_s = self._now_s
        while True:
            if not goes_on():
                raise GivenUpError
            self._decide(first_s, at_s, wanted, goes_on)
            if len(self.found) == len(wanted):
                return
            self.until_s = at_s
            if not ends or ends[0][0] == math.inf:
                self.exhausted = not ends
                return
            if self.cycles >= self._allowed or ends[0][0] > self._horizon_s:
                return
            first_s = at_s = ends[0][0]
            while ends and ends[0][0] <= first_s + width_s:
                at_s, key = heapq.heappop(ends)
                self._cluster.release(key, at_s)
            if self.cycles > self._allowed / 2:
                width_s *= _COARSER

    def run_in_rounds(self, rounds: Rounds, wanted: Collection[UnitKey], goes_on: Callable[[], bool]) -> _Future:
        """The same from round to round of a planner; ``goes_on`` says whether there is time for one more. The start lies after the round
        before it; rounds in the same twentieth of the time since now are taken as one."""
        ends, interval_s = self._ends, rounds.interval_s
        first_s = at_s = self._now_s
        while True:
            if not goes_on():
                self.note = f"the planner {rounds.name} was followed through {self.cycles} rounds, and no further"
                return self
            changed = self._decide(first_s, at_s, wanted)
            if len(self.found) == len(wanted):
                return self
            self.until_s = at_s
            if not changed and self.cycles > 1 and (not ends or ends[0][0] == math.inf):
                # Nothing is known to end, and the planner would go on as it does.
                self.exhausted = not ends
                self.note = (
                    f"nothing that runs is known to end, and rounds of the planner {rounds.name} change nothing more"
                )
                return self
            if self.cycles >= self._allowed:
                self.note = f"the planner {rounds.name} was followed through {self.cycles} rounds, and no further"
                return self
            first_s = max(rounds.next_s(self._cluster), at_s)
            at_s = first_s + max(interval_s, _TOGETHER * (first_s - self._now_s)) - interval_s
            if at_s > self._horizon_s:
                return self
            while ends and ends[0][0] <= at_s:
                end_s, key = heapq.heappop(ends)
                self._cluster.release(key, end_s)

    def _enough_s(self) -> float:
        """When so much has come free that all units ahead and the last wanted one fit, by number alone."""
        free = float(self._cluster.view.free_device_totals.sum())
        running = self._cluster.running
        last_s = self._now_s
        for end_s, key in sorted(self._ends):
            if free >= self._need or end_s > self._horizon_s:
                break
            unit = running[key].unit
            free += unit.devices or unit.demand.ranks
            last_s = end_s
        return last_s

    def _decide(
        self, first_s: float, at_s: float, wanted: Collection[UnitKey], goes_on: Callable[[], bool] | None = None
    ) -> bool:
        """Decide and carry it out; whether anything began or was taken off. GivenUpError as of `decide`."""
        cluster = self._cluster
        decisions = decide(cluster, self._policy, at_s, explain=False, goes_on=goes_on)
        off = [cluster.running[item.key] for item in decisions.preempted]
        begun = cluster.apply(decisions, at_s)
        self.cycles += 1
        again = {item.unit.key for item in begun}
        for item in off:
            if item.unit.key not in again:
                cluster.add(replace(item.unit, attained_s=item.ran_s(at_s), served_s=item.service_s(at_s)))
        gone = {item.unit.key for item in off}
        if gone:
            self._ends[:] = [entry for entry in self._ends if entry[1] not in gone]
            heapq.heapify(self._ends)
        for running in begun:
            heapq.heappush(self._ends, (self._scenario.end_s(running, at_s), running.unit.key))
            if running.unit.key in wanted:
                self.found.setdefault(running.unit.key, (first_s, at_s))
        return bool(begun or off)
