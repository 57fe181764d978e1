"""PostgreSQL: one schema per service, transactions at the boundary, migrations by Alembic.

A connection's search path is the service's schema, so SQL names its tables plainly and cannot reach another service's.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

log = logging.getLogger(__name__)

# SQLSTATE classes of errors that pass when the same work is done again: connection lost (08), serialisation failure
# and deadlock (40), resources (53), operator intervention such as a restart (57).
_PASSING_CLASSES = ("08", "40", "53", "57")

_PING_AFTER_S = 5.0
"""A connection that lay unused so long is asked whether it is there. Before that it is known by its socket: a server that ends
closes it, and only what drops idle connections without a word (a firewall) does not."""

_UNREACHABLE = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE})


def is_passing(error: BaseException) -> bool:
    """Whether the same work may succeed when tried again: the database went away or refused for the moment, or a migration changed
    a table under a statement that was prepared before (all are prepared anew after the first that is told so)."""
    if isinstance(error, ConnectionError | TimeoutError | InterfaceError):
        return True
    if isinstance(error, DBAPIError):
        original = getattr(error.orig, "__cause__", None)
        if error.connection_invalidated or isinstance(original, asyncpg.InvalidCachedStatementError):
            return True
        state = getattr(error.orig, "sqlstate", None) or getattr(original, "sqlstate", None)
        if isinstance(state, str):
            return state.startswith(_PASSING_CLASSES)
        return isinstance(error, OperationalError)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, asyncpg.DataError)
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_PASSING_CLASSES)
    # asyncio sums up failed attempts to connect in an OSError without a number.
    return isinstance(error, OSError) and (error.errno is None or error.errno in _UNREACHABLE)


class Database:
    """Connections to one service's schema."""

    def __init__(self, url: str, schema: str, *, pool_size: int = 5) -> None:
        self.url = url
        self.schema = schema
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            # The one used last has its statements prepared.
            pool_use_lifo=True,
            connect_args={"server_settings": self.server_settings},
        )
        _check_idle_connections(self.engine)
        self._statements = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def server_settings(self) -> dict[str, str]:
        """What a connection to the schema tells the server at its start."""
        return {"search_path": self.schema, "application_name": f"meridian-{self.schema}"}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction: committed at the end of the block, rolled back on any error."""
        async with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reads, each of which sees what was committed when it began. There is no transaction, which would take
        two round trips more and show nothing else: never write through it; `snapshot` is for reads that belong together."""
        async with self._statements.connect() as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reads that all see the database as it was at the first of them."""
        async with self.engine.connect() as connection:
            yield await connection.execution_options(isolation_level="REPEATABLE READ")

    async def ping(self) -> None:
        """Fail when the database does not answer."""
        async with self.engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()


def _check_idle_connections(engine: AsyncEngine) -> None:
    """Replace connections that are gone when they are taken from the pool; a ping each time (``pool_pre_ping``) takes as many
    round trips as a small transaction."""

    def taken(connection: Any, record: Any, _proxy: Any) -> None:
        if connection.driver_connection.is_closed():
            raise DisconnectionError("the server has closed the connection")
        idle_since_s = record.info.get("idle_since_s")
        if idle_since_s is None or time.monotonic() - idle_since_s < _PING_AFTER_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError(f"the connection was lost while it was not used: {error}") from error

    def given_back(_connection: Any, record: Any) -> None:
        record.info["idle_since_s"] = time.monotonic()

    sa.event.listen(engine.sync_engine, "checkout", taken)
    sa.event.listen(engine.sync_engine, "checkin", given_back)


def create_kernel_tables() -> None:
    """Called by the first migration of each service: the outbox and inbox of `meridian.outbox` and `meridian.inbox`."""
    from alembic import op

    op.create_table(
        "outbox",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=True),
        sa.Column("value", sa.LargeBinary, nullable=True),
        sa.Column("headers", postgresql.JSONB, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "inbox",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_index("inbox_received_at", "inbox", ["received_at"])


def run_migrations() -> None:
    """The whole of a service's ``migrations/env.py``: run on the connection that `migrate` holds."""
    from alembic import context

    connection = context.config.attributes["connection"]
    schema = context.config.attributes["schema"]
    context.configure(connection=connection, version_table_schema=schema, transaction_per_migration=False)
    with context.begin_transaction():
        context.run_migrations()


async def migrate(url: str, schema: str, scripts: Path) -> None:
    """Bring a schema to the newest version of the Alembic ``scripts``; concurrent callers wait for each other."""
    # Alembic takes a tenth of a second to import and only this step needs it.
    from alembic import command
    from alembic.config import Config

    engine = create_async_engine(url, poolclass=NullPool)

    def upgrade(connection: sa.Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(scripts))
        config.attributes["connection"] = connection
        config.attributes["schema"] = schema
        command.upgrade(config, "head")

    try:
        async with engine.begin() as connection:
            await connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('meridian.migrate'))"))
            await connection.execute(sa.text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
            await connection.execute(sa.text(f'SET LOCAL search_path TO "{schema}"'))
            await connection.run_sync(upgrade)
    finally:
        await engine.dispose()
    log.info("schema is up to date", extra={"schema": schema})
