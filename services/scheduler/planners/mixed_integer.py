"""The one door to the mixed-integer solver (HiGHS through scipy), so that all planners use it in the same, repeatable way."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import FloatArray, number
from services.scheduler.planners.solver_output import no_solver_output

_JUMPS = "mip_heuristic_run_feasibility_jump"


@dataclass(frozen=True, slots=True)
class Limits:
    """When the solver stops. Nodes and gap end at the same answer everywhere; a time limit does not, so it is off by default.

    ``gap`` is relative to the objective. Without ``jumps`` the solver leaves out its heuristic of jumps, most of the time of a small
    program; among equally good choices it may then have another one.
    """

    nodes: int | None = None
    gap: float = 1e-4
    time_s: float | None = None
    jumps: bool = True

    def options(self) -> dict[str, float | int | bool]:
        """As scipy's options; raises `PolicyError` naming the field."""
        chosen: dict[str, float | int | bool] = {"disp": False, "mip_rel_gap": number("gap", self.gap, low=0.0)}
        if self.nodes is not None:
            chosen["node_limit"] = int(number("nodes", self.nodes, low=0.0))
        if self.time_s is not None:
            chosen["time_limit"] = number("time_s", self.time_s, low=0.0)
        if not self.jumps:
            chosen[_JUMPS] = False
        return chosen


@dataclass(frozen=True, slots=True)
class Solution:
    """``values`` of the variables, None when none was found in time; ``proven``: optimal within the gap."""

    values: FloatArray | None
    proven: bool
    gap: float


def minimise(
    cost: FloatArray,
    rows: sparse.csr_array,
    low: FloatArray,
    high: FloatArray,
    limits: Limits,
    *,
    upper: FloatArray | float = 1.0,
) -> Solution:
    """Minimise cost x, low <= rows x <= high, x whole numbers in [0, ``upper``]. Raises `PolicyError` when infeasible."""
    if not cost.size:
        return Solution(np.zeros(0), True, 0.0)
    with warnings.catch_warnings(), no_solver_output():
        # scipy hands HiGHS options that it does not know itself on, and warns of each.
        warnings.filterwarnings("ignore", message="Unrecognized options", category=RuntimeWarning)
        result = milp(
            cost,
            integrality=np.ones(cost.size),
            bounds=Bounds(0.0, upper),
            constraints=LinearConstraint(rows, low, high),
            options=limits.options(),
        )
    # Scipy does not know the solver's word for a bound of nodes that is reached before there is any solution.
    ended = "limit reached" in str(result.message)
    if result.status in {2, 3, 4} and result.x is None and not ended:
        raise PolicyError(f"no plan: {result.message}")
    values = None if result.x is None else np.rint(np.asarray(result.x, dtype=np.float64))
    gap = float(result.mip_gap) if result.mip_gap is not None else math.inf
    return Solution(values, result.status == 0, gap)
