"""State change and outgoing events in one transaction; a relay sends what was committed.

`Outbox.transaction()` opens a transaction whose `publish` adds rows to the outbox table. `Relay` sends the rows in
their order and deletes them when the broker has acknowledged: at least once, in commit order per key as long as the
writers of one key are serialised (lock the aggregate's row, or write from one task).

What an event asks of PostgreSQL, each line a round trip; those of the outbox and the relay are for all events of a transaction, or
of a batch:

    BEGIN; the service's own statements; INSERT INTO outbox; COMMIT        (with NOTIFY only where another process relays)
    SELECT outbox | send | DELETE what was sent and SELECT the next        (no transaction: each statement is one)
    BEGIN; INSERT INTO inbox; the handler's own statements; COMMIT         (the next service, inbox.py)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

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

_CHANNEL = "meridian_outbox"
_FLUSHED_BYTES = 16 << 20
"""Values of about so many bytes are written by one statement."""

_INSERT = (
    "INSERT INTO outbox (topic, key, value, headers) SELECT t, k, v, CAST(h AS jsonb) "
    "FROM unnest(:topics, :keys, :values, :headers) WITH ORDINALITY AS x (t, k, v, h, place) ORDER BY place"
)
_ARRAYS: dict[str, sa.types.TypeEngine[Any]] = {
    "topics": postgresql.ARRAY(sa.Text),
    "keys": postgresql.ARRAY(sa.LargeBinary),
    "values": postgresql.ARRAY(sa.LargeBinary),
    "headers": postgresql.ARRAY(sa.Text),
}


def _with_arrays(sql: str) -> sa.TextClause:
    return sa.text(sql).bindparams(*(sa.bindparam(name, type_=kind) for name, kind in _ARRAYS.items()))


_STORE = _with_arrays(_INSERT)
_STORE_AND_NOTIFY = _with_arrays(f"WITH stored AS ({_INSERT}) SELECT pg_notify('{_CHANNEL}', current_schema())")

_COLUMNS = "seq, topic, key, value, headers, created_at"
_READ = f"SELECT {_COLUMNS} FROM outbox ORDER BY seq LIMIT $1"  # noqa: S608 - all of it stands above
# The rows that one half of a statement deletes are still there for the other half.
_DELETE_AND_READ = (
    "WITH sent AS (DELETE FROM outbox WHERE seq = ANY($2)) "  # noqa: S608 - all of it stands above
    f"SELECT {_COLUMNS} FROM outbox WHERE seq <> ALL($2) ORDER BY seq LIMIT $1"
)
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
Rows = list[asyncpg.Record]


class Transaction:
    """An open transaction: SQL through ``connection``, events through ``publish``, both or neither. ``relay``: this process's."""

    def __init__(
        self, connection: AsyncConnection, source: str, clock: Clock, new_id: NewId, relay: Relay | None = None
    ) -> None:
        self.connection = connection
        self._relay = relay
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
        records, self._records = self._records, []
        begun = 0
        while begun < len(records):
            end, size = begun, 0
            while end < len(records) and size < _FLUSHED_BYTES:
                size += len(records[end].value)
                end += 1
            await self._store(records[begun:end])
            begun = end

    async def _store(self, records: Sequence[Record]) -> None:
        parameters = {
            "topics": [record.topic for record in records],
            "keys": [record.key for record in records],
            "values": [record.value for record in records],
            "headers": [json.dumps([[name, text.decode()] for name, text in record.headers]) for record in records],
        }
        if self._relay is not None and self._relay.works:
            # NOTIFY makes commits wait for each other, of all services, and wakes every relay there is.
            self.on_commit(self._relay.wake)
            await self.connection.execute(_STORE, parameters)
        else:
            await self.connection.execute(_STORE_AND_NOTIFY, parameters)

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
        self.relay: Relay | None = None
        """That of this process, if it has one: it need not be told of commits by the database while it is the one that works."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """State and events together: committed at the end of the block, both dropped on any error."""
        transaction: Transaction | None = None
        committed = False
        try:
            async with self.database.transaction() as connection:
                transaction = Transaction(connection, self._source, self._clock, self._new_id, self.relay)
                yield transaction
                await transaction.flush()
            committed = True
            transaction.committed()
        finally:
            if transaction is not None:
                transaction.ended(committed)


class Relay:
    """Sends committed outbox rows to the bus. One relay per schema works at a time; others stand by.

    1. Take the schema's advisory lock on a connection of its own and LISTEN for commits of other processes.
    2. Read up to ``batch`` rows by sequence, send them all, wait for every acknowledgement.
    3. Delete them and read the next. A crash between 2 and 3 sends them again: consumers know them by their event id.
    4. When there are none, wait to be woken, by this process or another, and look every ``look_every_s`` in any case: who commits just
       when the lock changes hands may wake the wrong one.

    All statements go over the connection of the lock, so that a relay whose lock was lost deletes nothing. A deletion need not be on
    disk before its answer (``synchronous_commit``): one that a crash of the machine undoes is a crash between 2 and 3.

    A record that is larger than its topic takes goes to the dead letters, with the beginning of its value, and stops no other.
    """

    def __init__(
        self,
        database: Database,
        producer: AIOKafkaProducer,
        metrics: BusMetrics,
        clock: Clock,
        *,
        batch: int = 1000,
        look_every_s: float = 1.0,
    ) -> None:
        self._database = database
        self._producer = producer
        self._metrics = metrics
        self._clock = clock
        self._batch = batch
        self._look_every_s = look_every_s
        self._wake = asyncio.Event()
        self.works = False
        """Whether this is the relay that sends, as far as it knows."""

    def wake(self) -> None:
        """Rows were committed."""
        self._wake.set()

    async def run(self) -> None:
        """Relay until cancelled; passing errors of the database or the bus are waited out."""
        while True:
            try:
                await self._run_locked()
            except (KafkaError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if not (isinstance(error, KafkaError | OSError) or is_passing(error)):
                    raise
                log.warning("outbox relay interrupted, starts again", extra={"error": repr(error)})
                await asyncio.sleep(0.5)

    async def _run_locked(self) -> None:
        async with AdvisoryLock(self._database, "outbox", synchronous_commit="off") as lock:
            await lock.connection.add_listener(_CHANNEL, self._heard)
            self.works = True
            try:
                while True:
                    self._wake.clear()
                    rows = await lock.connection.fetch(_READ, self._batch)
                    while rows:
                        rows = await self._send_whole_batch(lock.connection, rows)
                    await self._wait()
            finally:
                self.works = False

    async def _send_whole_batch(self, connection: asyncpg.Connection[asyncpg.Record], rows: Rows) -> Rows:
        batch = asyncio.create_task(self._send_batch(connection, rows))
        try:
            return await asyncio.shield(batch)
        except asyncio.CancelledError:
            # A batch that was sent but not deleted would be sent again by the next relay.
            await asyncio.wait({batch}, timeout=5.0)
            raise

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == self._database.schema:
            self._wake.set()

    async def _wait(self) -> None:
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the wake-up.
            async with asyncio.timeout(self._look_every_s):
                await self._wake.wait()
        except TimeoutError:
            self._metrics.outbox_age.set(0)

    async def _send_batch(self, connection: asyncpg.Connection[asyncpg.Record], rows: Rows) -> Rows:
        self._metrics.outbox_age.set(max(0.0, (self._clock.now() - rows[0]["created_at"]).total_seconds()))
        await self._send(rows)
        # What is committed from here on wakes anew; what was committed before is read now.
        self._wake.clear()
        found = await connection.fetch(_DELETE_AND_READ, self._batch, [row["seq"] for row in rows])
        self._metrics.published.inc(len(rows))
        return found

    async def _send(self, rows: Rows) -> None:
        records = [
            Record(
                row["topic"],
                row["key"],
                row["value"],
                [(name, text.encode()) for name, text in json.loads(row["headers"])],
            )
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
