"""The topics of the broker: created, found again after a restart, deleted. A topic is a folder, a partition one inside it."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.log import PartitionLog
from meridian.embedded.broker.topic_config import TopicConfig

MAX_PARTITIONS = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DESCRIPTION = "topic.json"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with the logs of its partitions, in order."""

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: tuple[PartitionLog, ...]


class TopicStore:
    """All topics, by name, kept under ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "topics"
        self._trash = directory / "deleted"
        self._topics: dict[str, Topic] = {}

    def open(self) -> None:
        """Recover every topic from disk."""
        shutil.rmtree(self._trash, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        for description in sorted(self._directory.glob(f"*/{_DESCRIPTION}")):
            body = json.loads(description.read_text(encoding="utf-8"))
            topic = self._assemble(
                body["name"], uuid.UUID(body["topic_id"]), TopicConfig.checked(body["config"]), body["partitions"]
            )
            self._topics[topic.name] = topic

    def close(self) -> None:
        """Save and close every partition."""
        for log in self.logs():
            log.close()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def logs(self) -> Iterator[PartitionLog]:
        """The logs of all partitions of all topics."""
        for topic in self._topics.values():
            yield from topic.partitions

    def get(self, name: str) -> Topic:
        """The topic; raises ``BrokerError`` UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name}")
        return topic

    def has(self, name: str, partition: int) -> bool:
        """Whether there is such a partition."""
        return name in self._topics and 0 <= partition < len(self._topics[name].partitions)

    def log(self, name: str, partition: int) -> PartitionLog:
        """The log of one partition; raises ``BrokerError`` UNKNOWN_TOPIC_OR_PARTITION."""
        partitions = self.get(name).partitions
        if not self.has(name, partition):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has partitions 0..{len(partitions) - 1}")
        return partitions[partition]

    def check_new(self, name: str, partition_count: int) -> None:
        """Raise ``BrokerError`` unless a topic of this name and size may be created."""
        if not _NAME.fullmatch(name) or name in {".", ".."}:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic name")
        if name in self._topics:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        if not 1 <= partition_count <= MAX_PARTITIONS:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS, f"{partition_count} partitions, 1..{MAX_PARTITIONS} are served"
            )

    def create(self, name: str, partition_count: int, config: TopicConfig) -> Topic:
        """Create a topic; raises ``BrokerError``. It exists after a crash if, and only if, its description was renamed in."""
        self.check_new(name, partition_count)
        topic = self._assemble(name, uuid.uuid4(), config, partition_count)
        description = self._directory / name / _DESCRIPTION
        body = {
            "name": name,
            "topic_id": str(topic.topic_id),
            "partitions": partition_count,
            "config": dict(config.given),
        }
        temporary = description.with_suffix(".tmp")
        temporary.write_text(json.dumps(body, indent=1), encoding="utf-8")
        temporary.replace(description)
        self._topics[name] = topic
        return topic

    def delete(self, name: str) -> None:
        """Delete a topic and its records; raises ``BrokerError`` UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.get(name)
        del self._topics[name]
        for log in topic.partitions:
            log.abandon()
        self._trash.mkdir(exist_ok=True)
        doomed = self._trash / str(topic.topic_id)
        (self._directory / name).replace(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _assemble(self, name: str, topic_id: uuid.UUID, config: TopicConfig, partition_count: int) -> Topic:
        logs = tuple(PartitionLog(self._directory / name / str(index), config) for index in range(partition_count))
        for log in logs:
            log.open()
        return Topic(name, topic_id, config, logs)
