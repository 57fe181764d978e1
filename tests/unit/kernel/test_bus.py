"""The bus without a broker: what a dead letter keeps, what a subscription is called, when a consumer has stalled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaConnectionError
from prometheus_client import CollectorRegistry

from meridian.bus import Bus, Liveness, Progress, _dead_letter, _message_id
from meridian.codec import Envelope, decode, encode
from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.errors import ContractError
from meridian.outbox import Transaction
from meridian.service import Kernel, create_kernel
from meridian.settings import KernelSettings

STALL_AFTER_S = 60.0
TIME = datetime(2026, 1, 1, tzinfo=UTC)
PARTITION = TopicPartition("meridian.job.requests.v1", 0)
OTHER = TopicPartition("meridian.job.requests.v1", 1)


@pytest.fixture
def kernel() -> Kernel:
    return create_kernel("ledger", KernelSettings())


def record(
    value: bytes | None, headers: Sequence[tuple[str, bytes]], key: bytes | None = b"k"
) -> ConsumerRecord[Any, Any]:
    return ConsumerRecord("meridian.job.requests.v1", 3, 42, 0, 0, key, value, None, 0, 0, headers)


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_the_record_with_the_reason_and_where_it_was() -> None:
    sent = encode(job_pb2.JobSubmitted(job_id="j"), event_id="1", source="/s", time=TIME)
    dead = _dead_letter(record(sent.value, sent.headers, sent.key), "ledger.jobs", "坏了")
    assert (dead.topic, dead.key, dead.value) == ("meridian.job.requests.v1.dlq", b"j", sent.value)
    headers = dict(dead.headers)
    assert {name: headers[name] for name in headers if name.startswith("x-dlq-")} == {
        "x-dlq-reason": "坏了".encode(),
        "x-dlq-consumer": b"ledger.jobs",
        "x-dlq-topic": b"meridian.job.requests.v1",
        "x-dlq-partition": b"3",
        "x-dlq-offset": b"42",
    }
    replayed = decode(dead.value, dead.headers)
    assert (replayed.id, replayed.data) == ("1", job_pb2.JobSubmitted(job_id="j")), "it can be sent again as it is"


def test_a_dead_letter_can_always_be_stored() -> None:
    dead = _dead_letter(record(None, [("ce_id", b"\xff\xfe")], key=None), "ledger.jobs", "x" * 10_000)
    assert (dead.key, dead.value) == (b"", b"")
    assert all(value.decode() is not None for _, value in dead.headers)
    assert len(dict(dead.headers)["x-dlq-reason"]) == 2000


def test_events_are_told_apart_by_source_and_id() -> None:
    def of(source: str, event_id: str) -> Envelope:
        sent = encode(job_pb2.JobSubmitted(job_id="j"), event_id=event_id, source=source, time=TIME)
        return decode(sent.value, sent.headers)

    ids = {_message_id(of(source, event_id)) for source in ("/a", "/b") for event_id in ("1", "2")}
    assert len(ids) == 4
    assert _message_id(of("/a", "1")) == _message_id(of("/a", "1"))


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_each_purpose_is_a_consumer_group_of_the_service(kernel: Kernel) -> None:
    async def handle(_transaction: Transaction, _message: Any) -> None: ...

    kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: handle, run_pb2.RunFinished: handle})
    kernel.bus.subscribe("runs", {run_pb2.RunFailed: handle})
    assert [progress.consumer for progress in kernel.bus.progress] == ["ledger.jobs", "ledger.runs"]


def test_only_events_of_the_contracts_can_be_subscribed_to(kernel: Kernel) -> None:
    async def handle(_transaction: Transaction, _message: Any) -> None: ...

    with pytest.raises(ContractError, match=r"meridian\.common\.v1\.Money"):
        kernel.bus.subscribe("money", {types_pb2.Money: handle})
    assert kernel.bus.progress == []


# -- liveness ---------------------------------------------------------------------------------------------------------


@dataclass
class Coordinator:
    generation: int


@dataclass
class Consumer:
    """What `Liveness` asks of an aiokafka consumer, at offsets the test sets."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    generation: int = 1
    broker_answers: bool = True

    @property
    def _coordinator(self) -> Coordinator:
        return Coordinator(self.generation)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not self.broker_answers:
            raise KafkaConnectionError
        return {partition: self.ends[partition] for partition in partitions}

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]


