"""The simulator: discrete events in virtual time around the scheduler's real decisions.

Steps of one instant:
1. Everything that happens at the same time is carried out: arrivals, ends, failures and repairs, spot capacity that comes or
   goes, transfers that end, nodes that fall asleep or are awake, ticks of the policy's interval.
2. The core decides (services/scheduler/core/decide.py) on the same `Cluster` that the live service keeps; what it takes off
   waits again, what it places begins to run, after its data came and its nodes woke.
3. Measures are taken (measures.py).

Progress is counted in the job's work units where it has a throughput profile, else in seconds on the reference chip. The
simulator draws nothing at random but failures, from its seed: equal inputs give equal outcomes.
"""

from __future__ import annotations

import heapq
import math
import time

import numpy as np
import numpy.typing as npt

from services.scheduler.core.cluster import alternatives
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.planning import same_until_s, settled_until_s
from services.scheduler.core.stages import stages_of
from services.scheduler.core.unlike import plans
from services.scheduler.core.view import View
from simulation.failures import spot_events
from simulation.measures import Measures
from simulation.model import TraceJob
from simulation.outages import Outages
from simulation.simulated_job import JobKey, SimulatedJob
from simulation.world import END, FALL, FLOW, NODE, READY, SLEEP, SPOT, TICK, WAN

_GOES_ON = frozenset({END, WAN, SPOT, FLOW})
"""Events after which jobs may end that would not end without them."""
_MOST_ROUNDS = 4
_MOST_IDLE_TICKS = 1000
"""A run ends when a planner made no progress for so many rounds."""


