"""Deadlines as plugins: earliest deadline first, with admission, and Chronus' leases (Gao et al., SoCC 2021).

Leases are as long as the policy's interval. Every type is planned by itself; a job belongs to the type that it runs on, one that waits
to the one where it ends first among those that are large enough, weighed by what others of its kind wait for there. Jobs without a
deadline (best effort) fill what is left, by submission. Between leases what comes free stays free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.planning import Target
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners import chronus
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.plans.gavel import ROUND_S
from services.scheduler.plans.state import Jobs, jobs_of, others

_METHODS = ("edf", "admission", "chronus")


class DeadlinePlanner:
    """Steps of a lease:

    1. Each job to a type (`_types`).
    2. Per type, over the next ``leases``: `edf_schedule`, `edf_admission` or `chronus_plan` for the jobs with a deadline; those
       that cannot be on time any more count as best effort.
    3. The jobs of the first lease, then best effort by submission in what is left of it.
    """

    name = "deadlines"

    def __init__(self, method: str = "edf", leases: int = 48) -> None:
        if method not in _METHODS:
            raise PolicyError(f"options.deadlines.method: {method!r} is none of {', '.join(_METHODS)}")
        self._method, self._leases = method, leases

    def configured(self, options: Mapping[str, Any]) -> DeadlinePlanner:
        """With ``method`` (edf, admission, chronus) and ``leases`` looked ahead."""
        refuse_unknown(self.name, options, ("method", "leases"))
        rest = {name: value for name, value in options.items() if name != "method"}
        found = numbers_of(self.name, rest, leases=1.0)
        return DeadlinePlanner(str(options.get("method", self._method)), int(found.get("leases", self._leases)))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next lease."""
        jobs = jobs_of(cluster, context.now_s)
        if not jobs.units or not jobs.models:
            return others(cluster)
        kind = _types(jobs)
        lease_s = cluster.policy.interval_s or ROUND_S
        chosen = np.where(jobs.fixed, jobs.kind, -1)
        free = jobs.capacity.copy()
        np.subtract.at(free, jobs.kind[jobs.fixed], jobs.devices[jobs.fixed])
        until = np.array([unit.deadline_s for unit in jobs.units]) - context.now_s
        for place in range(len(jobs.models)):
            mine = np.flatnonzero((kind == place) & ~jobs.fixed & np.isfinite(until))
            for job in mine[self._first_lease(jobs, mine, place, until[mine], free[place], lease_s)].tolist():
                if jobs.devices[job] <= free[place]:
                    chosen[job] = place
                    free[place] -= jobs.devices[job]
        for job in np.lexsort((np.arange(kind.size), np.isfinite(until))).tolist():
            place = int(kind[job])
            if chosen[job] < 0 <= place and jobs.devices[job] <= free[place]:
                chosen[job] = place
                free[place] -= jobs.devices[job]
        order = np.lexsort((np.arange(kind.size), -jobs.devices, chosen != jobs.kind))
        return [*jobs.targets(chosen, order, f"its lease by {self._method}"), *others(cluster)]

    def _first_lease(self, jobs: Jobs, mine: Ints, place: int, until: Floats, free: float, lease_s: float) -> Ints:
        """Which of these jobs hold their devices in the first lease, by deadline."""
        if not mine.size:
            return mine
        seconds = jobs.seconds[mine, place]
        need, due = chronus.leases_needed(seconds, np.maximum(until, 0.0), lease_s)
        room = np.full(self._leases, max(free, 0.0))
        due = np.minimum(due, self._leases)
        hopeful = need <= due if self._method != "edf" else np.ones(mine.size, dtype=np.bool_)
        picked = np.flatnonzero(hopeful)
        arguments = need[picked], jobs.devices[mine][picked], due[picked], room
        if self._method == "edf":
            plan = chronus.edf_schedule(*arguments)
        elif self._method == "admission":
            plan = chronus.edf_admission(*arguments)
        else:
            plan = chronus.chronus_plan(*arguments, limits=Limits(nodes=200, gap=1e-3))
        first = picked[plan.runs[:, 0]] if picked.size else picked
        order: Ints = first[np.argsort(until[first], kind="stable")]
        return order


def _types(jobs: Jobs) -> Ints:
    """A type (J) for each job: its own when it runs, else where the work assigned so far and its own end first; -1: nowhere."""
    fits = (jobs.throughput > 0) & (jobs.devices[:, None] <= jobs.capacity)
    seconds = np.where(fits, jobs.seconds, np.inf)
    kind = jobs.kind.copy()
    load = np.zeros(len(jobs.models))
    running = np.flatnonzero(kind >= 0)
    area = jobs.devices[:, None] * np.where(np.isfinite(seconds), seconds, 0.0)
    np.add.at(load, kind[running], area[running, kind[running]])
    for job in np.flatnonzero(kind < 0).tolist():
        ends = load / np.maximum(jobs.capacity, 1.0) + seconds[job]
        place = int(ends.argmin())
        if np.isfinite(ends[place]):
            kind[job] = place
            load[place] += area[job, place]
    return kind
