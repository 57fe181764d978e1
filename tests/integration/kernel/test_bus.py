"""Delivery on the real bus with the real database: effects exactly once, poison set aside, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from meridian.bus import Bus
from meridian.codec import Envelope
from meridian.contracts.job.v1 import job_pb2
from meridian.database import migrate
from meridian.outbox import Transaction
from meridian.service import Kernel, create_kernel, run_service
from meridian.settings import KernelSettings
from tests.harness import PATIENCE_S, Environment, environment, free_port

MIGRATIONS = Path(__file__).parent / "migrations"


@asynccontextmanager
async def running(kernel: Kernel) -> AsyncIterator[None]:
    kernel.http_settings.http_port = free_port("kernel")
    stop = asyncio.Event()
    task = asyncio.create_task(run_service(kernel, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


async def make_kernel(stack: Environment, name: str = "ledger") -> Kernel:
    await migrate(stack.database_url, name, MIGRATIONS)
    settings = KernelSettings(kafka_bootstrap_servers=stack.bootstrap_servers, database_url=stack.database_url)
    return create_kernel(name, settings)


def record_jobs(bus: Bus, *, poison: str = "", failing: list[int] | None = None) -> None:
    async def handle(transaction: Transaction, message: job_pb2.JobSubmitted) -> None:
        if failing and failing.pop():
            raise ConnectionError("the database is away for a moment")
        if message.job_id == poison:
            raise ValueError("this job cannot be handled")
        await transaction.connection.execute(
            sa.text("INSERT INTO seen (job_id) VALUES (:job)"), {"job": message.job_id}
        )
        transaction.publish(job_pb2.JobQueued(job_id=message.job_id, units=1))

    bus.subscribe("jobs", {job_pb2.JobSubmitted: handle})


async def seen(kernel: Kernel) -> list[str]:
    async with kernel.database.reading() as connection:
        return list((await connection.execute(sa.text("SELECT job_id FROM seen ORDER BY position"))).scalars())


async def test_an_effect_and_its_event_happen_once_though_the_event_comes_twice(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus)
        async with running(kernel):
            for _ in range(2):
                await stack.bus.publish(job_pb2.JobSubmitted(job_id="a"), event_id="same")
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="b"))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "b")
            assert sorted(await seen(kernel)) == ["a", "b"]
        assert len(stack.bus.events(job_pb2.JobQueued, lambda event: event.job_id == "a")) == 1


async def test_poison_goes_to_the_dead_letters_and_blocks_nothing(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus, poison="bad")
        async with running(kernel):
            await stack.bus.publish(*(job_pb2.JobSubmitted(job_id=name) for name in ("a", "bad", "c")))
            await stack.bus.publish_raw(
                "meridian.job.requests.v1",
                b"\xff\xff",
                [
                    ("ce_specversion", b"1.0"),
                    ("ce_id", b"9"),
                    ("ce_source", b"/x"),
                    ("ce_type", b"meridian.job.v1.JobSubmitted"),
                ],
            )
            await stack.bus.expect(job_pb2.JobQueued, count=2)
            async with asyncio.timeout(PATIENCE_S):
                while len(stack.bus.dead_letters) < 2:
                    await stack.bus.expect_dead_letter()
                    await asyncio.sleep(0.05)
            assert sorted(await seen(kernel)) == ["a", "c"]
    reasons = {dict(record.headers)["x-dlq-reason"].decode() for record in stack.bus.dead_letters}
    assert any("cannot be handled" in reason for reason in reasons)
    assert any("does not decode" in reason for reason in reasons)


async def test_passing_errors_are_waited_out(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus, failing=[0, 1, 1])
        async with running(kernel):
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="a"))
            await stack.bus.expect(job_pb2.JobQueued)
        assert await seen(kernel) == ["a"]
        assert stack.bus.dead_letters == []


async def test_order_per_key_is_kept_and_a_new_instance_goes_on_where_the_old_one_stopped(database_url: str) -> None:
    async with environment(database_url) as stack:
        names = [f"job-{index:03d}" for index in range(60)]
        for part in (names[:30], names[30:]):
            kernel = await make_kernel(stack)
            record_jobs(kernel.bus)
            async with running(kernel):
                await stack.bus.publish(*(job_pb2.JobSubmitted(job_id=name) for name in part))
                await stack.bus.expect(job_pb2.JobQueued, lambda event, last=part[-1]: event.job_id == last)
                await stack.bus.expect(job_pb2.JobQueued, count=names.index(part[-1]) + 1)
        assert sorted(await seen(kernel)) == names
        queued = [event.job_id for event in stack.bus.events(job_pb2.JobQueued)]
        assert sorted(queued) == names


async def test_nothing_is_published_when_the_transaction_fails(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        async with running(kernel):
            with pytest.raises(RuntimeError):
                async with kernel.outbox.transaction() as transaction:
                    transaction.publish(job_pb2.JobQueued(job_id="never"))
                    await transaction.flush()
                    raise RuntimeError
            async with kernel.outbox.transaction() as transaction:
                transaction.publish(job_pb2.JobQueued(job_id="yes"))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "yes")
        assert stack.bus.events(job_pb2.JobQueued, lambda event: event.job_id == "never") == []


async def test_what_a_dead_process_committed_is_sent_by_the_next(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        async with kernel.outbox.transaction() as transaction:
            for index in range(5):
                transaction.publish(job_pb2.JobQueued(job_id="j", units=index))
        await kernel.database.close()
        successor = await make_kernel(stack)
        async with running(successor):
            await stack.bus.expect(job_pb2.JobQueued, count=5)
        assert [event.units for event in stack.bus.events(job_pb2.JobQueued)] == [0, 1, 2, 3, 4]


async def test_only_one_relay_of_a_schema_sends(database_url: str) -> None:
    async with environment(database_url) as stack:
        first, second = await make_kernel(stack), await make_kernel(stack)
        async with running(first), running(second):
            for index in range(20):
                async with first.outbox.transaction() as transaction:
                    transaction.publish(job_pb2.JobQueued(job_id="j", units=index))
            await stack.bus.expect(job_pb2.JobQueued, count=20)
            # Whatever the other one still sent would come before this.
            async with second.outbox.transaction() as transaction:
                transaction.publish(job_pb2.JobQueued(job_id="j", units=20))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.units == 20)
        assert [event.units for event in stack.bus.events(job_pb2.JobQueued)] == list(range(21))


async def test_events_of_other_keys_are_passed_over_undecoded(database_url: str) -> None:
    """A broken record goes to the dead letters of those whom its key concerns, and of nobody else."""

    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        heard: list[str] = []

        async def hear(envelopes: Sequence[Envelope]) -> None:
            heard.extend(envelope.key for envelope in envelopes)

        async def handle(transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
            for envelope in envelopes:
                transaction.publish(job_pb2.JobQueued(job_id=envelope.key))

        def is_mine(key: str) -> bool:
            return key.startswith("mine")

        kernel.bus.subscribe_batch("jobs", (job_pb2.JobSubmitted,), handle, keys=is_mine)
        kernel.bus.stream("looks", (job_pb2.JobSubmitted,), hear, replay=True, group=False, keys=is_mine)
        headers = [("ce_specversion", b"1.0"), ("ce_source", b"/x"), ("ce_type", b"meridian.job.v1.JobSubmitted")]
        async with running(kernel):
            for key in (b"other", b"mine-broken"):
                await stack.bus.publish_raw(
                    "meridian.job.requests.v1", b"\xff\xff", [*headers, ("ce_id", key)], key=key
                )
            for name in ("other-1", "mine-1", "other-2", "mine-2"):
                await stack.bus.publish(job_pb2.JobSubmitted(job_id=name))
            await stack.bus.expect(job_pb2.JobQueued, count=2)
            await stack.bus.expect_dead_letter()
            async with asyncio.timeout(PATIENCE_S):
                while len(heard) < 2:
                    await asyncio.sleep(0.02)
        assert {event.job_id for event in stack.bus.events(job_pb2.JobQueued)} == {"mine-1", "mine-2"}
        assert sorted(heard) == ["mine-1", "mine-2"]
    assert [record.key for record in stack.bus.dead_letters] == [b"mine-broken"]


async def test_who_stops_leaves_a_batch_that_cannot_be_handled_to_the_next(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel, late = await make_kernel(stack), 0
        tried = asyncio.Event()

        async def refuse(_transaction: Transaction, _message: job_pb2.JobSubmitted) -> None:
            nonlocal late
            late += kernel.bus._stopping.is_set()
            tried.set()
            raise ConnectionError("the database is away for long")

        kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: refuse})
        async with running(kernel):
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="job-1"))
            await asyncio.wait_for(tried.wait(), PATIENCE_S)
        assert late <= 1, "it was tried on and on while it was to stop"
        successor = await make_kernel(stack)
        record_jobs(successor.bus)
        async with running(successor):
            await stack.bus.expect(job_pb2.JobQueued)
            assert await seen(successor) == ["job-1"]
