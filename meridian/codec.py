"""Events on the wire: CloudEvents 1.0, Kafka protocol binding, binary mode, protobuf or ProtoJSON by content type.

The record value is the event's data; its attributes stand in headers ``ce_*`` (kafka-protocol-binding.md section 3.2).
Structured mode (``application/cloudevents+json``, section 3.3) is accepted inbound, so that partners without protobuf
can send one JSON object.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from meridian.catalogue import EventType, catalogue
from meridian.errors import ContractError

PROTOBUF = "application/protobuf"
JSON = "application/json"
STRUCTURED = "application/cloudevents+json"

MAX_IDENTITY_BYTES = 512
"""Of an event's id and source, each: who remembers what came keeps both in an index, whose entries are small."""

UNREADABLE = "x-meridian-unreadable"
"""Header of a record that stands for others which could not be read (unreadable.py): why not."""

HeaderList = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Envelope:
    """An event with its attributes. ``id`` is unique per event: consumers use it to recognise duplicates."""

    id: str
    type: EventType
    source: str
    time: datetime
    key: str
    data: Message
    traceparent: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a Kafka client sends it."""

    topic: str
    key: bytes
    value: bytes
    headers: HeaderList


def encode(
    message: Message,
    *,
    event_id: str,
    source: str,
    time: datetime,
    traceparent: str = "",
    content_type: str = PROTOBUF,
) -> Record:
    """Encode an event for its topic. ContractError when the message is no event or its key is empty."""
    event = catalogue().event_of(message)
    key = event.key_of(message)
    if content_type == PROTOBUF:
        value = message.SerializeToString()
    elif content_type == JSON:
        value = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None).encode()
    else:
        raise ContractError(f"content type {content_type!r} is not supported")
    headers: HeaderList = [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id.encode()),
        ("ce_type", event.name.encode()),
        ("ce_source", source.encode()),
        ("ce_time", time.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        ("ce_subject", key.encode()),
        ("content-type", content_type.encode()),
    ]
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return Record(topic=event.topic.name, key=key.encode(), value=value, headers=headers)


def _text_headers(headers: Iterable[tuple[str, bytes | str | None]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in headers:
        if value is None:  # Kafka allows it; an attribute without value is none
            continue
        try:
            texts[name.lower()] = value if isinstance(value, str) else value.decode()
        except UnicodeDecodeError:
            raise ContractError(f"header {name!r} is not UTF-8") from None
    return texts


def _identity(name: str, text: str) -> str:
    # CloudEvents 1.0, section "Type System": strings have no control characters and no halves of surrogate pairs.
    if any(char < " " or "\ud800" <= char <= "\udfff" for char in text):
        raise ContractError(f"attribute {name} {text[:64]!r} has characters that no text may have")
    if len(text.encode()) > MAX_IDENTITY_BYTES:
        raise ContractError(f"attribute {name} is longer than {MAX_IDENTITY_BYTES} bytes")
    return text


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    except ValueError:
        raise ContractError(f"attribute time {text[:64]!r} is not an RFC 3339 time") from None


def _parse_data(event: EventType, content_type: str, value: bytes) -> Message:
    message = event.message()
    kind = content_type.split(";", 1)[0].strip().lower()
    try:
        if kind in {PROTOBUF, "application/x-protobuf"}:
            message.ParseFromString(value)
        elif kind == JSON:
            json_format.Parse(value, message, ignore_unknown_fields=True)
        else:
            raise ContractError(f"{event.name}: content type {content_type!r} is not supported")
    except (DecodeError, json_format.ParseError, UnicodeDecodeError) as error:
        raise ContractError(f"{event.name}: body does not decode as {kind}: {error}") from None
    return message


def _decode_structured(value: bytes, traceparent: str) -> Envelope:
    try:
        body = json.loads(value)
        if not isinstance(body, dict):
            raise ContractError("structured event is not a JSON object")
        missing = [name for name in ("specversion", "id", "type", "source") if not body.get(name)]
        if missing:
            raise ContractError(f"structured event lacks {', '.join(missing)}")
        event = catalogue().event(str(body["type"]))
        if "data_base64" in body:
            encoded = body["data_base64"]
            if not isinstance(encoded, str):
                raise ContractError("structured event: data_base64 is no text")
            data = _parse_data(event, str(body.get("datacontenttype", PROTOBUF)), base64.b64decode(encoded))
        else:
            data = _parse_data(event, JSON, json.dumps(body.get("data", {})).encode())
    except RecursionError:
        raise ContractError("structured event is nested too deeply") from None
    except ValueError as error:
        raise ContractError(f"structured event is not valid JSON: {error}") from None
    return Envelope(
        id=_identity("id", str(body["id"])),
        type=event,
        source=_identity("source", str(body["source"])),
        time=_parse_time(str(body["time"])) if "time" in body else datetime.now(UTC),
        key=event.key_of(data),
        data=data,
        traceparent=traceparent or str(body.get("traceparent", "")),
    )


def decode(value: bytes | None, headers: Sequence[tuple[str, bytes | str | None]]) -> Envelope:
    """Decode a record. ContractError says what is missing, unknown or unreadable."""
    texts = _text_headers(headers)
    if UNREADABLE in texts:
        raise ContractError(texts[UNREADABLE])
    if value is None:
        raise ContractError("record is a tombstone, not an event")
    content_type = texts.get("content-type", "")
    if content_type.lower().startswith(STRUCTURED):
        return _decode_structured(value, texts.get("traceparent", ""))
    missing = [name for name in ("ce_specversion", "ce_id", "ce_type", "ce_source") if not texts.get(name)]
    if missing:
        raise ContractError(f"record lacks the headers {', '.join(missing)}")
    if not texts["ce_specversion"].startswith("1."):
        raise ContractError(f"CloudEvents version {texts['ce_specversion']!r} is not supported")
    event = catalogue().event(texts["ce_type"])
    data = _parse_data(event, content_type or PROTOBUF, value)
    return Envelope(
        id=_identity("id", texts["ce_id"]),
        type=event,
        source=_identity("source", texts["ce_source"]),
        time=_parse_time(texts["ce_time"]) if "ce_time" in texts else datetime.now(UTC),
        key=event.key_of(data),
        data=data,
        traceparent=texts.get("traceparent", ""),
    )
