"""The embedded broker as a part of the stack: found by a real client, and back on its address with its data after kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from meridian.embedded import stack
from meridian.embedded.state import ProcessState
from tests.fixtures_embedded import data_directory


async def create_topic(address: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    await admin.close()


async def send(address: str, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    await producer.send_and_wait(topic, value)
    await producer.stop()


async def read(address: str, topic: str, count: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(count)]
    finally:
        await consumer.stop()


async def restarted(data_dir: Path) -> bool:
    state = stack.status(data_dir)
    assert state is not None
    broker = next(process for process in state.processes if process.name == "broker")
    return broker.restarts == 1 and broker.state is ProcessState.READY


async def test_the_fixture_is_a_broker(bootstrap_servers: str) -> None:
    await create_topic(bootstrap_servers, "embedded-fixture")
    await send(bootstrap_servers, "embedded-fixture", b"hello")
    assert await read(bootstrap_servers, "embedded-fixture", 1) == [b"hello"]


async def test_a_killed_broker_comes_back_with_what_it_had() -> None:
    with data_directory() as directory:
        none = directory / "none.yaml"
        none.write_text("domains: []")
        options = stack.StackOptions(
            directory / "data",
            domains_file=none,
            services=(),
            kafka_bootstrap_servers=None,
            database_url="postgresql://elsewhere/none",
            redis_url="redis://elsewhere/0",
        )
        try:
            state = stack.start_detached(options)
            address = state.urls["kafka"]
            await create_topic(address, "t")
            await send(address, "t", b"before")
            broker = next(process for process in state.processes if process.name == "broker")
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGKILL)
            async with asyncio.timeout(120):
                while not await restarted(options.data_dir):
                    await asyncio.sleep(0.02)
            await send(address, "t", b"after")
            assert await read(address, "t", 2) == [b"before", b"after"]
        finally:
            stack.stop(options.data_dir)
