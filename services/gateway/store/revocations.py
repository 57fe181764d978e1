"""Which tenants, clients and tokens are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.tables import revocation


@dataclass(frozen=True, slots=True)
class Revocation:
    """An identity whose tokens from before ``revoked_at`` are refused, or only the token named."""

    identity_id: str
    token_id: str
    revoked_at: datetime


# As in the event table: a position is given at insert and seen at commit, so one writer at a time until its commit.
_ONE_WRITER = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('meridian.gateway.revocation', 0))")


async def add(connection: AsyncConnection, revocations: Sequence[Revocation]) -> None:
    """Keep revocations for ever."""
    rows = [
        {"identity_id": item.identity_id, "token_id": item.token_id, "revoked_at": item.revoked_at}
        for item in revocations
    ]
    if rows:
        await connection.execute(_ONE_WRITER)
        await connection.execute(sa.insert(revocation), rows)


async def read_after(connection: AsyncConnection, position: int) -> list[tuple[int, Revocation]]:
    """Revocations with their positions, behind a position."""
    columns = (revocation.c.seq, revocation.c.identity_id, revocation.c.token_id, revocation.c.revoked_at)
    query = sa.select(*columns).where(revocation.c.seq > position).order_by(revocation.c.seq)
    return [
        (row.seq, Revocation(row.identity_id, row.token_id, row.revoked_at)) for row in await connection.execute(query)
    ]
