"""The cluster as the planners want it: arrays over jobs and accelerator types, and back to targets.

Planners of the literature see types (V100, P100, ...) as pools of like devices; so does `jobs_of`. What it leaves out, the core
decides when it places: which domain and node, and whether a gang finds room at all. Units without accelerators are no part of
a plan (`others` lets them run as they fit).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from services.scheduler.core.cluster import Cluster, RunningUnit, model_of
from services.scheduler.core.planning import Target
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.plans.rates import Rates, measured_of
from services.scheduler.plans.service import service_of

_UNKNOWN_S = 86_400.0
_Row = tuple[PendingUnit, RunningUnit | None]


@dataclass(frozen=True, eq=False)
class Jobs:
    """Units with accelerators that wait or run, by submission (ties: key). J jobs, T types.

    ``demands`` are those that they came with. ``throughput`` (J, T) is the rate of the whole job with the ranks that it asks
    for, 0 where it does not run; ``devices`` (J) those that it asks for; ``kind`` (J) the type that it holds, -1: it waits;
    ``held`` (J) the ranks that it holds. ``left`` (J) is the work left in units of ``throughput``; ``age_s`` (J) the time
    since submission. ``fixed`` (J): runs and may not be taken off, not at all or not yet (``least_run_s`` of the policy).
    ``capacity`` (T) are the devices of nodes that are up. ``restart_s`` (J) is what an interruption costs. ``runs`` (J) are the runs,
    None: it waits. ``since_s`` (J) is when the run began, infinite where it waits. ``cluster`` is as it was at ``now_s``: what is asked
    of it later is asked while it is planned.
    """

    units: tuple[PendingUnit, ...]
    keys: tuple[UnitKey, ...]
    demands: tuple[Demand, ...]
    models: tuple[str, ...]
    capacity: Floats
    throughput: Floats
    devices: Floats
    kind: Ints
    held: Ints
    restart_s: Floats
    runs: tuple[RunningUnit | None, ...]
    rates: Rates
    cluster: Cluster
    now_s: float
    since_s: Floats
    _sizes: Ints
    _targets: tuple[dict[tuple[int, int, str], Target], ...]
    """Targets of each job that were made before, while it ran or waited as it does."""

    @cached_property
    def left(self) -> Floats:
        """See the class."""
        rows = zip(self.units, self.runs, self.throughput, self.kind.tolist(), strict=True)
        left = [_left(self.cluster, unit, run, rates, kind, self.now_s) for unit, run, rates, kind in rows]
        return np.array(left, dtype=np.float64)

    @cached_property
    def age_s(self) -> Floats:
        """See the class."""
        return np.maximum(self.now_s - np.array([unit.submitted_at_s for unit in self.units], dtype=np.float64), 0.0)

    @cached_property
    def fixed(self) -> Bools:
        """See the class."""
        least_s = self.cluster.policy.restarts.least_run_s
        held: Bools = np.isfinite(self.since_s) & ((self._sizes[:, 4] == 0) | (self.now_s - self.since_s < least_s))
        return held

    @property
    def each(self) -> Ints:
        """Accelerators of a rank (J), at least 1."""
        each: Ints = self._sizes[:, 0]
        return each

    @property
    def least_ranks(self) -> Ints:
        """The fewest ranks (J) that it may have."""
        least: Ints = self._sizes[:, 1]
        return least

    @property
    def most_ranks(self) -> Ints:
        """The most ranks (J) that it may have."""
        most: Ints = self._sizes[:, 2]
        return most

    @property
    def elastic(self) -> Bools:
        """Whether its number of ranks (J) may change."""
        elastic: Bools = self._sizes[:, 3] != 0
        return elastic

    def assumed(self, job: int) -> str:
        """What nothing is known of, of a job, and what is taken instead; empty: everything is known."""
        unit, demand = self.units[job], self.demands[job]
        notes = []
        if self.rates.measured.knows(unit.key.job_id):
            notes = [] if demand.profile else ["its rates are measured where it ran, other accelerators count alike"]
        elif not self.rates.known(demand):
            notes = ["its rates are not known, all accelerators count alike"]
        notes += ["its run time is not known, a day is assumed"] if self._endless(job) else []
        return f" ({'; '.join(notes)})" if notes else ""

    def _endless(self, job: int) -> bool:
        unit = self.units[job]
        if unit.work <= 0 and unit.remaining_s == np.inf:
            return not np.isfinite(self.left[job])
        return False

    @property
    def fastest(self) -> Floats:
        """The greatest rate of each job (J) on a type that is large enough for it, 0 where it runs nowhere."""
        fits = self.devices[:, None] <= self.capacity
        rates: Floats = np.where(fits, self.throughput, 0.0).max(axis=1, initial=0.0)
        return rates

    @property
    def work(self) -> Floats:
        """Work left (J), a day's on its fastest type where nothing is known of it."""
        return np.where(np.isfinite(self.left), self.left, self.fastest * _UNKNOWN_S)

    @property
    def seconds(self) -> Floats:
        """Seconds that are left by type (J, T), infinite where the job does not run."""
        endless = np.full(self.throughput.shape, np.inf)
        seconds: Floats = np.divide(self.work[:, None], self.throughput, out=endless, where=self.throughput > 0)
        return seconds

    def at(self, now_s: float) -> Jobs:
        """The same jobs on the same nodes at another time."""
        return Jobs(
            self.units,
            self.keys,
            self.demands,
            self.models,
            self.capacity,
            self.throughput,
            self.devices,
            self.kind,
            self.held,
            self.restart_s,
            self.runs,
            self.rates,
            self.cluster,
            now_s,
            self.since_s,
            self._sizes,
            self._targets,
        )

    def targets(self, kind: Ints, order: Sequence[int] | Ints, reason: str) -> list[Target]:
        """The jobs with a type (``kind`` (J) >= 0), in this order, with the ranks that they ask for."""
        kinds = kind.tolist()
        return [self.target(job, kinds[job], 0, reason) for job in np.asarray(order).tolist() if kinds[job] >= 0]

    def target(self, job: int, kind: int, ranks: int, reason: str) -> Target:
        """A job on a type, with ``ranks`` (0: those that it asks for)."""
        made = self._targets[job].get((kind, ranks, reason))
        if made is None:
            made = Target(self.keys[job], ranks, self.models[kind], reason=reason + self.assumed(job))
            unit = self.units[job]
            if unit.work > 0 or unit.remaining_s != np.inf:
                # Of others it may be told later how much is left.
                self._targets[job][kind, ranks, reason] = made
        return made


