"""The catalogue of events and topics, read from the options in the contracts (`proto/`).

Topics, keys, codecs and the AsyncAPI document all come from here, so a contract is written down once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from meridian.contracts.options.v1 import options_pb2
from meridian.errors import ContractError

_CONTRACT_MODULES = (
    "job.v1.job_pb2",
    "run.v1.run_pb2",
    "resource.v1.resource_pb2",
    "telemetry.v1.telemetry_pb2",
    "graph.v1.graph_pb2",
    "forecast.v1.forecast_pb2",
    "failover.v1.failover_pb2",
    "identity.v1.identity_pb2",
    "scheduler.v1.scheduler_pb2",
)


class Audience(StrEnum):
    """Who may use a topic."""

    INTERNAL = "internal"
    PARTNER = "partner"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as declared in a contract file. ``retention_ms`` -1 keeps records for ever.

    ``max_message_bytes``: of a record batch; 0 is the broker's own limit.
    """

    name: str
    summary: str
    audience: Audience
    compacted: bool
    retention_ms: int
    partitions: int
    max_message_bytes: int = 0

    @property
    def dead_letter(self) -> str:
        """Name of the topic that takes this topic's poison messages."""
        return f"{self.name}.dlq"

    def configs(self) -> dict[str, str]:
        """Broker configuration entries of the topic."""
        entries = {"cleanup.policy": "compact" if self.compacted else "delete", "retention.ms": str(self.retention_ms)}
        if self.max_message_bytes:
            entries["max.message.bytes"] = str(self.max_message_bytes)
        return entries

    def dead_letter_configs(self, retention_ms: int) -> dict[str, str]:
        """Those of its dead-letter topic, which takes what the topic takes."""
        size = {"max.message.bytes": str(self.max_message_bytes)} if self.max_message_bytes else {}
        return {"retention.ms": str(retention_ms), **size}


@dataclass(frozen=True, slots=True)
class EventType:
    """An event: its full protobuf name is its CloudEvents type."""

    name: str
    topic: TopicSpec
    key_field: str
    summary: str
    message: type[Message]

    def key_of(self, message: Message) -> str:
        """The record key of ``message``; ContractError when it is empty."""
        key = str(getattr(message, self.key_field))
        if not key:
            raise ContractError(f"{self.name}: field {self.key_field} is the record key and must not be empty")
        return key


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All topics by name and all events by type name."""

    topics: Mapping[str, TopicSpec]
    events: Mapping[str, EventType]

    def event(self, name: str) -> EventType:
        """The event of that CloudEvents type; ContractError when the contracts do not know it."""
        try:
            return self.events[name]
        except KeyError:
            raise ContractError(f"unknown event type {name!r}") from None

    def event_of(self, message: Message | type[Message]) -> EventType:
        """The event type of a message or message class."""
        return self.event(message.DESCRIPTOR.full_name)

    def events_on(self, topic: str) -> list[EventType]:
        """The events that travel on a topic."""
        return [event for event in self.events.values() if event.topic.name == topic]


def _topics_of(file: FileDescriptor) -> Iterable[TopicSpec]:
    # The generated stub types extensions as plain field descriptors.
    extension: Any = options_pb2.topics
    for topic in file.GetOptions().Extensions[extension]:
        yield TopicSpec(
            name=topic.name,
            summary=topic.summary,
            audience=Audience.PARTNER if topic.audience == options_pb2.AUDIENCE_PARTNER else Audience.INTERNAL,
            compacted=topic.cleanup == options_pb2.CLEANUP_COMPACT,
            retention_ms=topic.retention_ms,
            partitions=topic.partitions,
            max_message_bytes=topic.max_message_bytes,
        )


@cache
def catalogue() -> Catalogue:
    """Read the contracts once per process."""
    topics: dict[str, TopicSpec] = {}
    events: dict[str, EventType] = {}
    extension: Any = options_pb2.event
    for name in _CONTRACT_MODULES:
        module = importlib.import_module(f"meridian.contracts.{name}")
        file: FileDescriptor = module.DESCRIPTOR
        topics.update({topic.name: topic for topic in _topics_of(file)})
        for message_name, descriptor in file.message_types_by_name.items():
            options = descriptor.GetOptions()
            if not options.HasExtension(extension):
                continue
            event = options.Extensions[extension]
            if event.topic not in topics:
                raise ContractError(f"{descriptor.full_name}: topic {event.topic!r} is not declared in its file")
            if event.key not in descriptor.fields_by_name:
                raise ContractError(f"{descriptor.full_name}: key field {event.key!r} does not exist")
            events[descriptor.full_name] = EventType(
                name=descriptor.full_name,
                topic=topics[event.topic],
                key_field=event.key,
                summary=event.summary,
                message=getattr(module, message_name),
            )
    return Catalogue(topics=topics, events=events)
