"""Least mean completion time on unlike accelerators: ours, beside Gavel's time shares.

On machines of different speed the preemptive rule for the mean gives the job with least left the fastest machine (shortest remaining
time). Where machines are unlike for each job, a linear program says the same: the greatest sum of rates, each relative to the
job's fastest type and weighted by (seconds left there)^-power, under Gavel's constraints (power 1 is the c-mu rule; less leaves
long jobs more of the fast chips, which keeps the tail short). Unlike a time share the plan is whole: it says where each job is
until jobs come or go, so that jobs restart only when the order of things changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.options import numbers_of
from services.scheduler.core.planning import Target
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.waiting_unit import SERVICE, OrderContext
from services.scheduler.planners import gavel
from services.scheduler.plans.room import Room
from services.scheduler.plans.service import Service, service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

_LEAST_WEIGHT = 1e-9
_REASON, _UNKNOWN = "least mean completion time", "as long again as it had is assumed"


@dataclass(frozen=True, slots=True)
class _Places:
    """The plan of the last change: for which jobs and capacity, the type of each job, and when the next run may be moved that could
    not be when it was made (infinite: none)."""

    keys: tuple[UnitKey, ...]
    capacity: tuple[float, ...]
    kind: Ints
    until_s: float = math.inf


class CompletionPlanner:
    """Steps of a round:

    1. When jobs came or ended or capacity changed: seconds left of each job on each type; those of a move
       include the restart. A job of which it is not known, with ``known`` 0 each, is thought to need as long again as it
       had (at least ``least_s``), as heavy tails go.
    2. The linear program (`gavel.max_throughput` with weights).
    3. Whole: pairs by share, the type that a job holds first among equals, if its devices are free (`Room`: in one domain where it may
       not span them, each rank on one node); what is left over goes by seconds times devices.
    4. Else the plan stays as it is.

    What a policy wants that serves many tenants, each off by default: with ``priorities`` jobs of a higher priority are planned
    first, those of a lower one on what they leave; with ``tenants`` nobody gets more than an equal share of the devices (by
    weight) while others want theirs; with ``spare_s`` runs stay that would lose more than so many seconds of work, and
    services, and the plan is made anew when a run may be moved that began too late before.
    """

    name = "completion"

    def __init__(
        self,
        power: float = 0.5,
        known: float = 1.0,
        least_s: float = 14_400.0,
        priorities: float = 0.0,
        tenants: float = 0.0,
        spare_s: float = math.inf,
    ) -> None:
        self._power, self._known, self._least_s = power, bool(known), least_s
        self._priorities, self._tenants, self._spare_s = bool(priorities), bool(tenants), spare_s

    def configured(self, options: Mapping[str, Any]) -> CompletionPlanner:
        """With ``power``, ``known`` (0 or 1), ``least_s`` (seconds), ``priorities``, ``tenants`` (0 or 1) and ``spare_s``
        (seconds)."""
        least = {
            "power": 0.0,
            "known": 0.0,
            "least_s": 1.0,
            "priorities": 0.0,
            "tenants": 0.0,
            "spare_s": 0.0,
        }
        return CompletionPlanner(**numbers_of(self.name, options, **least))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs that should run, and on what."""
        jobs = jobs_of(cluster, context.now_s)
        if not jobs.units or not jobs.models:
            return others(cluster)
        service = service_of(cluster)
        kept: _Places | None = service.plan.get(self.name)
        capacity = tuple(jobs.capacity.tolist())
        late = kept is not None and self._anew and context.now_s >= kept.until_s
        if kept is None or late or kept.keys != jobs.keys or kept.capacity != capacity:
            kind = self._places(cluster, jobs, self._seconds(jobs, service, context.now_s))
            kept = service.plan[self.name] = _Places(jobs.keys, capacity, kind, _next_free_s(jobs))
        order = np.lexsort((np.arange(len(jobs.units)), -jobs.devices, kept.kind != jobs.kind))
        return [*jobs.targets(kept.kind, order, _REASON, _UNKNOWN), *others(cluster)]

    def due_s(self, cluster: Cluster) -> float:
        """When the plan should be made anew though nobody comes or goes, where it may not be for a whole round; infinite: never."""
        kept: _Places | None = service_of(cluster).plan.get(self.name)
        return kept.until_s if kept is not None and self._anew else math.inf

    @property
    def _anew(self) -> bool:
        return self._spare_s < math.inf

    def _seconds(self, jobs: Jobs, service: Service, now_s: float) -> Floats:
        fits = (jobs.throughput > 0) & (jobs.devices[:, None] <= jobs.capacity)
        known = np.isfinite(jobs.left) if self._known else np.zeros(len(jobs.units), dtype=np.bool_)
        seconds = np.where(fits, jobs.seconds, np.inf) if known.any() else np.full(fits.shape, np.inf)
        if not known.all():
            had_s = np.maximum(service.device_s(jobs.keys, now_s) / np.maximum(jobs.devices, 1e-9), self._least_s)
            relative = np.divide(jobs.fastest[:, None], jobs.throughput, out=np.ones(fits.shape), where=fits)
            seconds = np.where(fits & ~known[:, None], had_s[:, None] * relative, seconds)
        restart_s = jobs.restart_s[:, None]
        moves = (np.arange(len(jobs.models)) != jobs.kind[:, None]) & (service.starts(jobs.keys) > 0)[:, None]
        return np.where(moves, seconds + restart_s, seconds)

    def _places(self, cluster: Cluster, jobs: Jobs, seconds: Floats) -> Ints:
        fixed = jobs.fixed | self._spared(jobs)
        room = Room(jobs)
        for job in np.flatnonzero(fixed).tolist():
            room.keep(job)
        room.settle()
        chosen = np.where(fixed, jobs.kind, -1)
        priority = np.array([unit.priority for unit in jobs.units]) if self._priorities else np.zeros(len(jobs.units))
        for level in sorted(set(priority[~fixed].tolist()), reverse=True):
            which = np.flatnonzero(~fixed & (priority == level))
            quotas = self._quotas(cluster, jobs, chosen, which, room.free) if self._tenants else None
            self._share_out(jobs, seconds, which, chosen, room, quotas)
            if not (room.free > 1e-9).any():
                break
        return chosen

    def _spared(self, jobs: Jobs) -> Bools:
        """Runs (J) that are left alone for what taking them off would lose."""
        if self._spare_s == math.inf:
            return np.zeros(len(jobs.units), dtype=np.bool_)
        return np.array(
            [
                run is not None and (unit.kind == SERVICE or run.lost_s(jobs.now_s) - unit.restart_s > self._spare_s)
                for run, unit in zip(jobs.runs, jobs.units, strict=True)
            ],
            dtype=np.bool_,
        )

    def _share_out(
        self, jobs: Jobs, seconds: Floats, which: Ints, chosen: Ints, room: Room, quotas: Quotas | None
    ) -> None:
        """Steps 2 and 3 for some jobs; changes ``chosen`` and ``room``."""
        seconds, devices = seconds[which], jobs.devices[which]
        least = seconds.min(axis=1)
        runs = np.isfinite(least) & (least > 0)
        weight = np.where(runs, np.where(runs, least, 1.0) ** -self._power, 0.0)
        weight = np.maximum(weight / max(float(weight.max()), 1e-300), _LEAST_WEIGHT)
        rates = np.where(np.isfinite(seconds), 1.0 / np.maximum(seconds, 1e-9), 0.0)
        share = np.round(gavel.max_throughput(rates, devices, room.free, weight), 6)
        holds = np.arange(len(jobs.models)) == jobs.kind[which, None]
        by_share = np.lexsort((np.arange(share.size), ~holds.ravel(), -share.ravel()))
        by_area = np.argsort((seconds * devices[:, None]).ravel(), kind="stable")
        orders = by_share[share.ravel()[by_share] > 0], by_area[rates.ravel()[by_area] > 0]
        for limits in (None,) if quotas is None else (quotas, None):
            for pairs in orders:
                _fill(chosen, room, pairs, which, limits)

    def _quotas(self, cluster: Cluster, jobs: Jobs, chosen: Ints, which: Ints, free: Floats) -> Quotas | None:
        """What each tenant may get of what is free, above what it holds already; None where only one asks."""
        names = [jobs.units[job].tenant_id for job in which.tolist()]
        known = sorted(set(names))
        if len(known) < 2:
            return None
        weights = dict(cluster.policy.tenant_weights)
        tenant = np.array([known.index(name) for name in names], dtype=np.int64)
        wanted = np.bincount(tenant, jobs.devices[which], len(known)).astype(np.float64)
        held = np.zeros(len(known))
        for job in np.flatnonzero(chosen >= 0).tolist():
            name = jobs.units[job].tenant_id
            if name in known:
                held[known.index(name)] += jobs.devices[job]
        weight = np.array([weights.get(name, 1.0) for name in known])
        return Quotas(tenant, filled(float(free.sum()), held, wanted, weight))


