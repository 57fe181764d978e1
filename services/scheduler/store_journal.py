"""SQL of the journal: chunks of what the scheduler did, from which its decisions are made again."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.store_rows import Row
from services.scheduler.store_tables import journal


async def add_journal_chunk(connection: AsyncConnection, row: Row) -> None:
    """Append a chunk of the journal; one whose ``number`` its term has already changes nothing."""
    await connection.execute(
        postgresql.insert(journal).values(row).on_conflict_do_nothing(index_elements=["term", "number"])
    )


async def journal_chunks(connection: AsyncConnection) -> list[bytes]:
    """The bodies of all chunks from the first one with which a book begins, in order: one term after another, as an instance
    that was replaced may write its last chunk late."""
    place = sa.tuple_(journal.c.term, journal.c.chunk)
    begins = sa.select(journal.c.term, journal.c.chunk).where(journal.c.begins)
    first = begins.order_by(journal.c.term, journal.c.chunk).limit(1).scalar_subquery()
    query = sa.select(journal.c.body).where(place >= first).order_by(journal.c.term, journal.c.chunk)
    return list((await connection.execute(query)).scalars())


async def forget_journal_before(connection: AsyncConnection, at_s: float) -> None:
    """Remove chunks older than a time; a book that began before it cannot be replayed any more."""
    await connection.execute(sa.delete(journal).where(journal.c.last_at_s < at_s))
