"""Which unit may go next: the criteria that order waiting units, by name.

Order plugins compare lexicographically; the smallest key goes first, then the older unit, then the smaller id. What an order is, and
the units that it orders, stand in `waiting_unit.py`; the lanes that make this cheap in `pending.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from services.scheduler.core.efforts import (
    LeastAttainedOrder,
    LeastWorkOrder,
    ServiceIndexOrder,
    ShortestEffortOrder,
    ShortestRemainingOrder,
)
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.waiting_unit import Order, OrderContext, PendingUnit


class PriorityOrder:
    """Higher priority first."""

    name = "priority"
    per = "unit"
    steady = True
    lasting = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -float(unit.priority)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return -float(running.unit.priority)


class FairShareOrder:
    """The tenant that holds least first."""

    name = "fair_share"
    per = "tenant"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return context.shares.of(unit.tenant_id)


class AgeOrder:
    """Who waits longest first; a unit that lost its run keeps its age."""

    name = "age"
    per = "unit"
    steady = True
    lasting = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.queued_at_s

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return float(running.unit.queued_at_s)

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        return [item.unit.queued_at_s for item in running]


class SmallestOrder:
    """Fewest accelerators, then fewest cpus first: shortest queue, at the cost of large gangs."""

    name = "smallest"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.demand.ranks * (unit.demand.accelerators * 1e6 + unit.demand.cpus)


class ShortestOrder:
    """Least predicted run time first (shortest job first); with exact predictions an oracle."""

    name = "shortest"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.expected_s


class DeadlineOrder:
    """Earliest deadline first."""

    name = "deadline"
    per = "unit"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.deadline_s


ORDERS: dict[str, Order] = {}


def register(plugin: Order) -> None:
    """Make an order known by its name; PolicyError when the name is taken."""
    if plugin.name in ORDERS:
        raise PolicyError(f"an order {plugin.name!r} exists already")
    if plugin.per not in {"unit", "tenant", "placements", "time"}:
        raise PolicyError(f"order {plugin.name!r}: per must be unit, tenant, placements or time, not {plugin.per!r}")
    ORDERS[plugin.name] = plugin


for _plugin in (
    PriorityOrder(),
    FairShareOrder(),
    AgeOrder(),
    SmallestOrder(),
    ShortestOrder(),
    ShortestRemainingOrder(),
    LeastWorkOrder(),
    ServiceIndexOrder(),
    ShortestEffortOrder(),
    DeadlineOrder(),
    LeastAttainedOrder(),
):
    register(_plugin)


def orders(names: Iterable[str]) -> tuple[Order, ...]:
    """The order plugins of these names; PolicyError when one does not exist."""
    try:
        return tuple(ORDERS[name] for name in names)
    except KeyError as error:
        raise PolicyError(f"there is no order {error.args[0]!r}; known are {', '.join(sorted(ORDERS))}") from None
