"""What the tests do with clients again and again, for aiokafka and for confluent-kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.conformance.bus_under_test import BusUnderTest

PATIENCE_S = 60.0
"""For what must come, on a machine however busy. What a test shows not to be waited for is told to take longer than this."""
MUCH_LONGER_MS = 300_000


async def create_topic(bus: BusUnderTest, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    """Create a topic and wait until its partitions have a leader."""
    async with admin_of(bus) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config or {})])

        async def is_known() -> bool:
            topics = await admin.describe_topics([name])
            return not topics[0]["error_code"] and all(part["leader"] >= 0 for part in topics[0]["partitions"])

        await until(is_known)


async def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> float:
    """Wait until the condition (a function or a coroutine function) holds; returns the seconds waited, fails when late."""
    started = time.monotonic()
    while True:
        result = condition()
        if await result if asyncio.iscoroutine(result) else result:
            return time.monotonic() - started
        assert time.monotonic() - started < patience_s, f"not so within {patience_s} s: {condition}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def admin_of(bus: BusUnderTest) -> AsyncIterator[AIOKafkaAdminClient]:
    """An administrator's client."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bus.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def producer_of(bus: BusUnderTest, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """An aiokafka producer."""
    producer = AIOKafkaProducer(bootstrap_servers=bus.bootstrap_servers, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consumer_of(bus: BusUnderTest, *topics: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """An aiokafka consumer that begins at the start of the log and commits only when told to."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "retry_backoff_ms": 50} | options
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bus.bootstrap_servers, **settings)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def take(consumer: AIOKafkaConsumer, count: int, patience_s: float = PATIENCE_S) -> list[ConsumerRecord]:
    """The next ``count`` records."""
    taken: list[ConsumerRecord] = []
    async with asyncio.timeout(patience_s):
        while len(taken) < count:
            batches = await consumer.getmany(timeout_ms=200, max_records=count - len(taken))
            for records in batches.values():
                taken.extend(records)
    return taken


def confluent_take(bus: BusUnderTest, topic: str, count: int, group: str) -> list[Any]:
    """The first ``count`` records of a topic, read with confluent-kafka (blocks)."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bus.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        taken: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(taken) < count:
            assert time.monotonic() < deadline, f"{len(taken)} of {count} records"
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                taken.append(message)
        consumer.commit(asynchronous=False)
        return taken
    finally:
        consumer.close()


def confluent_send(bus: BusUnderTest, topic: str, values: list[bytes], **options: Any) -> None:
    """Send values with confluent-kafka and wait for all acknowledgements (blocks)."""
    failures: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bus.bootstrap_servers} | options)
    for index, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=str(index % 7).encode(),
            headers=[("source", b"confluent")],
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failures
