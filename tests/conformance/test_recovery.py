"""A broker that is killed and started again has everything it acknowledged, and its clients go on by themselves."""

from __future__ import annotations

import asyncio

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import MUCH_LONGER_MS, consumer_of, create_topic, producer_of, take, until


async def test_kill_9_loses_nothing_acknowledged_and_stalls_nobody(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=3)
    acknowledged: list[int] = []
    received: list[int] = []
    finished = asyncio.Event()

    async def send() -> None:
        number = 0
        async with producer_of(bus, enable_idempotence=True, retry_backoff_ms=50) as producer:
            while not finished.is_set():
                await producer.send_and_wait(unique, str(number).encode(), key=str(number % 17).encode())
                acknowledged.append(number)
                number += 1
                await asyncio.sleep(0.002)

    async def read() -> None:
        # Its session outlives the wait for it by far: what goes on is not made anew.
        options = {"session_timeout_ms": MUCH_LONGER_MS, "heartbeat_interval_ms": 300}
        async with consumer_of(bus, unique, group_id=unique, **options) as consumer:
            while True:
                batches = await consumer.getmany(timeout_ms=100)
                for records in batches.values():
                    received.extend(int(record.value or b"") for record in records)
                if batches:
                    try:
                        await consumer.commit()
                    except KafkaError:
                        continue  # the broker is away; what was not committed is delivered again

    sending, reading = asyncio.create_task(send()), asyncio.create_task(read())
    await until(lambda: len(received) > 200)
    for _ in range(2):
        await asyncio.to_thread(bus.kill)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(bus.start)
        sent_before, received_before = len(acknowledged), len(received)
        await until(lambda: len(acknowledged) > sent_before + 20)  # noqa: B023 - awaited in the same pass
        await until(lambda: len(received) > received_before + 20)  # noqa: B023
    finished.set()
    await sending
    await until(lambda: set(acknowledged) <= set(received))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    async with consumer_of(bus, unique) as consumer:
        ends = await consumer.end_offsets([TopicPartition(unique, index) for index in range(3)])
        stored = [int(record.value or b"") for record in await take(consumer, sum(ends.values()))]
    assert sorted(stored) == acknowledged, "an idempotent producer's records are there once each"


async def test_committed_offsets_and_topics_survive_a_kill(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, config={"retention.ms": "3600000"})
    partition = TopicPartition(unique, 0)
    async with producer_of(bus) as producer:
        for i in range(10):
            await producer.send_and_wait(unique, str(i).encode())
    async with consumer_of(bus, unique, group_id=unique) as consumer:
        await take(consumer, 10)
        await consumer.commit({partition: 4})
    await asyncio.to_thread(bus.kill)
    await asyncio.to_thread(bus.start)
    async with consumer_of(bus, unique, group_id=unique) as consumer:
        assert [int(record.value or b"") for record in await take(consumer, 6)] == list(range(4, 10))


async def test_clean_stop_and_start(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with producer_of(bus) as producer:
        await producer.send_and_wait(unique, b"kept")
    await asyncio.to_thread(bus.stop)
    await asyncio.to_thread(bus.start)
    async with producer_of(bus) as producer:
        assert (await producer.send_and_wait(unique, b"after")).offset == 1
    async with consumer_of(bus, unique) as consumer:
        assert [record.value for record in await take(consumer, 2)] == [b"kept", b"after"]