class _Job:
    """A unit as it waits or runs, with what `Jobs` says of it: the same as long as neither changes, on the same rates."""

    __slots__ = (
        "demand",
        "devices",
        "held",
        "key",
        "kind",
        "place",
        "rates",
        "restart_s",
        "run",
        "since_s",
        "sizes",
        "targets",
        "unit",
    )

    def __init__(self, cluster: Cluster, rates: Rates, unit: PendingUnit, run: RunningUnit | None) -> None:
        self.unit, self.run = unit, run
        self.key = unit.key
        self.place = unit.submitted_at_s, unit.key
        self.demand = demand = service_of(cluster).waits(unit)
        self.rates = rates.of(unit.key, demand)
        self.devices = demand.ranks * demand.accelerators * demand.device_milli / 1000.0
        self.kind = -1 if run is None else rates.models.index(model_of(cluster.table, run))
        self.held = 0 if run is None else run.unit.demand.ranks
        self.restart_s = unit.restart_s or cluster.policy.restarts.restart_cost_s
        self.since_s = math.inf if run is None else run.since_s
        elastic = unit.min_ranks > 0
        self.sizes = (
            max(demand.accelerators, 1),
            unit.min_ranks or demand.ranks,
            unit.max_ranks or demand.ranks,
            elastic,
            unit.preemptible,
        )
        self.targets: dict[tuple[int, int, str], Target] = {}
        """By type, ranks and reason."""


