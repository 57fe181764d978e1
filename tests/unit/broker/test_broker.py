"""The broker in the process of the test: starting, stopping, order of answers, limits, upkeep."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from meridian.embedded.broker import Broker, BrokerSettings
from meridian.embedded.broker.schemas import APIS, ApiKey
from meridian.errors import ConfigurationError
from tests.conformance.wire_client import batch_of, wire_client
from tests.unit.broker.conftest import batch, contents


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    running = Broker(tmp_path / "data", settings=BrokerSettings(max_request_bytes=1 << 20, upkeep_interval_s=3600))
    await running.start()
    yield running
    await running.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def is_polled(broker: Broker, topic: str) -> bool:
    """Whether a fetch waits for records of the topic's first partition."""
    return bool(broker.topics.log(topic, 0)._appended)


def open_files_of_topics(broker: Broker) -> set[Path]:
    """What this process holds open of topics, also of those that are deleted."""
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, as the one that lists them
            held.add(descriptor.readlink())
    folders = [broker.data_dir / name for name in ("topics", "deleted")]
    return {path for path in held if any(path.is_relative_to(folder) for folder in folders)}


async def test_stop_and_start_again_in_one_process(tmp_path: Path) -> None:
    for round_number in range(3):
        broker = Broker(tmp_path, settings=BrokerSettings(flush_interval_s=0.01))
        await broker.start()
        async with wire_client(broker) as client:
            await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
            assert (await client.produce("t", batch_of([b"x"])))["base_offset"] == round_number
        await broker.stop()


async def test_stop_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    await broker.start()
    async with wire_client(broker) as client, wire_client(broker) as joiner:
        await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        wanted = {"index": 0, "fetch_offset": 0, "partition_max_bytes": 9}
        fetch = {
            "max_wait_ms": 600_000,
            "min_bytes": 1,
            "max_bytes": 9,
            "topics": [{"name": "t", "partitions": [wanted]}],
        }
        waiting = [asyncio.ensure_future(client.call(ApiKey.FETCH, 11, fetch)), asyncio.ensure_future(joiner.join("g"))]
        await until(lambda: is_polled(broker, "t") and "g" in broker.coordinator.groups)
        await asyncio.wait_for(broker.stop(), 60)
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert isinstance(ended[0], EOFError)


async def test_two_brokers_never_share_a_folder(broker: Broker) -> None:
    other = Broker(broker.data_dir)
    with pytest.raises(ConfigurationError, match="in use"):
        await other.start()


