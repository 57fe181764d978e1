"""Fronts: what they are worth, how they compare to the true one, and which point a user's weights choose, and why.

Everything here works on points that are already known; finding them is the explorer's part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import MAX_ASSIGNMENTS, AssignmentProblem, enumerate_feasible
from services.scheduler.core.front.dominance import Bools, Floats, Ints, crowding, nondominated
from services.scheduler.core.front.hypervolume import hypervolume
from services.scheduler.core.front.objectives import Objective, Scalarisation, check_weights, signs

UTOPIA_SHIFT = 0.01
"""How far beyond the ideal the utopian point lies, as a share of the range: keeps weights finite at the ends of a front."""

EPSILON = 0.01
"""A point of the true front counts as reached when one lies this near, as a share of the front's range."""

PICK_RHO = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Points (n, k) in the objectives' units, none dominated by another, each with its assignment (n, J) and the weights
    (n, k) of the solve that found it; ``solves`` were spent in all."""

    objectives: tuple[Objective, ...]
    points: Floats
    assignments: Ints
    weights: Floats
    solves: int = 0

    def __len__(self) -> int:
        return len(self.points)

    @property
    def costs(self) -> Floats:
        """(n, k) points with small as good everywhere."""
        result: Floats = self.points * signs(self.objectives)
        return result

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return tuple(objective.name for objective in self.objectives)

    def as_json(self, problem: AssignmentProblem | None = None) -> dict[str, Any]:
        """For an API: objectives, points with values, weights and crowding (null at the ends), the index of the knee. With
        ``problem``, assignments by the names of jobs and options; else by number."""
        crowded = crowding(self.costs)
        return {
            "objectives": [
                {"name": objective.name, "unit": objective.unit, "direction": str(objective.direction)}
                for objective in self.objectives
            ],
            "points": [
                {
                    "index": index,
                    "values": dict(zip(self.names, map(float, point), strict=True)),
                    "weights": dict(zip(self.names, map(float, weights), strict=True)),
                    "crowding": float(crowded[index]) if math.isfinite(crowded[index]) else None,
                    "assignment": _assignment_json(assignment, problem),
                }
                for index, (point, weights, assignment) in enumerate(
                    zip(self.points, self.weights, self.assignments, strict=True)
                )
            ],
            "knee": knee(self.costs) if len(self) else None,
            "solves": self.solves,
        }


def _assignment_json(assignment: Ints, problem: AssignmentProblem | None) -> Any:
    if problem is None:
        return [int(option) for option in assignment]
    names = problem.option_names
    return {job: names[int(option)] for job, option in zip(problem.job_names, assignment, strict=True)}


def exact_front(problem: AssignmentProblem, limit: int = MAX_ASSIGNMENTS) -> Front:
    """The true front by enumeration, one assignment for each distinct point. Weights are those that choose the point.

    PolicyError when there are more than ``limit`` assignments, or none.
    """
    assignments, costs = enumerate_feasible(problem, limit)
    if not len(costs):
        raise PolicyError("no assignment keeps all capacities")
    keep = np.flatnonzero(nondominated(costs))
    # The same sum in another order of jobs differs in the last digits: such points are one.
    scale = np.maximum(np.abs(costs[keep]).max(axis=0), 1e-300)
    _, first = np.unique(np.round(costs[keep] / scale, 11), axis=0, return_index=True)
    keep = keep[first]
    return Front(problem.objectives, problem.values(costs[keep]), assignments[keep], choosing_weights(costs[keep]))


def bounds_of(costs: Floats) -> tuple[Floats, Floats]:
    """(k,) least cost of each objective, and its range over the rows, 1 where all are equal."""
    low = costs.min(axis=0)
    width = costs.max(axis=0) - low
    return low, np.where(width > 0, width, 1.0)


def reached(true_costs: Floats, found_costs: Floats, epsilon: float = EPSILON, *, dominance: bool = False) -> Bools:
    """(n,) which points of the true front are reached. See `coverage`."""
    if not len(found_costs):
        return np.zeros(len(true_costs), dtype=np.bool_)
    low, width = bounds_of(true_costs)
    true, found = (true_costs - low) / width, (found_costs - low) / width
    result = np.zeros(len(true), dtype=np.bool_)
    for index, point in enumerate(true):
        apart = found - point if dominance else np.abs(found - point)
        result[index] = bool((apart.max(axis=1) <= epsilon + 1e-9).any())
    return result


def coverage(true_costs: Floats, found_costs: Floats, epsilon: float = EPSILON, *, dominance: bool = False) -> float:
    """Share of the true front's points (n, k) within ``epsilon`` of a found one (m, k).

    Each objective is divided by the true front's range; within means that no objective differs by more than ``epsilon``, in
    either direction. With ``dominance`` a found point may also be better: none of its objectives is worse by more (the
    weaker additive epsilon-dominance).
    """
    if not len(true_costs):
        raise PolicyError("the true front has no points")
    return float(reached(true_costs, found_costs, epsilon, dominance=dominance).mean())


def hypervolume_ratio(true_costs: Floats, found_costs: Floats) -> float:
    """Hypervolume of the found points over that of the true front, both normalised by the true front's range, reference
    point 1.1 in every objective."""
    low, width = bounds_of(true_costs)
    reference = np.full(true_costs.shape[1], 1.1)
    whole = hypervolume((true_costs - low) / width, reference)
    return hypervolume((found_costs - low) / width, reference) / whole


def knee(costs: Floats) -> int:
    """Index of the point farthest below the plane through the ends, in normalised costs: where giving up a little more of
    one objective no longer buys much of another (Das 1999). The least sum, since that plane's normal is (1, ..., 1)."""
    low, width = bounds_of(costs)
    return int(np.argmin(((costs - low) / width).sum(axis=1)))


