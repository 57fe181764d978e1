"""Trade-offs found by augmented Chebyshev against linear weights: `python bench/pareto.py [--json OUT]`.

Setting "offline": random assignment problems (jobs x options, of which one is waiting; capacities; JCT, cost, energy,
stranded accelerators), seeded. Three kinds of slices:

- small: the truth is the front by enumeration; solves are exact (branch and bound), and the linear weights and the fixed
  grid have as many solves as the adaptive exploration takes to prove that nothing is left.
- proved: too many assignments to enumerate; the truth is an exact exploration that was proved complete, and what is
  measured is local search with a fixed number of solves, beside epsilon-constraint (also by local search) and NSGA-III.
  Instances whose proof takes more than 3000 solves (those with the largest fronts) are left out: see proved_ratio.
- union: too large for a proof; the points of all these methods together are a reference, not the truth, and favour whoever
  finds most. Local search keeps what it meets on the way, under linear weights too, so these find more than supported points.

A point is reached when one lies within 1 % of the truth's range in every objective; the rows "coverage_dominance" also
count a point that is better.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.result import Row, Setting, command_line, print_table, write
from services.scheduler.core.front.assignment import NO_POOL, AssignmentProblem
from services.scheduler.core.front.dominance import Floats, nondominated
from services.scheduler.core.front.explorer import Method, Trail, explore
from services.scheduler.core.front.objectives import Combine, Direction, Objective
from services.scheduler.core.front.pareto import coverage, exact_front, hypervolume_ratio
from services.scheduler.core.front.reference import epsilon_constraint, nsga3
from services.scheduler.core.front.solvers import BranchAndBound, LocalSearch

SMALL = ((8, 4, 2, False), (6, 4, 3, False), (6, 4, 3, True), (6, 3, 4, False))
"""Jobs, options, objectives, whether the first objective is the worst job's instead of the sum."""

PROVED = ((12, 4, 2, False), (11, 4, 3, False))
UNION = ((20, 5, 3, False),)
LARGE_SOLVES = 150
MOST_SOLVES = 3000
TARGET = 0.95
GAPS = (0.05, 0.02)

Figures = dict[tuple[str, str], list[float]]
"""Values of each instance by (subject, measure)."""


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


def small(shape: tuple[int, int, int, bool], seeds: Sequence[int]) -> Figures:
    """Figures against the true front; every method has as many solves as the adaptive one needs to prove it is complete."""
    figures: Figures = defaultdict(list)
    jobs, options, objectives, makespan = shape
    for seed in seeds:
        problem = instance(jobs, options, objectives, seed, makespan=makespan)
        solver, trail = BranchAndBound(problem), Trail()
        begun = time.perf_counter()
        true = exact_front(problem).costs
        enumerated_s = time.perf_counter() - begun
        begun = time.perf_counter()
        front = explore(problem, MOST_SOLVES, solver=solver, trail=trail)
        explored_s = time.perf_counter() - begun
        found = np.array(trail.found)
        ours = "chebyshev_adaptive"
        _compare(figures, ours, true, front.costs)
        needed = solves_for(true, found)
        figures[ours, "complete_ratio"].append(float(trail.complete))
        figures[ours, "solves_count"].append(front.solves)
        figures[ours, "solves_per_point_ratio"].append(front.solves / len(true))
        figures[ours, "solves_to_95_count"].append(needed)
        figures[ours, "solves_to_95_per_point_ratio"].append(needed / len(true))
        figures[ours, "coverage_at_solves_of_points_ratio"].append(coverage(true, found[: len(true)]))
        figures[ours, "solve_ms"].append(1e3 * explored_s / front.solves)
        figures["truth", "points_count"].append(len(true))
        figures["truth", "enumeration_ms"].append(1e3 * enumerated_s)
        for gap in GAPS:
            # The last index whose gap was still greater, plus one: the solves spent when it fell to this for good.
            count = 1 + max((index for index, value in enumerate(trail.gaps) if value > gap), default=0)
            name = f"{ours}_until_gap_{gap:g}"
            figures[name, "coverage_ratio"].append(coverage(true, found[:count]))
            figures[name, "solves_per_point_ratio"].append(count / len(true))
        for method in (Method.GRID, Method.LINEAR):
            other = explore(problem, max(front.solves, objectives), method=method, solver=solver)
            _compare(figures, "linear" if method is Method.LINEAR else "chebyshev_grid", true, other.costs)
    return figures


def solves_for(true: Floats, found: Floats) -> float:
    """The least number of solves whose coverage is `TARGET`, NaN when all of them do not reach it."""
    if coverage(true, found) < TARGET:
        return float("nan")
    low, high = 1, len(found)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if coverage(true, found[:middle]) >= TARGET else (middle + 1, high)
    return float(low)


