"""The front of a set of waiting jobs: which of them go where and which wait, for their tenant to pick a point from.

Steps of `front_for`: 1. every place where a job fits now, and waiting, is an option with its cost by each objective;
2. the explorer finds the front of the assignment problem (explorer.py); 3. the tenant picks a point, or weights do.
Running jobs are left alone. Nothing is decided here: what was picked is for the caller to carry out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import NO_POOL, AssignmentProblem
from services.scheduler.core.front.dominance import Bools
from services.scheduler.core.front.explorer import explore
from services.scheduler.core.front.objectives import Objective
from services.scheduler.core.front.pareto import pick
from services.scheduler.core.front.solvers import Solver
from services.scheduler.core.placement import Candidates
from services.scheduler.core.scoring.affinity import relative_rates
from services.scheduler.core.scoring.data import transfer_cost, transfer_seconds
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.tenants_objectives import REFERENCE_S, devices_of, filled, watts_of
from services.scheduler.core.waiting_unit import PendingUnit

WAIT = "wait"
_SOLVES = 60


def problem_for(
    jobs: Sequence[PendingUnit], cluster: Cluster, tenant: str, *, wait_s: float = REFERENCE_S
) -> AssignmentProblem:
    """Which of a tenant's waiting jobs go where: an option per domain and accelerator model, and one to wait.

    Objectives, summed over jobs: completion (s; waiting costs ``wait_s`` more than the quickest place), accelerators that
    the waiting jobs leave idle, money for transfers and accelerators (micro-units), energy (kWh). A job that waits is thought
    to run later where it is cheapest and where it draws least. An option is allowed where the job fits now, alone; its pool
    is what is free of that model in the domain. Jobs without accelerators are bounded by free processors.

    PolicyError: no jobs, one of another tenant, one twice, or a bad ``wait_s``.
    """
    _check_jobs(jobs, tenant, wait_s)
    view, table = cluster.view, cluster.table
    domains, models = len(table.domain_ids), len(table.models)
    kinds = models + 1  # the last one is for jobs without accelerators
    options = domains * kinds + 1
    costs = np.zeros((len(jobs), options, 4))
    demand = np.zeros((len(jobs), options))
    allowed = np.zeros((len(jobs), options), dtype=np.bool_)
    for row, unit in enumerate(jobs):
        fits, values = _places(unit, cluster)
        allowed[row, :-1] = fits.reshape(-1)
        costs[row, :-1] = values.reshape(-1, 4)
        accelerators = devices_of(unit.demand)
        demand[row, :-1] = accelerators or unit.demand.ranks * unit.demand.cpus
        best = values[fits].min(axis=0) if fits.any() else np.array([_run_s(unit), 0.0, 0.0, 0.0])
        costs[row, -1] = best + np.array([wait_s, accelerators, 0.0, 0.0])
        allowed[row, -1] = True
    used: Bools = np.array(allowed.any(axis=0))
    free = np.zeros((domains, kinds))
    up = view.up
    for column in range(models):
        free[:, column] = np.bincount(table.node_domain[up], view.free_devices[up, column], domains)
    free[:, -1] = np.maximum(view.domain_free_cpus, 0.0)
    names = [
        f"{name}/{table.models[kind].model}" if kind < models else name
        for name in table.domain_ids
        for kind in range(kinds)
    ]
    pool = np.append(np.arange(domains * kinds), NO_POOL).astype(np.int64)
    return AssignmentProblem(
        objectives=(
            Objective("completion", "s"),
            Objective("idle", "accelerators"),
            Objective("money", "micro-units"),
            Objective("energy", "kWh"),
        ),
        contributions=np.where(allowed[:, :, None], costs, 0.0)[:, used],
        demand=demand[:, used],
        pool=_renumbered(pool[used]),
        capacity=free.reshape(-1)[used[:-1]],
        allowed=allowed[:, used],
        jobs=tuple(str(unit.key) for unit in jobs),
        options=tuple(name for name, keep in zip([*names, WAIT], used.tolist(), strict=True) if keep),
    )


def front_json(
    jobs: Sequence[PendingUnit],
    cluster: Cluster,
    tenant: str,
    *,
    weights: Mapping[str, float] | None = None,
    index: int | None = None,
    wait_s: float = REFERENCE_S,
    solves: int = _SOLVES,
    seed: int = 0,
    solver: Callable[[AssignmentProblem], Solver] | None = None,
) -> dict[str, Any]:
    """For an API: `Front.as_json` with jobs and places by name, and ``choice``: the point that ``weights`` choose, or the
    point ``index``, with its reasons; null when neither is given. PolicyError for both, or bad ones. ``solver`` makes one for
    the problem (default: as `explore` has it)."""
    problem = problem_for(jobs, cluster, tenant, wait_s=wait_s)
    front = explore(problem, solves, seed=seed, solver=None if solver is None else solver(problem))
    body = {"tenant": tenant, **front.as_json(problem), "choice": None}
    if weights is not None or index is not None:
        row = None
        if weights is not None:
            for name in weights:
                if name not in front.names:
                    raise PolicyError(f"weights.{name}: there is no such objective; known are {', '.join(front.names)}")
            row = [float(weights.get(name, 0.0)) for name in front.names]
        body["choice"] = pick(front, row, index=index).as_json()
    return body


def _check_jobs(jobs: Sequence[PendingUnit], tenant: str, wait_s: float) -> None:
    if not jobs:
        raise PolicyError("jobs: none is given")
    if not (math.isfinite(wait_s) and wait_s >= 0):
        raise PolicyError(f"wait_s: must be a finite number of at least 0, not {wait_s}")
    seen = set()
    for unit in jobs:
        if unit.tenant_id != tenant:
            raise PolicyError(f"jobs.{unit.key}: is not a job of {tenant!r}")
        if unit.key in seen:
            raise PolicyError(f"jobs.{unit.key}: is given twice")
        seen.add(unit.key)


def _run_s(unit: PendingUnit) -> float:
    for known in (unit.remaining_s, unit.limit_s):
        if math.isfinite(known):
            return known
    return REFERENCE_S


def _places(unit: PendingUnit, cluster: Cluster) -> tuple[Bools, Floats]:
    """(D, M + 1) where the unit fits now, by the model it would take (the last: none), and (D, M + 1, 4) what it costs."""
    view, table, demand = cluster.view, cluster.table, unit.demand
    domains, models = len(table.domain_ids), len(table.models)
    fits = np.zeros((domains, models + 1), dtype=np.bool_)
    columns = view.columns(demand)
    rates = relative_rates(view, demand)
    speed = np.ones(models + 1)
    if rates is not None:
        speed[:-1] = rates
    for column in columns.tolist() if demand.accelerators else [models]:
        chosen = columns if column == models else np.array([column], dtype=np.int64)
        if speed[column] > 0:
            room = Candidates(view, demand, chosen, cluster.policy).domain_fits
            fits[:, column] = room >= demand.ranks
    run_s = _run_s(unit) / np.where(speed > 0, speed, 1.0)
    transfer = filled(transfer_cost(table, demand))
    devices = devices_of(demand)
    price = np.nan_to_num(table.price) * devices / 3600.0
    values = np.zeros((domains, models + 1, 4))
    values[:, :, 0] = run_s + filled(transfer_seconds(table, demand))[:, None]
    values[:, :, 2] = transfer[:, None] + price[:, None] * run_s
    values[:, :, 3] = filled(watts_of(view))[:, None] * devices * run_s / 3.6e6
    return fits, values


def _renumbered(pool: Ints) -> Ints:
    """Pools 0, 1, 2 ... in the order of the options that are left."""
    kept = np.cumsum(pool != NO_POOL) - 1
    return np.where(pool == NO_POOL, NO_POOL, kept)
