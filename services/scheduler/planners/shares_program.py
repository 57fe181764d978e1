"""The linear programs of `gavel` over time shares: their rows are laid out once, column by column, as the solver takes them.

Over X (J, T) >= 0 every program has the rows sum_t X[j, t] <= 1 of each job and sum_j X[j, t] scale[j] <= capacity[t] of each
type; some have a row for what each job gains, and a variable that all rows of that kind share. On a single type they are knapsacks
of shares, and need no solver (`single_type`) but in corners.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners import single_type
from services.scheduler.planners.checks import FloatArray, IntArray


def alone_on_fastest(rates: FloatArray, scale: FloatArray, capacity: FloatArray) -> IntArray | None:
    """The fastest type of each job (J), where each has one that is faster than all others and there is room for all; else None.

    ``rates`` (J, T), 0 where a job does not run; each job runs somewhere. ``scale`` (J) and ``capacity`` (T) in devices.
    """
    best = rates.max(axis=1, initial=0.0)
    if ((rates == best[:, None]).sum(axis=1) != 1).any():
        return None
    fastest: IntArray = rates.argmax(axis=1)
    return fastest if (np.bincount(fastest, scale, capacity.size) <= capacity).all() else None


class SharesProgram:
    """The programs of one cluster: ``scale`` (J) devices of each job, ``capacity`` (T) devices of each type."""

    def __init__(self, scale: FloatArray, capacity: FloatArray) -> None:
        self._scale, self._capacity = scale, capacity
        jobs, types = scale.size, capacity.size
        self._job = np.repeat(np.arange(jobs, dtype=np.int32), types)
        self._space = jobs + np.tile(np.arange(types, dtype=np.int32), jobs)
        self._limits = np.concatenate([np.ones(jobs), capacity])

    def greatest_sum(self, worth: FloatArray, gain: FloatArray | None = None, least: float = 0.0) -> FloatArray:
        """X (J, T) of the greatest sum of worth X; with ``gain`` (J, T) each job has sum_t gain X >= ``least``."""
        if gain is None and worth.shape[1] == 1:
            return single_type.greatest_sum(worth[:, 0], self._scale, float(self._capacity[0]))[:, None]
        if gain is None:
            return self._solve(-worth.ravel(), worth, None, None, self._limits)
        if worth.shape[1] == 1:
            floor = least / gain[:, 0]
            found = single_type.greatest_sum_above(worth[:, 0], self._scale, float(self._capacity[0]), floor)
            if found is not None:
                return found[:, None]
        limits = np.concatenate([self._limits, np.full(self._scale.size, -least)])
        return self._solve(-worth.ravel(), gain, gain, None, limits)

    def greatest_least(self, gain: FloatArray) -> tuple[FloatArray, float]:
        """X (J, T) of the greatest least sum_t gain X, and what that is."""
        if gain.shape[1] == 1:
            least = single_type.greatest_least(gain[:, 0], self._scale, float(self._capacity[0]))
            return least / gain, least
        jobs = self._scale.size
        cost = np.zeros(gain.size + 1)
        cost[-1] = -1.0
        limits = np.concatenate([self._limits, np.zeros(jobs)])
        values = self._values(cost, gain, gain, np.ones(jobs), limits)
        return values[:-1].reshape(gain.shape), float(values[-1])

    def least(self, gain: FloatArray, rise: FloatArray, wanted: FloatArray) -> float:
        """The least rho >= 0 with sum_t gain X + rise rho >= wanted for every job; gain (J, T), the others (J)."""
        cost = np.zeros(gain.size + 1)
        cost[-1] = 1.0
        limits = np.concatenate([self._limits, -wanted])
        return float(self._values(cost, gain, gain, -rise, limits)[-1])

    def _solve(
        self,
        cost: FloatArray,
        useful: FloatArray,
        gain: FloatArray | None,
        shared: FloatArray | None,
        limits: FloatArray,
    ) -> FloatArray:
        return self._values(cost, useful, gain, shared, limits).reshape(useful.shape)

    def _values(
        self,
        cost: FloatArray,
        useful: FloatArray,
        gain: FloatArray | None,
        shared: FloatArray | None,
        limits: FloatArray,
    ) -> FloatArray:
        """Minimise cost x, rows x <= limits, x >= 0, and x = 0 where nothing is gained; the variable ``shared`` (J) is the last."""
        rows = [self._job, self._space]
        entries = [np.ones(self._job.size), self._scale[self._job]]
        if gain is not None:
            rows.append(self._space.dtype.type(self._limits.size) + self._job)
            entries.append(-gain.ravel())
        row, entry = np.stack(rows, axis=1).ravel(), np.stack(entries, axis=1).ravel()
        start = np.arange(0, row.size + 1, len(rows), dtype=np.int32)
        upper = np.where(useful.ravel() > 0, np.inf, 0.0)
        if shared is not None:
            row = np.concatenate([row, self._limits.size + np.arange(shared.size, dtype=np.int32)])
            entry = np.concatenate([entry, shared])
            start = np.append(start, np.int32(row.size))
            upper = np.append(upper, np.inf)
        matrix = sparse.csc_array((entry, row, start), shape=(limits.size, cost.size))
        result = milp(cost, bounds=Bounds(0.0, upper), constraints=LinearConstraint(matrix, -np.inf, limits))
        if result.x is None:
            raise PolicyError(f"no allocation: {result.message}")
        return np.maximum(np.asarray(result.x, dtype=np.float64), 0.0)
