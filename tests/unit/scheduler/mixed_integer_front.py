"""The scalarised assignment as a mixed-integer linear program: exact where branch and bound by blocks grows too large.

An independent check of the explorer.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import AssignmentProblem
from services.scheduler.core.front.dominance import Floats
from services.scheduler.core.front.objectives import Scalarisation
from services.scheduler.core.front.solvers import Solution
from services.scheduler.planners.solver_output import no_solver_output

_INFEASIBLE = 2


class MixedIntegerSolver:
    """Solves by HiGHS. Variables: ``x[j, o]`` (job takes option), ``d[i]`` (normalised cost), ``t`` (greatest weighted d).

    Minimise ``t + rho * sum d`` (linear: ``sum w d``) subject to: each job takes one option; no pool overdrawn; ``d[i]`` is
    the normalised total, or at least every job's own cost where the worst job counts; ``t >= w[i] d[i]``; limits on costs.
    """

    exact = True

    def __init__(self, problem: AssignmentProblem, *, time_limit_s: float = 60.0) -> None:
        self.problem = problem
        self._time_limit_s = time_limit_s

    def solve(
        self, score: Scalarisation, limits: Floats | None = None, known: Solution | None = None
    ) -> Solution | None:
        """The best assignment within the limits, None when there is none. PolicyError when the time limit passes first."""
        from scipy import optimize, sparse

        jobs, options, count = self.problem.costs.shape
        cells = jobs * options
        costs: Floats = np.where(self.problem.allowed[:, :, None], self.problem.costs, 0.0).reshape(cells, count)
        costs = costs / score.width
        needs = np.where(self.problem.allowed[:, :, None], self.problem.pool_demand, 0.0).reshape(cells, -1)
        one_option = np.repeat(np.eye(jobs), options, axis=1)
        constraints = []

        def require(on_x: Floats, on_d: Floats, on_t: Floats, low: Floats | float, high: Floats | float) -> None:
            rows = sparse.csr_array(np.hstack([on_x, on_d, on_t]))
            constraints.append(optimize.LinearConstraint(rows, low, high))

        def zeros(rows: int, columns: int = 1) -> Floats:
            return np.zeros((rows, columns))

        require(one_option, zeros(jobs, count), zeros(jobs), 1.0, 1.0)
        pools = len(self.problem.capacity)
        if pools:
            require(needs.T, zeros(pools, count), zeros(pools), -np.inf, self.problem.capacity)
        shift = score.ideal / score.width
        for column in range(count):
            unit = np.eye(count)[column][None]
            if self.problem.additive[column]:
                require(costs[:, column][None], -unit, zeros(1), shift[column], shift[column])
            else:
                own = one_option * costs[:, column]
                require(own, -np.repeat(unit, jobs, axis=0), zeros(jobs), -np.inf, shift[column])
        if score.chebyshev:
            require(zeros(count, cells), np.diag(score.weights), -np.ones((count, 1)), -np.inf, 0.0)
            goal = np.concatenate([np.zeros(cells), np.full(count, score.rho), [1.0]])
        else:
            goal = np.concatenate([np.zeros(cells), score.weights, [0.0]])
        highest = np.full(count, np.inf) if limits is None else limits / score.width - shift
        bounds = optimize.Bounds(
            np.concatenate([np.zeros(cells), np.full(count + 1, -np.inf)]),
            np.concatenate([self.problem.allowed.reshape(-1).astype(np.float64), highest, [np.inf]]),
        )
        integrality = np.concatenate([np.ones(cells), np.zeros(count + 1)])
        with no_solver_output():
            answer = optimize.milp(
                goal,
                integrality=integrality,
                bounds=bounds,
                constraints=constraints,
                options={"time_limit": self._time_limit_s, "mip_rel_gap": 0.0},
            )
        if answer.status == _INFEASIBLE:
            return known
        if not answer.success:
            raise PolicyError(
                f"the mixed-integer program was not solved within {self._time_limit_s:g} s: {answer.message}"
            )
        assignment = answer.x[:cells].reshape(jobs, options).argmax(axis=1).astype(np.int64)
        found = self.problem.evaluate(assignment[None])[0]
        value = float(score(found))
        if known is not None and known.score <= value:
            return known
        return Solution(assignment, found, value)
