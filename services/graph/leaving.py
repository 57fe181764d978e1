"""Domains that left the network: what the graph keeps of them goes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.graph.store import Recent


async def remove(connection: AsyncConnection, domain_ids: Iterable[str], recent: Recent) -> None:
    """Remove domains whose locks are held, but for the log of what was told of them, and the identities of their nodes, which are good
    if they come again."""
    names = sorted(domain_ids)
    for domain_id in names:
        # Stored at no time that it could have been stored at: it is no longer known here.
        recent.take(domain_id, math.nan)
    for table in ("nodes", "incidents", "domains") if names else ():
        statement = sa.text(f"DELETE FROM {table} WHERE domain_id = ANY(:ids)")  # noqa: S608 - the names are those above
        await connection.execute(statement.bindparams(sa.bindparam("ids", names, postgresql.ARRAY(sa.Text))))
