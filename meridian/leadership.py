"""One of several processes does a thing: the holder of a PostgreSQL advisory lock, on a connection of its own.

The lock chooses, it does not fence: a holder can lose its connection without noticing. Where that matters, writes check a
term in the same transaction (see the schedulers' and failover's stores).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import asyncpg

from meridian.database import Database

_CONFIRM_S = 1.0
_HANGS_AFTER_S = 15.0
"""A database, or this process, that stands still for some seconds is no reason to give up: whoever comes next reads everything anew."""


def lock_name(purpose: str, schema: str) -> str:
    """What an advisory lock is known by to the database; its number is ``hashtext`` of it."""
    return f"meridian.{purpose}.{schema}"


class AdvisoryLock:
    """The lock ``purpose`` of a service's schema. As a context: held inside the block. ``settings``: of the server, for its connection."""

    def __init__(self, database: Database, purpose: str, **settings: str) -> None:
        self._dsn = database.url.replace("postgresql+asyncpg://", "postgresql://")
        self._settings = database.server_settings | settings
        self._name = lock_name(purpose, database.schema)
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def connection(self) -> asyncpg.Connection[asyncpg.Record]:
        """The connection that holds the lock, to the service's schema; it serves its holder for other statements too."""
        assert self._connection is not None, "the lock is not held"
        return self._connection

    async def take(self) -> None:
        """Wait for the lock."""
        self._connection = await asyncpg.connect(self._dsn, server_settings=self._settings)
        # Another process holds it; PostgreSQL tells nobody when it lets go.
        while not await self._connection.fetchval("SELECT pg_try_advisory_lock(hashtext($1))", self._name):  # noqa: ASYNC110
            await asyncio.sleep(_CONFIRM_S)

    async def keep(self) -> None:
        """Confirm every second, until cancelled, that the connection and with it the lock is there; fails when not.

        :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection is gone (TimeoutError: it hangs).
        """
        while True:
            await asyncio.sleep(_CONFIRM_S)
            async with asyncio.timeout(_HANGS_AFTER_S):
                await self.connection.execute("SELECT 1")

    async def release(self) -> None:
        """Let go of the lock."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def __aenter__(self) -> Self:
        try:
            await self.take()
        except BaseException:
            await self.release()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.release()
