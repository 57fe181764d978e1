"""The contracts: what was ever released stays readable; topics, codec and AsyncAPI follow from the options."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from meridian.asyncapi import document
from meridian.catalogue import Audience, catalogue
from meridian.codec import JSON, STRUCTURED, decode, encode
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.errors import ContractError
from tests.contract.golden import FOLDER, TIME, fill

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_released_sample_still_reads_the_same(path: Path) -> None:
    sample = json.loads(path.read_text(encoding="utf-8"))
    headers = [(name, value.encode()) for name, value in sample["headers"].items()]
    envelope = decode(path.with_suffix(".binpb").read_bytes(), headers)
    data = json_format.MessageToDict(envelope.data, preserving_proto_field_name=True)
    assert data == sample["data"]
    assert envelope.type.topic.name == sample["topic"]
    assert envelope.key == sample["key"]
    assert envelope.time == TIME


def test_every_event_has_a_sample() -> None:
    assert {path.name.removesuffix(".1.json") for path in SAMPLES} == set(catalogue().events)


@pytest.mark.parametrize("name", sorted(catalogue().events))
def test_protobuf_and_json_forms_carry_the_same(name: str) -> None:
    message = fill(catalogue().event(name).message())
    for content_type in ("application/protobuf", JSON):
        record = encode(message, event_id="1", source="/s", time=TIME, content_type=content_type)
        assert decode(record.value, record.headers).data == message


def test_structured_mode_is_accepted() -> None:
    body = {
        "specversion": "1.0",
        "id": "7",
        "source": "/cloud",
        "type": "meridian.resource.v1.Heartbeat",
        "time": "2026-01-02T03:04:05Z",
        "data": {"domain_id": "d", "agent_id": "a", "sequence": "3"},
    }
    envelope = decode(json.dumps(body).encode(), [("content-type", STRUCTURED.encode())])
    assert envelope.data == resource_pb2.Heartbeat(domain_id="d", agent_id="a", sequence=3)
    assert envelope.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@given(value=st.binary(max_size=300), kind=st.sampled_from([*sorted(catalogue().events), "no.such.Event", ""]))
def test_any_bytes_give_an_event_or_a_contract_error(value: bytes, kind: str) -> None:
    headers = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", kind.encode())]
    try:
        envelope = decode(value, headers)
    except ContractError:
        return
    assert envelope.type.name == kind
    assert envelope.key


@given(value=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_structured_body_gives_an_event_or_a_contract_error(value: bytes) -> None:
    with pytest.raises(ContractError):
        decode(value, [("content-type", STRUCTURED.encode())])


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "lacks the headers"),
        ([("ce_specversion", b"0.3"), ("ce_id", b"1"), ("ce_type", b"x"), ("ce_source", b"s")], "version"),
        ([("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"x"), ("ce_source", b"s")], "unknown event type"),
        ([("ce_type", b"\xff")], "UTF-8"),
    ],
)
def test_broken_headers_are_named(headers: list[tuple[str, bytes]], reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        decode(b"", headers)


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ContractError, match="job_id"):
        encode(job_pb2.JobSubmitted(), event_id="1", source="/s", time=TIME)


def test_a_tombstone_is_no_event() -> None:
    with pytest.raises(ContractError, match="tombstone"):
        decode(None, [])


def test_asyncapi_names_every_topic_and_event() -> None:
    text = document(catalogue())
    assert set(text["channels"]) == set(catalogue().topics)
    assert set(text["components"]["messages"]) == set(catalogue().events)
    for channel in text["channels"].values():
        for reference in channel["messages"].values():
            assert reference["$ref"].rsplit("/", 1)[-1] in text["components"]["messages"]
    schemas = text["components"]["schemas"]

    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [item for value in node.values() for item in references(value)]
        if isinstance(node, list):
            return [item for value in node for item in references(value)]
        return []

    for reference in references(schemas):
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_partner_topics_are_what_a_cloud_needs_to_join() -> None:
    partner = {topic.name for topic in catalogue().topics.values() if topic.audience is Audience.PARTNER}
    assert {"meridian.resource.reports.v1", "meridian.resource.heartbeats.v1", "meridian.run.assignments.v1"} <= partner


def test_generated_files_are_fresh() -> None:
    result = subprocess.run(
        [sys.executable, "proto/generate.py", "--check"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