async def test_taken_port_and_bare_wildcard_are_told(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await Broker(tmp_path / "other", port=broker.port).start()
    with pytest.raises(ConfigurationError, match="advertised"):
        await Broker(tmp_path / "other", host="0.0.0.0").start()


async def test_flush_always_acknowledges_after_the_sync(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings=BrokerSettings(flush_interval_s=0))
    await broker.start()
    async with wire_client(broker) as client:
        await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        for number in range(5):
            assert (await client.produce("t", batch_of([b"x"])))["base_offset"] == number
            assert not broker.topics.log("t", 0).dirty
        assert await client.commit("g", "t", 3, -1, "") == 0
        assert not broker.coordinator.journal.dirty
    await broker.stop()


async def test_answers_keep_the_order_of_requests(broker: Broker) -> None:
    """A long poll in front holds the answers behind it, as the protocol wants, and an append lets them all go."""
    async with wire_client(broker) as client, wire_client(broker) as other:
        await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        fetch = {
            "max_wait_ms": 600_000,
            "min_bytes": 1,
            "max_bytes": 1000,
            "topics": [{"name": "t", "partitions": [{"index": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}],
        }
        for correlation, (key, version, body) in enumerate(
            [(ApiKey.FETCH, 4, fetch), (ApiKey.LIST_GROUPS, 0, {}), (ApiKey.METADATA, 1, {"topics": []})]
        ):
            client.writer.write(encoded(key, version, correlation, body))
        first = asyncio.ensure_future(client.reader.readexactly(4))
        await until(lambda: is_polled(broker, "t"))
        assert (await asyncio.wait({first}, timeout=0.05))[1], "nothing overtakes the waiting fetch"
        await other.produce("t", batch_of([b"now"]))
        for expected in range(3):
            length = int.from_bytes(await (first if expected == 0 else client.reader.readexactly(4)), "big")
            assert int.from_bytes((await client.reader.readexactly(length))[:4], "big") == expected


def encoded(key: ApiKey, version: int, correlation: int, body: dict[str, object]) -> bytes:
    out = bytearray(key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation.to_bytes(4, "big") + b"\xff\xff")
    APIS[key].write_request(out, body, version)
    return len(out).to_bytes(4, "big") + bytes(out)


@pytest.mark.parametrize("loop_module", ["asyncio", "uvloop"])
def test_no_long_poll_outlasts_its_wait(tmp_path: Path, loop_module: str) -> None:
    """Timers of event loops may fire a moment early: a poll that then went to sleep again would never wake."""

    async def poll_often() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        async with wire_client(broker) as client:
            await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
            wanted = {"index": 0, "fetch_offset": 0, "partition_max_bytes": 9}
            for max_wait_ms in range(1, 60):
                topics = [{"name": "t", "partitions": [wanted]}]
                fetch = {"max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 9, "topics": topics}
                await asyncio.wait_for(client.call(ApiKey.FETCH, 11, fetch), 60)
        await broker.stop()

    runner = asyncio if loop_module == "asyncio" else uvloop
    runner.run(poll_often())


async def test_newer_api_versions_request_is_answered_in_version_0(broker: Broker) -> None:
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    writer.write(b"\x00\x00\x00\x0b" + b"\x00\x12\x00\x09\x00\x00\x00\x07\xff\xff\x00")
    length = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(length)
    assert answer[:6] == b"\x00\x00\x00\x07\x00\x23"
    assert int.from_bytes(answer[6:10], "big") == len(APIS)
    writer.close()


async def test_oversized_frame_closes_the_connection(broker: Broker) -> None:
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    writer.write((2 << 20).to_bytes(4, "big"))
    assert await reader.read() == b""
    writer.close()
    async with wire_client(broker) as client:
        assert (await client.call(ApiKey.API_VERSIONS, 3, {}))["error_code"] == 0


async def test_every_advertised_request_is_served_in_every_version(broker: Broker) -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            async with wire_client(broker) as client:
                answer = await asyncio.wait_for(client.call(api.key, version, {"acks": 1, "max_wait_ms": 1}), 60)
                assert isinstance(answer, dict)


async def test_transactions_are_refused(broker: Broker) -> None:
    async with wire_client(broker) as client:
        given = await client.call(ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": "t"})
        assert given["error_code"] == 35
        found = await client.call(ApiKey.FIND_COORDINATOR, 2, {"key": "t", "key_type": 1})
        assert found["error_code"] == 35


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    given = set()
    for _ in range(3):
        broker = Broker(tmp_path)
        await broker.start()
        async with wire_client(broker) as client:
            for _ in range(5):
                given.add((await client.call(ApiKey.INIT_PRODUCER_ID, 1, {}))["producer_id"])
        await broker.stop()
    assert len(given) == 15


async def test_deleted_topic_lets_go_of_its_files_and_its_readers(broker: Broker) -> None:
    async with wire_client(broker) as client, wire_client(broker) as other:
        await client.call(ApiKey.METADATA, 5, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        await client.produce("t", batch_of([b"x"]))
        assert open_files_of_topics(broker)
        wanted = {"index": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
        topics = [{"name": "t", "partitions": [wanted]}]
        fetch = {"max_wait_ms": 600_000, "min_bytes": 1, "max_bytes": 9, "topics": topics}
        waiting = asyncio.create_task(client.call(ApiKey.FETCH, 11, fetch))
        await until(lambda: is_polled(broker, "t"))
        await other.call(ApiKey.DELETE_TOPICS, 1, {"topic_names": ["t"]})
        answer = await asyncio.wait_for(waiting, 60)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 3
        await until(lambda: not open_files_of_topics(broker))  # a copy may be on its way to the disk
        assert list((broker.data_dir / "deleted").iterdir()) == []


async def test_upkeep_compacts_and_expires(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings=BrokerSettings(min_compaction_bytes=1000, upkeep_interval_s=3600))
    await broker.start()
    async with wire_client(broker) as client:
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": [{"name": key, "value": value}]}
            for name, key, value in [("state", "cleanup.policy", "compact"), ("short", "retention.ms", "1000")]
        ]
        await client.call(ApiKey.CREATE_TOPICS, 2, {"topics": topics})
        for number in range(50):
            await client.produce("state", batch((f"k{number % 2}", str(number)), timestamp_ms=1000))
            await client.produce("short", batch_of([b"old"]))
    await broker.tidy()
    assert contents(broker.topics.log("state", 0)) == [(48, "k0", "48"), (49, "k1", "49")]
    assert contents(broker.topics.log("short", 0)) == []
    assert broker.topics.log("short", 0).start_offset == 50
    await broker.stop()


async def test_what_cannot_be_tidied_stops_neither_the_rest_nor_the_next_time(broker: Broker) -> None:
    async with wire_client(broker) as client:
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": [{"name": key, "value": value}]}
            for name, key, value in [("state", "cleanup.policy", "compact"), ("short", "retention.ms", "1000")]
        ]
        await client.call(ApiKey.CREATE_TOPICS, 2, {"topics": topics})
        for number in range(50):
            await client.produce("state", batch((f"k{number % 2}", str(number)), timestamp_ms=1000))
            await client.produce("short", batch_of([b"old"]))
    state = broker.topics.log("state", 0)
    broker.settings = replace(broker.settings, min_compaction_bytes=1000)
    in_the_way = state.directory / f"{0:020d}.tmp"
    in_the_way.mkdir()
    await broker.tidy()
    assert broker.topics.log("short", 0).start_offset == 50
    assert len(contents(state)) == 50
    in_the_way.rmdir()
    await broker.tidy()
    assert contents(state) == [(48, "k0", "48"), (49, "k1", "49")]
