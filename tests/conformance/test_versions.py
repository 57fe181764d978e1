"""Every version of a request means the same on either bus; client libraries use only some, others will use the rest."""

from __future__ import annotations

import pytest

from meridian.embedded.broker.schemas import ApiKey
from meridian.embedded.broker.wire import Message
from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import create_topic, until
from tests.conformance.wire_client import NO_SUBSCRIPTION, WireClient, batch_of, wire_client


@pytest.mark.parametrize("version", range(3, 10))
async def test_produce_and_fetch(bus: BusUnderTest, unique: str, version: int) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        answer = await client.produce(unique, batch_of([b"a", b"b"]), version)
        assert (answer["error_code"], answer["base_offset"]) == (0, 0)
        wanted = {"index": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        body = {
            "replica_id": -1,
            "max_wait_ms": 1000,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "topics": [{"name": unique, "partitions": [wanted]}],
        }
        for fetch_version in {version + 1, version + 3}:
            fetched = await client.call(ApiKey.FETCH, fetch_version, body)
            part = fetched["topics"][0]["partitions"][0]
            assert (part["error_code"], part["high_watermark"]) == (0, 2)
            assert bytes(part["records"])[17:] == batch_of([b"a", b"b"])[17:]


@pytest.mark.parametrize("version", range(1, 8))
async def test_list_offsets(bus: BusUnderTest, unique: str, version: int) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        await client.produce(unique, batch_of([b"a", b"b", b"c"], timestamp_ms=5000))
        for timestamp, expected in [(-2, (-1, 0)), (-1, (-1, 3)), (5001, (5001, 1)), (6000, (-1, -1))]:
            wanted = {"index": 0, "timestamp": timestamp}
            body = {"replica_id": -1, "topics": [{"name": unique, "partitions": [wanted]}]}
            part = (await client.call(ApiKey.LIST_OFFSETS, version, body))["topics"][0]["partitions"][0]
            assert (part["error_code"], (part["timestamp"], part["offset"])) == (0, expected)


@pytest.mark.parametrize("version", [0, 1, 4, 5, 7, 8, 9, 10, 12])
async def test_metadata(bus: BusUnderTest, unique: str, version: int) -> None:
    await create_topic(bus, unique, partitions=2)
    async with wire_client(bus) as client:
        answer = await client.call(ApiKey.METADATA, version, {"topics": [{"name": unique}]})
        topic = answer["topics"][0]
        assert (topic["error_code"], topic["name"]) == (0, unique)
        assert sorted(part["index"] for part in topic["partitions"]) == [0, 1]
        assert (topic["topic_id"] != bytes(16)) == (version >= 10)


@pytest.mark.parametrize("version", range(5))
async def test_find_coordinator(bus: BusUnderTest, unique: str, version: int) -> None:
    async with wire_client(bus) as client:
        await client.coordinator_ready(unique)
        answer = await client.call(ApiKey.FIND_COORDINATOR, version, {"key": unique, "keys": [unique]})
        found = answer["coordinators"][0] if version >= 4 else answer
        assert (found["error_code"], f"{found['host']}:{found['port']}") == (0, bus.bootstrap_servers)


@pytest.mark.parametrize("step", range(8))
async def test_life_of_a_member(bus: BusUnderTest, unique: str, step: int) -> None:
    """Joins, syncs, lives, commits, is described and leaves, each with the ``step``-th version of what there is."""
    await create_topic(bus, unique)

    def version(lowest: int, highest: int) -> int:
        return min(lowest + step, highest)

    async with wire_client(bus) as client:
        await client.coordinator_ready(unique)
        joined = await client.join(unique, version=version(2, 9))
        member: Message = {
            "group_id": unique,
            "generation_id": joined["generation_id"],
            "member_id": joined["member_id"],
            "protocol_type": "consumer",
            "protocol_name": joined["protocol_name"],
        }
        assert joined["members"][0]["metadata"] == NO_SUBSCRIPTION
        assignment = {"member_id": joined["member_id"], "assignment": b"\x00\x00part"}
        synced = await client.call(ApiKey.SYNC_GROUP, version(0, 5), member | {"assignments": [assignment]})
        assert (synced["error_code"], synced["assignment"]) == (0, b"\x00\x00part")
        assert (await client.call(ApiKey.HEARTBEAT, version(0, 4), member))["error_code"] == 0
        await commits_and_reads_back(client, unique, member, version(2, 8), version(1, 8))
        described = await client.call(ApiKey.DESCRIBE_GROUPS, version(0, 5), {"groups": [unique]})
        assert described["groups"][0]["group_state"] == "Stable"
        assert described["groups"][0]["members"][0]["member_assignment"] == b"\x00\x00part"
        listed = await client.call(ApiKey.LIST_GROUPS, version(0, 4), {})
        assert unique in {group["group_id"] for group in listed["groups"]}
        leaving = {"group_id": unique, "member_id": joined["member_id"], "members": [member]}
        left = await client.call(ApiKey.LEAVE_GROUP, version(0, 5), leaving)
        assert left["error_code"] == 0
        assert all(each["error_code"] == 0 for each in left["members"])

        async def is_empty() -> bool:
            answer = await client.call(ApiKey.DESCRIBE_GROUPS, 0, {"groups": [unique]})
            return bool(answer["groups"][0]["group_state"] == "Empty")

        await until(is_empty)


async def commits_and_reads_back(
    client: WireClient, unique: str, member: Message, commit_version: int, fetch_version: int
) -> None:
    """OffsetCommit and OffsetFetch, of the wanted partition and of all."""
    part = {"index": 0, "offset": 77, "metadata": "note"}
    body = member | {"topics": [{"name": unique, "partitions": [part]}]}
    answer = await client.call(ApiKey.OFFSET_COMMIT, commit_version, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    wanted = [{"name": unique, "partitions": [0]}]
    for topics in (wanted, None) if fetch_version >= 2 else (wanted,):
        groups = [{"group_id": unique, "topics": topics}]
        fetched = await client.call(
            ApiKey.OFFSET_FETCH, fetch_version, {"group_id": unique, "topics": topics, "groups": groups}
        )
        fetched = fetched["groups"][0] if fetch_version >= 8 else fetched
        found = fetched["topics"][0]["partitions"][0]
        assert (found["error_code"], found["offset"], found["metadata"]) == (0, 77, "note")


@pytest.mark.parametrize("version", range(2, 6))
async def test_topics_are_made_and_removed(bus: BusUnderTest, unique: str, version: int) -> None:
    config = {"name": "retention.ms", "value": "5000"}
    topic = {"name": unique, "num_partitions": 2, "replication_factor": 1, "configs": [config]}
    async with wire_client(bus) as client:
        checked = await client.call(
            ApiKey.CREATE_TOPICS, version, {"topics": [topic], "timeout_ms": 9000, "validate_only": True}
        )
        assert checked["topics"][0]["error_code"] == 0
        made = await client.call(ApiKey.CREATE_TOPICS, version, {"topics": [topic], "timeout_ms": 9000})
        assert made["topics"][0]["error_code"] == 0, "validate_only made nothing"

        async def is_described() -> bool:
            resource = {"resource_type": 2, "resource_name": unique, "configuration_keys": ["retention.ms"]}
            answer = await client.call(ApiKey.DESCRIBE_CONFIGS, version - 1, {"resources": [resource]})
            values = [(each["name"], each["value"]) for each in answer["results"][0]["configs"]]
            return values == [("retention.ms", "5000")]

        await until(is_described)
        removed = await client.call(
            ApiKey.DELETE_TOPICS, min(version - 1, 5), {"topic_names": [unique], "timeout_ms": 9000}
        )
        assert removed["responses"][0]["error_code"] == 0


@pytest.mark.parametrize("version", range(5))
async def test_producer_ids(bus: BusUnderTest, version: int) -> None:
    async with wire_client(bus) as client:
        given = [await client.new_producer_id(version) for _ in range(2)]
        assert [answer["error_code"] for answer in given] == [0, 0]
        assert given[0]["producer_id"] != given[1]["producer_id"]
        assert all(answer["producer_id"] >= 0 and answer["producer_epoch"] == 0 for answer in given)


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(bus: BusUnderTest, unique: str, version: int) -> None:
    await create_topic(bus, unique)
    async with wire_client(bus) as client:
        await client.produce(unique, batch_of([b"a", b"b", b"c"]))
        for wanted, expected in [(1, (0, 1)), (-1, (0, 3)), (9, (1, -1))]:
            body = {"topics": [{"name": unique, "partitions": [{"index": 0, "offset": wanted}]}], "timeout_ms": 9000}
            part = (await client.call(ApiKey.DELETE_RECORDS, version, body))["topics"][0]["partitions"][0]
            assert (part["error_code"], part["low_watermark"]) == expected