class Simulation(Outages):
    """One run of one policy over a trace; see the module.

    ``watch`` is called about once per thousand events with (jobs ended, virtual seconds). ``until_s`` ends the run early.
    ``charge_first_start`` makes the first start of a job cost what a restart does. ``interference`` says how fast jobs go that
    share devices; by default the pairs of the trace's throughputs, without any nobody slows anybody down. ``failures`` are those
    of a record, in order of time, instead of drawn ones.
    """

    def run(self) -> Measures:
        """Run to the end; returns the measures. Jobs that can never be placed are counted, not waited for."""
        jobs = self.trace.jobs
        arrivals = len(jobs)
        place = 0
        self._push_next_failure()
        for event in spot_events(self.network.domains, self._start_s):
            self._push(event.time_s, SPOT, event)
        if self._sleeping is not None:
            for row, since_s in self._sleeping.idle.items():
                self._push(since_s + self.setting.sleep_after_s, SLEEP, (row, since_s))
        steps = 0
        while True:
            while self._heap and self._outdated(*self._heap[0][2:]):
                heapq.heappop(self._heap)
            next_s = self._heap[0][0] if self._heap else math.inf
            arrive_s = jobs[place].submit_s if place < arrivals else math.inf
            at_s = min(next_s, arrive_s)
            if at_s == math.inf or self._over(place, arrivals):
                break
            if at_s > self._until_s:
                self._advance(self._until_s)
                break
            self._advance(at_s)
            while self._heap and self._heap[0][0] <= at_s:
                _, _, kind, payload = heapq.heappop(self._heap)
                self._same_until_s = self._same_until_s if kind == TICK else -math.inf
                self._happen(kind, payload)
            while place < arrivals and jobs[place].submit_s <= at_s:
                self._arrive(jobs[place])
                self._same_until_s = -math.inf
                place += 1
            self._decide()
            steps += 1
            if self._watch is not None and steps % 1000 == 0:
                self._watch(self._ended, self.now_s)
        self._close()
        return self.measures

    def _over(self, place: int, arrivals: int) -> bool:
        """Whether nothing but failures is left to happen, or what waits can never run."""
        if place < arrivals:
            return False
        running, waiting = len(self.cluster.running), len(self.cluster.pending)
        if running > len(self._stuck) or any(kind in _GOES_ON for _, _, kind, _ in self._heap):
            return False
        idle_s = self.now_s - self._progress_s
        if self.policy.planner and (running or waiting) and self._tick_due < math.inf:
            rounds_s = _MOST_IDLE_TICKS * self.policy.interval_s
            return idle_s >= (max(rounds_s, self._patience_s) if self._down else rounds_s)
        return not (self._down and waiting and idle_s < self._patience_s and self._could_run())

    def _could_run(self) -> bool:
        """Whether a job that waits would have room if nothing ran and all nodes were up."""
        empty = View(self.cluster.table)
        empty.facts = self.cluster.view.facts
        return any(
            places.could_fit()
            for demand in {unit.demand for unit in self.cluster.pending}
            for places in alternatives(empty, demand, self.policy)
        )

    def _outdated(self, kind: int, payload: object) -> bool:
        """Whether it is the end or the fall of a run that was stopped, or the sleep of a node in use: it would let time pass
        for nothing."""
        if kind == END:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            return item is None or item.due != payload[1]
        if kind == FALL:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            return item is None or item.epoch != payload[1]
        if kind == SLEEP:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            return not self._sleeping.is_idle_since(*payload)
        return False

    def _happen(self, kind: int, payload: object) -> None:
        if kind == END:
            assert isinstance(payload, tuple)
            self._end(*payload)
        elif kind == WAN:
            self._wan_due = math.inf
            self._transfers_ended()
        elif kind == TICK:
            self._tick_due = math.inf
            self._tick()
        elif kind == FALL:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            if item is not None and item.epoch == payload[1] and item.running is not None:
                self.cluster.fell(item.running)
                self._watch_order(item, item.running)
        elif kind == NODE:
            self._node_changed(payload)
        elif kind == SPOT:
            self._spot_changed(payload)
        elif kind == SLEEP:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            row, since_s = payload
            self._sleeping.fall_asleep(row, since_s, self.now_s)
        elif kind == READY:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            if self._sleeping.ready(*payload):
                self._set_busy(payload[0])
        elif kind == FLOW:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            if item is not None and item.epoch == payload[1] and item.running is not None:
                self._exchange(item)

    # -- arriving and deciding -------------------------------------------------------------------------------------------

    def _arrive(self, job: TraceJob) -> None:
        demand = self._demand(job)
        profiled = bool(job.profile) and self.trace.throughputs is not None and job.work > 0
        total = job.work if profiled else max(job.duration_s, 1e-9)
        item = SimulatedJob(job, JobKey.of(job.job_id, self.measures.arrivals), demand, total)
        item.data_domain, item.copies = job.data_domain, (job.data_domain,)
        self._jobs[item.key] = item
        self._progress_s = self.now_s
        self.measures.arrived(item)
        self._wait(item)

    def _decide(self) -> None:
        if self._carbon is not None and self.now_s >= self._carbon.due_s:
            self._tell_carbon(self._carbon.at(self.now_s))
            self._same_until_s = -math.inf
        if self._spot_changes:
            self._spot_changes = False
            for domain in self._spot:
                self._share_out_spot(domain)
        if (
            self.policy.interval_s
            and self._tick_due == math.inf
            and (len(self.cluster.pending) or self.cluster.running)
        ):
            self._tick_due = (math.floor(self.now_s / self.policy.interval_s) + 1) * self.policy.interval_s
            self._push(self._tick_due, TICK, None)
        if self.policy.planner and self.policy.interval_s:
            return
        self._cycles()

    def _tell_carbon(self, values: npt.NDArray[np.float64]) -> None:
        """G/kWh by domain from now on. Judgements are only made anew where a score reads it."""
        if self._carbon_scored:
            self.cluster.view.state("carbon_g_per_kwh", values)
        else:
            self.cluster.view.facts["carbon_g_per_kwh"] = values

    def _cycles(self) -> None:
        for _ in range(_MOST_ROUNDS):
            if not len(self.cluster.pending) and not plans(self.cluster, self.policy):
                return
            started = time.perf_counter()
            decisions = decide(self.cluster, self.policy, self.now_s, explain=False, keep_memory=False)
            self.decision_s.append(time.perf_counter() - started)
            self._carry_out(decisions)
            if self.policy.planner:
                changed = bool(decisions.preempted or decisions.placed)
                self._same_until_s = self._plan_is_same_until_s(changed=changed)
            if not decisions.preempted or self.policy.planner:
                return

    def _plan_is_same_until_s(self, *, changed: bool) -> float:
        """Until when rounds would change nothing, if nothing happens; ``changed``: this one did."""
        planner = stages_of(self.policy).planner
        if planner is None or self.setting.refresh:
            return -math.inf
        ask = settled_until_s if changed else same_until_s
        return ask(planner, self.cluster, self.now_s)

    def _carry_out(self, decisions: Decisions) -> None:
        placed_again = {placement.key for placement in decisions.placed}
        for preempted in decisions.preempted:
            item = self._jobs[preempted.key]
            before = item.running
            self._stop(item, graceful=self._graceful)
            if preempted.key in placed_again:
                self.measures.queued_again(item)
                if self.levels is not None and before is not None:
                    self.levels.queued(before.unit, self.now_s)
        begun = self.cluster.apply(decisions, self.now_s)
        for running in begun:
            self._start(self._jobs[running.unit.key], running)
        for preempted in decisions.preempted:
            if preempted.key not in placed_again:
                self._wait(self._jobs[preempted.key])

    def _tick(self) -> None:
        self.cluster.forget()
        if self.setting.refresh:
            self._refresh_estimates()
        if self.policy.planner and self.now_s >= self._same_until_s:
            self._cycles()

    def _refresh_estimates(self) -> None:
        """By what the jobs have done, as of those that wait: time on nodes for data, waking and restarts is no run time. Counting it
        makes a job that has done nothing look ever longer, until one like it, which waits, takes its place, and so on."""
        for running in self.cluster.running.values():
            item = self._jobs[running.unit.key]
            attained_s = self._done_by_now(item) / item.reference_rate
            known = self._estimates.of(item.job, attained_s, self.now_s)
            begins_s = max(item.ready_s, self.now_s)
            running.expected_end_s = begins_s + max(known.expected_s - attained_s, 1.0)
            running.service_index = known.service_index

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for running in self.cluster.running.values():
            self._count_run(self._jobs[running.unit.key], running)
        if self.levels is not None:
            self.measures.extra.update(self.levels.figures(self.now_s))
        self.measures.close(
            self.now_s,
            open_jobs=[*self._jobs.values(), *self._given_up],
            given_up=[item.job.job_id for item in self._given_up],
            waiting=len(self.cluster.pending),
            running=len(self.cluster.running),
            to_come=len(self.trace.jobs) - self.measures.arrivals,
            energy=self.energy.totals(max(self.now_s, self._start_s)),
            wan=self.wan,
            decision_s=self.decision_s,
        )
