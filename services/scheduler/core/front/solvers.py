"""Solvers of one scalarised assignment: exact by branch and bound, fast by local search.

Both answer the same question, "the assignment with the least score among those within the limits", so the explorer and
the epsilon-constraint method do not care which one they ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import SLACK, AssignmentProblem
from services.scheduler.core.front.dominance import Bools, Floats, Ints, nondominated
from services.scheduler.core.front.objectives import Scalarisation

TOLERANCE = 1e-11
"""Scores that differ by less count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """An assignment (J,), its costs (k,) and its score; ``others`` (m, J) are feasible ones met on the way, none of which
    another of them dominates (only from solvers without proof, whose steps are cheap to keep)."""

    assignment: Ints
    costs: Floats
    score: float
    others: Ints | None = None


class Solver(Protocol):
    """Something that minimises a scalarisation over a problem's assignments."""

    exact: bool
    """Whether the answer is proved to be the best."""

    def solve(
        self, score: Scalarisation, limits: Floats | None = None, known: Solution | None = None
    ) -> Solution | None:
        """The best assignment whose costs are at most ``limits`` (k,); None when there is none. ``known`` is one that is
        within the limits, to begin with."""
        ...


class BranchAndBound:
    """Exact, depth first over blocks of partial assignments, each block scored as one array.

    Steps: 1. order the jobs, those with the greatest spread of costs first; 2. find multipliers ``l`` on the simplex with a
    high dual bound, since ``max_i w_i d_i >= sum_i l_i w_i d_i`` and the right side separates by job; 3. extend a block by
    all options of the next job, drop what overdraws a pool or exceeds a limit; 4. bound each child by its own costs
    plus, for the remaining jobs, both the least costs per objective and the separable bound of every multiplier; drop it
    when that is no better than the best known; 5. split a block that grows too large, best half first.

    PolicyError when more than ``max_nodes`` partial assignments would be looked at.
    """

    exact = True

    def __init__(self, problem: AssignmentProblem, *, block: int = 8192, max_nodes: int = 20_000_000) -> None:
        self.problem = problem
        self.nodes = 0
        self._block = block
        self._max_nodes = max_nodes
        costs = np.where(np.isfinite(problem.costs), problem.costs, np.nan)
        width = np.nanmax(costs, axis=(0, 1)) - np.nanmin(costs, axis=(0, 1))
        spread = (np.nanmax(costs, axis=1) - np.nanmin(costs, axis=1)) / np.where(width > 0, width, 1.0)
        self._order: Ints = np.argsort(-spread.sum(axis=1), kind="stable")
        self._costs: Floats = problem.costs[self._order]
        self._needs: Floats = problem.pool_demand[self._order]
        least = self._costs.min(axis=1)
        after = np.where(problem.additive, 0.0, -np.inf)
        self._least: Floats = np.vstack([np.zeros_like(least), after])
        for job in range(len(least) - 1, -1, -1):
            after = np.where(problem.additive, after + least[job], np.maximum(after, least[job]))
            self._least[job] = after

    def solve(
        self, score: Scalarisation, limits: Floats | None = None, known: Solution | None = None
    ) -> Solution | None:
        """See `Solver`."""
        additive, count = self.problem.additive, len(self._order)
        factors = self._factors(score)
        suffix = self._suffixes(factors)
        offset = factors @ score.ideal
        best, best_rows = (np.inf, None) if known is None else (known.score, None)
        budget = self._max_nodes
        start = np.where(additive, 0.0, -np.inf)[None]
        stack = [(np.empty((1, 0), dtype=np.int64), start, np.zeros((1, len(self.problem.capacity))), np.zeros(1))]
        while stack:
            chosen, costs, used, bounds = stack.pop()
            alive = bounds < best - TOLERANCE if np.isfinite(best) else np.ones(len(bounds), dtype=np.bool_)
            chosen, costs, used = chosen[alive], costs[alive], used[alive]
            if not len(chosen):
                continue
            job = chosen.shape[1]
            rows, columns, costs, used = self._children(job, costs, used, limits)
            budget -= len(rows)
            self.nodes += len(rows)
            if budget < 0:
                raise PolicyError(f"more than {self._max_nodes} partial assignments: too large to be solved exactly")
            if not len(rows):
                continue
            chosen = np.column_stack([chosen[rows], columns])
            if job + 1 == count:
                scores = score(costs)
                winner = int(np.argmin(scores))
                if scores[winner] < best - TOLERANCE:
                    best, best_rows = float(scores[winner]), chosen[winner]
                continue
            bounds = np.maximum(
                score(self._optimistic(costs, job + 1)), self._dual(costs, job + 1, factors, suffix, offset)
            )
            order = np.argsort(bounds, kind="stable")
            order = order[bounds[order] < best - TOLERANCE] if np.isfinite(best) else order
            pieces = [order[at : at + self._block] for at in range(0, len(order), self._block)]
            stack += [(chosen[piece], costs[piece], used[piece], bounds[piece]) for piece in reversed(pieces)]
        if best_rows is None:
            return known
        assignment = np.empty(count, dtype=np.int64)
        assignment[self._order] = best_rows
        exact_costs = self.problem.evaluate(assignment[None])[0]
        return Solution(assignment, exact_costs, float(score(exact_costs)))

    def _children(
        self, job: int, costs: Floats, used: Floats, limits: Floats | None
    ) -> tuple[Ints, Ints, Floats, Floats]:
        more = used[:, None] + self._needs[job][None]
        rows, columns = np.nonzero(
            (more <= self.problem.capacity + SLACK).all(axis=2) & self.problem.allowed[self._order[job]]
        )
        own, added = costs[rows], self._costs[job, columns]
        grown = np.where(self.problem.additive, own + added, np.maximum(own, added))
        if limits is not None:
            within = (self._optimistic(grown, job + 1) <= limits + SLACK * np.maximum(1.0, np.abs(limits))).all(axis=1)
            rows, columns, grown = rows[within], columns[within], grown[within]
        return rows, columns, grown, more[rows, columns]

    def _optimistic(self, costs: Floats, job: int) -> Floats:
        """(m, k) costs when every job from ``job`` on takes what is best for each objective by itself."""
        result: Floats = np.where(self.problem.additive, costs + self._least[job], np.maximum(costs, self._least[job]))
        return result

    def _dual(self, costs: Floats, job: int, factors: Floats, suffix: Floats, offset: Floats) -> Floats:
        additive = self.problem.additive
        known = np.where(additive, costs, self._optimistic(costs, job))
        result: Floats = (known @ factors.T + suffix[:, job] - offset).max(axis=1)
        return result

    def _suffixes(self, factors: Floats) -> Floats:
        """(L, J + 1) for each multiplier, the separable bound of the jobs from j on, additive objectives only."""
        weighted = (
            np.where(self.problem.additive, np.where(np.isfinite(self._costs), self._costs, 0.0), 0.0) @ factors.T
        )
        weighted[~self.problem.allowed[self._order]] = np.inf
        least = weighted.min(axis=1)
        result = np.zeros((len(factors), len(least) + 1))
        result[:, :-1] = np.cumsum(least[::-1], axis=0)[::-1].T
        return result

    def _factors(self, score: Scalarisation) -> Floats:
        """(L, k) what each multiplier makes a unit of each cost worth."""
        if not score.chebyshev:
            alone: Floats = (score.weights / score.width)[None]
            return alone
        count = len(score.weights)
        multipliers = np.full(count, 1.0 / count)
        kept: list[Floats] = []
        best = -np.inf
        costs = np.where(np.isfinite(self._costs), self._costs, 0.0)
        banned = ~self.problem.allowed[self._order]
        for step in range(24):
            factor = (multipliers * score.weights + score.rho) / score.width
            priced = costs @ factor
            priced[banned] = np.inf
            choice = priced.argmin(axis=1)
            taken = costs[np.arange(len(costs)), choice]
            reached = np.where(self.problem.additive, taken.sum(axis=0), self._least[0])
            bound = float((reached - score.ideal) @ factor)
            if bound > best:
                best = bound
                kept.append(factor)
            slope = score.weights * (reached - score.ideal) / score.width
            size = float(np.abs(slope).max())
            if size <= 0:
                break
            multipliers = multipliers * np.exp(slope / size * 2.0 / np.sqrt(step + 1.0))
            multipliers /= multipliers.sum()
        result: Floats = np.array(kept[-4:])
        return result


