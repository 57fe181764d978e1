"""The plugins that a policy names, resolved and with their options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from services.scheduler.core import builtin as _plugins  # noqa: F401 - makes the built-in plugins known
from services.scheduler.core.filters import Filter, filters
from services.scheduler.core.options import configured
from services.scheduler.core.policy import Policy, check_numbers
from services.scheduler.core.queue import orders
from services.scheduler.core.scores import Weighted, weighted
from services.scheduler.core.waiting_unit import Order


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins that a policy names."""

    filters: tuple[Filter, ...]
    scores: Weighted
    order: tuple[Order, ...]
    per_tenant: bool = False
    """Whether a domain score depends on the unit's tenant."""


@lru_cache(maxsize=256)
def plugins_of(policy: Policy) -> Plugins:
    """Resolve a policy's names; PolicyError when one does not exist."""
    check_numbers(policy)
    scores = weighted(policy.scores, policy.options_of)
    return Plugins(
        tuple(configured(item, policy.options_of(item.name)) for item in filters(policy.filters)),
        scores,
        tuple(configured(item, policy.options_of(item.name)) for item in orders(policy.order)),
        any(getattr(score, "per_tenant", False) for score, _ in scores.domain),
    )
