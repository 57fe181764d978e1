"""Which tenants, clients and tokens are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.tables import revocation

# A revoked token is remembered so long after it has expired: clocks of the network differ, and may be set back, by less.
KEPT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Revocation:
    """An identity whose tokens from before ``revoked_at`` are refused, or only the token named, which expires at
    ``expires_at`` (None: not known)."""

    identity_id: str
    token_id: str
    revoked_at: datetime
    expires_at: datetime | None = None


# As in the event table: a position is given at insert and seen at commit, so one writer at a time until its commit.
_ONE_WRITER = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('meridian.gateway.revocation', 0))")


async def add(connection: AsyncConnection, revocations: Sequence[Revocation]) -> None:
    """Keep revocations: of a token until `KEPT` after it has expired, all others for ever."""
    rows = [asdict(item) for item in revocations]
    if rows:
        await connection.execute(_ONE_WRITER)
        await connection.execute(sa.insert(revocation), rows)


async def read_after(connection: AsyncConnection, position: int) -> list[tuple[int, Revocation]]:
    """Revocations with their positions, behind a position."""
    query = sa.select(revocation).where(revocation.c.seq > position).order_by(revocation.c.seq)
    return [
        (row.seq, Revocation(row.identity_id, row.token_id, row.revoked_at, row.expires_at))
        for row in await connection.execute(query)
    ]


async def forget_expired(connection: AsyncConnection, now: datetime) -> None:
    """Remove the revocations of tokens that nobody takes for valid any more."""
    await connection.execute(sa.delete(revocation).where(revocation.c.expires_at < now - KEPT))
