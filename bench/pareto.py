"""Trade-offs found by augmented Chebyshev against linear weights: `python bench/pareto.py [--json OUT]`.

Setting "offline": random assignment problems (jobs x options, of which one is waiting; capacities; JCT, cost, energy,
stranded accelerators), seeded. Small ones have their true front by enumeration; larger ones are compared with the union of
everything that any method found, epsilon-constraint and NSGA-III included, which is a reference and not the truth.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.core.assignment import NO_POOL, AssignmentProblem
from services.scheduler.core.objectives import Combine, Direction, Objective

NODE_ACCELERATORS = 8


def instance(jobs: int, options: int, objectives: int, seed: int, *, makespan: bool = False) -> AssignmentProblem:
    """A random problem: the last option waits for cheap power, the others are pools of one accelerator type in a domain.

    Faster types cost and draw more, but not in proportion; a job away from its data pays for the move and waits for it.
    """
    chance = np.random.default_rng([jobs, options, objectives, seed])
    pools = options - 1
    rate = np.append(chance.lognormal(0.5, 0.5, pools), 1.0)
    price = np.append(rate[:-1] ** chance.uniform(0.6, 1.5, pools) * chance.lognormal(0.5, 0.3, pools), 1.0)
    watts = np.append(300 * rate[:-1] ** chance.uniform(0.2, 1.2, pools) * chance.lognormal(0, 0.3, pools), 300.0)
    work = chance.lognormal(1.5, 0.8, jobs)
    ranks = chance.choice([1, 2, 4, 8, 12, 16], size=jobs, p=[0.25, 0.2, 0.2, 0.2, 0.05, 0.1])
    data_gib = chance.lognormal(4, 1, jobs)
    home = chance.integers(0, pools, jobs)
    suits = chance.lognormal(0, 0.35, (jobs, options))  # how well a model's kernels suit a chip
    away = (np.arange(options) != home[:, None]) & (np.arange(options) < pools)
    run_h = work[:, None] / (rate * suits)
    wait_h = np.zeros((jobs, options))
    wait_h[:, -1] = chance.uniform(2, 12, jobs)
    move_h = away * data_gib[:, None] / chance.uniform(100, 800, options)
    jct_h = run_h + wait_h + move_h
    money = run_h * ranks[:, None] * price + away * data_gib[:, None] * chance.uniform(0.02, 0.12, options)
    energy_kwh = run_h * ranks[:, None] * watts / 1000 * np.append(np.ones(pools), 0.5)
    stranded = ((-ranks[:, None]) % np.append(chance.choice([4, 8, 16], size=pools), 1)).astype(np.float64)
    stranded[:, -1] = ranks / 2  # capacity that stays idle meanwhile
    kinds = (
        (jct_h, Objective("jct", "h", combine=Combine.WORST) if makespan else Objective("jct", "h")),
        (money, Objective("cost", "USD")),
        (energy_kwh, Objective("energy", "kWh")),
        (-stranded, Objective("usable", "accelerators", Direction.MAXIMISE)),
    )[:objectives]
    demand = np.repeat(ranks[:, None], options, axis=1).astype(np.float64)
    capacity = np.maximum(ranks.max(), np.ceil(chance.uniform(0.35, 0.7, pools) * ranks.sum()))
    return AssignmentProblem(
        objectives=tuple(objective for _, objective in kinds),
        contributions=np.stack([values for values, _ in kinds], axis=2),
        demand=demand,
        pool=np.append(np.arange(pools), NO_POOL),
        capacity=capacity,
        allowed=np.ones((jobs, options), dtype=np.bool_),
        options=(*(f"pool-{index}" for index in range(pools)), "wait"),
    )
