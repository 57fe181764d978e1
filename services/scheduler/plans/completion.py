"""Least mean completion time on unlike accelerators: ours, beside Gavel's time shares.

On machines of different speed the preemptive rule for the mean gives the job with least left the fastest machine (shortest remaining
time). Where machines are unlike for each job, a linear program says the same: the greatest sum of rates, each relative to the
job's fastest type and weighted by (seconds left there)^-power, under Gavel's constraints (power 1 is the c-mu rule; less leaves
long jobs more of the fast chips, which keeps the tail short). Unlike a time share the plan is whole: it says where each job is
until jobs come or go, so that jobs restart only when the order of things changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.options import numbers_of
from services.scheduler.core.planning import Target
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners import gavel
from services.scheduler.plans.service import Service, service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class _Places:
    """The plan of the last change: for which jobs and capacity, and the type of each job."""

    keys: tuple[UnitKey, ...]
    capacity: tuple[float, ...]
    kind: Ints


class CompletionPlanner:
    """Steps of a round:

    1. When jobs came or ended or capacity changed: seconds left of each job on each type; those of a move
       include the restart. With ``known`` 0 nothing is known of the work left: a job is thought to need as long again as it
       had (at least ``least_s``), as heavy tails go.
    2. The linear program (`gavel.max_throughput` with weights).
    3. Whole: pairs by share, the type that a job holds first among equals, if its devices are free; what is left over goes by
       seconds times devices.
    4. Else the plan stays as it is.
    """

    name = "completion"

    def __init__(self, power: float = 0.5, known: float = 1.0, least_s: float = 14_400.0) -> None:
        self._power, self._known, self._least_s = power, bool(known), least_s

    def configured(self, options: Mapping[str, Any]) -> CompletionPlanner:
        """With ``power``, ``known`` (0 or 1) and ``least_s`` (seconds)."""
        return CompletionPlanner(**numbers_of(self.name, options, power=0.0, known=0.0, least_s=1.0))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs that should run, and on what."""
        jobs = jobs_of(cluster, context.now_s)
        if not jobs.units or not jobs.models:
            return others(cluster)
        service = service_of(cluster)
        kept: _Places | None = service.plan.get(self.name)
        capacity = tuple(jobs.capacity.tolist())
        if kept is None or kept.keys != jobs.keys or kept.capacity != capacity:
            kind = self._places(jobs, self._seconds(jobs, service, context.now_s))
            kept = service.plan[self.name] = _Places(jobs.keys, capacity, kind)
        order = np.lexsort((np.arange(len(jobs.units)), -jobs.devices, kept.kind != jobs.kind))
        return [*jobs.targets(kept.kind, order, "least mean completion time"), *others(cluster)]

    def _seconds(self, jobs: Jobs, service: Service, now_s: float) -> Floats:
        fits = (jobs.throughput > 0) & (jobs.devices[:, None] <= jobs.capacity)
        if self._known:
            seconds = np.where(fits, jobs.seconds, np.inf)
        else:
            had_s = np.maximum(service.device_s(jobs.keys, now_s) / np.maximum(jobs.devices, 1e-9), self._least_s)
            relative = np.divide(jobs.fastest[:, None], jobs.throughput, out=np.ones(fits.shape), where=fits)
            seconds = np.where(fits, had_s[:, None] * relative, np.inf)
        restart_s = jobs.restart_s[:, None]
        moves = (np.arange(len(jobs.models)) != jobs.kind[:, None]) & (service.starts(jobs.keys) > 0)[:, None]
        return np.where(moves, seconds + restart_s, seconds)

    def _places(self, jobs: Jobs, seconds: Floats) -> Ints:
        least = seconds.min(axis=1)
        runs = np.isfinite(least) & (least > 0)
        weight = np.where(runs, np.where(runs, least, 1.0) ** -self._power, 0.0)
        weight = np.maximum(weight / max(float(weight.max()), 1e-300), _LEAST_WEIGHT)
        rates = np.where(np.isfinite(seconds) & ~jobs.fixed[:, None], 1.0 / np.maximum(seconds, 1e-9), 0.0)
        free = jobs.capacity.copy()
        np.subtract.at(free, jobs.kind[jobs.fixed], jobs.devices[jobs.fixed])
        free = np.maximum(free, 0.0)
        share = np.round(gavel.max_throughput(rates, jobs.devices, free, weight), 6)
        holds = np.arange(len(jobs.models)) == jobs.kind[:, None]
        by_share = np.lexsort((np.arange(share.size), ~holds.ravel(), -share.ravel()))
        by_area = np.argsort((seconds * jobs.devices[:, None]).ravel(), kind="stable")
        chosen = np.where(jobs.fixed, jobs.kind, -1)
        _fill(chosen, free, by_share[share.ravel()[by_share] > 0], jobs.devices)
        _fill(chosen, free, by_area[rates.ravel()[by_area] > 0], jobs.devices)
        return chosen


def _fill(chosen: Ints, free: Floats, pairs: Ints, devices: Floats) -> None:
    """Give each pair (job, type), in order, its devices where they are free; changes ``chosen`` and ``free``."""
    for pair in pairs.tolist():
        job, kind = divmod(pair, free.size)
        if chosen[job] < 0 and devices[job] <= free[kind] + 1e-9:
            chosen[job] = kind
            free[kind] -= devices[job]
