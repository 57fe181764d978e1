"""What a collector gives: readings that say where they come from, and that are honest about what is not known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from agent.collectors.metrics import UNITS, Metric
from agent.collectors.unknown import UnknownKind


class Source(StrEnum):
    """Where a value comes from (IETF CATS metrics)."""

    NOMINAL = "nominal"
    DIRECTLY_MEASURED = "directly_measured"
    ESTIMATION = "estimation"
    AGGREGATION = "aggregation"
    NORMALIZATION = "normalization"


class Statistic(StrEnum):
    """What of its distribution a value is (IETF CATS metrics)."""

    CURRENT = "cur"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one metric. ``value`` is None when it is unknown: ``kind`` and ``reason`` say why; never a made-up zero.

    ``accelerator_index`` None: the node as a whole, or a device that is known by its ``device`` name only (the vendor's:
    uuid, serial number, PCI address). ``partition``: a part of the accelerator (a MIG instance, a virtual function),
    ``profile``: the name of its size (1g.10gb). ``in_parts``: the accelerator is divided, and work goes to its parts only.
    """

    node_id: str
    metric: Metric
    value: float | None
    source: Source
    observed_at: datetime
    accelerator_index: int | None = None
    device: str = ""
    statistic: Statistic = Statistic.CURRENT
    reason: str = ""
    emulated: bool = False
    kind: UnknownKind | None = None
    partition: str = ""
    profile: str = ""
    in_parts: bool = False

    def __post_init__(self) -> None:
        assert (self.value is None) == bool(self.reason), "unknown needs a reason, and only unknown has one"
        assert self.kind is None or self.value is None, "a value that is known is of no unknown kind"

    @property
    def unit(self) -> str:
        """UCUM unit of the value."""
        return UNITS[self.metric]


def unknown_from(reading: Reading, kind: UnknownKind, reason: str) -> Reading:
    """The reading without its value, and why it has none."""
    return replace(reading, value=None, kind=kind, reason=reason)


class Collector(ABC):
    """Takes readings. May block (it is called in a thread), may keep what it saw last; one call at a time."""

    @abstractmethod
    def collect(self, now: datetime) -> list[Reading]:
        """Readings as of ``now``. Does not raise for what it observes: a silent exporter is unknown values, not an error."""
