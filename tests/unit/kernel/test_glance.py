"""Which records are decoded: those that may concern a subscription, by what stands beside the body."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from google.protobuf.message import Message

from meridian.codec import JSON, PROTOBUF, STRUCTURED, encode
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.errors import ContractError
from meridian.glance import Concern

PROGRESS = "meridian.run.v1.RunProgress"
FINISHED = "meridian.run.v1.RunFinished"


def sent(message: Message, content_type: str = PROTOBUF) -> ConsumerRecord[Any, Any]:
    found = encode(message, event_id="1", source="/s", time=datetime(2026, 1, 1, tzinfo=UTC), content_type=content_type)
    return record(found.key, found.value, found.headers)


def record(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> ConsumerRecord[Any, Any]:
    return ConsumerRecord("meridian.run.lifecycle.v1", 0, 0, 0, 0, key, value, None, 0, 0, headers)


def is_mine(key: str) -> bool:
    return key == "mine"


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_another_type_or_key_is_passed_over_undecoded(content_type: str) -> None:
    mine = sent(run_pb2.RunProgress(job_id="mine", step=3), content_type)
    others = sent(run_pb2.RunProgress(job_id="other"), content_type)
    ended = sent(run_pb2.RunFinished(job_id="mine"), content_type)
    for item in (others, ended):
        item.value = b"\xff"
    assert Concern({PROGRESS}, is_mine).of([others, mine, ended, mine]) == [mine, mine]
    assert Concern({PROGRESS, FINISHED}, is_mine).of([others, mine, ended]) == [mine, ended]
    assert Concern({PROGRESS}).of([others, mine, ended]) == [others, mine]


def test_what_does_not_say_is_decoded() -> None:
    event = {"specversion": "1.0", "id": "1", "type": PROGRESS, "source": "/s", "data": {"job_id": "other"}}
    structured = record(None, json.dumps(event).encode(), [("content-type", STRUCTURED.encode())])
    without_key = record(b"", b"", [("ce_type", PROGRESS.encode())])
    not_text = record(b"\xff", b"", [("ce_type", PROGRESS.encode())])
    unknown = record(b"mine", b"", [("ce_type", b"meridian.run.v1.RunVanished")])
    nothing = record(b"mine", None, [])
    records = [structured, without_key, not_text, unknown, nothing]
    assert Concern({PROGRESS}, is_mine).of(records) == records


def test_a_type_of_other_topics_is_decoded_and_so_refused() -> None:
    """It does not belong on this topic: that is for the decoder to say."""
    submitted = sent(job_pb2.JobSubmitted(job_id="mine"))
    assert Concern({PROGRESS}).of([submitted]) == [submitted]


def test_only_events_of_the_contracts_can_be_wanted() -> None:
    with pytest.raises(ContractError, match=r"meridian\.common\.v1\.Money"):
        Concern({"meridian.common.v1.Money"})