def _compare(figures: Figures, subject: str, true: Floats, found: Floats) -> None:
    figures[subject, "coverage_ratio"].append(coverage(true, found))
    figures[subject, "coverage_dominance_ratio"].append(coverage(true, found, dominance=True))
    figures[subject, "hypervolume_ratio"].append(hypervolume_ratio(true, found))


def proved(shape: tuple[int, int, int, bool], seeds: Sequence[int]) -> Figures:
    """Figures of methods without proof against a front that was proved complete."""
    return _without_proof(shape, seeds, prove=True)


def union(shape: tuple[int, int, int, bool], seeds: Sequence[int]) -> Figures:
    """Figures of methods without proof against all their points together."""
    return _without_proof(shape, seeds, prove=False)


def _without_proof(shape: tuple[int, int, int, bool], seeds: Sequence[int], *, prove: bool) -> Figures:
    figures: Figures = defaultdict(list)
    jobs, options, objectives, makespan = shape
    for seed in seeds:
        problem = instance(jobs, options, objectives, seed, makespan=makespan)
        truth = np.empty((0, objectives))
        if prove:
            trail = Trail()
            truth = explore(problem, MOST_SOLVES, solver=BranchAndBound(problem), trail=trail).costs
            figures["truth", "proved_ratio"].append(float(trail.complete))
            if not trail.complete:
                continue
        found: dict[str, Floats] = {}
        for method, name in ((Method.ADAPTIVE, "chebyshev_adaptive"), (Method.LINEAR, "linear")):
            begun = time.perf_counter()
            front = explore(problem, LARGE_SOLVES, seed=seed, method=method, solver=LocalSearch(problem, seed))
            found[name] = front.costs
            figures[name, "solve_ms"].append(1e3 * (time.perf_counter() - begun) / front.solves)
            figures[name, "solves_count"].append(front.solves)
        steps = round(LARGE_SOLVES ** (1 / (objectives - 1)))
        found["epsilon_constraint"] = epsilon_constraint(problem, LocalSearch(problem, seed), steps).costs
        found["nsga3"] = nsga3(problem, seed, generations=150).costs
        if not prove:
            truth = np.unique(np.vstack(list(found.values())), axis=0)
            truth = truth[nondominated(truth)]
        figures["truth" if prove else "union", "points_count"].append(len(truth))
        for name, costs in found.items():
            _compare(figures, name, truth, costs)
            figures[name, "points_count"].append(len(costs))
    return figures


def rows_of(figures: Figures, slice_name: str, seed: int) -> list[Row]:
    """Means over the instances with 95 % bootstrap intervals (2000 resamples of instances)."""
    rows = []
    for (subject, measure), values in sorted(figures.items()):
        sample = np.array(values)
        known = sample[np.isfinite(sample)]
        baseline = subject == "linear"
        if not len(known):
            rows.append(
                Row(subject, measure, None, slice_name, n=len(sample), baseline=baseline, reason="never reached")
            )
            continue
        chance = np.random.default_rng(seed)
        means = known[chance.integers(0, len(known), (2000, len(known)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        rows.append(
            Row(
                subject,
                measure,
                float(known.mean()),
                slice_name,
                float(low),
                float(high),
                len(known),
                baseline=baseline,
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first instance's; the others count on from it")
    parser.add_argument("--instances", type=int, default=30, help="small ones of each size")
    parser.add_argument("--large", type=int, default=3, help="larger ones of each size; 0 leaves them out")
    parser.add_argument("--json", metavar="OUT", help="write the result in the form of bench/result.py")
    options = parser.parse_args(arguments)
    if options.instances < 1 or options.large < 0:
        parser.error("--instances must be at least 1, --large at least 0")
    rows: list[Row] = []
    for measure, shapes, count in (
        (small, SMALL, options.instances),
        (proved, PROVED, options.large),
        (union, UNION, options.large),
    ):
        for shape in shapes if count else ():
            jobs, choices, objectives, makespan = shape
            name = f"{jobs}x{choices}x{objectives}" + ("/makespan" if makespan else "")
            figures = measure(shape, range(options.seed, options.seed + count))
            rows += rows_of(figures, f"{measure.__name__}/{name}", options.seed)
    print_table(rows)
    for row in rows:
        if (row.subject, row.measure) == ("chebyshev_adaptive", "coverage_ratio") and row.value is not None:
            verdict = "met" if row.value >= TARGET else "MISSED"
            print(f"{row.slice}: coverage {row.value:.1%}, target {TARGET:.0%} {verdict}")
    if options.json:
        command = command_line("bench.pareto", arguments)
        write(options.json, command, [], options.seed, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
