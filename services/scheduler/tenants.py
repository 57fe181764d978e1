"""Weights that tenants give their objectives themselves, laid over whatever policy is in force.

They are kept beside the policy, so that a new policy does not forget them, and written into it (options of the score
``chebyshev``) when it comes into force: every decision names a version that holds the weights it was made with. While the
policy does not weigh objectives by tenant they rest.

Steps of `Tenants.change`: 1. the document that is in force is read again without any tenant's weights; 2. those of all tenants
are laid over it; 3. the weights and the new version of the policy are written in one transaction; 4. the next cycle decides by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.errors import ConflictError
from meridian.outbox import Transaction
from services.scheduler import store_policies, store_tenants
from services.scheduler.core.front.objectives import weights_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.tenants_objectives import OBJECTIVES, ChebyshevScore
from services.scheduler.policy import changes as policy_changes
from services.scheduler.policy.file import parse
from services.scheduler.store_tenants import TenantObjectives

if TYPE_CHECKING:
    from services.scheduler.live import LiveScheduler

SCORE = ChebyshevScore.name
MOST_TENANTS = 1000
"""Tenants that may have weights of their own: all of them are part of the policy."""


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
    """The tenants' weights in memory and in the database; changed under the writer's lock only."""

    def __init__(self) -> None:
        self.rows: dict[str, TenantObjectives] = {}

    async def load(self, connection: AsyncConnection) -> None:
        """Read them again."""
        self.rows = await store_tenants.load(connection)

    def over(self, policy: Policy) -> Policy:
        """See `laid_over`."""
        return laid_over(policy, self.rows)

    async def change(
        self, live: LiveScheduler, tenant_id: str, weights: Mapping[str, float] | None, *, changed_by: str
    ) -> tuple[str, str]:
        """Let a tenant weigh its objectives so from the next cycle on; None: as the policy says. Returns the versions of the
        policy before and after. PolicyError names a wrong weight; ConflictError when the policy in force does not weigh
        objectives by tenant, or too many tenants have weights of their own. Nothing is changed then."""
        item = None
        if weights is not None:
            weights_of(weights, OBJECTIVES)
            if not weighs(live.policy):
                raise ConflictError(
                    f"the policy {live.policy.version} does not weigh objectives by tenant (it has no score {SCORE})"
                )
            if tenant_id not in self.rows and len(self.rows) >= MOST_TENANTS:
                raise ConflictError(f"{MOST_TENANTS} tenants have weights of their own already")
            item = TenantObjectives(tenant_id, dict(weights), changed_by, live.now_s())
            # Before the transaction: one that is rolled back makes the scheduler read its whole state again.
            live.try_policy(laid_over(live.policy, {tenant_id: item}))
        async with live.outbox.transaction() as transaction:
            return await self._write(live, transaction, tenant_id, item, changed_by)

    async def _write(
        self,
        live: LiveScheduler,
        transaction: Transaction,
        tenant_id: str,
        item: TenantObjectives | None,
        changed_by: str,
    ) -> tuple[str, str]:
        await live.draft(transaction)
        connection, before = transaction.connection, live.policy
        rows = {name: row for name, row in self.rows.items() if name != tenant_id}
        if item is None:
            await store_tenants.remove(connection, tenant_id)
        else:
            rows[tenant_id] = item
            await store_tenants.put(connection, item)
        last = (await store_policies.policy_changes(connection))[0]
        base = live.file_policy
        if last.origin == policy_changes.API:
            base = await asyncio.to_thread(parse, last.source or last.body)
        after = laid_over(base, rows)
        if after.version != before.version:
            origin, source = last.origin, last.source
            change = policy_changes.change_to(after, live.now_s(), origin=origin, changed_by=changed_by, source=source)
            await store_policies.add_policy_change(connection, change)
        transaction.on_commit(lambda: self._take(live, rows, after))
        return before.version, after.version

    def _take(self, live: LiveScheduler, rows: dict[str, TenantObjectives], policy: Policy) -> None:
        self.rows = rows
        live.use(policy)
