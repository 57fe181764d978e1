"""One instance declares at a time: the holder of a PostgreSQL advisory lock. Others hear the heartbeats and stand by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from meridian.database import Database

_CONFIRM_S = 1.0


class Lock:
    """The lock while it is held."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    async def keep(self) -> None:
        """Confirm every second that the connection, and with it the lock, is there; fails when it is not."""
        while True:
            await asyncio.sleep(_CONFIRM_S)
            async with asyncio.timeout(5 * _CONFIRM_S):
                await self._connection.execute("SELECT 1")


@asynccontextmanager
async def sole_leader(database: Database) -> AsyncIterator[Lock]:
    """Wait for the lock of the service's schema and hold it until the block ends."""
    dsn = database.url.replace("postgresql+asyncpg://", "postgresql://")
    connection = await asyncpg.connect(dsn)
    try:
        take = f"SELECT pg_try_advisory_lock(hashtext('meridian.leader.{database.schema}'))"
        # Another instance leads; PostgreSQL tells nobody when it lets go.
        while not await connection.fetchval(take):  # noqa: ASYNC110
            await asyncio.sleep(_CONFIRM_S)
        yield Lock(connection)
    finally:
        connection.terminate()
