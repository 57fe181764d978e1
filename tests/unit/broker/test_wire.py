"""Messages of the protocol: what is written reads back in every version, and bytes that are no message are refused."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol import admin, commit, coordination, fetch, group, metadata, offset, produce, transaction
from hypothesis import given
from hypothesis import strategies as st

from meridian.embedded.broker.errors import MalformedFrameError
from meridian.embedded.broker.schemas import APIS, Api, ApiKey
from meridian.embedded.broker.wire import Reader, write_varint

VERSIONS = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=[f"{api.key.name}-{version}" for api, version in VERSIONS])
def test_empty_messages_read_back_as_defaults(api: Api, version: int) -> None:
    for write, read in ((api.write_request, api.read_request), (api.write_response, api.read_response)):
        out = bytearray()
        write(out, {}, version)
        reader = Reader(bytes(out))
        message = read(reader, version)
        assert reader.position == len(out)
        again = bytearray()
        write(again, message, version)
        assert again == out


WRONG_THERE = {"OffsetRequest_v4", "OffsetRequest_v5"}
"""aiokafka 0.14 has the leader epoch as 64 bits in these and never sends them; the protocol guide says 32."""


def requests_of_aiokafka() -> list[Any]:
    """Every request form of the client library that this broker serves, as an independent source for the layouts."""
    modules = (admin, commit, coordination, fetch, group, metadata, offset, produce, transaction)
    classes = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if "Request_v" in name
        and name not in WRONG_THERE
        and value.API_KEY in APIS
        and APIS[value.API_KEY].serves(value.API_VERSION)
    }
    return [classes[name] for name in sorted(classes)]


def sample(schema: Any) -> Any:
    """A value for a field of an aiokafka schema."""
    kind = type(schema).__name__ if not isinstance(schema, type) else schema.__name__
    if kind == "Schema":
        return tuple(sample(each) for each in schema.fields)
    if kind in {"Array", "CompactArray"}:
        return [sample(schema.array_of)] * 2
    if kind == "TaggedFields":
        return {}
    simple = {"Int8": 1, "Int16": 2, "Int32": 3, "Int64": 4, "Boolean": True, "Bytes": b"bytes", "CompactBytes": b"b"}
    return simple.get(kind, "text")


def flattened(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in flattened(each)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in flattened(each)]
    return [bytes(value) if isinstance(value, memoryview) else value]


@pytest.mark.parametrize("request_class", requests_of_aiokafka(), ids=lambda each: each.__name__)
def test_requests_of_another_library_read_alike(request_class: Any) -> None:
    api, version = APIS[request_class.API_KEY], request_class.API_VERSION
    values = sample(request_class.SCHEMA)
    encoded = request_class.SCHEMA.encode(values)
    reader = Reader(encoded)
    message = api.read_request(reader, version)
    assert reader.position == len(encoded)
    ours = bytearray()
    api.write_request(ours, message, version)
    assert bytes(ours) == encoded
    decoded = request_class.SCHEMA.decode(BytesIO(bytes(ours)))
    assert flattened(decoded) == [leaf for leaf in flattened(values) if leaf != {}] or version >= api.flexible_from


def test_truncated_requests_are_malformed() -> None:
    api = APIS[ApiKey.METADATA]
    out = bytearray()
    api.write_request(out, {"topics": [{"name": "topic"}]}, 12)
    for length in range(len(out)):
        with pytest.raises(MalformedFrameError):
            api.read_request(Reader(bytes(out[:length])), 12)


@given(st.sampled_from(VERSIONS), st.binary(max_size=80))
def test_no_bytes_raise_anything_but_malformed(where: tuple[Api, int], data: bytes) -> None:
    api, version = where
    try:
        api.read_request(Reader(data), version)
    except MalformedFrameError:
        return


def test_huge_array_is_refused_before_it_is_built() -> None:
    with pytest.raises(MalformedFrameError, match="items"):
        APIS[ApiKey.METADATA].read_request(Reader(b"\x7f\xff\xff\xff"), 1)


@given(st.integers(0, (1 << 32) - 1))
def test_varint_reads_back(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert Reader(bytes(out)).varint() == value
    assert len(out) <= 5


def test_tagged_fields_of_a_newer_client_are_skipped() -> None:
    out = bytearray()
    api = APIS[ApiKey.HEARTBEAT]
    api.write_request(out, {"group_id": "g", "generation_id": 4, "member_id": "m"}, 4)
    out[-1:] = b"\x02" + b"\x00\x03abc" + b"\x07\x00"
    reader = Reader(bytes(out))
    assert api.read_request(reader, 4)["generation_id"] == 4
    assert reader.position == reader.end