def choosing_weights(costs: Floats) -> Floats:
    """(n, k) for each point of a front, weights for which `pick` chooses it: inverse to its distance from the utopian
    point, so that all its weighted deviations are equal."""
    low, width = bounds_of(costs)
    inverse = 1.0 / ((costs - low) / width + UTOPIA_SHIFT)
    result: Floats = inverse / inverse.sum(axis=1, keepdims=True)
    return result


@dataclass(frozen=True, slots=True)
class Term:
    """What one objective contributes to a choice. ``regret`` is the distance from the front's best, 0-1; ``pressure`` the
    weighted deviation: the objective with the greatest decides (``binding``)."""

    name: str
    unit: str
    value: float
    best: float
    worst: float
    weight: float
    regret: float
    pressure: float
    binding: bool


@dataclass(frozen=True, slots=True)
class Trade:
    """Going to another point: the one that gains most in ``improves`` per what it gives up most. ``changes`` by objective in
    its unit; ``chosen_by`` are weights for which that point is picked instead (None: there are none on this front)."""

    index: int
    improves: str
    changes: dict[str, float]
    chosen_by: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The point that was picked, with its reasons."""

    index: int
    score: float | None
    terms: tuple[Term, ...]
    trades: tuple[Trade, ...]

    def text(self) -> str:
        """The reasons as sentences."""
        parts = []
        for term in self.terms:
            mark = "; this decides" if term.binding else ""
            parts.append(
                f"{term.name} {term.value:g} {term.unit} (best {term.best:g}, {term.regret:.0%} of the range away, "
                f"weight {term.weight:.2f}{mark})"
            )
        lines = [f"Point {self.index}: " + ", ".join(parts) + "."]
        units = {term.name: term.unit for term in self.terms}
        for trade in self.trades:
            changes = ", ".join(f"{name} {change:+g} {units[name]}" for name, change in trade.changes.items() if change)
            lines.append(f"Point {trade.index} for better {trade.improves}: {changes}.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For an API."""
        return {
            "index": self.index,
            "score": self.score,
            "terms": [{field: getattr(term, field) for field in Term.__slots__} for term in self.terms],
            "trades": [{field: getattr(trade, field) for field in Trade.__slots__} for trade in self.trades],
            "text": self.text(),
        }


def pick(front: Front, weights: Sequence[float] | Floats | None = None, *, index: int | None = None) -> Choice:
    """The point that ``weights`` (k,) choose, or the point ``index``, with what each objective gives and the neighbours.

    By weights: the least augmented Chebyshev distance from the utopian point, over the front's range. PolicyError for an
    empty front, bad weights, an index that does not exist, and unless exactly one of the two is given.
    """
    if not len(front):
        raise PolicyError("the front has no points")
    if (weights is None) == (index is None):
        raise PolicyError("give either weights or index")
    costs = front.costs
    if index is not None:
        if not 0 <= index < len(front):
            raise PolicyError(f"index must lie between 0 and {len(front) - 1}, not {index}")
        return _explain(front, index, choosing_weights(costs)[index], None)
    checked = check_weights(weights if weights is not None else (), front.names)
    scores = _score(costs, checked)
    chosen = int(np.argmin(scores))
    return _explain(front, chosen, checked, float(scores[chosen]))


def _score(costs: Floats, weights: Floats) -> Floats:
    low, width = bounds_of(costs)
    utopia = low - UTOPIA_SHIFT * width
    return Scalarisation.of(weights, utopia, utopia + width, rho=PICK_RHO)(costs)


def _explain(front: Front, index: int, weights: Floats, score: float | None) -> Choice:
    costs = front.costs
    low, width = bounds_of(costs)
    regrets = (costs - low) / width
    pressure = weights * (regrets[index] + UTOPIA_SHIFT)
    sign = signs(front.objectives)
    terms = tuple(
        Term(
            objective.name,
            objective.unit,
            value=float(front.points[index, column]),
            best=float(low[column] * sign[column]),
            worst=float(costs[:, column].max() * sign[column]),
            weight=float(weights[column]),
            regret=float(regrets[index, column]),
            pressure=float(pressure[column]),
            binding=bool(pressure[column] >= pressure.max() * (1 - 1e-9)),
        )
        for column, objective in enumerate(front.objectives)
    )
    return Choice(index, score, terms, tuple(_trades(front, index, regrets)))


def _trades(front: Front, index: int, regrets: Floats) -> list[Trade]:
    """For each objective that can be improved, the point that gains most of it per greatest loss elsewhere."""
    trades = []
    weights = choosing_weights(front.costs)
    for column, objective in enumerate(front.objectives):
        gain = regrets[index, column] - regrets[:, column]
        if gain.max() <= 0:
            continue
        loss = (regrets - regrets[index]).max(axis=1)
        ratio = np.where(gain > 0, gain / np.maximum(loss, 1e-12), -np.inf)
        other = int(np.argmax(ratio))
        flips = int(np.argmin(_score(front.costs, weights[other]))) == other
        trades.append(
            Trade(
                other,
                objective.name,
                {name: float(front.points[other, at] - front.points[index, at]) for at, name in enumerate(front.names)},
                dict(zip(front.names, map(float, weights[other]), strict=True)) if flips else None,
            )
        )
    return trades
