"""One scheduler decides at a time: the holder of a PostgreSQL advisory lock, in a term that grows with each holder.

The lock chooses; the term fences. Every write reads the term under a share lock, and a new holder first raises it, which
waits for writes in progress. So a holder that lost its lock without noticing cannot commit any more.
"""

from __future__ import annotations

import asyncio

import asyncpg

from meridian.database import Database
from meridian.errors import UnavailableError

_CONFIRM_S = 1.0


class LeadershipLostError(UnavailableError, ConnectionError):
    """Another scheduler has taken over; this process must end.

    A ConnectionError, so that the bus holds its events back for the new leader instead of burying them.
    """

    code = "LEADERSHIP_LOST"


class Leadership:
    """The lock of the service's schema on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def take(self) -> None:
        """Wait for the lock."""
        dsn = self._database.url.replace("postgresql+asyncpg://", "postgresql://")
        self._connection = await asyncpg.connect(dsn)
        statement = f"SELECT pg_try_advisory_lock(hashtext('meridian.leader.{self._database.schema}'))"
        # Another instance leads; PostgreSQL tells nobody when it lets go.
        while not await self._connection.fetchval(statement):  # noqa: ASYNC110
            await asyncio.sleep(_CONFIRM_S)

    async def keep(self) -> None:
        """Confirm every second that the connection, and with it the lock, is there; LeadershipLostError when not."""
        assert self._connection is not None
        while True:
            await asyncio.sleep(_CONFIRM_S)
            try:
                async with asyncio.timeout(5 * _CONFIRM_S):
                    await self._connection.execute("SELECT 1")
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise LeadershipLostError(f"the connection that holds the lock is gone: {error!r}") from error

    async def release(self) -> None:
        """Let go of the lock."""
        if self._connection is not None:
            self._connection.terminate()
