"""The trade-offs of an assignment problem: which schedules a change of weights could choose.

Every point is found by one solve of the augmented weighted Chebyshev distance from a utopian point. After a coarse
Das-Dennis grid of weights, the next weights are aimed at the greatest gap that is left: the still unknown region is kept as
local upper bounds (corners below which a further point may lie), each solve either finds a point below the corner it aims
at or proves that there is none, and its score proves a whole box empty besides.

Sources: I. Das, J. E. Dennis, "Normal-boundary intersection", SIAM Journal on Optimization 8, 1998 (the grid); K. Klamroth,
R. Lacour, D. Vanderpooten, "On the representation of the search region in multi-objective optimization", European Journal
of Operational Research 245, 2015 (local upper bounds); K. Dächert, J. Gorski, K. Klamroth, "An augmented weighted
Tchebycheff method with adaptively chosen parameters for discrete bicriteria optimization problems", Computers & Operations
Research 39, 2012 (weights from bounds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import AssignmentProblem
from services.scheduler.core.front.dominance import Bools, Floats, Ints, nondominated
from services.scheduler.core.front.objectives import Scalarisation, check_weights
from services.scheduler.core.front.pareto import UTOPIA_SHIFT, Front
from services.scheduler.core.front.solvers import BranchAndBound, LocalSearch, Solution, Solver

EXACT_UP_TO = 12
"""Jobs up to which branch and bound is the default; above, local search."""

FINE_RHO = 1e-6
"""Augmentation while exploring: the default of a policy (1e-3) could hide points closer than that to the corner aimed at."""

SAME = 1e-9
"""Normalised distance below which two points are one."""


class Method(StrEnum):
    """How the weights are chosen, and what they scalarise."""

    ADAPTIVE = "adaptive"
    """Chebyshev: a coarse grid, then the greatest gaps."""
    GRID = "grid"
    """Chebyshev over a Das-Dennis grid alone."""
    LINEAR = "linear"
    """Weighted sums over the same grid: the baseline, which cannot find unsupported points."""


def das_dennis(objectives: int, divisions: int) -> Floats:
    """(C(divisions + k - 1, k - 1), k) all weight vectors whose parts are multiples of ``1 / divisions`` and sum to 1."""
    if objectives < 1 or divisions < 1:
        raise PolicyError("a grid of weights needs at least one objective and one division")
    first = (
        np.indices((divisions + 1,) * (objectives - 1)).reshape(objectives - 1, (divisions + 1) ** (objectives - 1)).T
    )
    first = first[first.sum(axis=1) <= divisions]
    result: Floats = np.column_stack([first, divisions - first.sum(axis=1)]) / divisions
    return result


def grid_of(objectives: int, count: int) -> Floats:
    """Exactly ``count`` weight vectors: the finest Das-Dennis grid that is not larger, filled up from the next finer one,
    evenly over its order. So that methods are compared with the same number of solves. One vector for one objective."""
    if count < objectives:
        raise PolicyError(f"solves must be at least the number of objectives ({objectives}), not {count}")
    if objectives == 1:
        return np.ones((1, 1))
    divisions = 1
    while math.comb(divisions + objectives, objectives - 1) <= count:
        divisions += 1
    grid, finer = das_dennis(objectives, divisions), das_dennis(objectives, divisions + 1)
    known = {tuple(row) for row in np.round(grid, 12)}
    more = np.array([row for row in finer if tuple(np.round(row, 12)) not in known]).reshape(-1, objectives)
    extra = (
        more[np.linspace(0, len(more) - 1, count - len(grid)).round().astype(np.int64)]
        if count > len(grid)
        else more[:0]
    )
    return np.vstack([grid, extra])


@dataclass(slots=True)
class Trail:
    """What each solve found, in order, and how great the greatest gap was before it: for judging what solves are worth."""

    found: list[Floats] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    complete: bool = False
    """Whether an exact solver has proved that no region is left."""


class SearchRegion:
    """Where further points may lie, in normalised costs: local upper bounds and corners below which nothing is left.

    ``bounds`` (m, k): a point not yet known lies strictly below at least one of them. ``empty`` (e, k): no unknown point
    lies below any of them. ``high`` (k,): the greatest cost of a known point. ``left`` (m,) is how far each bound can be
    pulled in, by the same amount in all objectives, before nothing is left; ``gaps`` the same for the bound cut off at
    ``high``, since little is to be expected beyond.
    """

    def __init__(self, top: Floats) -> None:
        self.bounds: Floats = top[None].copy()
        self.left: Floats = np.array([np.inf])
        self.gaps: Floats = np.array([np.inf])
        self.empty: Floats = np.empty((0, len(top)))
        self.high: Floats = np.full(len(top), -np.inf)

    def add_point(self, point: Floats) -> None:
        """Split every bound that the point lies below (Klamroth et al. 2015, redundancy elimination)."""
        if (point > self.high).any():
            self.high = np.maximum(self.high, point)
            self.gaps = _pull(np.minimum(self.bounds, self.high), self.empty)
        inside = (point < self.bounds - SAME).all(axis=1)
        if inside.any():
            split, rest = self.bounds[inside], self.bounds[~inside]
            children = np.repeat(split, len(point), axis=0)
            rows = np.arange(len(children))
            children[rows, rows % len(point)] = np.tile(point, len(split))
            children = np.unique(children, axis=0)
            if len(rest):
                covered = (children[:, None] - rest[None]).max(axis=2).min(axis=1) <= 0
                children = children[~covered]
            children = children[nondominated(-children)]
            self.bounds = np.vstack([rest, children])
            self.left = np.concatenate([self.left[~inside], _pull(children, self.empty)])
            cut = np.minimum(children, self.high)
            self.gaps = np.concatenate([self.gaps[~inside], _pull(cut, self.empty)])
        self.add_empty(point)

    def add_empty(self, corner: Floats) -> None:
        """Nothing unknown lies below ``corner``."""
        self.empty = np.vstack([self.empty, corner])
        self.left = np.minimum(self.left, _pull(self.bounds, corner[None]))
        self.gaps = np.minimum(self.gaps, _pull(np.minimum(self.bounds, self.high), corner[None]))
        self._keep(self.left > SAME)

    def close(self, bound: Floats) -> None:
        """Nothing unknown lies below this bound."""
        self._keep((self.bounds != bound).any(axis=1))

    def greatest(self) -> int:
        """Index of the bound with the greatest gap."""
        return int(np.argmax(self.gaps))

    def _keep(self, rows: Bools) -> None:
        self.bounds, self.left, self.gaps = self.bounds[rows], self.left[rows], self.gaps[rows]


def _pull(bounds: Floats, empty: Floats) -> Floats:
    """(m,) how far each bound can be pulled in before it lies below one of ``empty``."""
    if not len(empty):
        return np.full(len(bounds), np.inf)
    result: Floats = (bounds[:, None] - empty[None]).max(axis=2).min(axis=1)
    return result


def explore(
    problem: AssignmentProblem,
    solves: int,
    *,
    seed: int = 0,
    weights: Floats | None = None,
    method: Method = Method.ADAPTIVE,
    solver: Solver | None = None,
    rho: float = FINE_RHO,
    stop_gap: float = 0.0,
    trail: Trail | None = None,
) -> Front:
    """The front as ``solves`` scalarised solves find it, each point with its assignment and the weights that found it.

    Steps: 1. solve each objective by itself (k solves): their costs give the utopian point and the scale; 2. solve for
    ``weights`` (n, k), or for a Das-Dennis grid; 3. adaptive: aim at the bound with the greatest gap by the weights
    ``1 / (bound - utopia)``, until the solves are spent, no gap is greater than ``stop_gap`` (normalised), or nothing is
    left; 4. drop dominated points. What a solver without proof met on the way is kept too when nothing dominates it.

    ``solver`` defaults to branch and bound up to `EXACT_UP_TO` jobs, to local search above. With an exact one, an
    exploration that stops because nothing is left has found the whole front, up to differences of ``rho``. PolicyError for
    bad weights, too few solves, or when no assignment is feasible.
    """
    names = [objective.name for objective in problem.objectives]
    count = len(names)
    if solves < count:
        raise PolicyError(f"solves must be at least the number of objectives ({count}), not {solves}")
    grid = None if weights is None else np.array([check_weights(row, names) for row in np.atleast_2d(weights)])
    if solver is None:
        exact = len(problem.costs) <= EXACT_UP_TO
        solver = BranchAndBound(problem) if exact else LocalSearch(problem, seed)
    search = _Search(problem, solver, solves, rho, trail if trail is not None else Trail())
    search.anchor()
    if method is Method.ADAPTIVE:
        search.follow(das_dennis(count, 2) if grid is None else grid, chebyshev=True)
        search.refine(stop_gap)
    else:
        chosen = grid if grid is not None else grid_of(count, solves)
        search.follow(chosen, chebyshev=method is Method.GRID)
    return search.front()


class _Search:
    """The state of one exploration; costs are normalised by the anchors' bounds."""

    def __init__(self, problem: AssignmentProblem, solver: Solver, solves: int, rho: float, trail: Trail) -> None:
        self._problem, self._solver, self._left, self._rho, self._trail = problem, solver, solves, rho, trail
        self._solutions: list[Solution] = []
        self._weights: list[Floats] = []
        self._seen: set[tuple[float, ...]] = set()
        self._solves = 0
        self._ideal = self._nadir = np.empty(0)
        self._region: SearchRegion | None = None

    def anchor(self) -> None:
        """Solve each objective by itself: they bound the front."""
        finite = np.where(np.isfinite(self._problem.costs), self._problem.costs, np.nan)
        additive = self._problem.additive
        least, most = np.nanmin(finite, axis=1), np.nanmax(finite, axis=1)
        self._ideal = np.where(additive, least.sum(axis=0), least.max(axis=0))
        self._nadir = top = np.where(additive, most.sum(axis=0), most.max(axis=0))
        for weights in np.eye(len(additive)):
            if self._solve(weights, chebyshev=True) is None:
                raise PolicyError("no assignment keeps all capacities")
        costs = np.array([solution.costs for solution in self._solutions])
        self._ideal, self._nadir = costs.min(axis=0), costs.max(axis=0)
        roof = self._normal(top) + 1.0
        self._region = SearchRegion(roof)
        self._seen = {self._key(solution) for solution in self._solutions}
        for column in range(len(additive) if self._solver.exact else 0):
            floor = roof.copy()
            floor[column] = 0.0
            self._region.add_empty(floor)
        for solution in self._solutions:
            self._region.add_point(self._normal(solution.costs))

    def follow(self, grid: Floats, *, chebyshev: bool) -> None:
        """Solve for each weight vector of ``grid`` while solves are left; those of the anchors are done already."""
        for weights in grid:
            if self._left and not (chebyshev and weights.max() == 1.0):
                self._solve(weights, chebyshev=chebyshev)

    def refine(self, stop_gap: float) -> None:
        """Aim at the greatest gap until none is left."""
        region = self._region
        assert region is not None
        while self._left and len(region.bounds):
            target = region.greatest()
            if region.gaps[target] <= stop_gap:
                return
            bound = region.bounds[target]
            self._solve(1.0 / (np.maximum(bound, SAME) + UTOPIA_SHIFT), chebyshev=True)
            # Unless a point below it was found, and has split it, there is none, or none far enough below to tell.
            region.close(bound)
        self._trail.complete = self._solver.exact and not len(region.bounds)

    def front(self) -> Front:
        """What was found, dominated points dropped."""
        costs = np.array([solution.costs for solution in self._solutions])
        _, first = np.unique([self._key(solution) for solution in self._solutions], axis=0, return_index=True)
        best = first[nondominated(costs[first])]
        best = best[np.lexsort(costs[best].T[::-1])]
        return Front(
            objectives=self._problem.objectives,
            points=self._problem.values(costs[best]),
            assignments=np.array([self._solutions[index].assignment for index in best]),
            weights=np.array([self._weights[index] for index in best]),
            solves=self._solves,
        )

    def _normal(self, costs: Floats) -> Floats:
        width = self._nadir - self._ideal
        result: Floats = (costs - self._ideal) / np.where(width > 0, width, 1.0)
        return result

    def _key(self, solution: Solution) -> tuple[float, ...]:
        return tuple(np.round(self._normal(solution.costs), 9) + 0.0)

    def _solve(self, weights: Floats, *, chebyshev: bool) -> Solution | None:
        width = np.where(self._nadir > self._ideal, self._nadir - self._ideal, 1.0)
        utopia = self._ideal - UTOPIA_SHIFT * width
        score = Scalarisation.of(weights, utopia, utopia + width, rho=self._rho, chebyshev=chebyshev)
        solution = self._solver.solve(score, known=self._best_known(score))
        self._left -= 1
        self._solves += 1
        if solution is None:
            return None
        region = self._region
        self._trail.gaps.append(float(region.gaps.max(initial=0.0)) if region is not None else np.inf)
        self._trail.found.append(solution.costs)
        self._keep(solution, score.weights)
        if solution.others is not None and len(solution.others):
            self._keep_others(solution.others)
        if self._region is not None and chebyshev:
            self._region.add_empty(self._proved_empty(score, solution.score))
        return solution

    def _keep(self, solution: Solution, weights: Floats) -> None:
        key = self._key(solution)
        if key not in self._seen:
            self._seen.add(key)
            self._solutions.append(solution)
            self._weights.append(weights)
            if self._region is not None:
                self._region.add_point(self._normal(solution.costs))

    def _keep_others(self, assignments: Ints) -> None:
        """Those that no known point dominates, with the weights that would choose them if they were on the front."""
        costs = self._problem.evaluate(assignments)
        known = np.array([solution.costs for solution in self._solutions])
        for row in np.flatnonzero(nondominated(np.vstack([known, costs]))[len(known) :]):
            inverse = 1.0 / (np.maximum(self._normal(costs[row]), 0.0) + UTOPIA_SHIFT)
            self._keep(Solution(assignments[row], costs[row], np.nan), inverse / inverse.sum())

    def _best_known(self, score: Scalarisation) -> Solution | None:
        if not self._solutions:
            return None
        scores = score(np.array([solution.costs for solution in self._solutions]))
        best = int(np.argmin(scores))
        chosen = self._solutions[best]
        return Solution(chosen.assignment, chosen.costs, float(scores[best]))

    def _proved_empty(self, score: Scalarisation, least: float) -> Floats:
        """The corner of the box that can hold no assignment because every one scores at least ``least``: below it the
        weighted deviations are under ``t`` and their sum under ``t * sum(1 / w)``."""
        weights = np.maximum(score.weights, 1e-12)
        # In normalised costs the utopian point lies at -UTOPIA_SHIFT, and the shift counts in the score.
        reach = least / (1.0 + score.rho * float((1.0 / weights).sum()))
        result: Floats = reach / weights - UTOPIA_SHIFT - SAME
        return result
