"""Reads of one answer see one moment, whatever is committed between them."""

from __future__ import annotations

import sqlalchemy as sa

from meridian.database import Database


async def test_a_snapshot_stays_as_it_was_and_the_connection_goes_back_as_it_came(database_url: str) -> None:
    database = Database(database_url, "public", pool_size=1)
    count = sa.text("SELECT count(*) FROM seen")
    try:
        async with database.transaction() as connection:
            await connection.execute(sa.text("CREATE TABLE seen (number INTEGER)"))
        async with database.snapshot() as snapshot:
            assert await snapshot.scalar(count) == 0
            async with database.transaction() as connection:
                await connection.execute(sa.text("INSERT INTO seen VALUES (1)"))
            assert await snapshot.scalar(count) == 0
        async with database.reading() as connection:
            assert await connection.scalar(count) == 1
            assert await connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
    finally:
        await database.close()
