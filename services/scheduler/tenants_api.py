"""What a tenant weighs and what it may choose from, over HTTP. Who may ask for which tenant is decided by the gateway."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query

from meridian.errors import InvalidArgumentError, ResourceExhaustedError
from services.scheduler import tenants_changed
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import AssignmentProblem
from services.scheduler.core.front.objectives import Scalarisation
from services.scheduler.core.front.solvers import BranchAndBound, LocalSearch, Solution, Solver
from services.scheduler.core.front.tenants import front_json
from services.scheduler.core.policy import Policy
from services.scheduler.core.table import Floats
from services.scheduler.core.tenants_objectives import OBJECTIVES
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.live import LiveScheduler
from services.scheduler.policy.api import By
from services.scheduler.tenants import SCORE, weighs
from services.scheduler.times import rfc3339

Json = dict[str, Any]
Tenant = Annotated[str, Path(max_length=200, pattern=r"^[^\x00-\x1f]+$")]
MOST_JOBS = 40
"""Waiting units that are looked at together, the oldest first."""
MOST_S = 5.0
"""Processor time after which a front is answered as far as it is known."""
_EXACT_UP_TO = 8
_OF_FRONT = {"completion": "completion", "idle": "idle", "money": "transfer", "energy": "energy"}
"""Objectives of a front, and those of the score that stand for them in a single choice of a domain."""


@dataclass(slots=True)
class WithinTime:
    """A solver that searches no further when its time is over: it answers with what is known then."""

    solver: Solver
    until_s: float
    exact: bool = False
    over: bool = False

    def solve(
        self, score: Scalarisation, limits: Floats | None = None, known: Solution | None = None
    ) -> Solution | None:
        """See `Solver`."""
        if known is not None and time.thread_time() > self.until_s:
            self.over = True
            return known
        return self.solver.solve(score, limits, known)


def create_tenants_router(live: LiveScheduler) -> APIRouter:
    """The routes of tenants."""
    router = APIRouter(prefix="/v1")
    exploring = asyncio.Semaphore(1)

    @router.get("/front")
    async def front(
        tenant_id: Annotated[str, Query(max_length=200)],
        job_id: Annotated[list[str] | None, Query(max_length=MOST_JOBS)] = None,
        index: Annotated[int | None, Query(ge=0, le=100_000)] = None,
        solves: Annotated[int, Query(ge=8, le=200)] = 60,
    ) -> Json:
        """The front of a tenant's waiting units: which go where and which wait, each point with its costs. ``index`` explains
        one point, and gives the weights that stand for it. Computed on a copy, in bounded time; one at a time."""
        cluster, policy = live.book.cluster, live.policy
        waiting = [unit for unit in cluster.pending if unit.tenant_id == tenant_id]
        if job_id is not None:
            waiting = [unit for unit in waiting if unit.key.job_id in job_id]
        waiting.sort(key=lambda unit: (unit.queued_at_s, unit.key))
        head = {"tenant": tenant_id, "policy_version": policy.version, "waiting": len(waiting)}
        if not waiting:
            return {
                **head,
                "looked_at": 0,
                "objectives": [],
                "points": [],
                "knee": None,
                "choice": None,
                "weights": None,
            }
        if exploring.locked():
            raise ResourceExhaustedError("another front is being computed; try again in a few seconds")
        async with exploring:
            chosen = waiting[:MOST_JOBS]
            body = await asyncio.to_thread(explored, cluster.copy(), chosen, tenant_id, index, solves)
        return {**head, "looked_at": len(chosen), **body}

    @router.get("/tenants/{tenant_id}/objectives")
    async def objectives(tenant_id: Tenant) -> Json:
        """What a tenant weighs, and whether it says so itself."""
        return objectives_json(live, tenant_id)

    @router.put("/tenants/{tenant_id}/objectives")
    async def put(tenant_id: Tenant, body: Annotated[Json, Body()], changed_by: By = "") -> Json:
        """Weigh a tenant's objectives so from the next cycle on: ``{"weights": {objective: weight}}``."""
        before, _ = await tenants_changed.change(live, tenant_id, read_weights(body), changed_by=changed_by)
        return {**objectives_json(live, tenant_id), "previous_version": before}

    @router.delete("/tenants/{tenant_id}/objectives")
    async def delete(tenant_id: Tenant, changed_by: By = "") -> Json:
        """Weigh a tenant's objectives as the policy says."""
        before, _ = await tenants_changed.change(live, tenant_id, None, changed_by=changed_by)
        return {**objectives_json(live, tenant_id), "previous_version": before}

    return router


def explored(cluster: Cluster, jobs: list[PendingUnit], tenant_id: str, index: int | None, solves: int) -> Json:
    """The front, with the weights of the point ``index``; InvalidArgumentError when there is no such point."""
    limits: list[WithinTime] = []

    def solver(problem: AssignmentProblem) -> Solver:
        inner = BranchAndBound(problem) if len(jobs) <= _EXACT_UP_TO else LocalSearch(problem, 0)
        limits.append(WithinTime(inner, time.thread_time() + MOST_S, inner.exact))
        return limits[0]

    try:
        body = front_json(jobs, cluster, tenant_id, index=index, solves=solves, solver=solver)
    except PolicyError as error:
        raise InvalidArgumentError(error.detail) from None
    choice = body["choice"]
    weights = (
        None if choice is None else {_OF_FRONT[term["name"]]: round(term["weight"], 6) for term in choice["terms"]}
    )
    return {**body, "complete": not limits[0].over, "weights": weights}


def read_weights(body: Json) -> dict[str, float]:
    """Weights by objective; InvalidArgumentError names the one that is wrong."""
    unknown = set(body) - {"weights"}
    if unknown:
        raise InvalidArgumentError(f"{min(unknown)}: there is no such field; known is weights")
    given = body.get("weights")
    if not isinstance(given, dict) or not given:
        raise InvalidArgumentError("weights: an object of numbers by objective is wanted")
    known = [item.name for item in OBJECTIVES]
    for name, value in given.items():
        if name not in known:
            raise InvalidArgumentError(f"weights.{name}: there is no such objective; known are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**53:
            raise InvalidArgumentError(f"weights.{name}: must be a finite number of at least 0, not {value!r}")
    if not any(given.values()):
        raise InvalidArgumentError(f"weights: at least one of {', '.join(known)} must be greater than 0")
    return {name: float(value) for name, value in given.items()}


def objectives_json(live: LiveScheduler, tenant_id: str) -> Json:
    """What a tenant weighs, each weight as a share of their sum."""
    item = live.tenants.rows.get(tenant_id)
    return {
        "tenant_id": tenant_id,
        "own": item is not None,
        "in_force": weighs(live.policy),
        "weights": shares_of(live.policy, tenant_id, None if item is None else item.weights),
        "changed_by": "" if item is None else item.changed_by,
        "changed_at": None if item is None else rfc3339(item.changed_at_s),
        "policy_version": live.policy.version,
    }


def shares_of(policy: Policy, tenant_id: str, own: dict[str, float] | None) -> dict[str, float]:
    """The weights of a tenant under a policy (its own, those the policy names, the default ones, equal ones), summing to 1."""
    table = {name: dict(given) for name, given in dict(policy.options_of(SCORE).get("weights", ())).items()}
    given = own or table.get(tenant_id) or table.get("default") or {item.name: 1.0 for item in OBJECTIVES}
    whole = math.fsum(given.values())
    return {item.name: given.get(item.name, 0.0) / whole for item in OBJECTIVES}