@dataclass
class Subscriber:
    consumer: Consumer | None


@dataclass
class Watched:
    """One subscription under watch; `after_a_minute` checks it as if more than the stall time had gone by."""

    bus: Bus
    liveness: Liveness
    consumer: Consumer
    registry: CollectorRegistry

    async def after_a_minute(self) -> list[str]:
        self.bus.progress[0].moved_at = time.monotonic() - STALL_AFTER_S - 1
        await self.liveness.check()
        return self.liveness.stalled()

    def lag(self) -> float | None:
        return self.registry.get_sample_value("meridian_bus_lag_records", {"consumer": "ledger.jobs"})


@pytest.fixture
def watched(kernel: Kernel) -> Watched:
    consumer = Consumer({PARTITION: 10, OTHER: 5}, {PARTITION: 20, OTHER: 5})
    kernel.bus.progress.append(Progress("ledger.jobs", Subscriber(consumer), time.monotonic(), {}))
    liveness = Liveness(kernel.bus, kernel.bus_metrics, STALL_AFTER_S)
    return Watched(kernel.bus, liveness, consumer, kernel.registry)


async def test_a_consumer_that_moves_is_live(watched: Watched) -> None:
    assert await watched.after_a_minute() == []
    watched.consumer.positions[PARTITION] = 11
    assert await watched.after_a_minute() == []
    assert watched.lag() == 9


async def test_a_consumer_with_lag_that_stands_still_has_stalled(watched: Watched) -> None:
    await watched.liveness.check()
    assert await watched.after_a_minute() == ["ledger.jobs"]
    watched.consumer.positions[PARTITION] = 20
    assert await watched.after_a_minute() == []


async def test_it_is_given_its_time(watched: Watched) -> None:
    await watched.liveness.check()
    watched.bus.progress[0].moved_at = time.monotonic() - STALL_AFTER_S / 2
    await watched.liveness.check()
    assert watched.liveness.stalled() == []


async def test_nothing_to_read_is_no_stall(watched: Watched) -> None:
    watched.consumer.positions[PARTITION] = 20
    await watched.liveness.check()
    assert await watched.after_a_minute() == []
    assert watched.lag() == 0


async def test_a_member_without_partitions_is_live_but_one_outside_of_its_group_is_not(watched: Watched) -> None:
    watched.consumer.positions.clear()
    assert await watched.after_a_minute() == []
    watched.consumer.generation = -1
    assert await watched.after_a_minute() == ["ledger.jobs"]


async def test_a_broker_that_does_not_answer_is_no_progress(watched: Watched) -> None:
    await watched.liveness.check()
    watched.consumer.broker_answers = False
    assert await watched.after_a_minute() == ["ledger.jobs"]


async def test_one_partition_that_moves_is_progress(watched: Watched) -> None:
    await watched.liveness.check()
    watched.consumer.ends[OTHER] = 6
    watched.consumer.positions[OTHER] = 6
    assert await watched.after_a_minute() == []


async def test_a_subscription_that_never_starts_has_stalled(kernel: Kernel) -> None:
    kernel.bus.progress.append(Progress("ledger.jobs", Subscriber(None), time.monotonic(), {}))
    liveness = Liveness(kernel.bus, kernel.bus_metrics, STALL_AFTER_S)
    await liveness.check()
    assert liveness.stalled() == []
    kernel.bus.progress[0].moved_at -= STALL_AFTER_S + 1
    await liveness.check()
    assert liveness.stalled() == ["ledger.jobs"]


def test_a_header_without_value_is_no_attribute_and_no_error() -> None:
    """Kafka allows null there; aiokafka gives None."""
    message = job_pb2.JobSubmitted(job_id="a")
    sent = encode(message, event_id="1", source="/x", time=TIME)
    found = decode(sent.value, [*sent.headers, ("traceparent", None), ("other", None)])
    assert (found.data, found.traceparent) == (message, "")
    with pytest.raises(ContractError, match="lacks the headers ce_id"):
        decode(sent.value, [(name, None if name == "ce_id" else value) for name, value in sent.headers])
    letter = _dead_letter(record(sent.value, [("other", None)]), "c", "why")  # type: ignore[list-item]
    assert dict(letter.headers)["other"] == b""
