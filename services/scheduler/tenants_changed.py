"""A tenant weighs its objectives anew, or leaves that to the policy again.

Steps of `change`: 1. the document that is in force is read again without any tenant's weights; 2. those of all tenants
are laid over it; 3. the weights and the new version of the policy are written in one transaction; 4. the next cycle decides by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from meridian.errors import ConflictError
from meridian.outbox import Transaction
from services.scheduler import store_policies, store_tenants
from services.scheduler.core.front.objectives import weights_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.tenants_objectives import OBJECTIVES
from services.scheduler.live_book import LiveBook
from services.scheduler.policy import changes as policy_changes
from services.scheduler.policy.file import stored
from services.scheduler.store_tenants import TenantObjectives
from services.scheduler.tenants import SCORE, laid_over, weighs

MOST_TENANTS = 1000
"""Tenants that may have weights of their own: all of them are part of the policy."""


async def change(
    live: LiveBook, tenant_id: str, weights: Mapping[str, float] | None, *, changed_by: str
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
        if tenant_id not in live.tenants.rows and len(live.tenants.rows) >= MOST_TENANTS:
            raise ConflictError(f"{MOST_TENANTS} tenants have weights of their own already")
        item = TenantObjectives(tenant_id, dict(weights), changed_by, live.now_s())
        # Before the transaction: one that is rolled back makes the scheduler read its whole state again.
        live.try_policy(laid_over(live.policy, {tenant_id: item}))
    async with live.outbox.transaction() as transaction:
        return await _write(live, transaction, tenant_id, item, changed_by)


async def _write(
    live: LiveBook, transaction: Transaction, tenant_id: str, item: TenantObjectives | None, changed_by: str
) -> tuple[str, str]:
    await live.draft(transaction)
    connection, before = transaction.connection, live.policy
    rows = {name: row for name, row in live.tenants.rows.items() if name != tenant_id}
    if item is None:
        await store_tenants.remove(connection, tenant_id)
    else:
        rows[tenant_id] = item
        await store_tenants.put(connection, item)
    last = (await store_policies.policy_changes(connection))[0]
    base = live.file_policy
    if last.origin == policy_changes.API:
        base, _ = await asyncio.to_thread(stored, last.source or last.body)
    after = laid_over(base, rows)
    if after.version != before.version:
        origin, source = last.origin, last.source
        noted = policy_changes.change_to(after, live.now_s(), origin=origin, changed_by=changed_by, source=source)
        await store_policies.add_policy_change(connection, noted)
    transaction.on_commit(lambda: _take(live, rows, after))
    return before.version, after.version


def _take(live: LiveBook, rows: dict[str, TenantObjectives], policy: Policy) -> None:
    live.tenants.rows = rows
    live.use(policy)
