"""Golden wire samples: one record of every event, as it was encoded when the event was released.

`python -m tests.contract.golden` writes samples for events that have none yet; existing samples are never changed,
because every consumer must be able to read them for ever.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from meridian.catalogue import catalogue
from meridian.codec import encode

FOLDER = Path(__file__).parent / "samples"
TIME = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def _scalar(field: FieldDescriptor, salt: int) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"{field.name}-{salt}"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
        return field.number + salt + 0.25
    return field.number * 1000 + salt


def fill(message: Message, depth: int = 0) -> Message:
    """Set every field of a message, nested ones too, to values that follow from names and numbers."""
    for field in message.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for salt in (1, 2):
                target[f"key-{salt}"] = _scalar(value, salt)
        elif field.is_repeated:
            for salt in (1, 2):
                if field.message_type is not None:
                    fill(target.add(), depth + 1)
                else:
                    target.append(_scalar(field, salt))
        elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
            target.FromDatetime(TIME)
        elif field.message_type is not None:
            fill(target, depth + 1)
        else:
            setattr(message, field.name, _scalar(field, depth))
    return message


def write_missing() -> list[Path]:
    """Write a sample for each event that has none."""
    written = []
    for name, event in sorted(catalogue().events.items()):
        stem = FOLDER / f"{name}.1"
        if stem.with_suffix(".1.json").exists():
            continue
        message = fill(event.message())
        record = encode(message, event_id="evt-golden", source="/golden", time=TIME)
        stem.with_suffix(".1.binpb").write_bytes(record.value)
        sample = {
            "topic": record.topic,
            "key": record.key.decode(),
            "headers": {header: value.decode() for header, value in record.headers},
            "data": json_format.MessageToDict(message, preserving_proto_field_name=True),
        }
        stem.with_suffix(".1.json").write_text(
            json.dumps(sample, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        written.append(stem)
    return written


if __name__ == "__main__":
    for path in write_missing():
        print(path.name)
