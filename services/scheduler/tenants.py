"""Weights that tenants give their objectives themselves, laid over whatever policy is in force.

They are kept beside the policy, so that a new policy does not forget them, and written into it (options of the score
``chebyshev``) when it comes into force: every decision names a version that holds the weights it was made with. While the
policy does not weigh objectives by tenant they rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler import store_tenants
from services.scheduler.core.policy import Policy
from services.scheduler.core.tenants_objectives import ChebyshevScore
from services.scheduler.store_tenants import TenantObjectives

SCORE = ChebyshevScore.name


def weighs(policy: Policy) -> bool:
    """Whether a policy weighs objectives by tenant."""
    return any(name == SCORE and weight > 0 for name, weight in policy.scores)


def laid_over(policy: Policy, tenants: Mapping[str, TenantObjectives]) -> Policy:
    """The policy with the tenants' own weights in place of those it gives them; doing it twice changes nothing more."""
    if not tenants or not weighs(policy):
        return policy
    options = dict(policy.options)
    own = dict(options.get(SCORE, ()))
    weights: dict[str, Any] = dict(own.get("weights", ()))
    weights |= {name: _frozen(item.weights) for name, item in sorted(tenants.items())}
    own["weights"] = tuple(weights.items())
    options[SCORE] = tuple(own.items())
    return replace(policy, options=tuple(options.items()))


def _frozen(weights: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """As a policy keeps options; whole numbers as int, so that 1 and 1.0 make the same version."""
    return tuple((name, int(value) if value == int(value) else value) for name, value in sorted(weights.items()))


class Tenants:
    """The tenants' weights in memory, as the database has them; changed under the writer's lock only (tenants_changed.py)."""

    def __init__(self) -> None:
        self.rows: dict[str, TenantObjectives] = {}

    async def load(self, connection: AsyncConnection) -> None:
        """Read them again."""
        self.rows = await store_tenants.load(connection)

    def over(self, policy: Policy) -> Policy:
        """See `laid_over`."""
        return laid_over(policy, self.rows)