class LocalSearch:
    """Fast and without proof: greedy start, steepest descent over moves and swaps, kicks. Deterministic for a seed.

    Steps: 1. begin with ``known`` and with an assignment built greedily, scarce jobs first; 2. score every move of one job
    to another option and every exchange of two jobs' options as one array, take the best while it improves; 3. kick: give
    a few jobs random options, descend again, keep the better; 4. repeat ``kicks`` times; 5. hand back, besides the best, what
    the search met and nothing else it met dominates.

    What overdraws a pool or exceeds a limit is scored with a penalty, and never returned.
    """

    exact = False

    def __init__(self, problem: AssignmentProblem, seed: int, *, kicks: int = 12, swaps_up_to: int = 64) -> None:
        self.problem = problem
        self._random = np.random.default_rng(seed)
        self._kicks = kicks
        self._costs = np.where(problem.allowed[:, :, None], problem.costs, 0.0)
        self._needs = np.where(problem.allowed[:, :, None], problem.pool_demand, 0.0)
        jobs = len(self._costs)
        first, second = (
            np.triu_indices(jobs, 1) if jobs <= swaps_up_to else (np.empty(0, np.int64), np.empty(0, np.int64))
        )
        self._pairs = (first.astype(np.int64), second.astype(np.int64))

    def solve(
        self, score: Scalarisation, limits: Floats | None = None, known: Solution | None = None
    ) -> Solution | None:
        """See `Solver`."""
        starts = [self._greedy(score)] if known is None else [known.assignment, self._greedy(score)]
        descended = [self._descend(start, score, limits) for start in starts]
        best, value = min(descended, key=lambda pair: pair[1])
        ends = [chosen for chosen, _ in descended]
        jobs = len(best)
        for _ in range(self._kicks):
            kicked = best.copy()
            for job in self._random.choice(jobs, size=min(jobs, 3), replace=False):
                kicked[job] = self._random.choice(np.flatnonzero(self.problem.allowed[job]))
            other, reached = self._descend(kicked, score, limits)
            ends.append(other)
            if reached < value - TOLERANCE:
                best, value = other, reached
        costs = self.problem.evaluate(best[None])[0]
        if not self.problem.feasible(best[None])[0]:
            return known
        if limits is not None and (costs > limits + SLACK * np.maximum(1.0, np.abs(limits))).any():
            return known
        return Solution(best, costs, float(score(costs)), self._others(best, ends))

    def _others(self, best: Ints, ends: list[Ints]) -> Ints:
        """Where the descents ended, and what lies one move beside the best: feasible and not dominated."""
        jobs, options = self.problem.allowed.shape
        beside = np.repeat(best[None], jobs * options, axis=0)
        rows = np.arange(jobs * options)
        beside[rows, rows // options] = rows % options
        together = np.unique(
            np.vstack([beside[self.problem.allowed.reshape(-1)], *(end[None] for end in ends)]), axis=0
        )
        together = together[self.problem.feasible(together)]
        result: Ints = together[nondominated(self.problem.evaluate(together))]
        return result

    def _greedy(self, score: Scalarisation) -> Ints:
        """Each job takes its cheapest option by the weighted sum that still fits; the cheapest of all when none does."""
        factor = (score.weights + score.rho) / score.width
        priced = self._costs @ factor
        priced[~self.problem.allowed] = np.inf
        free = self.problem.capacity.copy()
        chosen = np.zeros(len(priced), dtype=np.int64)
        for job in np.argsort(-self._needs.max(axis=(1, 2)), kind="stable"):
            fits = (self._needs[job] <= free + SLACK).all(axis=1) & self.problem.allowed[job]
            chosen[job] = int(np.argmin(np.where(fits, priced[job], np.inf) if fits.any() else priced[job]))
            free = free - self._needs[job, chosen[job]]
        return chosen

    def _descend(self, start: Ints, score: Scalarisation, limits: Floats | None) -> tuple[Ints, float]:
        chosen = start.copy()
        jobs = np.arange(len(chosen))
        used = self._needs[jobs, chosen].sum(axis=0)
        costs = self.problem.evaluate(chosen[None])[0]
        value = float(self._penalised(costs[None], used[None], score, limits)[0])
        while True:
            moved = self._moves(chosen, costs, used, score, limits)
            swapped = self._swaps(chosen, costs, used, score, limits)
            best_move = int(np.argmin(moved))
            best_swap = int(np.argmin(swapped)) if len(swapped) else -1
            if best_swap >= 0 and swapped[best_swap] < moved.flat[best_move]:
                reached = float(swapped[best_swap])
                one, two = self._pairs[0][best_swap], self._pairs[1][best_swap]
                changed = {one: chosen[two], two: chosen[one]}
            else:
                reached = float(moved.flat[best_move])
                job, option = divmod(best_move, moved.shape[1])
                changed = {job: option}
            if reached >= value - TOLERANCE:
                return chosen, value
            value = reached
            for job, option in changed.items():
                chosen[job] = option
            used = self._needs[jobs, chosen].sum(axis=0)
            costs = self.problem.evaluate(chosen[None])[0]

    def _penalised(self, costs: Floats, used: Floats, score: Scalarisation, limits: Floats | None) -> Floats:
        over = np.maximum(used - self.problem.capacity - SLACK, 0.0).sum(axis=-1)
        result: Floats = score(costs) + 1e3 * (over > 0) + 1e3 * over
        if limits is not None:
            beyond = np.maximum((costs - limits) / score.width - SLACK, 0.0).sum(axis=-1)
            result = result + 1e2 * (beyond > 0) + 1e3 * beyond
        return result

    def _without(self, costs: Floats, own: Floats) -> Floats:
        """(J, k) costs without each job, for objectives that take the worst job."""
        order = np.sort(own, axis=0)
        runner_up = order[-2] if len(order) > 1 else np.full(own.shape[1], -np.inf)
        result: Floats = np.where(own >= order[-1], runner_up, order[-1])
        return np.where(self.problem.additive, costs - own, result)

    def _moves(self, chosen: Ints, costs: Floats, used: Floats, score: Scalarisation, limits: Floats | None) -> Floats:
        """(J, O) score after moving one job."""
        jobs = np.arange(len(chosen))
        own, need = self._costs[jobs, chosen], self._needs[jobs, chosen]
        rest = self._without(costs, own)[:, None]
        after = np.where(self.problem.additive, rest + self._costs, np.maximum(rest, self._costs))
        result = self._penalised(after, (used - need)[:, None] + self._needs, score, limits)
        result[~self.problem.allowed] = np.inf
        result[jobs, chosen] = np.inf
        return result

    def _swaps(self, chosen: Ints, costs: Floats, used: Floats, score: Scalarisation, limits: Floats | None) -> Floats:
        """(J (J - 1) / 2,) score after two jobs exchange their options."""
        one, two = self._pairs
        if not len(one):
            return np.empty(0)
        can: Bools = self.problem.allowed[one, chosen[two]] & self.problem.allowed[two, chosen[one]]
        can &= chosen[one] != chosen[two]
        gained = self._costs[one, chosen[two]], self._costs[two, chosen[one]]
        lost = self._costs[one, chosen[one]], self._costs[two, chosen[two]]
        after = costs + gained[0] + gained[1] - lost[0] - lost[1]
        if not self.problem.additive.all():
            own = self._costs[np.arange(len(chosen)), chosen]
            top = np.sort(own, axis=0)[::-1][:3]
            top = np.vstack([top, np.full((3 - len(top), own.shape[1]), -np.inf)]) if len(top) < 3 else top
            high, low = np.maximum(*lost), np.minimum(*lost)
            rest = np.where(high < top[0], top[0], np.where(low >= top[1], top[2], top[1]))
            worst = np.maximum(np.maximum(gained[0], gained[1]), rest)
            after = np.where(self.problem.additive, after, worst)
        taken = self._needs[one, chosen[two]] + self._needs[two, chosen[one]]
        given = self._needs[one, chosen[one]] + self._needs[two, chosen[two]]
        result = self._penalised(after, used + taken - given, score, limits)
        result[~can] = np.inf
        return result
