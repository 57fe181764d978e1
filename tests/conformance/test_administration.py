"""Topics are made, looked at, shortened and removed the same way on either bus."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka.admin import AdminClient

from meridian.embedded.broker.schemas import ApiKey
from tests.conformance.bus_under_test import BusUnderTest
from tests.conformance.clients import PATIENCE_S, admin_of, consumer_of, create_topic, producer_of, take, until
from tests.conformance.wire_client import wire_client

TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, INVALID_TOPIC = 36, 37, 40, 17


async def test_topics_are_created_with_their_configuration(bus: BusUnderTest, unique: str) -> None:
    wanted = {"retention.ms": "123456", "cleanup.policy": "compact", "segment.bytes": "2097152"}
    await create_topic(bus, unique, partitions=3, config=wanted)
    async with admin_of(bus) as admin:
        described = await admin.describe_topics([unique])
        assert len(described[0]["partitions"]) == 3
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, unique)])
        settings = {entry[0]: entry[1] for entry in answers[0].resources[0][4]}
        assert {name: settings[name] for name in wanted} == wanted
        assert settings["retention.bytes"] == "-1"


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (lambda name: NewTopic(name, 1, 1), TOPIC_ALREADY_EXISTS),
        (lambda name: NewTopic(name + "-a", 0, 1), INVALID_PARTITIONS),
        (lambda name: NewTopic(name + "-b", 1, 1, topic_configs={"no.such": "1"}), INVALID_CONFIG),
        (lambda name: NewTopic(name + "-c", 1, 1, topic_configs={"retention.ms": "soon"}), INVALID_CONFIG),
        (lambda name: NewTopic(name + "/d", 1, 1), INVALID_TOPIC),
    ],
)
async def test_bad_topics_are_refused(bus: BusUnderTest, unique: str, topic: object, code: int) -> None:
    assert callable(topic)
    await create_topic(bus, unique)
    async with admin_of(bus) as admin:
        answer = await admin.create_topics([topic(unique)])
        assert answer.topic_errors[0][1] == code


async def test_deleted_topic_is_gone_and_can_be_made_again(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with producer_of(bus) as producer:
        await producer.send_and_wait(unique, b"old")
    async with admin_of(bus) as admin:
        await admin.delete_topics([unique])

        async def is_gone() -> bool:
            return unique not in await admin.list_topics()

        await until(is_gone)
    await create_topic(bus, unique)
    async with producer_of(bus) as producer:
        assert (await producer.send_and_wait(unique, b"new")).offset == 0


async def test_records_before_an_offset_are_deleted(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    partition = TopicPartition(unique, 0)
    async with producer_of(bus) as producer:
        for i in range(10):
            await producer.send_and_wait(unique, str(i).encode())
    async with admin_of(bus) as admin:
        assert await admin.delete_records({partition: RecordsToDelete(before_offset=6)}) == {partition: 6}
    async with consumer_of(bus, unique) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 6}
        assert [int(record.value or b"") for record in await take(consumer, 4)] == [6, 7, 8, 9]


async def test_groups_are_listed_and_described(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique)
    async with (
        consumer_of(bus, unique, group_id=unique, client_id="reader") as consumer,
        admin_of(bus) as admin,
        wire_client(bus) as wire,
    ):
        await until(lambda: bool(consumer.assignment()))
        listed = await wire.call(ApiKey.LIST_GROUPS, 4, {"states_filter": ["Stable"]})
        assert {"group_id": unique, "protocol_type": "consumer", "group_state": "Stable"} in listed["groups"]
        answers = await admin.describe_consumer_groups([unique])
        group = answers[0].groups[0]
        assert (group[1], group[2], group[3]) == (unique, "Stable", "consumer")
        assert group[5][0][2 if answers[0].API_VERSION >= 4 else 1] == "reader"


async def test_confluent_administrator(bus: BusUnderTest, unique: str) -> None:
    await create_topic(bus, unique, partitions=2)
    admin = AdminClient({"bootstrap.servers": bus.bootstrap_servers})
    known = await asyncio.to_thread(admin.list_topics, None, PATIENCE_S)
    assert len(known.topics[unique].partitions) == 2
    deleted = admin.delete_topics([unique])
    await asyncio.to_thread(deleted[unique].result, PATIENCE_S)
