"""A client that sends single requests of the protocol, to show the broker what no well-behaved client library would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from meridian.embedded.broker.schemas import APIS, ApiKey
from meridian.embedded.broker.wire import Message, Reader
from tests.conformance.bus_under_test import BusUnderTest

CLIENT_ID = b"wire-client"
NOT_READY_YET = frozenset({3, 5, 6, 14, 15, 16})
"""Unknown topic, no leader, not the leader, loading, no coordinator, not the coordinator: all pass on a healthy broker."""
NO_SUBSCRIPTION = b"\x00\x00" + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
"""Version, topics, user data: a member that wants no topic."""


class WireClient:
    """One connection; requests are answered one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation = 0

    async def call(self, key: ApiKey, version: int, body: Message) -> Message:
        """Send a request and return the decoded response."""
        api = APIS[key]
        self._correlation += 1
        out = bytearray(key.to_bytes(2, "big") + version.to_bytes(2, "big") + self._correlation.to_bytes(4, "big"))
        out += len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID
        if version >= api.flexible_from:
            out.append(0)
        api.write_request(out, body, version)
        self.writer.write(len(out).to_bytes(4, "big") + out)
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        answer = Reader(await self.reader.readexactly(length))
        assert int.from_bytes(answer.take(4), "big") == self._correlation
        if api.tagged_response_header(version):
            answer.skip_tags()
        message = api.read_response(answer, version)
        assert answer.position == answer.end, "the response has bytes that its form does not know"
        return message

    async def coordinator_ready(self, group: str) -> None:
        """Wait until the broker coordinates groups."""
        while (await self.call(ApiKey.FIND_COORDINATOR, 2, {"key": group}))["error_code"]:
            await asyncio.sleep(0.1)

    async def join(self, group: str, member_id: str = "", version: int = 5, **changes: Any) -> Message:
        """JoinGroup with the id round trip of KIP-394; the answer when the generation begins."""
        body: Message = {
            "group_id": group,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": NO_SUBSCRIPTION} for name in ("range", "roundrobin")],
        }
        answer = await self.call(ApiKey.JOIN_GROUP, version, body | changes)
        if answer["error_code"] == 79:
            return await self.join(group, answer["member_id"], version, **changes)
        return answer

    async def sync(self, group: str, joined: Message, assignments: dict[str, bytes] | None = None) -> Message:
        """SyncGroup 3."""
        return await self.call(
            ApiKey.SYNC_GROUP,
            3,
            {
                "group_id": group,
                "generation_id": joined["generation_id"],
                "member_id": joined["member_id"],
                "assignments": [{"member_id": key, "assignment": value} for key, value in (assignments or {}).items()],
            },
        )

    async def commit(self, group: str, topic: str, offset: int, generation: int, member_id: str) -> int:
        """OffsetCommit 3 for partition 0; the error code."""
        partitions = [{"index": 0, "offset": offset, "metadata": ""}]
        answer = await self.call(
            ApiKey.OFFSET_COMMIT,
            3,
            {
                "group_id": group,
                "generation_id": generation,
                "member_id": member_id,
                "topics": [{"name": topic, "partitions": partitions}],
            },
        )
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def heartbeat(self, group: str, joined: Message) -> int:
        """Heartbeat 1; the error code."""
        body = {"group_id": group, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
        code: int = (await self.call(ApiKey.HEARTBEAT, 1, body))["error_code"]
        return code

    async def produce(self, topic: str, batch: bytes, version: int = 7) -> Message:
        """Produce with acks=all to partition 0; the answer for it, asked again while a new topic is not ready yet."""
        body = {
            "acks": -1,
            "timeout_ms": 5000,
            "topics": [{"name": topic, "partitions": [{"index": 0, "records": batch}]}],
        }
        while True:
            answer: Message = (await self.call(ApiKey.PRODUCE, version, body))["topics"][0]["partitions"][0]
            if answer["error_code"] not in NOT_READY_YET:
                return answer
            await asyncio.sleep(0.02)

    async def new_producer_id(self, version: int) -> Message:
        """InitProducerId, asked again while the broker has no block of ids yet."""
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        while True:
            answer = await self.call(ApiKey.INIT_PRODUCER_ID, version, body)
            if answer["error_code"] not in NOT_READY_YET:
                return answer
            await asyncio.sleep(0.02)


@asynccontextmanager
async def wire_client(bus: BusUnderTest) -> AsyncIterator[WireClient]:
    """A connection of its own."""
    host, port = bus.bootstrap_servers.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield WireClient(reader, writer)
    finally:
        writer.close()


def batch_of(
    values: list[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, timestamp_ms: int = 1_000_000
) -> bytes:
    """A record batch as a producer sends it."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, epoch, sequence, 1 << 24)
    for index, value in enumerate(values):
        builder.append(index, timestamp_ms + index, b"key", value, [])
    return bytes(builder.build())
