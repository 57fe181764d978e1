"""What a simulation measures: every figure is defined here, once.

JCT is finish minus submission; wait is JCT minus the time in which the job held nodes; slowdown is bounded, JCT over
max(run time, 10 s), at least 1. Allocated share is accelerator-seconds held over those that were up, from the first arrival to
the last one's arrival (``allocated_share``: the loaded part) and to the end (``allocated_share_all``). Used share leaves out
staging, restarts and work done again. Accelerators are those that jobs had, which planners may change, also of jobs that have not
ended. Where no job of the trace has accelerators, processors take their place in shares and contention, and hours are theirs
(``cpu_hours``). A deadline counts as missed too when the job has not ended at all. Finish-time fairness (Themis, NSDI 2020) is rho =
JCT / (run time x mean contention over the job's life), contention being accelerators wanted over accelerators up, at least
1. Jain's index is over the tenants' mean slowdowns.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.scheduler.core.entitlement.fairness import jain_index
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.waiting_unit import PendingUnit
from simulation.energy import DomainEnergy
from simulation.model import Network, TraceJob
from simulation.simulated_job import SimulatedJob
from simulation.wan import Wan

Floats = npt.NDArray[np.float64]

_SLOWDOWN_FLOOR_S = 10.0


@dataclass(slots=True)
class JobRecord:
    """A finished job. ``devices`` are those that it asked for; ``held_device_s``, and of these ``lost_device_s`` (work done again) and
    ``overhead_device_s`` (staging, restarts), are accelerator-seconds of those that it had; not given: always as many as
    it asked for. ``rho`` is filled in at the end."""

    job_id: str
    tenant: str
    domain_id: str
    submit_s: float
    first_start_s: float
    finish_s: float
    duration_s: float
    ran_s: float
    devices: float
    interruptions: int
    lost_s: float
    overhead_s: float
    deadline_s: float
    value: float
    rho: float = math.nan
    held_device_s: float = math.nan
    lost_device_s: float = math.nan
    overhead_device_s: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.held_device_s):
            self.held_device_s, self.lost_device_s, self.overhead_device_s = (
                seconds * self.devices for seconds in (self.ran_s, self.lost_s, self.overhead_s)
            )

    @property
    def jct_s(self) -> float:
        """Job completion time."""
        return self.finish_s - self.submit_s

    @property
    def wait_s(self) -> float:
        """Time without nodes."""
        return max(self.jct_s - self.ran_s, 0.0)

    @property
    def slowdown(self) -> float:
        """Bounded slowdown."""
        return max(self.jct_s / max(self.duration_s, _SLOWDOWN_FLOOR_S), 1.0)


class Measures:
    """Collects while the simulation runs; `figures` gives what came of it. ``processors`` counts these instead of accelerators: for
    traces of which no job has one."""

    def __init__(self, network: Network, *, processors: bool = False) -> None:
        self.jobs: list[JobRecord] = []
        self.processors = processors
        self.capacity = sum(node.cpus for node in network.nodes) if processors else float(network.accelerators)
        self.up = self.capacity
        self.now_s = math.nan
        self.first_s = math.nan
        self.last_arrival_s = 0.0
        self.held = 0.0
        self.queued_devices = 0.0
        self.queued = 0
        self.arrivals = 0
        self.preempted_runs = 0
        self.starts = 0
        self.cost_micro_units = 0.0
        self._held_integral = 0.0
        self._up_integral = 0.0
        self._contention = 0.0
        self._marks_s: list[float] = []
        self._marks: list[float] = []
        self.series: list[tuple[float, float, int, float]] = []
        self._loaded = (0.0, 0.0)
        self._started: set[object] = set()
        self._prices = {domain.domain_id: float(domain.price_micro_units) for domain in network.domains}
        self._domain_of_node = {node.node_id: node.domain_id for node in network.nodes}
        self.unfinished = 0
        self.given_up: Sequence[str] = ()
        """Jobs that lost more runs than the policy allows; they are unfinished."""
        self.not_submitted = 0
        self._open = (0.0, 0.0, 0.0)
        """Accelerator-seconds held, lost and overhead of jobs that did not end."""
        self._deadlines: dict[object, float] = {}
        self._missed = 0
        self._judged = 0
        self.energy: Mapping[str, DomainEnergy] = {}
        self.wan_bytes = 0
        self.wan_micro_units = 0
        self.decision_s: Sequence[float] = ()
        self.extra: dict[str, float] = {}
        """Figures that only some runs have: service levels."""
        self.held_by_domain: dict[str, float] = {domain.domain_id: 0.0 for domain in network.domains}

    def asked(self, job: TraceJob) -> float:
        """Accelerators (processors) that a job asks for."""
        return job.ranks * job.cpus if self.processors else job.devices

    def had(self, unit: PendingUnit) -> float:
        """Accelerators (processors) that a unit holds when it runs."""
        return unit.demand.ranks * unit.demand.cpus if self.processors else unit.devices

    # -- while it runs -----------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Time passes with everything as it is."""
        if math.isnan(self.now_s):
            self.now_s = now_s
        passed = now_s - self.now_s
        if passed > 0:
            self._held_integral += self.held * passed
            self._up_integral += self.up * passed
            wanted = self.held + self.queued_devices
            self._contention += passed * max(wanted / self.up if self.up > 0 else 1.0, 1.0)
            self._marks_s.append(now_s)
            self._marks.append(self._contention)
            self.series.append((self.now_s, self.held, self.queued, self.up))
            self.now_s = now_s

    def arrived(self, item: SimulatedJob) -> None:
        """A job was submitted. What happened before the first one is not counted."""
        if not self.arrivals:
            self.first_s = self.now_s
            self._held_integral = self._up_integral = 0.0
        self.arrivals += 1
        if not math.isnan(item.job.deadline_s):
            self._deadlines[item.key] = item.job.deadline_s
        self.queued += 1
        self.queued_devices += self.asked(item.job)
        self.last_arrival_s = self.now_s
        self._loaded = (self._held_integral, self._up_integral)

    def started(self, item: SimulatedJob, running: RunningUnit, now_s: float) -> None:
        """A job got nodes."""
        self._started.add(item.key)
        self.queued -= 1
        self.queued_devices -= self.asked(item.job)
        self.held += self.had(running.unit)
        self.starts += 1

    def left(self, item: SimulatedJob, running: RunningUnit, now_s: float) -> None:
        """A job lost or left its nodes."""
        held_s = now_s - item.since_s
        self.held -= self.had(running.unit)
        demand = running.unit.demand
        share = demand.accelerators * demand.device_milli / 1000.0
        for rank in running.ranks:
            self.cost_micro_units += held_s * share * self._prices[rank.domain_id] / 3600.0
            self.held_by_domain[rank.domain_id] += held_s * (demand.cpus if self.processors else share)

    def queued_again(self, item: SimulatedJob) -> None:
        """An interrupted job waits."""
        self.queued += 1
        self.queued_devices += self.asked(item.job)

    def finished(self, item: SimulatedJob, now_s: float) -> None:
        """A job ended."""
        job = item.job
        if not math.isnan(job.deadline_s):
            self._deadlines.pop(item.key, None)
            self._missed += now_s > job.deadline_s
            self._judged += 1
        self.jobs.append(
            JobRecord(
                job.job_id,
                job.tenant,
                job.home_domain,
                job.submit_s,
                item.first_start_s,
                now_s,
                job.duration_s,
                item.ran_s,
                self.asked(job),
                item.interruptions,
                item.lost,
                item.overhead_s,
                job.deadline_s,
                job.value,
                held_device_s=item.held_device_s,
                lost_device_s=item.lost_device_s,
                overhead_device_s=item.overhead_device_s,
            )
        )
        self.preempted_runs += item.interruptions

    def node_changed(self, devices: float, *, down: bool) -> None:
        """A node's accelerators (processors) went away or came back."""
        self.up += -devices if down else devices

    def close(
        self,
        now_s: float,
        *,
        open_jobs: Sequence[SimulatedJob],
        given_up: Sequence[str],
        waiting: int,
        running: int,
        to_come: int,
        energy: Mapping[str, DomainEnergy],
        wan: Wan,
        decision_s: Sequence[float],
    ) -> None:
        """The simulation is over; ``open_jobs`` have not ended, of which some were ``given_up``, and so many ``to_come`` were not
        submitted yet."""
        self.unfinished = waiting + running + len(given_up)
        self.given_up = given_up
        self.not_submitted = to_come
        self.preempted_runs += sum(item.interruptions for item in open_jobs)
        self._open = (
            sum(item.held_device_s for item in open_jobs),
            sum(item.lost_device_s for item in open_jobs),
            sum(item.overhead_device_s for item in open_jobs),
        )
        self.energy = energy
        self.wan_bytes = sum(wan.moved_bytes().values())
        self.wan_micro_units = sum(wan.money_micro_units().values())
        self.decision_s = decision_s
        for job in self.jobs:
            life_s = job.jct_s
            if life_s > 0 and job.duration_s > 0:
                contention = (self._contention_at(job.finish_s) - self._contention_at(job.submit_s)) / life_s
                job.rho = life_s / (job.duration_s * max(contention, 1.0))

    def _contention_at(self, at_s: float) -> float:
        place = bisect_right(self._marks_s, at_s)
        if place == 0:
            return 0.0
        known = self._marks[place - 1]
        if place < len(self._marks_s):
            step = self._marks_s[place] - self._marks_s[place - 1]
            known += (self._marks[place] - self._marks[place - 1]) * (at_s - self._marks_s[place - 1]) / step
        return known

    # -- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float | None]:
        """Every figure by its name with unit; None where it has no value."""
        jct = np.array([job.jct_s for job in self.jobs])
        wait = np.array([job.wait_s for job in self.jobs])
        rho = np.array([job.rho for job in self.jobs if not math.isnan(job.rho)])
        decisions = np.array(self.decision_s)
        end_s = max((job.finish_s for job in self.jobs), default=math.nan)
        held = sum(job.held_device_s for job in self.jobs) + self._open[0]
        lost = sum(job.lost_device_s for job in self.jobs) + self._open[1]
        overhead = sum(job.overhead_device_s for job in self.jobs) + self._open[2]
        used = max(held - lost - overhead, 0.0)
        overdue = sum(deadline_s < self.now_s for deadline_s in self._deadlines.values())
        missed, with_deadline = self._missed + overdue, self._judged + overdue
        loaded_held, loaded_up = self._loaded
        return {
            "jobs": float(len(self.jobs)),
            "unfinished": float(self.unfinished),
            "given_up": float(len(self.given_up)),
            "not_submitted": float(self.not_submitted),
            "jct_mean_h": _mean(jct) / 3600.0,
            "jct_p50_h": _quantile(jct, 0.5) / 3600.0,
            "jct_p99_h": _quantile(jct, 0.99) / 3600.0,
            "wait_mean_h": _mean(wait) / 3600.0,
            "wait_p99_h": _quantile(wait, 0.99) / 3600.0,
            "slowdown_mean": _mean(np.array([job.slowdown for job in self.jobs])),
            "makespan_h": (end_s - self.first_s) / 3600.0,
            **self._hours("", held),
            "allocated_share": loaded_held / loaded_up if loaded_up > 0 else None,
            "allocated_share_all": self._held_integral / self._up_integral if self._up_integral > 0 else None,
            "used_share_of_held": used / held if held > 0 else None,
            "used_share_all": used / self._up_integral if self._up_integral > 0 else None,
            "wan_gb": self.wan_bytes / 1e9,
            "wan_money": self.wan_micro_units / 1e6,
            "accelerator_money": self.cost_micro_units / 1e6,
            "energy_kwh": sum(item.joules for item in self.energy.values()) / 3.6e6,
            "carbon_kg": sum(item.carbon_g for item in self.energy.values()) / 1e3,
            "electricity_money": sum(item.money_micro_units for item in self.energy.values()) / 1e6,
            "deadline_misses": float(missed) if with_deadline else None,
            "deadline_miss_share": missed / with_deadline if with_deadline else None,
            "fairness_jain": self._jain(),
            "fairness_rho_mean": _mean(rho),
            "fairness_rho_p99": _quantile(rho, 0.99),
            "restarts": float(self.starts - len(self._started)),
            "interruptions": float(self.preempted_runs),
            **self._hours("lost_", lost),
            **self._hours("overhead_", overhead),
            "decision_p50_ms": _quantile(decisions, 0.5) * 1e3,
            "decision_p99_ms": _quantile(decisions, 0.99) * 1e3,
            **self.extra,
        }

    def _hours(self, name: str, device_s: float) -> dict[str, float]:
        if self.processors:
            return {f"{name}accelerator_hours": 0.0, f"{name}cpu_hours": device_s / 3600.0}
        return {f"{name}accelerator_hours": device_s / 3600.0}

    def _jain(self) -> float | None:
        by_tenant: dict[str, list[float]] = {}
        for job in self.jobs:
            by_tenant.setdefault(job.tenant, []).append(job.slowdown)
        # Fairness is about who suffers more: tenants' mean slowdowns.
        means = [sum(values) / len(values) for values in by_tenant.values()]
        return jain_index(means) if means else None

    def interval(self, values: Sequence[float], seed: int, draws: int = 200) -> tuple[float, float]:
        """A 95 % bootstrap interval of the mean."""
        data = np.asarray(values)
        if not len(data):
            return math.nan, math.nan
        source = np.random.default_rng(seed)
        means = [float(data[source.integers(0, len(data), len(data))].mean()) for _ in range(draws)]
        return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else math.nan


@dataclass(slots=True)
class Outcome:
    """A policy's measures with its name."""

    name: str
    measures: Measures
    baseline: bool
    wall_s: float
    facts: dict[str, float] = field(default_factory=dict)
