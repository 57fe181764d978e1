"""Why a waiting unit has no room: which resource is short in which domain, and who holds it until when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.placement import Candidates
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import PendingUnit

_SHOWN = 5
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Shortage:
    """One domain: of its ``nodes`` that qualify, ``short`` says how many have too little of a resource for one more rank;
    ``ranks`` more would fit, ``accelerators`` are free on nodes that qualify."""

    domain_id: str
    nodes: int
    ranks: int
    accelerators: int
    short: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds nodes that the unit might use: a unit, or a run that is told to stop; ``end_s`` is when it is thought to end, infinite
    when unknown."""

    name: str
    tenant_id: str
    accelerators: float
    cpus: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Blockers:
    """See the module. ``tenants`` adds holders up by tenant, with the first end among them."""

    shortages: tuple[Shortage, ...]
    holders: tuple[Holder, ...]
    tenants: tuple[Holder, ...]


def blockers(cluster: Cluster, unit: PendingUnit, now_s: float) -> Blockers:
    """What is short, and who holds most of it; the cluster is left as it is (judgements of the demand are kept)."""
    group = cluster.candidates(unit.demand)
    for candidates in group:
        candidates.refresh()
    allowed = np.logical_or.reduce([candidates.allowed for candidates in group])
    by = "accelerators" if unit.demand.accelerators else "cpus"
    found: dict[UnitKey, Holder] = {}
    for key, running in cluster.running.items():
        held = _held(running, allowed)
        if held is not None:
            accelerators, cpus = held
            end_s = running.end_s(now_s, "expected")
            found[key] = Holder(
                str(key) if key.is_unit else key.job_id, running.unit.tenant_id, accelerators, cpus, end_s
            )
    tenants: dict[str, Holder] = {}
    for item in found.values():
        before = tenants.get(item.tenant_id, Holder(item.tenant_id, item.tenant_id, 0.0, 0.0, math.inf))
        tenants[item.tenant_id] = Holder(
            item.tenant_id,
            item.tenant_id,
            before.accelerators + item.accelerators,
            before.cpus + item.cpus,
            min(before.end_s, item.end_s),
        )
    return Blockers(
        tuple(_shortages(cluster, unit, group, allowed)),
        tuple(sorted(found.values(), key=lambda item: (-getattr(item, by), item.name))[:_SHOWN]),
        tuple(sorted(tenants.values(), key=lambda item: (-getattr(item, by), item.name))[:_SHOWN]),
    )


def _held(running: RunningUnit, allowed: np.ndarray) -> tuple[float, float] | None:
    demand = running.unit.demand
    rows = [(row, devices) for row, devices in running.rows if allowed[row]]
    if not rows:
        return None
    part = demand.device_milli / 1000.0
    return sum(len(devices) for _, devices in rows) * part, len(rows) * demand.cpus


def _shortages(cluster: Cluster, unit: PendingUnit, group: list[Candidates], allowed: np.ndarray) -> list[Shortage]:
    view, table, demand = cluster.view, cluster.table, unit.demand
    fits = np.max([candidates.domain_fits for candidates in group], axis=0)
    columns = view.columns(demand)
    free = view.free_devices[:, columns].sum(axis=1)
    if demand.device_milli < 1000:
        room = np.where(np.isin(table.device_columns, columns), view.device_milli, 0) >= demand.device_milli
        free = room.sum(axis=1)
    lacking = {
        "accelerators": free < demand.accelerators,
        "cpus": view.free_cpus + _SLACK < demand.cpus,
        "memory": view.free_memory_bytes < demand.memory_bytes,
    }
    for name, amount in demand.resources:
        if name in table.resource_names:
            lacking[name] = view.free_resources[:, table.resource_names.index(name)] + _SLACK < amount
        else:
            lacking[name] = np.full(len(view.free_cpus), amount > 0)
    out = []
    for domain, part in enumerate(table.domain_slice):
        here = allowed[part]
        if not here.any():
            continue
        short = {name: int((mask[part] & here).sum()) for name, mask in lacking.items()}
        out.append(
            Shortage(
                table.domain_ids[domain],
                int(here.sum()),
                int(fits[domain]),
                int(free[part][here].sum()) if demand.accelerators else 0,
                {name: count for name, count in short.items() if count},
            )
        )
    out.sort(key=lambda item: (-item.ranks, -item.accelerators, item.domain_id))
    return out[:_SHOWN]
