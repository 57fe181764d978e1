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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from services.scheduler.core.cluster import Cluster, RunningUnit, alternatives
from services.scheduler.core.decide import Decisions, decide
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.scoring.interference import profile_label
from services.scheduler.core.scoring.shared import kind_label
from services.scheduler.core.sla import Objective
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import View, table_of
from simulation.checkpoints import Checkpoints
from simulation.energy import Energy
from simulation.estimates import Estimates, estimates
from simulation.facts import HourlyCarbon, facts_of
from simulation.failures import Holding, NodeEvent, NodeFailures, reclaimed, spot_events
from simulation.fleet import fleet_of
from simulation.interference import Interference, Profile
from simulation.measures import Measures
from simulation.model import Network, Trace, TraceJob
from simulation.service_levels import ServiceLevels
from simulation.sharing import GangFlows, SharedDevices
from simulation.sleeping import Sleeping, may_sleep
from simulation.wan import Wan

_END, _NODE, _SPOT, _WAN, _TICK, _FALL, _SLEEP, _READY, _FLOW = range(9)
_GOES_ON = frozenset({_END, _WAN, _SPOT, _FLOW})
"""Events after which jobs may end that would not end without them."""
_MOST_ROUNDS = 4
_MOST_IDLE_TICKS = 1000
_MOST_IDLE_S = 7 * 86_400.0
"""A run ends when nothing makes progress for so long, though something might: so many rounds of a planner, so many seconds
(or ten repairs) while nodes are down."""

DEFAULT_CHECKPOINT_S = 1800.0
"""Seconds of undisturbed run between checkpoints of a job that says nothing about them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a policy is run: ``knowledge`` is "exact", "declared", "predicted" or "none" (see estimates.py); ``isolated``
    keeps every job in its home domain; ``interval_s`` of the policy gives the ticks. ``sleep_after_s`` puts idle nodes to
    sleep after that time. ``refresh`` asks the estimates anew about running jobs at each tick. ``objectives`` are what tenants
    were promised (tenant, objectives): their accounts are kept, and are what the order `sla` reads."""

    name: str
    policy: Policy
    knowledge: str = "none"
    isolated: bool = False
    baseline: bool = True
    sleep_after_s: float = math.inf
    refresh: bool = False
    about: str = ""
    objectives: tuple[tuple[str, tuple[Objective, ...]], ...] = ()


@dataclass(slots=True)
class SimulatedJob:
    """A job while it is simulated. ``done`` is its progress kept, ``rate`` what it makes per second undisturbed, ``factor``
    the part of that which its ``neighbours`` and ``links`` leave it. ``ready_s`` is when this run begins to make progress;
    ``due`` names the event of its end, 0 when it would never end."""

    job: TraceJob
    key: UnitKey
    demand: Demand
    total: float
    done: float = 0.0
    rate: float = 0.0
    factor: float = 1.0
    neighbours: float = 1.0
    links: float = 1.0
    since_s: float = 0.0
    working_from_s: float = 0.0
    ready_s: float = 0.0
    ran_s: float = 0.0
    epoch: int = 0
    due: int = 0
    first_start_s: float = math.nan
    finish_s: float = math.nan
    starts: int = 0
    interruptions: int = 0
    lost: float = 0.0
    overhead_s: float = 0.0
    running: RunningUnit | None = None
    staging: bool = False
    data_domain: str = ""
    copies: tuple[str, ...] = ()
    held_device_s: float = 0.0
    curve: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None
    """Work done and the seconds that it takes, both ascending from 0, where the rate changes as the job goes on."""

    @property
    def reference_rate(self) -> float:
        """Progress per second on the reference chip."""
        return self.total / self.job.duration_s if self.job.duration_s > 0 else 1.0

    @property
    def attained_s(self) -> float:
        """Progress in seconds of the reference chip."""
        return self.done / self.reference_rate


