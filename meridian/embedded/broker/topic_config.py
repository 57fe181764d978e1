"""Configuration of a topic, under the names Apache Kafka gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meridian.embedded.broker.errors import BrokerError, ErrorCode

UNLIMITED = -1


def _integer(minimum: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        if int(value) < minimum:
            raise ValueError(f"at least {minimum}")

    return check


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not {part.strip() for part in value.split(",")} <= set(allowed):
            raise ValueError(f"one of {', '.join(allowed)}")

    return check


def _ratio(value: str) -> None:
    if not 0 <= float(value) <= 1:
        raise ValueError("between 0 and 1")


_SERVED: dict[str, tuple[str, Callable[[str], None]]] = {
    "cleanup.policy": ("delete", _one_of("delete", "compact")),
    "retention.ms": (str(7 * 24 * 3600 * 1000), _integer(UNLIMITED)),
    "retention.bytes": ("-1", _integer(UNLIMITED)),
    "segment.bytes": (str(64 << 20), _integer(1024)),
    "max.message.bytes": (str((1 << 20) + 12), _integer(1)),
    "delete.retention.ms": (str(24 * 3600 * 1000), _integer(0)),
    "min.cleanable.dirty.ratio": ("0.5", _ratio),
    "message.timestamp.type": ("CreateTime", _one_of("CreateTime")),
    "compression.type": ("producer", _one_of("producer")),
}
"""Default and check of each setting that has an effect here."""

_WITHOUT_EFFECT = frozenset(
    {
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Known to Apache Kafka, accepted and kept, but meaningless on a single node or left to the broker."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings given for a topic; everything else has its default."""

    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def checked(cls, given: Mapping[str, str | None]) -> TopicConfig:
        """From what a client sent (None means default); raises ``BrokerError`` INVALID_CONFIG naming the setting."""
        kept: dict[str, str] = {}
        for name, value in given.items():
            if name not in _SERVED and name not in _WITHOUT_EFFECT:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name}: no such topic setting")
            if value is None:
                continue
            if name in _SERVED:
                try:
                    _SERVED[name][1](value)
                except ValueError as error:
                    raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name}: {value!r} is not valid: {error}") from error
            kept[name] = value
        return cls(MappingProxyType(kept))

    def value(self, name: str) -> str:
        """The setting in force."""
        return self.given.get(name, _SERVED[name][0])

    def described(self) -> dict[str, tuple[str, bool]]:
        """Every setting in force, and whether it is the default."""
        served = {name: (self.value(name), name not in self.given) for name in _SERVED}
        return served | {name: (value, False) for name, value in self.given.items() if name not in _SERVED}

    @property
    def compacted(self) -> bool:
        """Whether only the latest record of each key must be kept."""
        return "compact" in self.value("cleanup.policy")

    @property
    def deletes(self) -> bool:
        """Whether old segments are removed by time and size."""
        return "delete" in self.value("cleanup.policy")

    @property
    def retention_ms(self) -> int:
        """Age at which records may go; ``UNLIMITED`` for never."""
        return int(self.value("retention.ms"))

    @property
    def retention_bytes(self) -> int:
        """Size of a partition above which its oldest segments go; ``UNLIMITED`` for never."""
        return int(self.value("retention.bytes"))

    @property
    def segment_bytes(self) -> int:
        """Size at which a segment is complete."""
        return int(self.value("segment.bytes"))

    @property
    def max_message_bytes(self) -> int:
        """Largest batch that is taken."""
        return int(self.value("max.message.bytes"))

    @property
    def tombstone_retention_ms(self) -> int:
        """How long a compacted topic keeps the record that deletes a key."""
        return int(self.value("delete.retention.ms"))

    @property
    def min_dirty_ratio(self) -> float:
        """Share of not yet compacted bytes from which compaction is worth its while."""
        return float(self.value("min.cleanable.dirty.ratio"))
