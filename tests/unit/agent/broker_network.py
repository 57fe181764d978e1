"""A broker, an agent's settings and its parts: what tests of the agent's side of the bus stand on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from google.protobuf.message import Message

from agent.bus_clients import Producer
from agent.engines.local.first_fit import FirstFit, Limits, NodeFacts
from agent.placing.service import Placing
from agent.settings import AgentSettings, read_settings
from meridian.bus import ensure_topics
from meridian.clock import VirtualClock
from meridian.codec import encode
from meridian.embedded.broker import Broker
from meridian.embedded.broker.log import PartitionLog


@dataclass
class Network:
    """A broker, and a client that writes where it is told to."""

    broker: Broker
    settings: AgentSettings
    producer: Producer
    client: AIOKafkaProducer
    directory: Path
    sent: int = 0

    async def send(self, message: Message, partition: int) -> None:
        self.sent += 1
        record = encode(message, event_id=f"e{self.sent}", source="/s", time=datetime(2026, 5, 1, tzinfo=UTC))
        await self.client.send_and_wait(
            record.topic, record.value, key=record.key, headers=record.headers, partition=partition
        )

    async def add_partition(self, name: str) -> int:
        """What an operator does: one partition more. Its number; all clients here know of it, as they do after a while."""
        topic = self.broker.topics.get(name)
        number = len(topic.partitions)
        log = PartitionLog(self.directory / "broker" / "topics" / name / str(number), topic.config)
        log.open()
        self.broker.topics._topics[name] = replace(topic, partitions=(*topic.partitions, log))
        for client in (self.producer.client, self.client):
            await client.client.force_metadata_update()
        return number


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    broker = Broker(tmp_path / "broker")
    await broker.start()
    await ensure_topics(broker.bootstrap_servers)
    path = tmp_path / "agent.yaml"
    domain = {"domain_id": "north", "nodes": [{"node_id": "n1"}]}
    servers = broker.bootstrap_servers
    path.write_text(yaml.safe_dump({"domain": domain, "kafka_bootstrap_servers": servers, "data_dir": str(tmp_path)}))
    producer = Producer(servers, "agent-north", "/agent", request_timeout_s=30.0)
    await producer.start()
    client = AIOKafkaProducer(bootstrap_servers=servers)
    await client.start()
    try:
        yield Network(broker, read_settings(path), producer, client, tmp_path)
    finally:
        await client.stop()
        await producer.stop()
        await broker.stop()


@contextlib.asynccontextmanager
async def running(part: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(part)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def placing_of(network: Network, incarnation: int) -> Placing:
    scheduler = FirstFit((NodeFacts("n1", 8, 64, ()),), Limits(), lambda: {"n1"}, dict)
    clock = VirtualClock()
    return Placing(network.settings, scheduler, network.producer, clock, incarnation=incarnation, sender="mark")
