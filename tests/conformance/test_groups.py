"""Consumer groups: everybody gets a share, nothing is lost when members come and go, and a zombie cannot commit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from meridian.embedded.broker.schemas import ApiKey
from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import (
    MUCH_LONGER_MS,
    PATIENCE_S,
    consumer_of,
    create_topic,
    producer_of,
    take,
    until,
)
from tests.conformance.wire_client import wire_client

ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 22, 25, 27
QUICK = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 200, "rebalance_timeout_ms": 60_000}
"""Told quickly of a rebalance, and not taken for dead because the machine was busy."""
NO_WAIT_S = 1.5


async def test_first_join_does_not_wait(bus: BusUnderTest, unique: str) -> None:
    """Kafka's default is to wait three seconds for other members. A busy machine makes some joins slow, a wait makes all of them."""
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        await client.coordinator_ready(unique)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        for number in count():
            started = loop.time()
            async with consumer_of(bus, unique, group_id=f"{unique}-{number}") as consumer:
                assert consumer.assignment() == {TopicPartition(unique, 0)}
                if loop.time() - started < NO_WAIT_S:
                    break


async def test_rebalance_1_2_3_2_loses_nothing(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=6)
    received: list[int] = []
    sent = 0
    finished = asyncio.Event()

    async def send() -> None:
        nonlocal sent
        async with producer_of(bus) as producer:
            while not finished.is_set():
                await producer.send_and_wait(unique, str(sent).encode(), key=str(sent % 31).encode())
                sent += 1

    async def read(consumer: AIOKafkaConsumer) -> None:
        while True:
            batches = await consumer.getmany(timeout_ms=100)
            for records in batches.values():
                received.extend(int(record.value or b"") for record in records)
            if batches:
                try:
                    await consumer.commit()
                except (CommitFailedError, IllegalStateError):
                    continue  # a rebalance came in between: these records are delivered again, to whoever owns them now

    sending = asyncio.create_task(send())
    readers: dict[AIOKafkaConsumer, asyncio.Task[None]] = {}
    async with AsyncExitStack() as members:

        async def add() -> AIOKafkaConsumer:
            consumer = await members.enter_async_context(consumer_of(bus, unique, group_id=unique, **QUICK))
            readers[consumer] = asyncio.create_task(read(consumer))
            return consumer

        def shares() -> list[int]:
            return sorted(len(consumer.assignment()) for consumer in readers)

        await add()
        await until(lambda: shares() == [6] and received)
        leaving = await add()
        await until(lambda: shares() == [3, 3])
        await add()
        await until(lambda: shares() == [2, 2, 2])
        readers.pop(leaving).cancel()
        await leaving.stop()
        await until(lambda: shares() == [3, 3])
        before = len(received)
        await until(lambda: len(received) > before + 20)
        # Nobody comes or goes any more: what is sent from here on is delivered once.
        await until(lambda: sent > 100 and len(received) - len(set(received)) < sent / 2)
        finished.set()
        await sending
        await until(lambda: len(set(received)) == sent)
        for reader in readers.values():
            reader.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)


async def test_group_resumes_from_its_commit(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    partition = TopicPartition(unique, 0)
    async with producer_of(bus) as producer:
        for i in range(20):
            await producer.send_and_wait(unique, str(i).encode())
    async with consumer_of(bus, unique, group_id=unique) as consumer:
        records = await take(consumer, 8)
        await consumer.commit({partition: records[-1].offset + 1})
        assert await consumer.committed(partition) == 8
    async with consumer_of(bus, unique, group_id=unique) as consumer:
        assert [int(record.value or b"") for record in await take(consumer, 12)] == list(range(8, 20))


async def test_silent_member_is_replaced(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=2)
    async with wire_client(bus) as ghost:
        await ghost.coordinator_ready(unique)
        loop = asyncio.get_running_loop()
        started = loop.time()
        # Its session ends it, not the time that members have for joining again.
        joined = await ghost.join(unique, session_timeout_ms=1000, rebalance_timeout_ms=MUCH_LONGER_MS)
        await ghost.sync(unique, joined, {joined["member_id"]: b""})
        patient = QUICK | {"rebalance_timeout_ms": MUCH_LONGER_MS}
        async with consumer_of(bus, unique, group_id=unique, **patient) as consumer:
            await until(lambda: len(consumer.assignment()) == 2)
        assert loop.time() - started > 0.9


async def test_old_generation_and_unknown_members_are_fenced(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as first, wire_client(bus) as second:
        await first.coordinator_ready(unique)
        zombie = await first.join(unique)
        assert zombie["leader"] == zombie["member_id"]
        assert (await first.sync(unique, zombie, {zombie["member_id"]: b"all"}))["assignment"] == b"all"
        generation, member_id = zombie["generation_id"], zombie["member_id"]
        assert await first.commit(unique, unique, 5, generation, member_id) == 0
        assert await first.commit(unique, unique, 6, generation - 1, member_id) == ILLEGAL_GENERATION
        assert await first.commit(unique, unique, 6, generation, "someone-else") == UNKNOWN_MEMBER_ID
        assert await first.commit(unique, unique, 6, -1, "") == UNKNOWN_MEMBER_ID

        joining = asyncio.create_task(second.join(unique))
        while await first.heartbeat(unique, zombie) != REBALANCE_IN_PROGRESS:
            await asyncio.sleep(0.02)
        rejoined = await first.join(unique, member_id)
        other = await joining
        assert rejoined["generation_id"] == other["generation_id"] > generation
        await first.sync(unique, rejoined, {member_id: b"a", other["member_id"]: b"b"})
        assert (await second.sync(unique, other))["assignment"] == b"b"
        assert await first.commit(unique, unique, 7, generation, member_id) == ILLEGAL_GENERATION
        assert await first.heartbeat(unique, zombie) == ILLEGAL_GENERATION
        assert await second.commit(unique, unique, 9, other["generation_id"], other["member_id"]) == 0

        leaving = {"group_id": unique, "member_id": other["member_id"]}
        assert (await second.call(ApiKey.LEAVE_GROUP, 1, leaving))["error_code"] == 0
        assert await second.commit(unique, unique, 10, other["generation_id"], other["member_id"]) == UNKNOWN_MEMBER_ID
        wanted = {"group_id": unique, "topics": [{"name": unique, "partitions": [0]}]}
        fetched = await first.call(ApiKey.OFFSET_FETCH, 3, wanted)
        assert fetched["topics"][0]["partitions"][0]["offset"] == 9


async def test_client_that_never_returns_with_its_id_leaves_no_ghost(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        await client.coordinator_ready(unique)
        body = {
            "group_id": unique,
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        told = await client.call(ApiKey.JOIN_GROUP, 5, body)
        assert told["error_code"] == 79
        assert told["member_id"]
        described = await client.call(ApiKey.DESCRIBE_GROUPS, 0, {"groups": [unique]})
        assert described["groups"][0]["members"] == []


async def test_listener_sees_partitions_taken_and_given(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=2)
    seen: list[tuple[str, int]] = []

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            seen.append(("revoked", len(revoked)))

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            seen.append(("assigned", len(assigned)))

    async with consumer_of(bus, group_id=unique, **QUICK) as first:
        first.subscribe([unique], listener=Listener())
        await until(lambda: ("assigned", 2) in seen)
        async with consumer_of(bus, unique, group_id=unique, **QUICK):
            await until(lambda: ("assigned", 1) in seen)
        await until(lambda: seen[-1] == ("assigned", 2))
    assert ("revoked", 2) in seen
