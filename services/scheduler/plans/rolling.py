"""The rolling mixed-integer baseline as a plugin: the first jobs of the queue solved exactly over a short horizon, again and again.

Nothing that runs is taken off. Every other policy may know as much: run times on each type, and until when what runs will run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.options import numbers_of
from services.scheduler.core.planning import Target
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners.milp import could_begin, free_devices, rolling_plan
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.plans.state import jobs_of, others


class RollingPlanner:
    """Steps of a round: what runs stays; the queue by submission; `rolling_plan` over ``slots`` of ``slot_s`` seconds for the
    first ``first`` jobs, the rest greedily; those that begin in slot 0 begin. The solver stops after ``nodes`` nodes. While
    nobody could begin in slot 0 nothing is planned."""

    name = "rolling-milp"

    def __init__(self, first: float = 20, slots: float = 24, slot_s: float = 3600.0, nodes: float = 50) -> None:
        self._first, self._slots, self._slot_s, self._nodes = int(first), int(slots), slot_s, int(nodes)

    def configured(self, options: Mapping[str, Any]) -> RollingPlanner:
        """With ``first`` (jobs that are solved together: the window), ``slots`` of ``slot_s`` seconds each (the horizon) and ``nodes``
        of the solver's search; they bound what a round takes."""
        return RollingPlanner(**numbers_of(self.name, options, first=1.0, slots=1.0, slot_s=1.0, nodes=1.0))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """What runs, and the jobs that begin now."""
        jobs = jobs_of(cluster, context.now_s)
        if not jobs.units or not jobs.models:
            return others(cluster)
        fits = (jobs.throughput > 0) & (jobs.devices[:, None] <= jobs.capacity)
        seconds = np.where(fits, jobs.seconds, np.inf)
        run = np.flatnonzero(jobs.kind >= 0)
        waits = np.flatnonzero((jobs.kind < 0) & fits.any(axis=1))
        kind = jobs.kind.copy()
        if waits.size:
            left_s = seconds[run, jobs.kind[run]]
            room = free_devices(
                np.maximum(jobs.capacity, np.bincount(jobs.kind[run], jobs.devices[run], jobs.capacity.size)),
                jobs.kind[run],
                jobs.devices[run],
                np.where(np.isfinite(left_s), left_s, 0.0),
                self._slots,
                self._slot_s,
            )
            if could_begin(seconds[waits], jobs.devices[waits], room, self._slot_s):
                plan = rolling_plan(
                    seconds[waits],
                    jobs.devices[waits],
                    np.ones(waits.size),
                    room,
                    self._slot_s,
                    first=self._first,
                    limits=Limits(nodes=self._nodes, gap=1e-3, jumps=False),
                    now_only=True,
                )
                kind[waits[plan.slot == 0]] = plan.kind[plan.slot == 0]
        order = np.lexsort((np.arange(kind.size), jobs.kind < 0))
        return [*jobs.targets(kind, order, "begins now in the best schedule of the next jobs"), *others(cluster)]