def jobs_of(cluster: Cluster, now_s: float) -> Jobs:
    """The arrays; see `Jobs`. A unit without a profile has rate 1 on every type that it accepts."""
    service = service_of(cluster)
    kept: _Kept = service.plan.setdefault("jobs", _Kept())
    rates = kept.rates_of(cluster)
    rows: list[_Row] = [(item.unit, item) for item in cluster.running.values() if item.unit.demand.accelerators]
    rows += [(unit, None) for unit in cluster.pending.units() if unit.demand.accelerators]
    before = kept.jobs
    if before is not None and before.rates is rates and rows == kept.rows:
        return before if before.now_s == now_s else before.at(now_s)
    jobs = kept.follow(cluster, rates, rows)
    keys = tuple([job.key for job in jobs])
    service.forget_all_but(keys)
    kept.jobs = Jobs(
        tuple([job.unit for job in jobs]),
        keys,
        tuple([job.demand for job in jobs]),
        rates.models,
        rates.capacity,
        np.array([job.rates for job in jobs], dtype=np.float64).reshape(len(jobs), len(rates.models)),
        np.array([job.devices for job in jobs], dtype=np.float64),
        np.array([job.kind for job in jobs], dtype=np.int64),
        np.array([job.held for job in jobs], dtype=np.int64),
        np.array([job.restart_s for job in jobs], dtype=np.float64),
        tuple([job.run for job in jobs]),
        rates,
        cluster,
        now_s,
        np.array([job.since_s for job in jobs], dtype=np.float64),
        np.array([job.sizes for job in jobs], dtype=np.int64).reshape(len(jobs), 5),
        tuple([job.targets for job in jobs]),
    )
    return kept.jobs


_place = attrgetter("place")


class _Kept:
    """What `jobs_of` made last, for which runs and waiting units in which order. A copy of the cluster makes it anew."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.jobs: Jobs | None = None
        self._rates: Rates | None = None
        self._of: Rates | None = None
        self._known: dict[UnitKey, _Job] = {}
        """By submission."""

    def follow(self, cluster: Cluster, rates: Rates, rows: list[_Row]) -> list[_Job]:
        """The jobs of ``rows`` by submission: those that were known stand in this order already."""
        known = self._known if self._of is rates else {}
        now: dict[UnitKey, _Job] = {}
        for unit, run in rows:
            job = known.get(unit.key)
            if job is None or job.unit is not unit or job.run is not run:
                job = _Job(cluster, rates, unit, run)
            now[unit.key] = job
        jobs = [now[key] for key in known if key in now]
        if len(jobs) < len(now):
            jobs += [job for key, job in now.items() if key not in known]
        jobs.sort(key=_place)
        self._of, self._known, self.rows = rates, {job.key: job for job in jobs}, rows
        return jobs

    def __deepcopy__(self, memo: dict[int, object]) -> _Kept:
        return _Kept()

    def rates_of(self, cluster: Cluster) -> Rates:
        """The rates as they are now."""
        if self._rates is None or not self._rates.hold(cluster):
            self._rates = Rates(cluster)
        return self._rates


def others(cluster: Cluster, jobs: Jobs | None = None) -> list[Target]:
    """Units without accelerators: those that run stay, those that wait go where they fit. ``jobs`` are all others, where it is known."""
    if jobs is not None and len(jobs.keys) == len(cluster.running) + len(cluster.pending):
        return []
    keys = [item.unit.key for item in cluster.running.values() if not item.unit.demand.accelerators]
    keys += [unit.key for unit in cluster.pending if not unit.demand.accelerators]
    return [Target(key, reason="needs no accelerator") for key in sorted(keys)]


def _left(
    cluster: Cluster, unit: PendingUnit, run: RunningUnit | None, rates: Floats, kind: int, now_s: float
) -> float:
    """Work left: as reported (facts ``work_left`` and, where its rate is measured too, ``measured``), else from the rate and
    the time that it runs. Of a unit without work the predicted remaining seconds count, as if on its fastest type."""
    measured = measured_of(cluster)
    if measured.knows(unit.key.job_id) and (steps := measured.steps_left(unit.key)) is not None:
        if run is None or kind < 0:
            return steps
        return max(steps - max(now_s - max(measured.done[unit.key].at_s, run.since_s), 0.0) * float(rates[kind]), 0.0)
    ask: Callable[[UnitKey], float] | None = cluster.view.facts.get("work_left")
    if unit.work > 0 and ask is not None:
        return ask(unit.key)
    amount = unit.work if unit.work > 0 else unit.remaining_s * max(float(rates.max(initial=0.0)), 1e-300)
    if run is None or kind < 0:
        return amount
    return max(amount - (now_s - run.since_s) * float(rates[kind]), 0.0)
