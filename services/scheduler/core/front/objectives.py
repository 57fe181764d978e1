"""Objectives and how several become one number: the scalarisations that a policy's weights act through.

A weighted sum can only ever choose points on the convex hull of what is possible; the augmented weighted Chebyshev
distance reaches every Pareto-optimal point, also where the front is concave, and never chooses a dominated one. So the
distance is what the scheduler uses, and the sum is kept for comparison.

Sources: R. E. Steuer, E.-U. Choo, "An interactive weighted Tchebycheff procedure for multiple objective programming",
Mathematical Programming 26, 1983; A. P. Wierzbicki, "The use of reference objectives in multiobjective optimization",
1980; K. Miettinen, "Nonlinear Multiobjective Optimization", 1999, section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.dominance import Floats

DEFAULT_TENANT = "default"
"""Whose weights hold for a tenant that has none."""

RHO = 1e-3
"""Share of the sum in the augmented distance: enough to break ties, too little to outvote the greatest deviation."""


class Direction(StrEnum):
    """Which way is better."""

    MINIMISE = "minimise"
    MAXIMISE = "maximise"


class Combine(StrEnum):
    """How an objective of a schedule follows from those of its jobs."""

    TOTAL = "total"
    """The sum over jobs."""
    WORST = "worst"
    """The worst job: the greatest value when minimised, the least when maximised."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is wanted, in ``unit``.

    ``ideal`` and ``nadir`` are the best and the worst value that matter (NaN: estimated from the candidates), ``scale``
    the difference that counts as one (NaN: from ideal to nadir). Raises PolicyError when they contradict each other.
    """

    name: str
    unit: str
    direction: Direction = Direction.MINIMISE
    ideal: float = math.nan
    nadir: float = math.nan
    scale: float = math.nan
    combine: Combine = Combine.TOTAL

    def __post_init__(self) -> None:
        where = f"objectives.{self.name or '?'}"
        if not self.name:
            raise PolicyError("objectives: an objective needs a name")
        for field in ("ideal", "nadir", "scale"):
            if math.isinf(getattr(self, field)):
                raise PolicyError(f"{where}.{field}: must be finite")
        if self.scale <= 0:
            raise PolicyError(f"{where}.scale: must be greater than 0, not {self.scale:g}")
        if self.sign * (self.nadir - self.ideal) <= 0:
            raise PolicyError(f"{where}.nadir: must be worse than ideal ({self.ideal:g}), not {self.nadir:g}")

    @property
    def sign(self) -> float:
        """1 when small is good, else -1: times this, every value is a cost."""
        return 1.0 if self.direction is Direction.MINIMISE else -1.0


def signs(objectives: Sequence[Objective]) -> Floats:
    """(k,) factors that turn values into costs."""
    return np.array([objective.sign for objective in objectives])


def check_weights(weights: Sequence[float] | Floats, names: Sequence[str], where: str = "weights") -> Floats:
    """(k,) the weights, divided by their sum. PolicyError, naming the weight, when one is negative, infinite or NaN, when
    all are zero or their number is wrong."""
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (len(names),):
        raise PolicyError(f"{where}: must have {len(names)} values ({', '.join(names)}), not shape {given.shape}")
    for name, value in zip(names, given, strict=True):
        if not math.isfinite(value):
            raise PolicyError(f"{where}.{name}: must be a finite number, not {value}")
        if value < 0:
            raise PolicyError(f"{where}.{name}: must not be negative, not {value:g}")
    greatest = float(given.max(initial=0.0))
    if greatest <= 0:
        raise PolicyError(f"{where}: at least one of {', '.join(names)} must be greater than 0")
    scaled = given / greatest  # first, so that the sum of huge weights stays finite
    result: Floats = scaled / scaled.sum()
    return result


def weights_of(given: Mapping[str, float], objectives: Sequence[Objective], where: str = "weights") -> Floats:
    """(k,) checked weights by name; objectives that are not named weigh 0. PolicyError for an unknown name too."""
    names = [objective.name for objective in objectives]
    for name in given:
        if name not in names:
            raise PolicyError(f"{where}.{name}: there is no such objective; known are {', '.join(names)}")
    return check_weights([float(given.get(name, 0.0)) for name in names], names, where)


def tenant_weights(
    table: Mapping[str, Mapping[str, float]], tenants: Sequence[str], objectives: Sequence[Objective]
) -> Floats:
    """(n, k) weights of each tenant of ``tenants``, of `DEFAULT_TENANT` where it has none of its own, all equal where there
    is no default either. The whole table is checked first: PolicyError names ``weights.TENANT.OBJECTIVE``."""
    checked = {name: weights_of(given, objectives, f"weights.{name}") for name, given in table.items()}
    fallback = checked.get(DEFAULT_TENANT, np.full(len(objectives), 1.0 / len(objectives)))
    return np.array([checked.get(tenant, fallback) for tenant in tenants]).reshape(len(tenants), len(objectives))


def normalised(values: Floats, ideal: Floats, nadir: Floats) -> Floats:
    """(n, k) ``values`` with 0 at ``ideal`` and 1 at ``nadir``, both (k,), whichever of the two is greater.

    Where they are equal the difference itself counts (as a cost). PolicyError when a bound is not finite.
    """
    if not (np.isfinite(ideal).all() and np.isfinite(nadir).all()):
        raise PolicyError("ideal and nadir must be finite")
    width = np.where(nadir == ideal, 1.0, nadir - ideal)
    result: Floats = (values - ideal) / width
    return result


def augmented_chebyshev(
    values: npt.ArrayLike, ideal: npt.ArrayLike, nadir: npt.ArrayLike, weights: npt.ArrayLike, rho: float = RHO
) -> Floats:
    """(n,) distance of each of ``values`` (n, k) from ``ideal``: ``max_i w_i d_i + rho * sum_i d_i``; small is good.

    ``d`` are the values normalised to 0 at ``ideal`` and 1 at ``nadir``. ``weights`` is (k,) for all, or (n, k) with a row
    for each value (that of its tenant). With ``rho > 0`` the minimiser is Pareto optimal for every choice of weights, zeros
    included, because the sum is not weighted (Steuer and Choo 1983). PolicyError for bad weights, bounds or ``rho``.
    """
    matrix = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if not (math.isfinite(rho) and rho >= 0):
        raise PolicyError(f"rho must be a finite number of at least 0, not {rho}")
    factors = _factors(weights, matrix.shape[1])
    deviation = normalised(matrix, np.asarray(ideal, dtype=np.float64), np.asarray(nadir, dtype=np.float64))
    result: Floats = (factors * deviation).max(axis=1) + rho * deviation.sum(axis=1)
    return result


def linear(values: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """(n,) weighted sums of ``values`` (n, k), which the caller has normalised; the comparison to the distance above."""
    matrix = np.atleast_2d(np.asarray(values, dtype=np.float64))
    result: Floats = (matrix * _factors(weights, matrix.shape[1])).sum(axis=1)
    return result


def _factors(weights: npt.ArrayLike, count: int) -> Floats:
    """(1, k) or (n, k) checked weights."""
    rows = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    names = [str(index) for index in range(count)]
    return np.array([check_weights(row, names) for row in rows])


@dataclass(frozen=True, slots=True, eq=False)
class Scalarisation:
    """One number for a cost vector, for solvers that call it often: weights and bounds are checked once, when made by `of`.

    ``score = max_i weights_i d_i + rho * sum_i d_i`` with ``d = (costs - ideal) / width``; linear when ``chebyshev`` is
    False: ``sum_i weights_i d_i``.
    """

    weights: Floats
    ideal: Floats
    width: Floats
    rho: float = RHO
    chebyshev: bool = True

    @classmethod
    def of(
        cls, weights: Floats, ideal: Floats, nadir: Floats, *, rho: float = RHO, chebyshev: bool = True
    ) -> Scalarisation:
        """With checked weights; bounds are costs, so ``nadir`` may not be less than ``ideal``."""
        if not (np.isfinite(ideal).all() and np.isfinite(nadir).all() and (nadir >= ideal).all()):
            raise PolicyError("ideal and nadir must be finite costs, nadir not less than ideal")
        names = [str(index) for index in range(len(ideal))]
        width = np.where(nadir == ideal, 1.0, nadir - ideal)
        return cls(check_weights(weights, names), ideal, width, rho, chebyshev)

    def __call__(self, costs: Floats) -> Floats:
        """(...,) scores of costs (..., k)."""
        deviation = (costs - self.ideal) / self.width
        if not self.chebyshev:
            total: Floats = deviation @ self.weights
            return total
        result: Floats = (deviation * self.weights).max(axis=-1) + self.rho * deviation.sum(axis=-1)
        return result
