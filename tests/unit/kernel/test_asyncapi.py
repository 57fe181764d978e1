"""The AsyncAPI document is enough to join: every reference resolves, and what the services send keeps its schemas."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from google.protobuf import json_format

from meridian.asyncapi import document
from meridian.catalogue import catalogue
from meridian.codec import encode
from tests.contract.golden import fill

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = document(catalogue())


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str) -> Any:
    node: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def test_every_reference_resolves() -> None:
    for reference in set(references(DOCUMENT)):
        assert resolve(reference), reference


def test_every_topic_is_a_channel_that_can_be_sent_to_and_received_from() -> None:
    assert set(DOCUMENT["channels"]) == set(catalogue().topics)
    for topic in catalogue().topics.values():
        channel = DOCUMENT["channels"][topic.name]
        assert channel["x-audience"] == topic.audience.value
        assert channel["bindings"]["kafka"]["partitions"] == topic.partitions
        for action in ("send", "receive"):
            operation = DOCUMENT["operations"][f"{action}:{topic.name}"]
            assert resolve(operation["channel"]["$ref"]) is channel


def test_every_message_names_a_proto_file_that_declares_it() -> None:
    for name, message in DOCUMENT["components"]["messages"].items():
        text = (ROOT / message["x-protobuf"]["file"]).read_text(encoding="utf-8")
        assert f"message {name.rsplit('.', 1)[-1]} {{" in text
        assert f"package {name.rsplit('.', 1)[0]};" in text


def schema_of(name: str, part: str) -> dict[str, Any]:
    return {**DOCUMENT["components"]["messages"][name][part], "components": DOCUMENT["components"]}


@pytest.mark.parametrize("name", sorted(catalogue().events))
def test_a_full_event_keeps_its_schemas(name: str) -> None:
    message = fill(catalogue().event(name).message())
    for words in (True, False):
        data = json_format.MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=not words)
        valid = jsonschema.Draft202012Validator(schema_of(name, "payload")).is_valid(data)
        assert valid == (words or not _has_enum(name)), "enums travel by name"
    record = encode(message, event_id="1", source="/s", time=datetime(2026, 1, 1, tzinfo=UTC), traceparent="00-a-b-01")
    headers = {header: value.decode() for header, value in record.headers}
    jsonschema.validate(headers, schema_of(name, "headers"))
    headers.pop("ce_id")
    with pytest.raises(jsonschema.ValidationError, match="ce_id"):
        jsonschema.validate(headers, schema_of(name, "headers"))


def _has_enum(name: str) -> bool:
    message = fill(catalogue().event(name).message())
    with_names = json_format.MessageToDict(message)
    return with_names != json_format.MessageToDict(message, use_integers_for_enums=True)


@pytest.mark.parametrize("name", sorted(catalogue().events))
def test_a_field_of_the_wrong_kind_breaks_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(name, "payload"))
    key = catalogue().event(name).key_field
    assert validator.is_valid({key: "k"})
    assert not validator.is_valid({key: 7})
