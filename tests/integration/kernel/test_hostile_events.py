"""Events that no honest sender sends: each goes to the dead letters and blocks nobody, however it is made."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from meridian.contracts.job.v1 import job_pb2
from meridian.dead_letters import letters, replay
from meridian.embedded.broker.batches import checksum
from meridian.errors import InvalidArgumentError
from meridian.outbox import Transaction
from tests.conformance.wire_client import wire_client
from tests.harness import PATIENCE_S, environment
from tests.integration.kernel.test_bus import make_kernel, record_jobs, running, seen

TOPIC = "meridian.job.requests.v1"
TYPE = "meridian.job.v1.JobSubmitted"
BODY = job_pb2.JobSubmitted(job_id="odd").SerializeToString()


def binary(value: bytes = BODY, **attributes: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    given = {"ce_specversion": b"1.0", "ce_id": b"9", "ce_source": b"/x", "ce_type": TYPE.encode(), **attributes}
    return value, list(given.items())


def structured(body: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    return body, [("content-type", b"application/cloudevents+json")]


def as_json(**fields: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "9", "source": "/x", "type": TYPE, **fields}).encode()


HOSTILE = {
    "nul in the id": binary(ce_id=b"a\x00b"),
    "nul in the reason": binary(b"\xff\xff", extra=b"a\x00b"),
    "nul in a header's name": binary(b"\xff\xff", **{"x\x00y": b"1"}),
    "long id": binary(ce_id=b"".join(str(number).encode() for number in range(20_000))),
    "half a character in the id": structured(as_json(id="\ud800", data={"job_id": "odd"})),
    "data that is no base64 text": structured(as_json(data_base64=7)),
    "deep nesting": structured(b"[" * 100_000),
    "deep data": structured(as_json()[:-1] + b', "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a list as data": structured(as_json(data=[1])),
    "a header that is no text": binary(other=b"\xff\xfe"),
    "a header without value": (BODY, [("ce_specversion", b"1.0"), ("ce_id", None), ("ce_source", b"/x")]),  # type: ignore[list-item]
}


async def test_hostile_events_are_set_aside_and_the_next_is_handled(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus)
        async with running(kernel):
            for value, headers in HOSTILE.values():
                await stack.bus.publish_raw(TOPIC, value, headers)
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="honest"))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "honest")
            async with asyncio.timeout(PATIENCE_S):
                while len(stack.bus.dead_letters) < len(HOSTILE):
                    await stack.bus.expect_dead_letter()
                    await asyncio.sleep(0.05)
            assert await seen(kernel) == ["honest"]
    assert len(stack.bus.dead_letters) == len(HOSTILE)
    reasons = " ".join(dict(record.headers)["x-dlq-reason"].decode() for record in stack.bus.dead_letters)
    assert all(text in reasons for text in ("attribute id", "nested too deeply", "data_base64", "does not decode"))


async def test_what_was_compressed_stops_nothing_that_is_to_be_sent(database_url: str) -> None:
    """Two mebibytes of the same byte cross the bus in some hundred; set aside they come without compression."""
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus)
        async with running(kernel):
            async with AIOKafkaProducer(
                bootstrap_servers=stack.bootstrap_servers, compression_type="gzip", max_request_size=1 << 23
            ) as producer:
                value, headers = binary(b"\xff" * (2 << 20))
                await producer.send_and_wait(TOPIC, value, key=b"k", headers=headers)
            await stack.bus.publish(job_pb2.JobSubmitted(job_id="honest"))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "honest")
            await stack.bus.expect_dead_letter()
        [letter] = await letters(stack.bootstrap_servers, [TOPIC])
        assert letter.truncated
        assert letter.message_id == "/x|9"
        with pytest.raises(InvalidArgumentError, match="only the beginning"):
            await replay(kernel.settings, TOPIC, [letter.offset])


async def test_an_event_in_structured_mode_is_handed_back_too(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack, "scheduler")
        broken = {"odd"}

        async def handle(transaction: Transaction, message: job_pb2.JobSubmitted) -> None:
            if message.job_id in broken:
                raise ValueError("this job cannot be handled")
            transaction.publish(job_pb2.JobQueued(job_id=message.job_id))

        kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: handle})
        async with running(kernel):
            await stack.bus.publish_raw(TOPIC, *structured(as_json(data={"job_id": "odd"})))
            await stack.bus.expect_dead_letter()
            broken.clear()
            [letter] = await letters(stack.bootstrap_servers, [TOPIC])
            assert (letter.event_type, letter.message_id) == (TYPE, "/x|9")
            await replay(kernel.settings, TOPIC, [letter.offset])
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "odd")


def _batch(job_id: str, *, spoil: bool = False) -> bytes:
    """A batch of one submission as a producer sends it; spoilt, the name of its last header is no UTF-8."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    value, headers = binary(job_pb2.JobSubmitted(job_id=job_id).SerializeToString(), ce_id=job_id.encode(), marker=b"1")
    builder.append(0, 1_000_000, b"k", value, headers)
    raw = bytes(builder.build())
    if spoil:
        raw = raw.replace(b"marker", b"m\xffrker")
        raw = raw[:17] + checksum(raw).to_bytes(4, "big") + raw[21:]
    return raw


async def test_a_record_that_no_client_can_read_blocks_nobody_and_hides_none_before_it(database_url: str) -> None:
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        record_jobs(kernel.bus)
        async with wire_client(stack) as client:  # type: ignore[arg-type]
            for batch in (_batch("before"), _batch("spoilt", spoil=True), _batch("after")):
                assert (await client.produce(TOPIC, batch))["error_code"] == 0
        async with running(kernel):
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "after")
            letter = await stack.bus.expect_dead_letter()
            assert await seen(kernel) == ["before", "after"]
    noted = dict(letter.headers)
    assert (noted["x-dlq-partition"], noted["x-dlq-offset"]) == (b"0", b"1")
    assert b"records 1 to 1 of a batch cannot be read" in noted["x-dlq-reason"]


async def test_an_event_of_ours_that_is_too_large_stops_no_other(database_url: str) -> None:
    """A mebibyte is what a topic takes that says nothing else; the client of a service takes more."""
    async with environment(database_url) as stack:
        kernel = await make_kernel(stack)
        async with running(kernel):
            for job_id, more_bytes in (("a", 0), ("large", 2 << 20), ("larger", 40 << 20), ("b", 0)):
                async with kernel.outbox.transaction() as transaction:
                    transaction.publish(job_pb2.JobQueued(job_id=job_id, reason="x" * more_bytes))
            await stack.bus.expect(job_pb2.JobQueued, lambda event: event.job_id == "b")
            async with asyncio.timeout(PATIENCE_S):
                while len(stack.bus.dead_letters) < 2:
                    await stack.bus.expect_dead_letter()
                    await asyncio.sleep(0.05)
        assert [event.job_id for event in stack.bus.events(job_pb2.JobQueued)] == ["a", "b"]
        found = await letters(stack.bootstrap_servers, ["meridian.job.lifecycle.v1"])
    assert {(letter.key, letter.truncated, letter.consumer) for letter in found} == {
        (b"large", True, "ledger.outbox"),
        (b"larger", True, "ledger.outbox"),
    }
    assert all("larger than its topic takes" in letter.reason for letter in found)
