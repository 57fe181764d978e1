"""Protobuf messages as the JSON of our REST interface.

Differs from ProtoJSON where programs that are not protobuf's would stumble: 64-bit integers are numbers, enum values are
short and in lower case, every field is present, what is unset is null, and what JSON cannot say (NaN, infinity) is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_Convert = Callable[[Any], Any]


def time_text(time: datetime) -> str:
    """A time as RFC 3339 in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_datetime(timestamp: Timestamp) -> datetime | None:
    """A protobuf time, or None when it is unset (zero) or beyond what a datetime holds."""
    if not timestamp.seconds and not timestamp.nanos:
        return None
    try:
        return timestamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        return None


def _time(value: Timestamp) -> str | None:
    time = to_datetime(value)
    return None if time is None else time_text(time)


def _text(value: str) -> str:
    # PostgreSQL stores no NUL.
    return value.replace("\x00", "\ufffd") if "\x00" in value else value


def _float(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _same(value: Any) -> Any:
    return value


@cache
def _enum_names(enum: EnumDescriptor) -> dict[int, str]:
    prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.name).upper().lstrip("_") + "_"
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values}


def enum_name(enum: EnumDescriptor, number: int) -> str:
    """The short name of an enum value: RUN_FAILURE_KIND_NODE_LOST is ``node_lost``."""
    return _enum_names(enum).get(number, str(number))


def _scalar(field: FieldDescriptor) -> _Convert:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        assert field.message_type is not None
        return _time if field.message_type.full_name == "google.protobuf.Timestamp" else to_body
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        names = _enum_names(field.enum_type)
        return lambda number: names.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.hex
    if field.cpp_type in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return _float
    return _same


@cache
def _plan(descriptor: Descriptor) -> tuple[tuple[str, str, _Convert], ...]:
    plan = []
    for field in descriptor.fields:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            plan.append((field.name, "map", _scalar(entry.fields_by_name["value"])))
        elif field.is_repeated:
            plan.append((field.name, "list", _scalar(field)))
        elif field.has_presence:
            plan.append((field.name, "optional", _scalar(field)))
        else:
            plan.append((field.name, "plain", _scalar(field)))
    return tuple(plan)


def to_body(message: Message) -> dict[str, Any]:
    """A message as a JSON object."""
    body: dict[str, Any] = {}
    for name, shape, convert in _plan(message.DESCRIPTOR):
        if shape == "optional":
            body[name] = convert(getattr(message, name)) if message.HasField(name) else None
            continue
        value = getattr(message, name)
        if shape == "plain":
            body[name] = convert(value)
        elif shape == "list":
            body[name] = [convert(item) for item in value]
        else:
            body[name] = {_text(str(key)): convert(item) for key, item in value.items()}
    return body


def to_text(body: Any) -> str:
    """JSON in one line."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
