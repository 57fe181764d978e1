"""Which events a consumer has handled already; written in the same transaction as their effect."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

_CLAIM = sa.text(
    "INSERT INTO inbox (consumer, message_id) SELECT :consumer, id FROM unnest(:ids) AS id "
    "ON CONFLICT DO NOTHING RETURNING message_id"
).bindparams(sa.bindparam("ids", type_=postgresql.ARRAY(sa.Text)))


async def claim(connection: AsyncConnection, consumer: str, message_ids: Sequence[str]) -> set[str]:
    """Record that ``consumer`` handles these messages now; returns those it had not handled before."""
    if not message_ids:
        return set()
    result = await connection.execute(_CLAIM, {"consumer": consumer, "ids": sorted(set(message_ids))})
    return {row.message_id for row in result}


async def forget_older_than(connection: AsyncConnection, days: int) -> int:
    """Remove records that no redelivery can reach any more; returns how many."""
    statement = sa.text("DELETE FROM inbox WHERE received_at < now() - make_interval(days => :days)")
    result = await connection.execute(statement, {"days": days})
    return result.rowcount
