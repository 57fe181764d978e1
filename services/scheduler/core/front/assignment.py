"""The problem whose trade-offs are explored: each job takes one option (a domain, an accelerator type there, or waiting).

Held as arrays over jobs, options and objectives, so that solvers score thousands of assignments at once. Options draw on
pools of capacity; several options may share one pool, and waiting draws on none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.dominance import Bools, Floats, Ints
from services.scheduler.core.front.objectives import Combine, Objective, signs

NO_POOL = -1
"""The pool of an option that needs no capacity."""

MAX_ASSIGNMENTS = 2_000_000
"""More partial assignments than this are not enumerated."""

SLACK = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class AssignmentProblem:
    """J jobs, O options, k objectives, P pools.

    ``contributions`` (J, O, k): what a job adds to each objective under each option, in the objectives' units.
    ``demand`` (J, O): what it takes of the option's pool. ``pool`` (O,): index of the pool or `NO_POOL`. ``capacity``
    (P,). ``allowed`` (J, O): False where a job cannot take an option. Raises PolicyError that names the field.
    """

    objectives: tuple[Objective, ...]
    contributions: Floats
    demand: Floats
    pool: Ints
    capacity: Floats
    allowed: Bools
    jobs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    costs: Floats = field(init=False)
    additive: Bools = field(init=False)

    def __post_init__(self) -> None:
        shape = self.contributions.shape
        if len(shape) != 3 or 0 in shape or shape[2] != len(self.objectives):
            raise PolicyError(f"contributions must be (jobs, options, {len(self.objectives)} objectives), not {shape}")
        for name, expected in (("demand", shape[:2]), ("allowed", shape[:2]), ("pool", shape[1:2])):
            if getattr(self, name).shape != expected:
                raise PolicyError(f"{name} must have the shape {expected}, not {getattr(self, name).shape}")
        if not np.isfinite(self.contributions[self.allowed]).all():
            raise PolicyError("contributions must be finite wherever the option is allowed")
        if not (np.isfinite(self.demand[self.allowed]).all() and (self.demand[self.allowed] >= 0).all()):
            raise PolicyError("demand must be finite and not negative")
        if self.capacity.ndim != 1 or not (self.capacity >= 0).all():
            raise PolicyError("capacity must be one number of at least 0 for each pool")
        if self.pool.min() < NO_POOL or self.pool.max() >= len(self.capacity):
            raise PolicyError(f"pool must lie between {NO_POOL} and {len(self.capacity) - 1}")
        stuck = np.flatnonzero(~self.allowed.any(axis=1))
        if len(stuck):
            raise PolicyError(f"allowed: {self.job_names[int(stuck[0])]} has no option at all")
        costs = np.where(self.allowed[:, :, None], self.contributions * signs(self.objectives), np.inf)
        object.__setattr__(self, "costs", costs)
        totals = np.array([objective.combine is Combine.TOTAL for objective in self.objectives])
        object.__setattr__(self, "additive", totals)

    @property
    def job_names(self) -> tuple[str, ...]:
        """Names for people."""
        return self.jobs or tuple(f"job-{index}" for index in range(self.contributions.shape[0]))

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names for people."""
        return self.options or tuple(f"option-{index}" for index in range(self.contributions.shape[1]))

    @property
    def pool_demand(self) -> Floats:
        """(J, O, P) what a job takes of each pool under each option; infinite where the option is not allowed."""
        in_pool = self.pool[:, None] == np.arange(len(self.capacity))
        needed = np.where(in_pool[None], self.demand[:, :, None], 0.0)
        result: Floats = np.where(self.allowed[:, :, None], needed, np.inf)
        return result

    def evaluate(self, assignments: npt.NDArray[np.integer]) -> Floats:
        """(n, k) costs (small is good) of assignments (n, J) of options to jobs; capacity is not looked at."""
        chosen = self.costs[np.arange(self.costs.shape[0]), assignments]
        result: Floats = np.where(self.additive, chosen.sum(axis=1), chosen.max(axis=1))
        return result

    def feasible(self, assignments: npt.NDArray[np.integer]) -> Bools:
        """(n,) whether every option is allowed and no pool is drawn beyond its capacity."""
        used = self.pool_demand[np.arange(self.costs.shape[0]), assignments].sum(axis=1)
        result: Bools = (used <= self.capacity + SLACK).all(axis=1)
        return result

    def values(self, costs: Floats) -> Floats:
        """Costs in the objectives' units."""
        result: Floats = costs * signs(self.objectives)
        return result


def enumerate_feasible(problem: AssignmentProblem, limit: int = MAX_ASSIGNMENTS) -> tuple[Ints, Floats]:
    """Every feasible assignment (n, J) with its costs (n, k), in lexical order. PolicyError when there are more than
    ``limit``.

    Steps: 1. begin with the empty assignment; 2. for each job, extend every partial assignment by every option; 3. drop
    those that overdraw a pool, so that what cannot be completed is not carried on.
    """
    count, options, _ = problem.costs.shape
    pool_demand = problem.pool_demand
    chosen = np.empty((1, 0), dtype=np.int64)
    used = np.zeros((1, len(problem.capacity)))
    for job in range(count):
        more = used[:, None] + pool_demand[job][None]
        fits = (more <= problem.capacity + SLACK).all(axis=2) & problem.allowed[job]
        rows, columns = np.nonzero(fits)
        if len(rows) > limit:
            raise PolicyError(
                f"more than {limit} assignments of {count} jobs to {options} options: too many to enumerate"
            )
        chosen = np.column_stack([chosen[rows], columns])
        used = more[rows, columns]
    return chosen, problem.evaluate(chosen)
