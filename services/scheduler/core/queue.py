"""The queue: in which order waiting units get their chance. Order plugins compare lexicographically.

Steps:
1. Waiting units are grouped by tenant; within a tenant they are sorted once by the order keys, then by age and id.
2. The tenants' first units stand in a heap. `pop` takes the smallest; the tenant's next one enters with a fresh key.
3. When a unit is placed, `charge` adds what it holds to its tenant, so the next key of that tenant shows it.

This is exact as long as a key depends on the unit and on its own tenant's usage only, which the protocol demands.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.ledger import Usage
from services.scheduler.core.state import Demand, UnitKey


@dataclass(frozen=True, slots=True)
class PendingUnit:
    """A unit that may be placed now."""

    key: UnitKey
    tenant_id: str
    priority: int
    queued_at_s: float
    demand: Demand


class Shares:
    """Dominant shares (Ghodsi et al., NSDI 2011): the greater of a tenant's parts of all accelerators and all cpus,
    divided by its weight."""

    def __init__(
        self, held: Mapping[str, Usage], total_accelerators: float, total_cpus: float, weights: Mapping[str, float]
    ) -> None:
        self._held = {tenant: [float(usage.accelerators), usage.cpus] for tenant, usage in held.items()}
        self._total_accelerators = max(total_accelerators, 1.0)
        self._total_cpus = max(total_cpus, 1.0)
        self._weights = weights

    def of(self, tenant_id: str) -> float:
        """The tenant's weighted dominant share."""
        held = self._held.get(tenant_id)
        if held is None:
            return 0.0
        share = max(held[0] / self._total_accelerators, held[1] / self._total_cpus)
        return share / self._weights.get(tenant_id, 1.0)

    def charge(self, tenant_id: str, demand: Demand) -> None:
        """The tenant now holds a unit of this demand too."""
        held = self._held.setdefault(tenant_id, [0.0, 0.0])
        held[0] += demand.ranks * demand.accelerators
        held[1] += demand.ranks * demand.cpus


class Order(Protocol):
    """An ordering criterion. ``key`` may use the unit and its own tenant's share; the smallest goes first."""

    name: str

    def key(self, unit: PendingUnit, shares: Shares) -> float:
        """The unit's rank by this criterion."""
        ...


class PriorityOrder:
    """Higher priority first."""

    name = "priority"

    def key(self, unit: PendingUnit, shares: Shares) -> float:
        return -float(unit.priority)


class FairShareOrder:
    """The tenant that holds least first."""

    name = "fair_share"

    def key(self, unit: PendingUnit, shares: Shares) -> float:
        return shares.of(unit.tenant_id)


class AgeOrder:
    """Who waits longest first; a unit that lost its run keeps its age."""

    name = "age"

    def key(self, unit: PendingUnit, shares: Shares) -> float:
        return unit.queued_at_s


class SmallestOrder:
    """Fewest accelerators, then fewest cpus first: shortest queue, at the cost of large gangs."""

    name = "smallest"

    def key(self, unit: PendingUnit, shares: Shares) -> float:
        return unit.demand.ranks * (unit.demand.accelerators * 1e6 + unit.demand.cpus)


ORDERS: dict[str, Order] = {
    order.name: order for order in (PriorityOrder(), FairShareOrder(), AgeOrder(), SmallestOrder())
}


def orders(names: Iterable[str]) -> tuple[Order, ...]:
    """The order plugins of these names; PolicyError when one does not exist."""
    try:
        return tuple(ORDERS[name] for name in names)
    except KeyError as error:
        raise PolicyError(f"there is no order {error.args[0]!r}; known are {', '.join(sorted(ORDERS))}") from None


_Sorted = tuple[tuple[float, ...], float, UnitKey, PendingUnit]


class Queue:
    """Waiting units in order; see the module's steps."""

    def __init__(self, pending: Sequence[PendingUnit], order: Sequence[Order], shares: Shares) -> None:
        self._order = order
        self._shares = shares
        lanes: dict[str, list[_Sorted]] = {}
        for unit in pending:
            lanes.setdefault(unit.tenant_id, []).append((self._key(unit), unit.queued_at_s, unit.key, unit))
        # Reversed, so that the next unit is popped off the end.
        self._lanes = {tenant: sorted(lane, reverse=True) for tenant, lane in lanes.items()}
        self._heap: list[tuple[tuple[float, ...], float, UnitKey, str, int]] = []
        self._charges = dict.fromkeys(lanes, 0)
        for tenant in self._lanes:
            self._enter(tenant)

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def pop(self) -> PendingUnit | None:
        """The next unit; None when the queue is empty."""
        while self._heap:
            *_, tenant, charges = heapq.heappop(self._heap)
            if charges != self._charges[tenant]:
                # Its key may have grown since it entered.
                self._enter(tenant)
                continue
            unit = self._lanes[tenant].pop()[3]
            self._enter(tenant)
            return unit
        return None

    def charge(self, unit: PendingUnit) -> None:
        """The unit was placed: its tenant's share grows."""
        self._shares.charge(unit.tenant_id, unit.demand)
        self._charges[unit.tenant_id] += 1

    def _key(self, unit: PendingUnit) -> tuple[float, ...]:
        return tuple([order.key(unit, self._shares) for order in self._order])

    def _enter(self, tenant: str) -> None:
        lane = self._lanes[tenant]
        if lane:
            _, queued_at_s, key, unit = lane[-1]
            heapq.heappush(self._heap, (self._key(unit), queued_at_s, key, tenant, self._charges[tenant]))
