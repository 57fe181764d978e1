"""Gavel in rounds (Narayanan et al., OSDI 2020): time shares by a linear program, realised round by round.

The program is solved anew when jobs came or ended, capacity changed (the paper's reset events) or rates were measured, and time
received is then counted from 0. A round ends with the policy's interval: what comes free in between stays free until then, as in
the paper; a job that keeps its type keeps its devices and does not restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.planning import Target
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners import gavel
from services.scheduler.plans.rates import measured_of
from services.scheduler.plans.service import service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

ROUND_S = 360.0
"""The published length of a round, where the policy has no interval."""

Objective = Callable[[Jobs], Floats]


def _order(jobs: Jobs) -> Floats:
    return np.array([unit.submitted_at_s for unit in jobs.units])


OBJECTIVES: dict[str, Objective] = {
    "las": lambda jobs: gavel.max_min_fairness(jobs.throughput, jobs.devices, jobs.capacity),
    "finish_time_fairness": lambda jobs: gavel.finish_time_fairness(
        jobs.throughput, jobs.devices, jobs.capacity, jobs.work, jobs.age_s
    ),
    "min_makespan": lambda jobs: gavel.min_makespan(jobs.throughput, jobs.devices, jobs.capacity, jobs.work),
    "max_throughput": lambda jobs: gavel.max_throughput(jobs.throughput, jobs.devices, jobs.capacity),
    "fifo": lambda jobs: gavel.fifo(jobs.throughput, jobs.devices, jobs.capacity, _order(jobs)),
    "shortest_job_first": lambda jobs: gavel.shortest_job_first(
        jobs.throughput, jobs.devices, jobs.capacity, jobs.work
    ),
}
"""Names of the paper's objectives; those that read ``work`` know how many steps are left."""


@dataclass(frozen=True, slots=True)
class _Shares:
    """The allocation (J, T) of the last reset, and for which jobs, capacity and measured rates it holds."""

    keys: tuple[UnitKey, ...]
    capacity: tuple[float, ...]
    measured: int
    allocation: Floats


class _Settled:
    """The targets of a round in which each job ran where it has all of its time: so it stays, whatever time they receive."""

    def __init__(self, shares: _Shares, jobs: Jobs, targets: Sequence[Target]) -> None:
        self._shares, self._keys, self.targets = shares, jobs.keys, targets

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def hold(self, shares: _Shares, jobs: Jobs) -> bool:
        """Whether nobody came, began or ended since."""
        return shares is self._shares and jobs.keys is self._keys


def _all_settled(shares: _Shares, jobs: Jobs) -> bool:
    if (jobs.kind < 0).any() or (shares.allocation[np.arange(jobs.kind.size), jobs.kind] != 1.0).any():
        return False
    return bool((np.bincount(jobs.kind, jobs.devices, jobs.capacity.size) <= jobs.capacity).all())


class GavelPlanner:
    """Steps of a round:

    1. At a reset event: X from the objective, time received counted from now.
    2. Priorities X / time received, half a round added to the time so that equal ones follow X.
    3. By priority, each job on the type of the pair, if its devices are free (`gavel.round_selection`). Jobs that may not be
       taken off keep theirs.
    """

    name = "gavel"

    def __init__(self, objective: str = "las") -> None:
        if objective not in OBJECTIVES:
            raise PolicyError(f"options.gavel.objective: {objective!r} is none of {', '.join(sorted(OBJECTIVES))}")
        self._objective = objective

    def configured(self, options: Mapping[str, Any]) -> GavelPlanner:
        """With ``objective``, one of `OBJECTIVES`."""
        refuse_unknown(self.name, options, ("objective",))
        return GavelPlanner(str(options.get("objective", self._objective)))

    def same_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See services/scheduler/core/planning.py: for ever, where each job runs where it has all of its time."""
        plan = service_of(cluster).plan
        kept: _Shares | None = plan.get(f"gavel/{self._objective}")
        settled: _Settled | None = plan.get(f"gavel/{self._objective}/settled")
        if kept is None or settled is None or not settled.hold(kept, jobs_of(cluster, now_s)):
            return -math.inf
        return math.inf

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next round."""
        jobs = jobs_of(cluster, context.now_s)
        if not jobs.units or not jobs.models:
            return others(cluster)
        service = service_of(cluster)
        kept: _Shares | None = service.plan.get(f"gavel/{self._objective}")
        capacity = tuple(jobs.capacity.tolist())
        measured = measured_of(cluster).version
        since_reset = kept is not None and (kept.keys, kept.capacity, kept.measured) == (jobs.keys, capacity, measured)
        if kept is None or not since_reset:
            kept = _Shares(jobs.keys, capacity, measured, np.clip(OBJECTIVES[self._objective](jobs), 0.0, 1.0))
            service.plan[f"gavel/{self._objective}"] = kept
            service.reset(context.now_s)
        name = f"gavel/{self._objective}/settled"
        settled: _Settled | None = service.plan.get(name)
        more = others(cluster, jobs)
        if settled is not None and settled.hold(kept, jobs):
            return [*settled.targets, *more] if more else settled.targets
        round_s = cluster.policy.interval_s or ROUND_S
        received = np.full(jobs.throughput.shape, 0.5 * round_s)
        if since_reset:
            received += service.received_s(jobs.keys, jobs.models, context.now_s)
        free = jobs.capacity.copy()
        np.subtract.at(free, jobs.kind[jobs.fixed], jobs.devices[jobs.fixed])
        share = np.where(jobs.fixed[:, None], 0.0, kept.allocation)
        kind = gavel.round_selection(share, received, jobs.devices, np.maximum(free, 0.0))
        kind = np.where(jobs.fixed, jobs.kind, kind)
        order = np.lexsort((np.arange(len(jobs.units)), -jobs.devices, kind != jobs.kind))
        targets = jobs.targets(kind, order, f"its turn in Gavel's {self._objective} round")
        service.plan[name] = _Settled(kept, jobs, targets) if _all_settled(kept, jobs) else None
        return [*targets, *more] if more else targets
