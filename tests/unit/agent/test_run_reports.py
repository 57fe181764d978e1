"""What is published of runs: each run's reports in their order, again until the bus has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaTimeoutError

from agent.bus_clients import Producer
from agent.engines.base import (
    Checkpoint,
    FailureKind,
    LaunchRequest,
    NodeStatus,
    RunEvent,
    RunFailed,
    RunFinished,
    RunStarted,
)
from agent.engines.local.gang import Cause
from agent.engines.recorded_runs import RecordedRuns, Run
from agent.run_book import RunBook
from agent.run_reports import RunReports
from meridian.catalogue import catalogue
from meridian.clock import VirtualClock
from meridian.codec import Record, decode
from meridian.contracts.run.v1 import run_pb2
from tests.unit.agent.broker_network import Network, network, running

__all__ = ["network"]

AT = datetime(2026, 5, 1, tzinfo=UTC)


class Reporting(RecordedRuns[Run]):
    """An engine's memory of runs and its stream, without machines."""

    async def start(self) -> None:
        self._tell_again()

    async def close(self) -> None:
        await self._book.close()

    def nodes(self) -> tuple[NodeStatus, ...]:
        return ()

    async def _start(self, request: LaunchRequest) -> None:
        self._runs[request.run_id, request.epoch] = Run(None)  # type: ignore[arg-type]

    async def _stop_run(self, run: Run, cause: Cause, grace_s: float) -> None: ...


class Expiring(Producer):
    """Of what is handed over the batch of the first report expires, as where the bus is slow for a moment; then it takes all."""

    expired = 0

    async def send_record(self, record: Record) -> asyncio.Future[object]:
        if self.expired:
            return await super().send_record(record)
        self.expired += 1
        sent: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        sent.set_exception(KafkaTimeoutError())
        return sent


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Reporting]:
    book = RunBook(tmp_path / "journal", new_agent_mark="mark", boot="b", now_s=lambda: 1.0)
    book.open()
    engine = Reporting(book, VirtualClock(), 1.0)
    yield engine
    await engine.close()


def _life(unit_index: int) -> list[RunEvent]:
    run = f"job-1.{unit_index}.1", "job-1", unit_index, 1, AT
    return [RunStarted(*run, ("n1",)), Checkpoint(*run, 0, 7, "/c/7", 1), RunFinished(*run)]


async def _published(network: Network, reports: RunReports, engine: Reporting) -> list[Any]:
    """Everything that came onto the topic once nothing is left to publish."""
    topic = catalogue().event_of(run_pb2.RunStarted()).topic.name
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=network.broker.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        async with running(reports.run()), asyncio.timeout(60):
            await reports.all_published()
        found: list[Any] = []
        while len(found) < reports.published_count - reports.set_aside_count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += [decode(record.value, record.headers).data for record in records]
        return found
    finally:
        await consumer.stop()


async def test_a_batch_that_expires_does_not_let_a_later_report_of_its_run_pass(
    network: Network, engine: Reporting
) -> None:
    """Else the checkpoint comes when the run has ended, and nobody resumes from it."""
    producer = Expiring(network.broker.bootstrap_servers, "agent-north", "/agent", request_timeout_s=30.0)
    await producer.start()
    try:
        for first, second in zip(_life(0), _life(1), strict=True):
            engine.report(first)
            engine.report(second)
        reports = RunReports(engine, producer, "north", "mark", lambda kind: kind)
        found = await _published(network, reports, engine)
    finally:
        await producer.stop()
    assert producer.expired == 1
    for unit_index in (0, 1):
        kinds = [type(message).__name__ for message in found if message.unit_index == unit_index]
        assert kinds == ["RunStarted", "RunCheckpointed", "RunFinished"]


async def test_a_report_that_is_larger_than_its_topic_takes_is_cut_and_holds_up_no_other(
    network: Network, engine: Reporting
) -> None:
    started, checkpoint, finished = _life(0)
    engine.report(RunStarted("job-2.0.1", "job-2", 0, 1, AT, tuple(f"node-{number:060}" for number in range(20_000))))
    engine.report(
        RunFailed("job-2.0.1", "job-2", 0, 1, AT, FailureKind.NOT_STARTABLE, f"no such program: {'x' * (2 << 20)}")
    )
    engine.report(Checkpoint("job-2.0.1", "job-2", 0, 1, AT, 0, 7, "/" + "c" * (2 << 20), 1))
    for event in (started, checkpoint, finished):
        engine.report(event)
    reports = RunReports(engine, network.producer, "north", "mark", lambda kind: kind)
    found = await _published(network, reports, engine)
    assert [type(message).__name__ for message in found if message.job_id == "job-1"] == [
        "RunStarted",
        "RunCheckpointed",
        "RunFinished",
    ]
    large_start, failed = (message for message in found if message.job_id == "job-2")
    assert (large_start.run_id, list(large_start.node_ids)) == ("job-2.0.1", [])
    assert failed.kind == run_pb2.RUN_FAILURE_KIND_NOT_STARTABLE
    assert failed.reason.startswith("no such program: xxx")
    assert failed.reason.endswith("... (cut, it had 2097169 characters)")
    letters = network.broker.topics.get("meridian.run.lifecycle.v1.dlq")
    assert sum(partition.end_offset for partition in letters.partitions) == 1, (
        "a checkpoint without its path says nothing"
    )
