"""Records: what is written is read, in order, by any client, with all that belongs to it."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from meridian.embedded.broker.schemas import ApiKey
from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import (
    MUCH_LONGER_MS,
    PATIENCE_S,
    confluent_send,
    confluent_take,
    consumer_of,
    create_topic,
    producer_of,
    take,
)
from tests.conformance.wire_client import batch_of, wire_client

UNKNOWN_TOPIC, NOT_LEADER = 3, 6


async def test_records_of_a_key_stay_in_order(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=4)
    async with producer_of(bus, linger_ms=2) as producer:
        sent = [await producer.send(unique, str(i).encode(), key=str(i % 10).encode()) for i in range(1000)]
        await asyncio.gather(*sent)
    async with consumer_of(bus, unique) as consumer:
        got = await take(consumer, 1000)
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    partitions_of_key = defaultdict(set)
    for record in got:
        assert record.value is not None
        by_key[record.key].append(int(record.value))
        partitions_of_key[record.key].add(record.partition)
    assert {key: len(values) for key, values in by_key.items()} == {str(k).encode(): 100 for k in range(10)}
    assert all(values == sorted(values) for values in by_key.values())
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values())
    assert len({record.partition for record in got}) > 1


async def test_late_joiner_reads_from_the_start(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with producer_of(bus) as producer:
        for i in range(50):
            await producer.send_and_wait(unique, str(i).encode())
    async with consumer_of(bus, unique, group_id=f"{unique}-early") as early:
        assert [int(r.value or b"") for r in await take(early, 50)] == list(range(50))
        await early.commit()
    async with consumer_of(bus, unique, group_id=f"{unique}-late") as late:
        assert [int(r.value or b"") for r in await take(late, 50)] == list(range(50))


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_compression_in_both_directions(bus: BusUnderTest, unique: str, codec: str | None) -> None:
    await create_topic(bus, unique)
    values = [f"value {i} ".encode() * 20 for i in range(60)]
    async with producer_of(bus, compression_type=codec, linger_ms=5) as producer:
        await asyncio.gather(*[await producer.send(unique, value, key=b"k") for value in values])
    received = await asyncio.to_thread(confluent_take, bus, unique, len(values), f"{unique}-c")
    assert [message.value() for message in received] == values

    options = {"compression.type": codec or "none", "linger.ms": 5}
    await asyncio.to_thread(lambda: confluent_send(bus, unique, values, **options))
    async with consumer_of(bus, unique) as consumer:
        got = await take(consumer, 2 * len(values))
    assert [record.value for record in got] == values * 2
    assert got[-1].headers == (("source", b"confluent"),)


async def test_idempotent_confluent_producer(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    values = [str(i).encode() for i in range(500)]
    await asyncio.to_thread(lambda: confluent_send(bus, unique, values, **{"enable.idempotence": True}))
    async with consumer_of(bus, unique) as consumer:
        assert [record.value for record in await take(consumer, 500)] == values


async def test_keys_headers_tombstones_and_timestamps(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    headers = [("ce_id", b"1"), ("empty", b""), ("ключ", "值".encode()), ("ce_id", b"again")]
    async with producer_of(bus) as producer:
        await producer.send_and_wait(unique, b"v", key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)
        await producer.send_and_wait(unique, None, key=b"k", timestamp_ms=1_700_000_000_124)
        await producer.send_and_wait(unique, b"", timestamp_ms=1_600_000_000_000)
    async with consumer_of(bus, unique) as consumer:
        first, tombstone, plain = await take(consumer, 3)
    assert (first.key, first.value, first.timestamp) == (b"k", b"v", 1_700_000_000_123)
    assert list(first.headers) == headers
    assert (tombstone.key, tombstone.value, tombstone.timestamp) == (b"k", None, 1_700_000_000_124)
    assert (plain.key, plain.value, plain.timestamp, plain.headers) == (None, b"", 1_600_000_000_000, ())
    assert [first.offset, tombstone.offset, plain.offset] == [0, 1, 2]
    assert first.timestamp_type == 0


@pytest.mark.parametrize("codec", [None, "lz4"])
async def test_offsets_by_timestamp(bus: BusUnderTest, unique: str, codec: str | None) -> None:
    await create_topic(bus, unique)
    partition = TopicPartition(unique, 0)
    async with producer_of(bus, linger_ms=5, compression_type=codec) as producer:
        sent = [await producer.send(unique, b"x" * 50, timestamp_ms=10_000 + 10 * i) for i in range(300)]
        await asyncio.gather(*sent)
    async with consumer_of(bus, unique) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 300}
        for wanted_ms, offset in [(0, 0), (10_000, 0), (10_001, 1), (11_230, 123), (12_990, 299)]:
            found = await consumer.offsets_for_times({partition: wanted_ms})
            assert found[partition] is not None, wanted_ms
            assert (found[partition].offset, found[partition].timestamp) == (offset, 10_000 + 10 * offset)
        assert await consumer.offsets_for_times({partition: 12_991}) == {partition: None}


async def test_waiting_fetch_is_woken_by_an_append(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    long = {"fetch_max_wait_ms": MUCH_LONGER_MS, "request_timeout_ms": 2 * MUCH_LONGER_MS}
    async with producer_of(bus) as producer, consumer_of(bus, unique, **long) as consumer:
        await producer.send_and_wait(unique, b"first")
        await take(consumer, 1)
        for _ in range(5):
            reading = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.02)
            await producer.send_and_wait(unique, b"next")
            # Much sooner than the fetch would have waited.
            assert (await asyncio.wait_for(reading, PATIENCE_S)).value == b"next"


def fetch_of(topic: str, *partitions: int, **changes: int) -> dict[str, object]:
    """A Fetch request from the start of some partitions."""
    wanted = [{"index": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in partitions]
    body: dict[str, object] = {"replica_id": -1, "max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20}
    return body | changes | {"topics": [{"name": topic, "partitions": wanted}]}


async def test_fetch_waits_for_the_bytes_it_wants(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    loop = asyncio.get_running_loop()
    async with wire_client(bus) as reader, wire_client(bus) as writer:
        first, second = batch_of([b"x" * 200]), batch_of([b"y" * 800])
        await writer.produce(unique, first)
        wanted = fetch_of(unique, 0, min_bytes=len(first) + len(second), max_wait_ms=MUCH_LONGER_MS)
        waiting = asyncio.create_task(reader.call(ApiKey.FETCH, 11, wanted))
        assert (await asyncio.wait({waiting}, timeout=0.2))[1], "one batch is not enough"
        await writer.produce(unique, second)
        answer = await asyncio.wait_for(waiting, PATIENCE_S)
        assert len(answer["topics"][0]["partitions"][0]["records"]) == len(first) + len(second)

        started = loop.time()
        answer = await reader.call(ApiKey.FETCH, 11, fetch_of(unique, 0, min_bytes=1 << 19, max_wait_ms=300))
        assert loop.time() - started > 0.25
        assert answer["topics"][0]["partitions"][0]["records"], "what there is comes when the wait is over"


async def test_fetch_keeps_to_its_limit_but_always_brings_something(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=2)
    large = b"x" * 2000
    async with producer_of(bus) as producer:
        for partition in (0, 1):
            await producer.send_and_wait(unique, large, partition=partition)
    async with wire_client(bus) as client:
        answer = await client.call(ApiKey.FETCH, 11, fetch_of(unique, 0, 1, max_bytes=2200))
        sizes = [len(part["records"]) for part in answer["topics"][0]["partitions"]]
        assert sizes[0] > 2000
        assert sizes[1] < 300
        answer = await client.call(ApiKey.FETCH, 11, fetch_of(unique, 0, 1, max_bytes=10))
        sizes = [len(part["records"]) for part in answer["topics"][0]["partitions"]]
        assert sizes[0] > 2000
        assert sizes[1] == 0


async def test_waiting_fetch_is_told_that_its_topic_is_deleted(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as reader, wire_client(bus) as other:
        await other.produce(unique, batch_of([b"one"]))
        more = fetch_of(unique, 0, min_bytes=1 << 19, max_wait_ms=MUCH_LONGER_MS)
        waiting = asyncio.create_task(reader.call(ApiKey.FETCH, 11, more))
        assert (await asyncio.wait({waiting}, timeout=0.1))[1]
        await other.call(ApiKey.DELETE_TOPICS, 1, {"topic_names": [unique], "timeout_ms": 5000})
        answer = await asyncio.wait_for(waiting, PATIENCE_S)
        assert answer["topics"][0]["partitions"][0]["error_code"] in {UNKNOWN_TOPIC, NOT_LEADER}


async def test_idempotent_producer_repeats_are_stored_once(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        given = await client.new_producer_id(1)
        assert given["error_code"] == 0

        async def send(sequence: int, values: list[bytes], epoch: int = given["producer_epoch"]) -> tuple[int, int]:
            batch = batch_of(values, producer_id=given["producer_id"], epoch=epoch, sequence=sequence)
            answer = await client.produce(unique, batch)
            return answer["error_code"], answer["base_offset"]

        assert await send(0, [b"0", b"1", b"2"]) == (0, 0)
        assert await send(3, [b"3"]) == (0, 3)
        assert await send(0, [b"0", b"1", b"2"]) == (0, 0)
        assert await send(3, [b"3"]) == (0, 3)
        assert (await send(9, [b"9"]))[0] == 45
        assert (await send(4, [b"4"])) == (0, 4)
    async with consumer_of(bus, unique) as consumer:
        assert [record.value for record in await take(consumer, 5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert await consumer.end_offsets([TopicPartition(unique, 0)]) == {TopicPartition(unique, 0): 5}


async def test_corrupt_batch_is_refused(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    broken = bytearray(batch_of([b"value"]))
    broken[-1] ^= 0xFF
    async with wire_client(bus) as client:
        assert (await client.produce(unique, bytes(broken)))["error_code"] == 2
        assert (await client.produce(unique, batch_of([b"value"])))["base_offset"] == 0


async def test_large_records(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    large = b"x" * 900_000
    async with producer_of(bus, max_request_size=2 << 20) as producer:
        for _ in range(3):
            await producer.send_and_wait(unique, large)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(unique, b"x" * 1_100_000)
    async with consumer_of(bus, unique, max_partition_fetch_bytes=1000) as consumer:
        assert [len(record.value or b"") for record in await take(consumer, 3)] == [900_000] * 3


async def test_garbage_closes_only_its_own_connection(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    host, port = bus.bootstrap_servers.split(":")
    async with producer_of(bus) as producer:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x06\x7f\xff\x00\x01\x00\x00", b"\xff" * 64):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        await producer.send_and_wait(unique, b"still there")
