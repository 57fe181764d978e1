"""What a simulation keeps: the cluster, the jobs, the events to come, and the parts that this run has."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.scoring.interference import profile_label
from services.scheduler.core.scoring.shared import kind_label
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from simulation.checkpoints import Checkpoints
from simulation.energy import Energy
from simulation.estimates import Estimates, estimates
from simulation.facts import HourlyCarbon, facts_of
from simulation.failures import NodeEvent, NodeFailures
from simulation.fleet import fleet_of
from simulation.interference import Interference
from simulation.measures import Measures
from simulation.model import Network, Trace, TraceJob
from simulation.service_levels import ServiceLevels
from simulation.setting import Setting
from simulation.sharing import GangFlows, SharedDevices
from simulation.simulated_job import SimulatedJob
from simulation.sleeping import Sleeping, may_sleep
from simulation.wan import Wan

END, NODE, SPOT, WAN, TICK, FALL, SLEEP, READY, FLOW = range(9)
"""Kinds of events."""

DEFAULT_CHECKPOINT_S = 1800.0
"""Seconds of undisturbed run between checkpoints of a job that says nothing about them."""

_MOST_IDLE_S = 7 * 86_400.0
"""A run ends when nothing makes progress for so long (or ten repairs), though something might while nodes are down."""


class World:
    """See the module; `Simulation` says what the arguments mean."""

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
        self.measures = Measures(network, processors=not any(job.accelerators for job in trace.jobs))
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
        self._given_up: list[SimulatedJob] = []
        """Jobs that lost more runs than the policy allows."""
        self._heap: list[tuple[float, int, int, object]] = []
        self._pushed = 0
        self._demands: dict[Demand, Demand] = {}
        self._asked: dict[tuple[object, ...], Demand] = {}
        self._wan_due = math.inf
        self._tick_due = math.inf
        self._same_until_s = -math.inf
        """Until when the rounds of a planner change nothing, if nothing happens."""
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

    def _advance(self, at_s: float) -> None:
        self.measures.advance(at_s)
        self.now_s = at_s

    def _push(self, at_s: float, kind: int, payload: object) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, kind, payload))

    def _node_events(self, seed: int) -> Iterator[object]:
        if all(math.isnan(domain.mtbf_node_s) for domain in self.network.domains):
            return iter(())
        events = NodeFailures(self.network, seed).events()
        return (event._replace(time_s=self._start_s + event.time_s) for event in events)

    def _demand(self, job: TraceJob) -> Demand:
        """What placing the job asks for; equal demands are one object."""
        asked = (
            job.ranks,
            job.cpus,
            job.memory_bytes,
            job.device_share,
            job.accelerators,
            job.accelerator_types,
            job.home_domain,
            job.cross_domain,
            tuple(job.resources.items()),
            job.profile,
            job.data_domain,
            job.data_bytes,
            job.traffic_bytes_per_s,
        )
        found = self._asked.get(asked)
        if found is None:
            found = self._asked[asked] = self._new_demand(job)
        return found

    def _new_demand(self, job: TraceJob) -> Demand:
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

    # -- how far jobs are, and where ------------------------------------------------------------------------------------

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

    def _domains_of(self, running: RunningUnit) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self._domain_of_row[row] for row, _ in running.rows]))

    def _model_of(self, running: RunningUnit) -> str:
        row, devices = running.rows[0]
        if not devices:
            return ""
        column = dict(self.cluster.table.devices_of[row])[devices[0]]
        return self.cluster.table.models[column].model

    def _node_id(self, row: int) -> str:
        return self.cluster.table.nodes[row].node_id

    def _set_busy(self, row: int) -> None:
        """Tell the power how much of a node is busy; of one that wakes, only when it is ready."""
        if self._sleeping is None or not self._sleeping.waking(row):
            self.energy.set_busy(self._node_id(row), self._node_milli[row] / 1000.0, self.now_s)
