"""The event table: an ordered stream that can be read from any position without a gap or a duplicate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.tables import event

# Sequence numbers are given at insert but seen at commit: a reader could pass a number that appears later. So one writer
# at a time, from its insert, which is the last work of its transaction, to its commit.
_ONE_WRITER = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('meridian.gateway.event', 0))")

_NEWEST_EVER = sa.select(
    sa.func.coalesce(
        sa.func.max(event.c.seq),
        sa.func.pg_sequence_last_value(sa.text("pg_get_serial_sequence('event', 'seq')::regclass")),
    )
)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be stored; ``data`` is JSON text."""

    type: str
    time: datetime
    source: str
    topic: str
    trace_id: str
    event_id: str
    job_id: str
    tenant_id: str
    domain_id: str
    data: str


@dataclass(frozen=True, slots=True)
class StoredEvent(NewEvent):
    """An event at its place in the stream."""

    seq: int


_COLUMNS = ("type", "time", "source", "topic", "trace_id", "event_id", "job_id", "tenant_id", "domain_id", "data")
_SELECTED = [*(event.c[name] for name in _COLUMNS), event.c.seq]


async def append(connection: AsyncConnection, events: Sequence[NewEvent]) -> None:
    """Add events in their order; call it last in the transaction."""
    if not events:
        return
    given = (
        sa.func.unnest(
            *(sa.literal([getattr(item, name) for item in events], sa.ARRAY(event.c[name].type)) for name in _COLUMNS)
        )
        .table_valued(
            *(sa.column(name, event.c[name].type) for name in _COLUMNS), with_ordinality="place", name="given"
        )
        .render_derived()
    )
    rows = sa.select(*(given.c[name] for name in _COLUMNS)).order_by(given.c.place)
    await connection.execute(_ONE_WRITER)
    await connection.execute(sa.insert(event).from_select(_COLUMNS, rows))


async def newest(connection: AsyncConnection) -> int:
    """The position of the newest event, also when none is kept any more; 0 when there never was one."""
    found = await connection.scalar(sa.select(sa.func.max(event.c.seq)))
    if found is None:
        # Nobody is between taking a number and his commit then.
        await connection.execute(_ONE_WRITER)
        found = await connection.scalar(_NEWEST_EVER)
    return int(found or 0)


async def oldest(connection: AsyncConnection) -> int | None:
    """The position of the oldest event that is kept, None when there is none."""
    found = await connection.scalar(sa.select(sa.func.min(event.c.seq)))
    return None if found is None else int(found)


async def read_after(
    connection: AsyncConnection, position: int, limit: int, *, job_id: str | None = None
) -> list[StoredEvent]:
    """The next events behind a position."""
    query = sa.select(*_SELECTED).where(event.c.seq > position).order_by(event.c.seq).limit(limit)
    if job_id is not None:
        query = query.where(event.c.job_id == job_id, event.c.job_id != "")
    return [StoredEvent(*row) for row in await connection.execute(query)]
