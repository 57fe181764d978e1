"""The cluster as the planners want it: arrays over jobs and accelerator types, and back to targets.

Planners of the literature see types (V100, P100, ...) as pools of like devices; so does `jobs_of`. What it leaves out, the core
decides when it places: which domain and node, and whether a gang finds room at all. Units without accelerators are no part of
a plan (`others` lets them run as they fit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster, RunningUnit, model_of
from services.scheduler.core.measured import Measured
from services.scheduler.core.placement import Candidates
from services.scheduler.core.planning import Target
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.scoring.facts import with_method
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Bools, Floats, Ints
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
    None: it waits. ``cluster`` is as it was at ``now_s``: what is asked of it later is asked while it is planned.
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
    _targets: tuple[dict[tuple[int, str], Target], ...]
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
        held = [run is not None and not _may_go(run, least_s, self.now_s) for run in self.runs]
        return np.array(held, dtype=np.bool_)

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
            self._targets,
        )

    def targets(self, kind: Ints, order: Sequence[int] | Ints, reason: str) -> list[Target]:
        """The jobs with a type (``kind`` (J) >= 0), in this order, with the ranks that they ask for."""
        kinds = kind.tolist()
        return [self._target(job, kinds[job], reason) for job in np.asarray(order).tolist() if kinds[job] >= 0]

    def _target(self, job: int, kind: int, reason: str) -> Target:
        made = self._targets[job].get((kind, reason))
        if made is None:
            made = Target(self.keys[job], 0, self.models[kind], reason=reason + self.assumed(job))
            unit = self.units[job]
            if unit.work > 0 or unit.remaining_s != np.inf:
                # Of others it may be told later how much is left.
                self._targets[job][kind, reason] = made
        return made


class _Job:
    """A unit as it waits or runs, with what `Jobs` says of it: the same as long as neither changes, on the same rates."""

    __slots__ = ("demand", "devices", "held", "key", "kind", "place", "rates", "restart_s", "run", "targets", "unit")

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
        self.targets: dict[tuple[int, str], Target] = {}
        """By type and reason."""


def jobs_of(cluster: Cluster, now_s: float) -> Jobs:
    """The arrays; see `Jobs`. A unit without a profile has rate 1 on every type that it accepts."""
    service = service_of(cluster)
    kept: _Kept = service.plan.setdefault("jobs", _Kept())
    rates = kept.rates_of(cluster)
    rows: list[_Row] = [(item.unit, item) for item in cluster.running.values() if item.unit.demand.accelerators]
    rows += [(unit, None) for unit in cluster.pending if unit.demand.accelerators]
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


def most_ranks(cluster: Cluster, demand: Demand, models: Sequence[str]) -> tuple[int, ...]:
    """How many ranks of a unit each model (T) could hold at all, if nothing ran: in one domain unless it may span them."""
    known: dict[Any, tuple[int, ...]] = service_of(cluster).plan.setdefault("most", {})
    bare = replace(demand, ranks=1, checkpoint_domain="", checkpoint_bytes=0, data=())
    key = cluster.view.generation, cluster.policy.version, bare, tuple(models)
    found = known.get(key)
    if found is None:
        if any(other[:2] != key[:2] for other in known):
            known.clear()
        accepted = cluster.view.columns(bare)
        columns = [[place for place in accepted if cluster.table.models[place].model == model] for model in models]
        found = known[key] = tuple(
            [
                Candidates(cluster.view, bare, np.array(own, dtype=np.int64), cluster.policy).most_ranks() if own else 0
                for own in columns
            ]
        )
    return found


def others(cluster: Cluster, jobs: Jobs | None = None) -> list[Target]:
    """Units without accelerators: those that run stay, those that wait go where they fit. ``jobs`` are all others, where it is known."""
    if jobs is not None and len(jobs.keys) == len(cluster.running) + len(cluster.pending):
        return []
    keys = [item.unit.key for item in cluster.running.values() if not item.unit.demand.accelerators]
    keys += [unit.key for unit in cluster.pending if not unit.demand.accelerators]
    return [Target(key, reason="needs no accelerator") for key in sorted(keys)]


def pools(cluster: Cluster) -> tuple[tuple[str, ...], Floats]:
    """Accelerator models by name, and the devices (T) of each on nodes that are up."""
    table = cluster.table
    totals = (table.devices * cluster.view.up[:, None]).sum(axis=0)
    models = tuple(sorted({item.model for item in table.models}))
    capacity = np.zeros(len(models))
    for column, item in enumerate(table.models):
        capacity[models.index(item.model)] += float(totals[column])
    return models, capacity


def _may_go(run: RunningUnit, least_s: float, now_s: float) -> bool:
    return run.unit.preemptible and now_s - run.since_s >= least_s


class Rates:
    """Rates per profile and rank count, and of jobs that were measured, on the ``models`` (T) with their ``capacity`` (T).

    They hold until the fleet, facts, the policy or what was measured change; asked for once until then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._facts: Any = with_method(cluster.view, "throughputs", "rate")
        self._table = cluster.table
        self._told = cluster.view.facts.get("measured")
        self.measured = measured_of(cluster)
        self._stamp = self._stamp_of(cluster)
        self.models, self.capacity = pools(cluster)
        self.capacity.setflags(write=False)
        self._known: dict[tuple[str, Demand], Floats] = {}
        self._most: dict[Demand, tuple[int, ...]] = {}

    def hold(self, cluster: Cluster) -> bool:
        """Whether they are still those of the cluster."""
        facts = cluster.view.facts
        same = cluster is self._cluster and cluster.table is self._table and facts.get("measured") is self._told
        return same and facts.get("throughputs") is self._facts and self._stamp == self._stamp_of(cluster)

    def _stamp_of(self, cluster: Cluster) -> tuple[int, int, str, int]:
        view = cluster.view
        return view.generation, view.facts_version, cluster.version, self.measured.version

    def known(self, demand: Demand) -> bool:
        """Whether anything is known of the rates of such a unit."""
        return bool(demand.profile) and self._facts is not None

    def most(self, demand: Demand) -> tuple[int, ...]:
        """See `most_ranks`, over all models."""
        found = self._most.get(demand)
        if found is None:
            found = self._most[demand] = most_ranks(self._cluster, demand, self.models)
        return found

    def of(self, key: UnitKey, demand: Demand) -> Floats:
        """The rates (T) of one job."""
        job_id = key.job_id if self.measured.knows(key.job_id) else ""
        found = self._known.get((job_id, demand))
        if found is None:
            values = [
                self._rate(job_id, demand, model) if holds >= demand.ranks else 0.0
                for model, holds in zip(self.models, self.most(demand), strict=True)
            ]
            found = self._known[job_id, demand] = np.array(values, dtype=np.float64)
        return found

    def _rate(self, job_id: str, demand: Demand, model: str) -> float:
        measured = self.measured.rate(job_id, demand.profile, demand.ranks, model)
        if measured is not None:
            return measured
        return float(self._facts.rate(demand.profile, demand.ranks, model)) if self.known(demand) else 1.0


def measured_of(cluster: Cluster) -> Measured:
    """What programs reported (fact ``measured``); empty where nothing is kept, as in the simulator."""
    found: Measured | None = cluster.view.facts.get("measured")
    return found if found is not None else Measured()


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
