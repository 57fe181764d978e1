"""State change and outgoing events in one transaction; a relay sends what was committed.

`Outbox.transaction()` opens a transaction whose `publish` adds rows to the outbox table. `Relay` sends the rows in
their order and deletes them when the broker has acknowledged: at least once, in commit order per key as long as the
writers of one key are serialised (lock the aggregate's row, or write from one task).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg
import sqlalchemy as sa
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from google.protobuf.message import Message
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.clock import Clock
from meridian.codec import Record, encode
from meridian.database import Database, is_passing
from meridian.ids import NewId
from meridian.leadership import AdvisoryLock
from meridian.observability import BusMetrics, current_traceparent
from meridian.set_aside import letter

log = logging.getLogger(__name__)

_metadata = sa.MetaData()
outbox_table = sa.Table(
    "outbox",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("topic", sa.Text),
    sa.Column("key", sa.LargeBinary),
    sa.Column("value", sa.LargeBinary),
    sa.Column("headers", postgresql.JSONB),
    sa.Column("created_at", sa.DateTime(timezone=True)),
)

_CHANNEL = "meridian_outbox"
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class Transaction:
    """An open transaction: SQL through ``connection``, events through ``publish``, both or neither."""

    def __init__(self, connection: AsyncConnection, source: str, clock: Clock, new_id: NewId) -> None:
        self.connection = connection
        self._source = source
        self._clock = clock
        self._new_id = new_id
        self._records: list[Record] = []
        self._on_commit: list[Callable[[], None]] = []
        self._on_end: list[Callable[[bool], None]] = []

    def publish(self, message: Message, *, traceparent: str | None = None) -> str:
        """Add an event to be sent after commit, in the order of the calls; returns its id.

        ContractError when the message is no event of the contracts or its key is empty.
        """
        event_id = self._new_id("evt")
        record = encode(
            message,
            event_id=event_id,
            source=self._source,
            time=self._clock.now(),
            traceparent=current_traceparent() if traceparent is None else traceparent,
        )
        self._records.append(record)
        return event_id

    def forward(self, record: Record) -> None:
        """Add a record as it is (dead letters)."""
        self._records.append(record)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the transaction is committed; never when it is rolled back."""
        self._on_commit.append(callback)

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback(committed)`` when the transaction is over, after `on_commit`; False when it surely or
        possibly was rolled back (a connection lost during the commit leaves it open)."""
        self._on_end.append(callback)

    async def flush(self) -> None:
        """Write the collected events to the outbox table."""
        if not self._records:
            return
        rows = [
            {
                "topic": record.topic,
                "key": record.key,
                "value": record.value,
                "headers": [[name, value.decode()] for name, value in record.headers],
            }
            for record in self._records
        ]
        self._records = []
        await self.connection.execute(sa.insert(outbox_table), rows)
        await self.connection.execute(sa.text(f"SELECT pg_notify('{_CHANNEL}', current_schema())"))

    def committed(self) -> None:
        """Run what waited for the commit."""
        for callback in self._on_commit:
            callback()

    def ended(self, committed: bool) -> None:
        """Run what waited for the end."""
        for callback in self._on_end:
            callback(committed)


class Outbox:
    """Opens transactions of one service."""

    def __init__(self, database: Database, source: str, clock: Clock, new_id: NewId) -> None:
        self.database = database
        self._source = source
        self._clock = clock
        self._new_id = new_id

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """State and events together: committed at the end of the block, both dropped on any error."""
        transaction: Transaction | None = None
        committed = False
        try:
            async with self.database.transaction() as connection:
                transaction = Transaction(connection, self._source, self._clock, self._new_id)
                yield transaction
                await transaction.flush()
            committed = True
            transaction.committed()
        finally:
            if transaction is not None:
                transaction.ended(committed)


class Relay:
    """Sends committed outbox rows to the bus. One relay per schema works at a time; others stand by.

    1. Take the schema's advisory lock on a connection of its own and LISTEN for commits.
    2. Read up to ``batch`` rows by sequence, send them all, wait for every acknowledgement.
    3. Delete them. A crash between 2 and 3 sends them again: consumers know them by their event id.

    A record that is larger than its topic takes goes to the dead letters, with the beginning of its value, and stops no other.
    """

    def __init__(
        self, database: Database, producer: AIOKafkaProducer, metrics: BusMetrics, clock: Clock, *, batch: int = 1000
    ) -> None:
        self._database = database
        self._producer = producer
        self._metrics = metrics
        self._clock = clock
        self._batch = batch
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Relay until cancelled; passing errors of the database or the bus are waited out."""
        while True:
            try:
                await self._run_locked()
            except (KafkaError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, sa.exc.DBAPIError) as error:
                if isinstance(error, sa.exc.DBAPIError) and not is_passing(error):
                    raise
                log.warning("outbox relay interrupted, starts again", extra={"error": repr(error)})
                await asyncio.sleep(0.5)

    async def _run_locked(self) -> None:
        async with AdvisoryLock(self._database, "outbox") as lock:
            await lock.connection.add_listener(_CHANNEL, self._heard)
            while True:
                self._wake.clear()
                while await self._send_whole_batch() == self._batch:
                    pass
                await self._wait(lock.connection)

    async def _send_whole_batch(self) -> int:
        batch = asyncio.create_task(self._send_batch())
        try:
            return await asyncio.shield(batch)
        except asyncio.CancelledError:
            # A batch that was sent but not deleted would be sent again by the next relay.
            await asyncio.wait({batch}, timeout=5.0)
            raise

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == self._database.schema:
            self._wake.set()

    async def _wait(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the wake-up.
            async with asyncio.timeout(1.0):
                await self._wake.wait()
        except TimeoutError:
            self._metrics.outbox_age.set(0)
            # Fails when the connection, and with it the lock, is gone.
            await connection.execute("SELECT 1")

    async def _send_batch(self) -> int:
        async with self._database.transaction() as connection:
            query = sa.select(outbox_table).order_by(outbox_table.c.seq).limit(self._batch)
            rows = (await connection.execute(query)).all()
            if not rows:
                return 0
            self._metrics.outbox_age.set(max(0.0, (self._clock.now() - rows[0].created_at).total_seconds()))
            await self._send(rows)
            sent = [row.seq for row in rows]
            await connection.execute(
                sa.delete(outbox_table).where(
                    outbox_table.c.seq == sa.any_(sa.literal(sent, postgresql.ARRAY(sa.BigInteger)))
                )
            )
        self._metrics.published.inc(len(rows))
        return len(rows)

    async def _send(self, rows: Sequence[sa.Row[tuple[object, ...]]]) -> None:
        records = [
            Record(row.topic, row.key, row.value, [(name, value.encode()) for name, value in row.headers])
            for row in rows
        ]
        results = await asyncio.gather(*[await self._hand_over(record) for record in records], return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, TOO_LARGE):
                raise result
        for record, result in zip(records, results, strict=True):
            if isinstance(result, BaseException):
                await self._set_aside(record)

    async def _hand_over(self, record: Record) -> asyncio.Future[object]:
        try:
            handed: asyncio.Future[object] = await self._producer.send(
                record.topic, record.value, key=record.key, headers=record.headers
            )
        except TOO_LARGE as error:
            handed = asyncio.get_running_loop().create_future()
            handed.set_exception(error)
        return handed

    async def _set_aside(self, record: Record) -> None:
        reason = f"event of {len(record.value)} bytes is larger than its topic takes"
        log.error("%s", reason, extra={"topic": record.topic, "key": record.key.decode("utf-8", "replace")})
        consumer = f"{self._database.schema}.outbox"
        kept = letter(
            record.topic, record.key, record.value, record.headers, consumer=consumer, reason=reason, fits=False
        )
        try:
            await self._producer.send_and_wait(kept.topic, kept.value, key=kept.key, headers=kept.headers)
        except TOO_LARGE:
            log.exception("what is kept of it is too large as well")
