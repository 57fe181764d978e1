"""What an event asks of the database on its way, and that it gets there whoever dies or is told late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from bench.round_trips import counted
from meridian import database as database_module
from meridian import outbox as outbox_module
from meridian.codec import Record
from meridian.contracts.job.v1 import job_pb2
from meridian.database import Database, is_passing, migrate
from meridian.outbox import Relay, Transaction
from meridian.service import Kernel, create_kernel
from meridian.settings import KernelSettings
from tests.harness import PATIENCE_S, Environment, environment

MIGRATIONS = Path(__file__).parent / "migrations"
NEVER_S = 3600.0
"""A relay that looks so seldom sends only what it is told of."""
LOCKED = sa.text(
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
LEFT = sa.text("SELECT count(*) FROM outbox")


async def make_kernel(stack: Environment, database_url: str | None = None) -> Kernel:
    await migrate(stack.database_url, "ledger", MIGRATIONS)
    url = database_url or stack.database_url
    return create_kernel("ledger", KernelSettings(kafka_bootstrap_servers=stack.bootstrap_servers, database_url=url))


@asynccontextmanager
async def relaying(kernel: Kernel) -> AsyncIterator[Relay]:
    """The bus and the relay of a kernel, without what else a service does now and then."""
    await kernel.bus.start()
    assert kernel.bus.producer is not None
    relay = Relay(kernel.database, kernel.bus.producer, kernel.bus_metrics, kernel.clock, look_every_s=NEVER_S)
    kernel.outbox.relay = relay
    task = asyncio.create_task(relay.run())
    try:
        yield relay
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kernel.bus.stop()
        await kernel.database.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def until_works(relay: Relay) -> None:
    async def works() -> bool:
        return relay.works

    await until(works)


async def until_empty(database: Database) -> None:
    async def empty() -> bool:
        async with database.reading() as connection:
            return await connection.scalar(LEFT) == 0

    await until(empty)


async def publish(kernel: Kernel, *units: int) -> None:
    async with kernel.outbox.transaction() as transaction:
        for number in units:
            transaction.publish(job_pb2.JobQueued(job_id="j", units=number))


def heard(stack: Environment) -> list[int]:
    return [event.units for event in stack.bus.events(job_pb2.JobQueued)]


# -- round trips ------------------------------------------------------------------------------------------------------


async def test_a_transaction_asks_the_same_for_one_event_and_for_a_hundred(database_url: str) -> None:
    async with environment(database_url) as stack, counted(database_url) as trips:
        kernel = await make_kernel(stack, trips.url)
        await publish(kernel, 0)  # makes the connection and prepares the statement
        for count in (1, 10, 100):
            before = trips.count
            await publish(kernel, *range(count))
            assert trips.count - before == 3, "BEGIN, INSERT, COMMIT"
        await kernel.database.close()


async def test_a_relay_asks_twice_for_all_that_was_committed_together(database_url: str) -> None:
    async with environment(database_url) as stack, counted(database_url) as trips:
        watcher = await make_kernel(stack)
        kernel = await make_kernel(stack, trips.url)
        async with relaying(kernel) as relay:
            await until_works(relay)
            for count in (1, 1, 10, 100):
                before = trips.count
                await publish(kernel, *range(count))
                await stack.bus.expect(job_pb2.JobQueued, count=len(heard(stack)) + count)
                await until_empty(watcher.database)
                first, before = before, trips.count
            # The transaction's three, the rows, their deletion. The first time statements are prepared as well.
            assert trips.count - first == 3 + 2
        await watcher.database.close()


async def test_a_handled_event_asks_for_the_claim_and_what_its_handler_asks(database_url: str) -> None:
    async with environment(database_url) as stack, counted(database_url) as trips:
        kernel = await make_kernel(stack, trips.url)
        handled = 0

        async def handle(transaction: Transaction, message: job_pb2.JobSubmitted) -> None:
            await transaction.connection.execute(
                sa.text("INSERT INTO seen (job_id) VALUES (:job)"), {"job": message.job_id}
            )
            transaction.publish(job_pb2.JobQueued(job_id=message.job_id, units=1))
            transaction.on_commit(note)

        def note() -> None:
            nonlocal handled
            handled += 1

        kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: handle})
        await kernel.bus.start()
        try:
            taken = []
            for number in range(3):
                before = trips.count
                await stack.bus.publish(job_pb2.JobSubmitted(job_id=f"job-{number}"))

                async def arrived(expected: int = number + 1) -> bool:
                    return handled == expected

                await until(arrived)
                taken.append(trips.count - before)
            assert taken[1:] == [5, 5], "BEGIN, INSERT INTO inbox, the handler's INSERT, INSERT INTO outbox, COMMIT"
        finally:
            await kernel.bus.stop()
            await kernel.database.close()


async def test_a_read_asks_once_and_a_connection_is_pinged_only_when_it_lay_unused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(database_url) as trips:
        database = Database(trips.url, "public")

        async def read() -> int:
            before = trips.count
            async with database.reading() as connection:
                assert await connection.scalar(sa.text("SELECT 1")) == 1
            return trips.count - before

        await read()
        assert [await read(), await read()] == [1, 1]
        monkeypatch.setattr(database_module, "_PING_AFTER_S", 0.0)
        assert await read() > 1
        await database.close()


async def test_a_connection_that_the_server_closed_is_replaced_before_it_is_used(database_url: str) -> None:
    database, other = (Database(database_url, "public", pool_size=1) for _ in range(2))
    pid = sa.text("SELECT pg_backend_pid()")
    try:
        async with database.transaction() as connection:
            first = await connection.scalar(pid)
            driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        async with other.transaction() as connection:
            await connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": first})

        async def closed() -> bool:
            return bool(driver.is_closed())

        await until(closed)
        async with database.transaction() as connection:
            assert await connection.scalar(pid) != first
    finally:
        await database.close()
        await other.close()


async def test_work_prepared_before_a_migration_is_done_again(database_url: str) -> None:
    """Processes of the release before go on while `prepare` adds a column to a table of theirs."""
    database = Database(database_url, "public")
    everything = sa.text("SELECT * FROM known")
    try:
        async with database.transaction() as connection:
            await connection.execute(sa.text("CREATE TABLE known (number integer)"))
            await connection.execute(sa.text("INSERT INTO known VALUES (1)"))
        async with database.transaction() as connection:
            await connection.execute(everything)
        migrating = Database(database_url, "public")
        async with migrating.transaction() as connection:
            await connection.execute(sa.text("ALTER TABLE known ADD COLUMN name text NOT NULL DEFAULT 'x'"))
        await migrating.close()
        with pytest.raises(sa.exc.NotSupportedError) as told:
            async with database.transaction() as connection:
                await connection.execute(everything)
        assert is_passing(told.value)
        async with database.transaction() as connection:
            assert (await connection.execute(everything)).one() == (1, "x")
    finally:
        await database.close()


# -- order and content ------------------------------------------------------------------------------------------------


async def test_events_keep_their_order_and_their_bytes_however_many_statements_write_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_FLUSHED_BYTES", 300)
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        records = [
            Record("meridian.job.requests.v1", b"\x00\xffkey", bytes([number]) * (number * 7), [("ce_id", "é\"'\\{}".encode())])
            for number in range(60)
        ]  # fmt: skip
        async with kernel.outbox.transaction() as transaction:
            for record in records[:30]:
                transaction.forward(record)
            await transaction.flush()
            for record in records[30:]:
                transaction.forward(record)
        async with kernel.database.reading() as connection:
            rows = (await connection.execute(sa.text("SELECT * FROM outbox ORDER BY seq"))).all()
        found = [Record(row.topic, row.key, row.value, [(n, v.encode()) for n, v in row.headers]) for row in rows]
        assert found == records
        await kernel.database.close()


# -- who is told, and who dies ----------------------------------------------------------------------------------------


async def test_the_relay_of_another_process_is_told_and_so_is_its_successor(database_url: str) -> None:
    """The lock goes from one to the other; neither looks by itself."""
    async with environment(database_url) as stack, AsyncExitStack() as firsts, AsyncExitStack() as seconds:
        first, second = await make_kernel(stack), await make_kernel(stack)
        await until_works(await firsts.enter_async_context(relaying(first)))
        heir = await seconds.enter_async_context(relaying(second))
        await publish(first, 0)
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 0)
        await publish(second, 1)
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 1)
        assert not heir.works
        await firsts.aclose()
        await until_works(heir)
        await publish(second, 2)
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 2)
        stranger = await make_kernel(stack)
        await publish(stranger, 3)
        await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 3)
        await stranger.database.close()
        assert heard(stack) == [0, 1, 2, 3]


async def test_what_the_release_before_commits_is_sent_at_once(database_url: str) -> None:
    """It writes row by row and notifies on the channel of all services."""
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        async with relaying(kernel) as relay:
            await until_works(relay)
            await publish(kernel, 1)
            async with kernel.outbox.transaction() as transaction:
                transaction.publish(job_pb2.JobQueued(job_id="j", units=2))
                row = transaction._records.pop()
                insert = sa.text(
                    "INSERT INTO outbox (topic, key, value, headers) VALUES (:topic, :key, :value, CAST(:headers AS jsonb))"
                )
                headers = json.dumps([[name, text.decode()] for name, text in row.headers])
                parameters = {"topic": row.topic, "key": row.key, "value": row.value, "headers": headers}
                await transaction.connection.execute(insert, parameters)
                await transaction.connection.execute(sa.text("SELECT pg_notify('meridian_outbox', current_schema())"))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 2)
        assert heard(stack) == [1, 2]


async def test_a_relay_that_is_cut_off_between_sending_and_deleting_sends_again(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel, other = await make_kernel(stack), await make_kernel(stack)
        await publish(kernel, 1, 2)
        async with other.database.transaction() as holding:
            # They can be read and not be deleted.
            await holding.execute(sa.text("SELECT FROM outbox FOR UPDATE"))
            async with relaying(kernel) as relay:
                await stack.bus.expect(job_pb2.JobQueued, count=2)
                async with other.database.transaction() as connection:
                    [backend] = (await connection.scalars(LOCKED)).all()
                    await connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
                await stack.bus.expect(job_pb2.JobQueued, count=4)
                await holding.rollback()
                await until_empty(other.database)
                await until_works(relay)
                await publish(kernel, 3)
                await stack.bus.expect(job_pb2.JobQueued, count=5)
                await until_empty(other.database)
        await other.database.close()
        sent = [(item.id, item.data.units) for item in stack.bus.seen]  # type: ignore[attr-defined]
    assert [units for _, units in sent] == [1, 2, 1, 2, 3]
    assert len({event_id for event_id, _ in sent}) == 3, "consumers know them by their ids"
