"""An order that lifts or lowers all units of a queue: ``priority_boost`` of the queues of a policy file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.queue import register
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit


class BoostedPriorityOrder:
    """Higher priority first, after adding the boost of the unit's queue (its tenant, where it names no queue)."""

    name = "boosted_priority"
    per = "unit"

    def __init__(self, boosts: Mapping[str, float] | None = None) -> None:
        self._boosts = dict(boosts or {})

    def configured(self, options: Mapping[str, Any]) -> BoostedPriorityOrder:
        """With ``boosts``, numbers by queue; PolicyError names one that is not finite."""
        refuse_unknown(self.name, options, ("boosts",))
        boosts = dict(options.get("boosts", ()))
        lowest = dict.fromkeys(boosts, float("-inf"))
        return BoostedPriorityOrder(numbers_of(f"{self.name}.boosts", boosts, **lowest))

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -(unit.priority + self._boosts.get(unit.queue or unit.tenant_id, 0.0))

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return self.key(running.unit, context)


register(BoostedPriorityOrder())
