"""Answers to the requests that write and read records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.log import PartitionLog
from meridian.embedded.broker.requests import Answer, Request
from meridian.embedded.broker.topic_config import TopicConfig
from meridian.embedded.broker.topics import Topic, TopicStore
from meridian.embedded.broker.wire import Message

NODE_ID = 0
ALL_REPLICAS, LEADER_ONLY, NO_ANSWER = -1, 1, 0


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach the broker."""

    host: str
    port: int


class StreamHandlers:
    """Produce, Fetch, ListOffsets, Metadata and InitProducerId."""

    def __init__(
        self,
        topics: TopicStore,
        *,
        address: Callable[[], Address],
        cluster_id: str,
        sync: Callable[[list[int]], Awaitable[None]] | None,
        next_producer_id: Callable[[], int],
        default_partitions: int,
        auto_create_topics: bool,
    ) -> None:
        self._topics = topics
        self._address = address
        self._cluster_id = cluster_id
        self._sync = sync
        """Forces descriptors to disk before an answer; None where a timer does it."""
        self._next_producer_id = next_producer_id
        self._default_partitions = default_partitions
        self._auto_create_topics = auto_create_topics

    # --- writing -----------------------------------------------------------------------------------------------------

    def produce(self, request: Request) -> Answer:
        """Append; the answer comes when the records are as safe as the flush policy promises."""
        body = request.body
        refused = self._refusal(body)
        touched: list[PartitionLog] = []
        answer: Message = {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        self._append(topic["name"], partition, refused, touched) for partition in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }
        silent = body["acks"] == NO_ANSWER
        if self._sync is None or not touched:
            return None if silent else answer
        return self._produced(touched, None if silent else answer)

    async def _produced(self, touched: list[PartitionLog], answer: Message | None) -> Message | None:
        assert self._sync is not None
        await self._sync([copy for log in touched for copy in log.unsynced_copies()])
        return answer

    @staticmethod
    def _refusal(body: Message) -> BrokerError | None:
        if body["transactional_id"] is not None:
            return BrokerError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served")
        if body["acks"] not in {ALL_REPLICAS, LEADER_ONLY, NO_ANSWER}:
            return BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
        return None

    def _append(
        self, topic: str, partition: Message, refused: BrokerError | None, touched: list[PartitionLog]
    ) -> Message:
        index = partition["index"]
        try:
            if refused is not None:
                raise refused
            log = self._topics.log(topic, index)
            base_offset = log.append(partition["records"] or b"")
        except BrokerError as error:
            return {"index": index, "error_code": error.error_code, "error_message": error.detail}
        touched.append(log)
        return {
            "index": index,
            "error_code": ErrorCode.NONE,
            "base_offset": base_offset,
            "log_start_offset": log.start_offset,
        }

    # --- reading -----------------------------------------------------------------------------------------------------

    def fetch(self, request: Request) -> Answer:
        """Records from the wanted offsets on: at once if there are enough, else when there are or the wait is over."""
        body = request.body
        answer, size_bytes, failed = self._read(body)
        if failed or size_bytes >= body["min_bytes"] or body["max_wait_ms"] <= 0 or not body["topics"]:
            return answer
        return self._fetch_later(body)

    def _read(self, body: Message) -> tuple[Message, int, bool]:
        """The answer as of now, the bytes of records in it, and whether a partition has an error to tell at once."""
        left_bytes = body["max_bytes"]
        size_bytes, failed = 0, False
        topics = []
        for topic in body["topics"]:
            partitions = []
            for wanted in topic["partitions"]:
                part: Message = {"index": wanted["index"], "error_code": ErrorCode.NONE}
                try:
                    log = self._topics.log(topic["name"], wanted["index"])
                    part["log_start_offset"] = log.start_offset
                    part["high_watermark"] = part["last_stable_offset"] = log.end_offset
                    limit_bytes = min(wanted["partition_max_bytes"], left_bytes)
                    data = log.read(wanted["fetch_offset"], limit_bytes) if limit_bytes > 0 or not size_bytes else b""
                    if size_bytes and len(data) > limit_bytes:
                        data = b""  # a single batch larger than what is left: it comes first in a later answer
                    part["records"] = data
                    size_bytes += len(data)
                    left_bytes -= len(data)
                except BrokerError as error:
                    part["error_code"] = error.error_code
                    failed = True
                partitions.append(part)
            topics.append({"name": topic["name"], "partitions": partitions})
        return {"topics": topics}, size_bytes, failed

    async def _fetch_later(self, body: Message) -> Message:
        grown, overdue = asyncio.Event(), asyncio.Event()

        def give_up() -> None:
            overdue.set()
            grown.set()

        subscriptions = [(log, log.subscribe(grown.set)) for log in self._logs_of(body)]
        timer = asyncio.get_running_loop().call_later(body["max_wait_ms"] / 1000, give_up)
        try:
            while True:  # read before the first wait as well: something may have come since the request did
                answer, size_bytes, failed = self._read(body)
                if failed or size_bytes >= body["min_bytes"] or overdue.is_set():
                    return answer
                await grown.wait()
                grown.clear()
        finally:
            timer.cancel()
            for log, subscription in subscriptions:
                log.unsubscribe(subscription)

    def _logs_of(self, body: Message) -> list[PartitionLog]:
        """The logs of the wanted partitions that exist."""
        return [
            self._topics.log(topic["name"], wanted["index"])
            for topic in body["topics"]
            for wanted in topic["partitions"]
            if self._topics.has(topic["name"], wanted["index"])
        ]

    def list_offsets(self, request: Request) -> Answer:
        """Offsets by time, or the first and the next one."""
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [self._find(topic["name"], partition) for partition in topic["partitions"]],
                }
                for topic in request.body["topics"]
            ]
        }

    def _find(self, topic: str, partition: Message) -> Message:
        try:
            timestamp_ms, offset = self._topics.log(topic, partition["index"]).find(partition["timestamp"])
        except BrokerError as error:
            return {"index": partition["index"], "error_code": error.error_code}
        return {
            "index": partition["index"],
            "error_code": ErrorCode.NONE,
            "timestamp": timestamp_ms,
            "offset": offset,
            "leader_epoch": 0,
        }

    # --- what there is -----------------------------------------------------------------------------------------------

    def metadata(self, request: Request) -> Answer:
        """The one broker and the wanted topics, created on the way where that is allowed."""
        wanted = request.body["topics"]
        everything = wanted is None or (request.version == 0 and not wanted)
        address = self._address()
        return {
            "brokers": [{"node_id": NODE_ID, "host": address.host, "port": address.port}],
            "cluster_id": self._cluster_id,
            "controller_id": NODE_ID,
            "topics": [_described(topic) for topic in self._topics]
            if everything
            else [
                self._describe(item["name"], item["topic_id"], request.body["allow_auto_topic_creation"])
                for item in wanted
            ],
        }

    def _describe(self, name: str | None, topic_id: bytes, may_create: bool) -> Message:
        if name is None:
            known = next((topic for topic in self._topics if topic.topic_id.bytes == topic_id), None)
            if known is None:
                return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": "", "topic_id": topic_id}
            return _described(known)
        try:
            if name not in self._topics and may_create and self._auto_create_topics:
                return _described(self._topics.create(name, self._default_partitions, TopicConfig()))
            return _described(self._topics.get(name))
        except BrokerError as error:
            return {"error_code": error.error_code, "name": name}

    def init_producer_id(self, request: Request) -> Answer:
        """A new id for an idempotent producer, or the next epoch of the one it has."""
        body = request.body
        if body["transactional_id"] is not None:
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
        if body["producer_id"] >= 0 and 0 <= body["producer_epoch"] < (1 << 15) - 1:
            return {"producer_id": body["producer_id"], "producer_epoch": body["producer_epoch"] + 1}
        return {"producer_id": self._next_producer_id(), "producer_epoch": 0}


def _described(topic: Topic) -> Message:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id.bytes,
        "partitions": [
            {"index": index, "leader_id": NODE_ID, "replica_nodes": [NODE_ID], "isr_nodes": [NODE_ID]}
            for index in range(len(topic.partitions))
        ],
    }


def now_ms() -> int:
    """The time of day in ms since the epoch."""
    return time.time_ns() // 1_000_000
