"""Other ways to a front, kept as references that the explorer is measured against: epsilon-constraint and NSGA-III."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import SLACK, AssignmentProblem
from services.scheduler.core.front.dominance import Bools, Floats, Ints, nondominated
from services.scheduler.core.front.explorer import das_dennis
from services.scheduler.core.front.objectives import Scalarisation
from services.scheduler.core.front.solvers import Solver


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Assignments (n, J), none dominated by another, their costs (n, k), and the solves or evaluations spent."""

    assignments: Ints
    costs: Floats
    spent: int


def _best_of(problem: AssignmentProblem, assignments: list[Ints], spent: int) -> Found:
    if not assignments:
        raise PolicyError("no assignment keeps all capacities")
    distinct = np.unique(np.array(assignments), axis=0)
    costs = problem.evaluate(distinct)
    keep = nondominated(costs)
    return Found(distinct[keep], costs[keep], spent)


def epsilon_constraint(problem: AssignmentProblem, solver: Solver, steps: int) -> Found:
    """A grid of limits on all objectives but the first, which is minimised within each (Haimes, Lasdon, Wismer 1971; the
    augmentation makes the answers Pareto optimal, Mavrotas 2009).

    Steps: 1. solve each objective by itself: the payoff table gives the range of the limits; 2. for every combination of
    ``steps`` limits per objective minimise the first one within them, loosest limits first; 3. where a combination has no
    answer, skip those that are tighter in every limit. PolicyError when no assignment is feasible.
    """
    count = len(problem.objectives)
    finite = np.where(np.isfinite(problem.costs), problem.costs, np.nan)
    wide = np.where(problem.additive, np.nanmax(finite, axis=1).sum(axis=0), np.nanmax(finite, axis=(0, 1)))
    narrow = np.where(problem.additive, np.nanmin(finite, axis=1).sum(axis=0), np.nanmin(finite, axis=1).max(axis=0))
    found: list[Ints] = []
    ends = []
    spent = 0
    for weights in np.eye(count):
        solution = solver.solve(Scalarisation.of(weights, narrow, wide, rho=1e-6))
        spent += 1
        if solution is None:
            raise PolicyError("no assignment keeps all capacities")
        found.append(solution.assignment)
        ends.append(solution.costs)
    low, high = np.min(ends, axis=0), np.max(ends, axis=0)
    score = Scalarisation.of(np.eye(count)[0], low, high, rho=1e-6)
    failed: list[Floats] = []
    shape = (steps,) * (count - 1)
    for place in sorted(np.ndindex(*shape), key=sum):
        limits = high.copy()
        limits[1:] -= (high - low)[1:] * np.array(place) / steps
        limits[0] = np.inf
        if any((limits[1:] <= tighter[1:]).all() for tighter in failed):
            continue
        solution = solver.solve(score, limits=limits)
        spent += 1
        if solution is None:
            failed.append(limits)
        else:
            found.append(solution.assignment)
    return _best_of(problem, found, spent)


def nsga3(
    problem: AssignmentProblem, seed: int, *, generations: int = 150, divisions: int = 12, population: int = 0
) -> Found:
    """NSGA-III (K. Deb, H. Jain, IEEE Transactions on Evolutionary Computation 18, 2014), compact, for assignments.

    Steps: 1. a random population of the size of the reference directions, or ``population``; 2. children by uniform
    crossover and mutation of single jobs; 3. rank all by capacity overdraft first, then by dominance; 4. fill the next
    population by rank; of the last rank, take those whose reference direction is least represented, nearest first;
    5. after ``generations``, the archive of every feasible point that was not dominated. Deterministic for a seed.
    """
    chance = np.random.default_rng(seed)
    directions = das_dennis(len(problem.objectives), divisions)
    size = population or len(directions) + len(directions) % 2
    options = [np.flatnonzero(row) for row in problem.allowed]
    needs = np.where(problem.allowed[:, :, None], problem.pool_demand, 0.0)
    jobs = np.arange(len(options))

    def drawn(count: int) -> Ints:
        return np.column_stack([chance.choice(row, size=count) for row in options]).astype(np.int64)

    def overdraft(group: Ints) -> Floats:
        used = needs[jobs, group].sum(axis=1)
        result: Floats = np.maximum(used - problem.capacity - SLACK, 0.0).sum(axis=1)
        return result

    parents = drawn(size)
    archive: list[Ints] = []
    for _ in range(generations):
        mates = parents[chance.permutation(size)]
        children = np.where(chance.random(parents.shape) < 0.5, parents, mates)
        children = np.where(chance.random(parents.shape) < 1.5 / len(jobs), drawn(size), children)
        group = np.unique(np.vstack([parents, children]), axis=0)
        if len(group) < size:
            group = np.vstack([group, drawn(size - len(group))])
        costs, over = problem.evaluate(group), overdraft(group)
        good = over <= 0
        if good.any():
            together = np.unique(np.vstack([*(row[None] for row in archive), group[good]]), axis=0)
            archive = list(together[nondominated(problem.evaluate(together))])
        parents = group[_survivors(costs, over, directions, size, chance)]
    return _best_of(problem, archive, size * (generations + 1))


def _survivors(costs: Floats, over: Floats, directions: Floats, size: int, chance: np.random.Generator) -> Ints:
    """Indices of the next population."""
    rest: Bools = np.ones(len(costs), dtype=np.bool_)
    chosen: Ints = np.empty(0, dtype=np.int64)
    while len(chosen) < size:
        ready = np.flatnonzero(rest & (over <= 0))
        if len(ready):
            layer = ready[nondominated(costs[ready])]
        else:
            bad = np.flatnonzero(rest)
            layer = bad[over[bad] == over[bad].min()]
        if len(chosen) + len(layer) > size:
            layer = _niche(costs, chosen, layer, directions, size - len(chosen), chance)
        rest[layer] = False
        chosen = np.concatenate([chosen, layer])
    return chosen


def _niche(
    costs: Floats, chosen: Ints, layer: Ints, directions: Floats, wanted: int, chance: np.random.Generator
) -> Ints:
    """``wanted`` of ``layer``: each from the direction that has fewest members so far, nearest to it first."""
    both = np.concatenate([chosen, layer])
    low = costs[both].min(axis=0)
    width = costs[both].max(axis=0) - low
    normal = (costs[both] - low) / np.where(width > 0, width, 1.0)
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    along = normal @ unit.T
    apart = np.sqrt(np.maximum((normal**2).sum(axis=1)[:, None] - along**2, 0.0))
    nearest, distance = apart.argmin(axis=1), apart.min(axis=1)
    members = np.bincount(nearest[: len(chosen)], minlength=len(directions)).astype(np.float64)
    waiting: dict[int, list[int]] = {int(name): [] for name in np.unique(nearest[len(chosen) :])}
    for place in np.argsort(-distance[len(chosen) :], kind="stable"):
        waiting[int(nearest[len(chosen) + place])].append(int(layer[place]))
    taken: list[int] = []
    while len(taken) < wanted:
        names = np.array([name for name, queue in waiting.items() if queue])
        fewest = names[members[names] == members[names].min()]
        name = int(chance.choice(fewest))
        taken.append(waiting[name].pop())
        members[name] += 1
    return np.array(taken, dtype=np.int64)
