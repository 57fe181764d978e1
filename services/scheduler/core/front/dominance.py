"""Pareto dominance over arrays of costs: which points are worth offering at all, and how crowded they lie.

Costs are minimised. Source: K. Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE
Transactions on Evolutionary Computation 6, 2002.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def nondominated(costs: Floats) -> Bools:
    """(n,) whether no other row of ``costs`` (n, k) is at most equal everywhere and less somewhere; equal rows all stay.

    Steps: 1. order the distinct rows by their sum, so that none is dominated by a later one; 2. take the next row that is
    left and drop all later ones that it dominates. O(n f k) for f points on the front.
    """
    distinct, inverse = np.unique(costs, axis=0, return_inverse=True)
    # Rounding may give a row and one that it dominates the same sum; the lexical order of the rows then decides rightly.
    order = np.argsort(distinct.sum(axis=1), kind="stable")
    left, names = distinct[order], order
    done = 0
    while done < len(left):
        keep = (left < left[done]).any(axis=1)
        keep[: done + 1] = True
        left, names = left[keep], names[keep]
        done += 1
    best = np.zeros(len(distinct), dtype=np.bool_)
    best[names] = True
    result: Bools = best[inverse.reshape(-1)]
    return result


def ranks(costs: Floats) -> Ints:
    """(n,) 0 for the non-dominated rows, 1 for those that are once these are gone, and so on."""
    result = np.full(len(costs), -1, dtype=np.int64)
    rank = 0
    while (result < 0).any():
        rest = np.flatnonzero(result < 0)
        result[rest[nondominated(costs[rest])]] = rank
        rank += 1
    return result


def crowding(costs: Floats) -> Floats:
    """(n,) crowding distance (Deb et al. 2002): sum over objectives of the gap between a row's two neighbours, as a share
    of the objective's range. Infinite at both ends; an objective without a range adds nothing."""
    count, objectives = costs.shape
    result = np.zeros(count)
    for column in range(objectives):
        values = costs[:, column]
        order = np.argsort(values, kind="stable")
        width = values[order[-1]] - values[order[0]] if count else 0.0
        if width <= 0:
            continue
        result[order[[0, -1]]] = np.inf
        result[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / width
    return result