def _next_free_s(jobs: Jobs) -> float:
    """When the next run will have had its nodes for the policy's ``least_run_s``."""
    free_s = jobs.since_s[jobs.kind >= 0] + jobs.cluster.policy.restarts.least_run_s
    return float(free_s[free_s > jobs.now_s].min(initial=math.inf))


@dataclass(slots=True)
class Quotas:
    """The tenant of each job (J), and how many devices each tenant may still get (N)."""

    tenant: Ints
    left: Floats


def filled(amount: float, held: Floats, wanted: Floats, weight: Floats) -> Floats:
    """Water-filling: what each tenant (N) gets of an ``amount``, none more than it wanted, so that the least held amount by weight,
    with what was held before, is the greatest (max-min fairness)."""
    got = np.zeros(len(held))
    asks = wanted > 0
    while amount > 1e-9 and asks.any():
        level = (held + got) / weight
        low = float(level[asks].min())
        lowest = asks & (level <= low + 1e-12)
        above = level[asks & ~lowest]
        rise = float(above.min()) - low if above.size else math.inf
        room = float(((wanted - got) / weight)[lowest].min())
        step = min(rise, room, amount / float(weight[lowest].sum()))
        got[lowest] += step * weight[lowest]
        amount -= step * float(weight[lowest].sum())
        asks = wanted - got > 1e-9
    return got


def _fill(chosen: Ints, room: Room, pairs: Ints, which: Ints, quotas: Quotas | None) -> None:
    """Give each pair (place in ``which``, type), in order, its devices where they are free, and within its tenant's quota; changes
    ``chosen``, ``room`` and the quotas. A tenant with anything left may go beyond it by one job: devices are whole."""
    devices = room.devices
    for pair in pairs.tolist():
        place, kind = divmod(pair, room.free.size)
        job = int(which[place])
        if chosen[job] >= 0 or (quotas is not None and quotas.left[quotas.tenant[place]] <= 1e-9):
            continue
        if room.take(job, kind):
            chosen[job] = kind
            if quotas is not None:
                quotas.left[quotas.tenant[place]] -= devices[job]