class Simulation:
    """One run of one policy over a trace; see the module.

    ``watch`` is called about once per thousand events with (jobs ended, virtual seconds). ``until_s`` ends the run early.
    ``charge_first_start`` makes the first start of a job cost what a restart does. ``interference`` says how fast jobs go that
    share devices; by default the pairs of the trace's throughputs, without any nobody slows anybody down. ``failures`` are those
    of a record, in order of time, instead of drawn ones.
    """

    def __init__(
        self,
        network: Network,
        trace: Trace,
        setting: Setting,
        *,
        seed: int = 0,
        checkpoints: Checkpoints | None = None,
        graceful: bool = True,
        restart_on_preemption: bool = True,
        charge_first_start: bool = False,
        until_s: float = math.inf,
        watch: Callable[[int, float], None] | None = None,
        estimates_source: Estimates | None = None,
        interference: Interference | None = None,
        failures: Iterable[NodeEvent] | None = None,
    ) -> None:
        self.network, self.trace, self.setting = network, trace, setting
        self.policy = setting.policy
        fleet = fleet_of(network)
        if interference is None and trace.throughputs is not None and trace.throughputs.pairs:
            interference = Interference.from_throughputs(trace.throughputs)
        table = table_of(fleet)
        self.cluster = Cluster(table, self.policy, facts=facts_of(network, trace, table.domain_ids, interference))
        self.measures = Measures(network)
        start_s = self._start_s = trace.jobs[0].submit_s if trace.jobs else 0.0
        self.energy = Energy(network, start_s=start_s)
        self.wan = Wan(network)
        self._links = {(link.from_domain, link.to_domain) for link in network.links}
        self.now_s = 0.0
        self._estimates = estimates_source or estimates(setting.knowledge)
        self._checkpoints = checkpoints or Checkpoints(default_interval_s=DEFAULT_CHECKPOINT_S)
        self._graceful, self._charged, self._first_charged = graceful, restart_on_preemption, charge_first_start
        self.cluster.view.facts["work_left"] = self.work_left
        self._until_s, self._watch = until_s, watch
        self._jobs: dict[UnitKey, SimulatedJob] = {}
        self._heap: list[tuple[float, int, int, object]] = []
        self._pushed = 0
        self._demands: dict[Demand, Demand] = {}
        self._wan_due = math.inf
        self._tick_due = math.inf
        self._failures = self._node_events(seed) if failures is None else iter(failures)
        self._down: set[int] = set()
        self._ended = 0
        self._domain_of_row = [node.domain_id for node in self.cluster.table.nodes]
        self._node_milli = [0] * len(self._domain_of_row)
        self.decision_s: list[float] = []
        plugins = self.cluster.pending.order
        self._changes = [plugin.changes_at_s for plugin in plugins if hasattr(plugin, "changes_at_s")]
        self._stuck: set[UnitKey] = set()
        self._progress_s = self._start_s
        self._patience_s = max(_MOST_IDLE_S, 10.0 * max((item.mttr_node_s for item in network.domains), default=0.0))
        self._spot: dict[int, float] = {}
        self._spot_up: dict[int, float] = {}
        self._spot_changes = False
        # What this run has none of costs nothing: each part is only there when it is wanted.
        scored = {name for name, _ in self.policy.scores}
        shares = any(job.accelerators and job.device_share < 1 for job in trace.jobs)
        spans = not setting.isolated and any(job.cross_domain and job.traffic_bytes_per_s > 0 for job in trace.jobs)
        self._sharing = SharedDevices(interference) if interference is not None and shares else None
        self._label_kinds = "gpu_clustering" in scored
        self._profiles = trace.throughputs is not None or self._sharing is not None
        self._flows = GangFlows(self.wan) if spans else None
        self._carbon_scored = "carbon" in scored
        self._carbon = HourlyCarbon(network, table.domain_ids) if HourlyCarbon.varies(network) else None
        self.levels = ServiceLevels(dict(setting.objectives), start_s) if setting.objectives else None
        if self.levels is not None:
            self.cluster.view.facts["sla"] = self.levels.accounts
        sleeps = setting.sleep_after_s < math.inf and any(may_sleep(node) for node in network.nodes)
        self._sleeping = (
            Sleeping(network, self.cluster.view, self.energy, setting.sleep_after_s, start_s) if sleeps else None
        )

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> Measures:
        """Run to the end; returns the measures. Jobs that can never be placed are counted, not waited for."""
        jobs = self.trace.jobs
        arrivals = len(jobs)
        place = 0
        self._push_next_failure()
        for event in spot_events(self.network.domains):
            self._push(event.time_s, _SPOT, event)
        if self._sleeping is not None:
            for row, since_s in self._sleeping.idle.items():
                self._push(since_s + self.setting.sleep_after_s, _SLEEP, (row, since_s))
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
                self._happen(kind, payload)
            while place < arrivals and jobs[place].submit_s <= at_s:
                self._arrive(jobs[place])
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
        if kind == _END:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            return item is None or item.due != payload[1]
        if kind == _FALL:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            return item is None or item.epoch != payload[1]
        if kind == _SLEEP:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            return not self._sleeping.is_idle_since(*payload)
        return False

    def _advance(self, at_s: float) -> None:
        self.measures.advance(at_s)
        self.now_s = at_s

    def _push(self, at_s: float, kind: int, payload: object) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, kind, payload))

    def _happen(self, kind: int, payload: object) -> None:
        if kind == _END:
            assert isinstance(payload, tuple)
            self._end(*payload)
        elif kind == _WAN:
            self._wan_due = math.inf
            self._transfers_ended()
        elif kind == _TICK:
            self._tick_due = math.inf
            self._tick()
        elif kind == _FALL:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            if item is not None and item.epoch == payload[1] and item.running is not None:
                self.cluster.memory = None
                self._watch_order(item, item.running)
        elif kind == _NODE:
            self._node_changed(payload)
        elif kind == _SPOT:
            self._spot_changed(payload)
        elif kind == _SLEEP:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            row, since_s = payload
            self._sleeping.fall_asleep(row, since_s, self.now_s)
        elif kind == _READY:
            assert isinstance(payload, tuple)
            assert self._sleeping is not None
            if self._sleeping.ready(*payload):
                self._set_busy(payload[0])
        elif kind == _FLOW:
            assert isinstance(payload, tuple)
            item = self._jobs.get(payload[0])
            if item is not None and item.epoch == payload[1] and item.running is not None:
                self._exchange(item)

    # -- arriving and waiting ----------------------------------------------------------------------------------------

    def _arrive(self, job: TraceJob) -> None:
        demand = self._demand(job)
        profiled = bool(job.profile) and self.trace.throughputs is not None and job.work > 0
        total = job.work if profiled else max(job.duration_s, 1e-9)
        item = SimulatedJob(job, UnitKey(job.job_id, 0), demand, total)
        item.data_domain, item.copies = job.data_domain, (job.data_domain,)
        self._jobs[item.key] = item
        self._progress_s = self.now_s
        self.measures.arrived(item)
        self._wait(item)

    def _wait(self, item: SimulatedJob) -> None:
        job = item.job
        if item.starts:
            self.measures.queued_again(item)
        known = self._estimates.of(job, item.attained_s if item.starts else 0.0, self.now_s)
        unit = PendingUnit(
            key=item.key,
            tenant_id=job.tenant,
            priority=job.priority,
            queued_at_s=job.submit_s,
            demand=item.demand,
            submitted_at_s=job.submit_s,
            limit_s=known.limit_s,
            expected_s=known.expected_s,
            low_s=known.low_s,
            high_s=known.high_s,
            attained_s=item.attained_s,
            served_s=item.ran_s,
            service_index=known.service_index,
            deadline_s=math.inf if math.isnan(job.deadline_s) else job.deadline_s,
            value=job.value,
            preemptible=job.preemptible,
            min_ranks=job.min_ranks,
            max_ranks=job.max_ranks,
            restart_s=self._checkpoints.restart_s(job),
            work=max(item.total - item.done, 0.0),
        )
        if self.levels is not None:
            self.levels.queued(unit, self.now_s)
        self.cluster.add(unit)

    def _demand(self, job: TraceJob) -> Demand:
        home = frozenset({job.home_domain}) if self.setting.isolated and job.home_domain else frozenset()
        item_domain = job.data_domain if job.data_bytes >= 1 else ""
        labels = frozenset[str]()
        if self._sharing is not None and job.profile:
            labels = frozenset({profile_label(job.profile, job.ranks)})
        demand = Demand(
            ranks=job.ranks,
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
            accelerators=job.accelerators,
            accelerator_types=job.accelerator_types,
            domains=home,
            cross_domain=job.cross_domain and not home,
            device_milli=round(job.device_share * 1000),
            resources=tuple(sorted(job.resources.items())),
            profile=job.profile if self._profiles else "",
            labels=labels,
            # Rounded up to powers of two, so that jobs with like data are one class to the scheduler.
            data=((item_domain, 2.0 ** math.ceil(math.log2(job.data_bytes))),) if item_domain else (),
            traffic_bytes_per_s=job.traffic_bytes_per_s,
        )
        if self._label_kinds and job.accelerators:
            demand = replace(demand, labels=labels | {kind_label(demand)})
        return self._demands.setdefault(demand, demand)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self._carbon is not None and self.now_s >= self._carbon.due_s:
            self._tell_carbon(self._carbon.at(self.now_s))
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
            self._push(self._tick_due, _TICK, None)
        if self.policy.planner:
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
            if not len(self.cluster.pending) and not self.policy.planner:
                return
            started = time.perf_counter()
            decisions = decide(self.cluster, self.policy, self.now_s, explain=False)
            self.decision_s.append(time.perf_counter() - started)
            self._carry_out(decisions)
            if not decisions.preempted or self.policy.planner:
                return

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
        self.cluster.memory = None
        if self.setting.refresh:
            self._refresh_estimates()
        if self.policy.planner:
            self._cycles()

    def _refresh_estimates(self) -> None:
        for running in self.cluster.running.values():
            item = self._jobs[running.unit.key]
            known = self._estimates.of(item.job, running.ran_s(self.now_s), self.now_s)
            running.expected_end_s = self.now_s + max(known.expected_s - running.ran_s(self.now_s), 1.0)
            running.service_index = known.service_index

    # -- running jobs ------------------------------------------------------------------------------------------------

    def _start(self, item: SimulatedJob, running: RunningUnit) -> None:
        item.running = running
        running.kept_s = math.inf if self._graceful else 0.0
        item.epoch += 1
        item.since_s = self.now_s
        if math.isnan(item.first_start_s):
            item.first_start_s = self.now_s
        charged = self._charged if item.starts else self._first_charged
        delay_s = self._checkpoints.restart_s(item.job) if charged else 0.0
        item.starts += 1
        delay_s = max(delay_s, self._occupy_nodes(running))
        item.working_from_s = item.ready_s = self.now_s + delay_s
        running.expected_end_s += delay_s
        running.limit_end_s += delay_s
        item.rate = self._rate(item, running)
        item.curve = self._curve(item, running)
        item.factor = item.neighbours = item.links = 1.0
        left = max(item.total - item.done, 0.0)
        if running.unit.work != left:
            running.unit = replace(running.unit, work=left, attained_s=item.attained_s)
        self.measures.started(item, running, self.now_s)
        if self.levels is not None:
            self.levels.started(running.unit, self.now_s)
        if self._sharing is not None and running.unit.demand.device_milli < 1000:
            self._meet(item, running)
        self._watch_order(item, running)
        if not self._stage(item, running):
            self._begin_work(item)

    def _begin_work(self, item: SimulatedJob) -> None:
        """The job has what it needs; from ``item.working_from_s`` on it makes progress."""
        running = item.running
        assert running is not None
        if self.levels is not None:
            self.levels.works(running.unit, self.now_s, item.working_from_s)
        if self._flows is not None and item.job.traffic_bytes_per_s > 0 and len(self._domains_of(running)) > 1:
            if item.working_from_s > self.now_s:
                self._push(item.working_from_s, _FLOW, (item.key, item.epoch))
            else:
                self._exchange(item)
        self._schedule_end(item)

    def _watch_order(self, item: SimulatedJob, running: RunningUnit) -> None:
        """Ask for a cycle when the unit's place in the order changes because it runs."""
        for ask in self._changes:
            at_s = ask(running, self.now_s)
            if at_s < math.inf:
                self._push(max(at_s, self.now_s), _FALL, (item.key, item.epoch))

    def _rate(self, item: SimulatedJob, running: RunningUnit) -> float:
        job = item.job
        table = self.trace.throughputs
        if job.profile and table is not None and job.work > 0:
            return table.rate(job.profile, running.unit.demand.ranks, self._model_of(running))
        return item.reference_rate

    def _curve(
        self, item: SimulatedJob, running: RunningUnit
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """The job's progress over time where its rates have one (``curve`` of the trace's throughputs)."""
        ask = getattr(self.trace.throughputs, "curve", None)
        if ask is None or not item.job.profile or item.job.work <= 0:
            return None
        nodes = len({row for row, _ in running.rows})
        found: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = ask(
            item.job.profile, running.unit.demand.ranks, self._model_of(running), nodes
        )
        return found

    def work_left(self, key: UnitKey) -> float:
        """Work units that are left of a job now; 0 for one that is not known."""
        item = self._jobs.get(key)
        return 0.0 if item is None else max(item.total - self._done_by_now(item), 0.0)

    def _done_by_now(self, item: SimulatedJob) -> float:
        if item.running is None or item.staging:
            return item.done
        worked_s = max(self.now_s - max(item.working_from_s, item.since_s), 0.0) * item.factor
        if item.curve is not None:
            work, seconds = item.curve
            return float(np.interp(np.interp(item.done, work, seconds) + worked_s, seconds, work))
        return min(item.done + worked_s * item.rate, item.total)

    def _model_of(self, running: RunningUnit) -> str:
        row, devices = running.rows[0]
        if not devices:
            return ""
        column = dict(self.cluster.table.devices_of[row])[devices[0]]
        return self.cluster.table.models[column].model

    def _schedule_end(self, item: SimulatedJob) -> None:
        """When the job ends if nothing happens before; never when it makes no progress."""
        if item.rate * item.factor <= 0:
            item.due = 0
            self._stuck.add(item.key)
            return
        if item.curve is not None:
            work, seconds = item.curve
            left_s = float(seconds[-1] - np.interp(item.done, work, seconds)) / item.factor
        else:
            left_s = (item.total - item.done) / (item.rate * item.factor)
        end_s = max(item.working_from_s, self.now_s) + left_s
        self._progress_s = self.now_s
        if self._stuck:
            self._stuck.discard(item.key)
        item.due = self._pushed + 1
        self._push(end_s, _END, (item.key, item.due))

    def _set_speed(self, item: SimulatedJob) -> None:
        """Go on with what neighbours and links leave: progress so far counts at the old speed."""
        factor = item.neighbours * item.links
        if factor == item.factor:
            return
        self._settle(item)
        item.factor = factor
        if item.due or item.key in self._stuck:
            self._schedule_end(item)

    def _end(self, key: UnitKey, due: int) -> None:
        item = self._jobs.get(key)
        if item is None or item.due != due or item.running is None:
            return
        unit = item.running.unit
        self._leave(item)
        item.done = item.total
        item.finish_s = self.now_s
        self._ended += 1
        self._progress_s = self.now_s
        self._estimates.ended(item.job, item.job.duration_s, self.now_s)
        if self.levels is not None:
            self.levels.finished(unit, self.now_s)
        self.measures.finished(item, self.now_s)
        del self._jobs[key]

    def _stop(self, item: SimulatedJob, *, graceful: bool) -> None:
        """Take a job off its nodes; the caller makes it wait again."""
        if item.running is None:
            return
        self._settle(item)
        if not graceful:
            kept = self._checkpoints.kept(item.job, item.done)
            item.lost += (item.done - kept) / item.reference_rate
            item.done = kept
            if self.levels is not None:
                self.levels.lost(item.key, self.now_s)
        item.interruptions += 1
        self._leave(item)
        item.epoch += 1

    def _settle(self, item: SimulatedJob) -> None:
        """Count the progress up to now."""
        if item.staging:
            return
        item.done = self._done_by_now(item)
        item.working_from_s = max(item.working_from_s, self.now_s)

    def _leave(self, item: SimulatedJob) -> None:
        running = item.running
        assert running is not None
        item.ran_s += self.now_s - item.since_s
        item.held_device_s += (self.now_s - item.since_s) * running.unit.devices
        begun_s = self.now_s if item.staging else min(item.ready_s, self.now_s)
        item.overhead_s += begun_s - item.since_s
        self.measures.left(item, running, self.now_s)
        self.cluster.release(item.key, self.now_s)
        for row, devices in running.rows:
            self._node_milli[row] -= len(devices) * running.unit.demand.device_milli
            self._set_busy(row)
            if self._sleeping is not None:
                sleep_s = self._sleeping.gave(row, self.now_s)
                if sleep_s < math.inf:
                    self._push(sleep_s, _SLEEP, (row, self.now_s))
        item.running = None
        item.due = 0
        if self._stuck:
            self._stuck.discard(item.key)
        if self._spot:
            self._spot_changes = True
        if self._sharing is not None:
            self._neighbours_changed(self._sharing.ended(item.key))
        if self._flows is not None and item.key in self._flows:
            self._flows.ended(item.key, self.now_s)
            self._watch_wan()
        if item.staging:
            self.wan.cancel(item.job.job_id, self.now_s)
            item.staging = False
            self._watch_wan()

    def _occupy_nodes(self, running: RunningUnit) -> float:
        """Account for energy; returns how long sleeping nodes take to wake."""
        milli = running.unit.demand.device_milli
        ready_s = self.now_s
        for row, devices in running.rows:
            if self._sleeping is not None:
                asleep = self._sleeping.is_asleep(row)
                node_ready_s = self._sleeping.took(row, self.now_s)
                if asleep and node_ready_s > self.now_s:
                    self._push(node_ready_s, _READY, (row, node_ready_s))
                ready_s = max(ready_s, node_ready_s)
            self._node_milli[row] += len(devices) * milli
            self._set_busy(row)
        return ready_s - self.now_s

    def _set_busy(self, row: int) -> None:
        """Tell the power how much of a node is busy; of one that wakes, only when it is ready."""
        if self._sleeping is None or not self._sleeping.waking(row):
            self.energy.set_busy(self._node_id(row), self._node_milli[row] / 1000.0, self.now_s)

    def _node_id(self, row: int) -> str:
        return self.cluster.table.nodes[row].node_id

    # -- data --------------------------------------------------------------------------------------------------------

    def _stage(self, item: SimulatedJob, running: RunningUnit) -> bool:
        """Bring the job's data to the domain where it runs; True while it is on its way."""
        job = item.job
        if not job.data_bytes or not item.data_domain:
            return False
        domains = self._domains_of(running)
        if any(domain in domains for domain in item.copies):
            return False
        to_domain = domains[0]
        item.staging = True
        # The nearest copy that has a link; the first of equals.
        linked = [domain for domain in item.copies if (domain, to_domain) in self._links]
        from_domain = min(
            linked or item.copies[:1], key=lambda domain: self.wan.transfer_time_s(domain, to_domain, job.data_bytes)
        )
        self.wan.start(job.job_id, from_domain, to_domain, job.data_bytes, self.now_s)
        self._watch_wan()
        return True

    def _domains_of(self, running: RunningUnit) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self._domain_of_row[row] for row, _ in running.rows]))

    # -- what is shared ----------------------------------------------------------------------------------------------

    def _meet(self, item: SimulatedJob, running: RunningUnit) -> None:
        """The job shares its devices from now on."""
        assert self._sharing is not None
        table = self.cluster.table
        places = [
            ((row, device), table.models[dict(table.devices_of[row])[device]].model)
            for row, devices in running.rows
            for device in devices
        ]
        if places:
            profile = Profile(item.job.profile, running.unit.demand.ranks)
            self._neighbours_changed(self._sharing.began(item.key, profile, places))

    def _neighbours_changed(self, rates: dict[UnitKey, float]) -> None:
        for key, rate in rates.items():
            item = self._jobs[key]
            item.neighbours = rate
            self._set_speed(item)

    def _exchange(self, item: SimulatedJob) -> None:
        """The ranks of a gang over several domains begin to exchange what they must."""
        assert self._flows is not None
        assert item.running is not None
        self._flows.began(item.key, self._domains_of(item.running), item.job.traffic_bytes_per_s, self.now_s)
        item.links = self._flows.share(item.key)
        self._set_speed(item)
        self._watch_wan()

    def _watch_wan(self) -> None:
        """After each change: flows may be granted more or less, and something ends by itself next."""
        if self._flows is not None:
            for key, share in self._flows.changed().items():
                item = self._jobs[key]
                item.links = share
                self._set_speed(item)
        following = self.wan.next_finish()
        if following is not None and following[0] < self._wan_due:
            self._wan_due = max(following[0], self.now_s)
            self._push(self._wan_due, _WAN, None)

    def _transfers_ended(self) -> None:
        for job_id in self.wan.advance(self.now_s):
            item = self._jobs.get(UnitKey(job_id, 0))
            if item is not None and item.staging:
                item.staging = False
                item.working_from_s = item.ready_s = max(item.ready_s, self.now_s)
                self._arrived_data(item)
                self._begin_work(item)
        self._watch_wan()

    def _arrived_data(self, item: SimulatedJob) -> None:
        """Another copy of the job's data lies where it runs; if it is interrupted, the scheduler is told of that one."""
        assert item.running is not None
        domain = self._domains_of(item.running)[0]
        item.copies, item.data_domain = (*item.copies, domain), domain
        (_, size), *_ = item.demand.data or (("", item.job.data_bytes),)
        demand = replace(item.demand, data=((domain, size),))
        item.demand = self._demands.setdefault(demand, demand)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _node_events(self, seed: int) -> Iterator[object]:
        if all(math.isnan(domain.mtbf_node_s) for domain in self.network.domains):
            return iter(())
        return iter(NodeFailures(self.network, seed).events())

    def _push_next_failure(self) -> None:
        event = next(self._failures, None)
        if event is not None:
            self._push(event.time_s, _NODE, event)  # type: ignore[attr-defined]

    def _node_changed(self, event: object) -> None:
        row = self.cluster.table.node_index[event.node_id]  # type: ignore[attr-defined]
        down = event.change == "down"  # type: ignore[attr-defined]
        if down:
            self._down.add(row)
            for running in [item for item in self.cluster.running.values() if any(r == row for r, _ in item.rows)]:
                item = self._jobs[running.unit.key]
                self._stop(item, graceful=False)
                self._wait(item)
        else:
            self._down.discard(row)
        domain = int(self.cluster.table.node_domain[row])
        if domain in self._spot:
            self._share_out_spot(domain)
        else:
            self.cluster.view.set_up([row], not down)
            self.measures.node_changed(float(self.cluster.table.device_totals[row]), down=down)
        self._push_next_failure()

    def _spot_changed(self, event: object) -> None:
        """Only so many accelerators of a domain may be used from now on; the newest jobs lose theirs first."""
        domain_id, available = event.domain_id, event.available  # type: ignore[attr-defined]
        domain = self.cluster.table.domain_ids.index(domain_id)
        part = self.cluster.table.domain_slice[domain]
        holdings = []
        for running in self.cluster.running.values():
            held = sum(len(devices) for row, devices in running.rows if part.start <= row < part.stop)
            if held:
                milli = running.unit.demand.device_milli
                holdings.append(Holding(running.unit.key.job_id, running.since_s, held * milli / 1000.0))
        for job_id in reclaimed(holdings, available):
            item = self._jobs[UnitKey(job_id, 0)]
            self._stop(item, graceful=False)
            self._wait(item)
        self._spot[domain] = float(available)
        self._share_out_spot(domain)

    def _share_out_spot(self, domain: int) -> None:
        """Nodes take work while what is free on them is covered by what the domain may still use, the fullest first.

        Whole nodes only: what is left of the last one cannot be used. Accelerators count as up as far as the domain may use
        them and their nodes have not failed.
        """
        part = self.cluster.table.domain_slice[domain]
        totals = self.cluster.table.device_totals
        rows = sorted(range(part.start, part.stop), key=lambda row: (-self._node_milli[row], row))
        spare = self._spot[domain] - sum(self._node_milli[row] for row in rows) / 1000.0
        whole = 0.0
        for row in rows:
            free = float(totals[row]) - self._node_milli[row] / 1000.0
            up = row not in self._down and free <= spare + 1e-9
            spare -= free if up else 0.0
            whole += 0.0 if row in self._down else float(totals[row])
            if bool(self.cluster.view.up[row]) != up:
                self.cluster.view.set_up([row], up)
        up_now = min(self._spot[domain], whole)
        before = self._spot_up.get(domain)
        if before is None:
            # What failed before was counted when it did.
            before = whole
        if up_now != before:
            self.measures.node_changed(abs(up_now - before), down=up_now < before)
        self._spot_up[domain] = up_now

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for running in self.cluster.running.values():
            self.measures.left(self._jobs[running.unit.key], running, self.now_s)
        if self.levels is not None:
            self.measures.extra.update(self.levels.figures(self.now_s))
        self.measures.close(
            self.now_s,
            waiting=len(self.cluster.pending),
            running=len(self.cluster.running),
            energy=self.energy.totals(max(self.now_s, self._start_s)),
            wan=self.wan,
            decision_s=self.decision_s,
        )


def with_policy(setting: Setting, **changes: object) -> Setting:
    """The setting with other fields of its policy."""
    return replace(setting, policy=replace(setting.policy, **changes))  # type: ignore[arg-type]
