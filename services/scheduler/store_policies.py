"""SQL of policies: which came into force, when and by whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.store_tables import policy_change


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A policy came into force. ``origin``: "api" (it outlives restarts) or "file" (the policy file is read at each start);
    ``body`` is the policy as JSON, ``source`` the document as it was given, if there was one."""

    version: str
    name: str
    origin: str
    source: str
    body: str
    changed_by: str
    changed_at_s: float
    change_id: int = 0


async def add_policy_change(connection: AsyncConnection, change: PolicyChange) -> None:
    """Note that a policy is in force from now on."""
    row = asdict(change)
    del row["change_id"]
    await connection.execute(sa.insert(policy_change).values(row))


async def policy_changes(
    connection: AsyncConnection, *, version: str | None = None, before: int | None = None, limit: int = 1
) -> list[PolicyChange]:
    """Changes, newest first: all, or those to one version; with ``before`` those with smaller numbers."""
    query = sa.select(policy_change).order_by(policy_change.c.change_id.desc()).limit(limit)
    if version is not None:
        query = query.where(policy_change.c.version == version)
    if before is not None:
        query = query.where(policy_change.c.change_id < before)
    return [PolicyChange(**row) for row in (await connection.execute(query)).mappings()]
