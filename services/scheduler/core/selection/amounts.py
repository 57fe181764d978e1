"""What a unit counts for in quotas and shares: accelerators weighted by their index, cpus, memory, named resources.

All amounts are the integers of entitlement/amounts.py, so that what is charged and given back cancels exactly. The index of accelerator
models is the fact "index" of the cluster (model name to weight; 1 where none is given).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from services.scheduler.core.entitlement.amounts import ACCELERATORS, CPUS, MEMORY_BYTES, request
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from services.scheduler.core.watching import Watched

COUNTED = (ACCELERATORS, CPUS, MEMORY_BYTES)
Amounts = dict[str, int]


def account_of(unit: PendingUnit) -> str:
    """Whom a unit counts for: its queue, or its tenant when it names none."""
    return unit.queue or unit.tenant_id


def cluster_of(context: OrderContext) -> Watched:
    """The cluster of a cycle."""
    cluster: Watched = context.facts["cluster"]
    return cluster


def of_part(amounts: Amounts, running: RunningUnit, milli: int) -> int:
    """What a running unit that was charged ``amounts`` counts of accelerators with ``milli`` thousandths of its device."""
    return amounts.get(ACCELERATORS, 0) * milli // running.unit.demand.device_milli


class Meter:
    """Amounts of units on one cluster, with the nodes that it has when it is asked."""

    def __init__(self, cluster: Watched) -> None:
        self._cluster = cluster
        self.index = index_of(cluster)
        self._known: dict[Demand, Amounts] = {}
        self._capacity: Amounts | None = None
        self._generation = cluster.view.generation

    def of(self, demand: Demand) -> Amounts:
        """The most that a unit of this demand may count for: on the heaviest model that it accepts. O(1) once known."""
        self._follow()
        found = self._known.get(demand)
        if found is None:
            view = self._cluster.view
            models = view.table.models
            weights = [self.index.get(models[column].model, 1.0) for column in view.columns(demand).tolist()]
            found = self._known[demand] = self._amounts(demand, max(weights, default=1.0))
        return found

    def held(self, running: RunningUnit) -> Amounts:
        """What a running unit counts for: on the devices that it was given; where one of them is gone, as `of` it."""
        demand = running.unit.demand
        if not demand.accelerators or not self.index or len(running.rows) < demand.ranks:
            return self.of(demand)
        table = self._cluster.table
        total = 0.0
        for row, devices in running.rows:
            models = dict(table.devices_of[row])
            for device in devices:
                if device not in models:
                    return self.of(demand)
                total += self.index.get(table.models[models[device]].model, 1.0)
        return self._amounts(demand, total / (demand.ranks * demand.accelerators))

    def capacity(self) -> Amounts:
        """All that the cluster's nodes have; not to be changed."""
        self._follow()
        if self._capacity is None:
            self._capacity = self._whole()
        return self._capacity

    def _follow(self) -> None:
        """Forget what was worked out for a fleet that is not the present one."""
        if self._generation != self._cluster.view.generation:
            self._generation = self._cluster.view.generation
            self._known.clear()
            self._capacity = None

    def _whole(self) -> Amounts:
        table = self._cluster.table
        by_model = table.devices.sum(axis=0)
        devices: dict[str, float] = {}
        for model, count in zip(table.models, by_model.tolist(), strict=True):
            devices[model.model] = devices.get(model.model, 0.0) + count
        named = dict(zip(table.resource_names, table.resources.sum(axis=0).tolist(), strict=True))
        return request(devices, float(table.cpus.sum()), float(table.memory_bytes.sum()), named, self.index)

    def _amounts(self, demand: Demand, weight: float) -> Amounts:
        devices = demand.ranks * demand.accelerators * (demand.device_milli / 1000.0)
        resources: dict[str, float] = {}
        for name, amount in demand.resources:
            resources[name] = resources.get(name, 0.0) + demand.ranks * amount
        return request(
            {"": devices}, demand.ranks * demand.cpus, demand.ranks * demand.memory_bytes, resources, {"": weight}
        )


def index_of(cluster: Watched) -> Mapping[str, float]:
    """The index of accelerator models; PolicyError when one is no finite number of at least 0."""
    index: Mapping[str, float] = cluster.view.facts.get("index") or {}
    for model, weight in index.items():
        if not 0 <= weight < math.inf:
            raise PolicyError(f"index.{model}: must be a finite number of at least 0, not {weight!r}")
    return index


def index_key(cluster: Watched) -> tuple[tuple[str, float], ...]:
    """The index as a value: what was counted with another one is counted anew."""
    return tuple(sorted((cluster.view.facts.get("index") or {}).items()))
