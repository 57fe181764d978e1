"""The AsyncAPI 3 document of the bus, derived from the contracts. `python -m meridian.asyncapi` prints it.

Each topic is a channel, each event a message with two payload forms: protobuf (by reference to the .proto file) and
the JSON Schema of its ProtoJSON form. From this and the .proto files a client in any language can join.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from meridian.catalogue import Catalogue, EventType, TopicSpec, catalogue

_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "uint32"},
    # ProtoJSON writes 64-bit integers as strings and accepts both.
    FieldDescriptor.TYPE_INT64: {"type": ["string", "integer"], "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": ["string", "integer"], "format": "uint64"},
}


def _value_schema(field: FieldDescriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _message_reference(field.message_type, definitions)
    return dict(_SCALARS[field.type])


def _field_schema(field: FieldDescriptor, definitions: dict[str, Any]) -> dict[str, Any]:
    if not field.is_repeated:
        return _value_schema(field, definitions)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _value_schema(value, definitions)}
    return {"type": "array", "items": _value_schema(field, definitions)}


def _message_reference(descriptor: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return {"type": "string", "format": "date-time"}
    if descriptor.full_name not in definitions:
        definitions[descriptor.full_name] = {}
        definitions[descriptor.full_name] = {
            "type": "object",
            "properties": {field.name: _field_schema(field, definitions) for field in descriptor.fields},
        }
    return {"$ref": f"#/components/schemas/{descriptor.full_name}"}


def _message(event: EventType, definitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": event.name,
        "title": event.message.DESCRIPTOR.name,
        "summary": event.summary,
        "contentType": "application/protobuf",
        "x-protobuf": {"message": event.name, "file": f"proto/{event.message.DESCRIPTOR.file.name}"},
        "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
        "payload": _message_reference(event.message.DESCRIPTOR, definitions),
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"value of {event.key_field}"},
                "bindingVersion": "0.5.0",
            }
        },
    }


def _channel(topic: TopicSpec, contracts: Catalogue) -> dict[str, Any]:
    events = contracts.events_on(topic.name)
    return {
        "address": topic.name,
        "summary": topic.summary,
        "x-audience": topic.audience.value,
        "messages": {event.name: {"$ref": f"#/components/messages/{event.name}"} for event in events},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": ["compact" if topic.compacted else "delete"],
                    "retention.ms": topic.retention_ms,
                    **({"max.message.bytes": topic.max_message_bytes} if topic.max_message_bytes else {}),
                },
                "bindingVersion": "0.5.0",
            }
        },
    }


_HEADERS: dict[str, Any] = {
    "type": "object",
    "description": "CloudEvents 1.0 attributes, Kafka binary content mode",
    "required": ["ce_specversion", "ce_id", "ce_type", "ce_source", "content-type"],
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {"type": "string", "description": "unique per event; a repeated id is taken as a duplicate"},
        "ce_type": {"type": "string", "description": "full protobuf name of the event"},
        "ce_source": {"type": "string"},
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_subject": {"type": "string", "description": "the record key"},
        "content-type": {"type": "string", "enum": ["application/protobuf", "application/json"]},
        "traceparent": {"type": "string", "description": "W3C trace context"},
    },
}


def document(contracts: Catalogue) -> dict[str, Any]:
    """The AsyncAPI 3.0 document as a JSON object."""
    definitions: dict[str, Any] = {"CloudEventHeaders": _HEADERS}
    messages = {name: _message(event, definitions) for name, event in sorted(contracts.events.items())}
    operations: dict[str, Any] = {}
    for topic in contracts.topics.values():
        for action in ("send", "receive"):
            operations[f"{action}:{topic.name}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic.name}"},
                "x-audience": topic.audience.value,
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Meridian event bus",
            "version": "1.0.0",
            "description": "Events of the Meridian compute network. Records are CloudEvents 1.0 in Kafka binary mode; "
            "the value is protobuf, or its ProtoJSON form with content-type application/json.",
        },
        "defaultContentType": "application/protobuf",
        "channels": {name: _channel(topic, contracts) for name, topic in sorted(contracts.topics.items())},
        "operations": operations,
        "components": {"messages": messages, "schemas": dict(sorted(definitions.items()))},
    }


def render() -> str:
    """The document as text, stable across runs."""
    return json.dumps(document(catalogue()), indent=2) + "\n"


if __name__ == "__main__":
    print(render(), end="")
