"""A fetch that the bus refuses is tried again: it neither ends the agent nor, with it, the runs of its domain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import yaml
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import TopicAuthorizationFailedError

from agent import orders as orders_module
from agent.bus_clients import Producer
from agent.lease import Lease
from agent.orders import Orders
from agent.placing.service import Placing
from agent.placing.side_by_side import SideBySide
from agent.settings import AgentSettings, read_settings
from meridian.clock import VirtualClock
from meridian.codec import encode
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_STOP, Assignment

NOBODY = cast("Any", None)


def _settings(folder: Path) -> AgentSettings:
    path = folder / "agent.yaml"
    domain = {"domain_id": "north", "nodes": [{"node_id": "n1"}]}
    path.write_text(
        yaml.safe_dump({"domain": domain, "kafka_bootstrap_servers": "127.0.0.1:9", "data_dir": str(folder / "agent")})
    )
    return read_settings(path)


@pytest_asyncio.fixture
async def producer() -> AsyncIterator[Producer]:
    """One of an agent whose bus is not there."""
    made = Producer("127.0.0.1:9", "agent-north", "/agent", request_timeout_s=30.0)
    yield made
    await made.stop()


async def _until_fetched_again(part: Coroutine[Any, Any, None], again: asyncio.Event) -> None:
    running = asyncio.create_task(part)
    waiting = asyncio.create_task(again.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert again.is_set(), running
    finally:
        for task in (running, waiting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("part", ["orders", "placing"])
async def test_a_fetch_that_is_refused_is_tried_again(
    part: str, producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = asyncio.Event()
    refusals = [TopicAuthorizationFailedError("meridian.run.assignments")]

    async def getmany(_consumer: AIOKafkaConsumer, **_options: Any) -> dict[Any, Any]:
        if refusals:
            raise refusals.pop()
        again.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", getmany)
    settings, clock = _settings(tmp_path), VirtualClock()
    if part == "orders":
        orders = Orders(settings, NOBODY, producer, Lease(10, 2, 0), clock, {})
        await _until_fetched_again(orders.run(), again)
        await orders.stop()
        return
    placing = Placing(settings, NOBODY, producer, clock, incarnation=1, sender="mark")
    async with asyncio.TaskGroup() as group:
        await _until_fetched_again(placing._take_requests(SideBySide(group, 1)), again)
    await placing.stop()


async def test_traces_of_runs_that_report_no_end_do_not_pile_up(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders_module, "MOST_TRACES", 2)
    traces: dict[str, str] = {}
    orders = Orders(_settings(tmp_path), NOBODY, producer, Lease(10, 2, 0), VirtualClock(), traces)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for run in ("run-1", "run-2", "run-1", "run-3"):
        stop = Assignment(run_id=run, job_id="job-1", domain_id="north", epoch=1, action=ASSIGNMENT_ACTION_STOP)
        sent = encode(stop, event_id=run, source="/s", time=datetime(2026, 5, 1, tzinfo=UTC), traceparent=parent)
        record: ConsumerRecord[Any, Any] = ConsumerRecord(
            sent.topic, 0, 0, 0, 0, sent.key, sent.value, None, 0, 0, tuple(sent.headers)
        )
        assert await orders._read(record) is not None
    await orders.stop()
    assert traces == {"run-1": parent, "run-3": parent}
