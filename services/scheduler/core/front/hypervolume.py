"""Hypervolume: how much of the space below a reference point a set of points dominates. The one unary measure that never
prefers a worse front (E. Zitzler et al., "Performance assessment of multiobjective optimizers", 2003)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.dominance import Floats, nondominated


def hypervolume(costs: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Exact volume dominated by ``costs`` (n, k) and bounded by ``reference`` (k,), in the product of the objectives' units.

    Steps: 1. drop what does not lie below the reference and what is dominated; 2. sweep along the last objective; 3. between
    two values of it the section is a hypervolume of one objective less, which grows by what the new point alone adds:
    its own box less the hypervolume of the others clipped to that box (L. While et al., "A fast way of calculating exact
    hypervolumes", IEEE Transactions on Evolutionary Computation 16, 2012); 4. two objectives are a staircase.

    PolicyError when the shapes differ or a number is not finite.
    """
    points = np.asarray(costs, dtype=np.float64)
    corner = np.asarray(reference, dtype=np.float64)
    if corner.ndim != 1 or not len(corner) or points.ndim != 2 or points.shape[1] != len(corner):
        raise PolicyError(f"costs must be (n, k) and reference (k,), not {points.shape} and {corner.shape}")
    if not (np.isfinite(points).all() and np.isfinite(corner).all()):
        raise PolicyError("costs and reference must be finite")
    below = points[(points < corner).all(axis=1)]
    return _volume(np.unique(below[nondominated(below)], axis=0), corner) if len(below) else 0.0


def _volume(points: Floats, corner: Floats) -> float:
    """Of distinct points that do not dominate each other, all below the corner."""
    objectives = points.shape[1]
    if len(points) == 1 or objectives == 1:
        return float(np.prod(corner - points.min(axis=0)))
    if objectives == 2:
        order = points[np.argsort(points[:, 0])]
        widths = np.append(order[1:, 0], corner[0]) - order[:, 0]
        return float((widths * (corner[1] - order[:, 1])).sum())
    order = points[np.argsort(points[:, -1], kind="stable")]
    depths = np.append(order[1:, -1], corner[-1]) - order[:, -1]
    if objectives == 3:
        return _sweep(order, depths, corner)
    total = section = 0.0
    for index, depth in enumerate(depths):
        section += _alone(order[index, :-1], order[:index, :-1], corner[:-1])
        total += section * float(depth)
    return total


def _alone(point: Floats, others: Floats, corner: Floats) -> float:
    """What ``point`` dominates and none of ``others`` does."""
    own = float(np.prod(corner - point))
    if not len(others):
        return own
    clipped = np.unique(np.maximum(others, point), axis=0)
    return own - _volume(clipped[nondominated(clipped)], corner)


def _sweep(order: Floats, depths: Floats, corner: Floats) -> float:
    """Three objectives: the section is a staircase, kept sorted by the first objective, falling in the second."""
    right, top = float(corner[0]), float(corner[1])
    xs: list[float] = []
    ys: list[float] = []
    total = section = 0.0
    for (x, y), depth in zip(order[:, :2].tolist(), depths.tolist(), strict=True):
        at = _place(xs, x)
        above = ys[at - 1] if at else top
        if above > y and not (at < len(xs) and xs[at] == x and ys[at] <= y):
            end, left, height = at, x, above
            while end < len(xs) and ys[end] >= y:
                section += (xs[end] - left) * (height - y)
                left, height = xs[end], ys[end]
                end += 1
            section += ((xs[end] if end < len(xs) else right) - left) * (height - y)
            xs[at:end], ys[at:end] = [x], [y]
        total += section * depth
    return total


def _place(ordered: list[float], value: float) -> int:
    """Index of the first that is at least ``value``."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ordered[middle] < value else (low, middle)
    return low
