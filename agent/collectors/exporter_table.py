"""How an exporter's metrics become canonical ones: a table in YAML, one file per exporter, read and checked here.

A metric has alternatives (``from``), the first that gives a known value for a device wins; of ``cpn.health`` the worst that
is known. An alternative names one family or the sum of several (``-name`` is subtracted), optionally with label patterns,
and how to make the canonical value of it: ``value = offset + scale * aggregate(samples) / divide_by``; ``kind: rate`` first
makes a counter a rate per second. Reference of all keys: docs/telemetry.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from importlib import resources
from math import inf

from agent.collectors.base import Source, Statistic
from agent.collectors.metrics import Metric


class Kind(StrEnum):
    """What a family is."""

    GAUGE = "gauge"
    RATE = "rate"


class Aggregate(StrEnum):
    """How samples of one device become one value. ``ONE``: they must all say the same."""

    ONE = "one"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Term:
    """One family; ``factor`` is its sign or weight in a sum. ``kind`` None: as the alternative says."""

    family: str
    factor: float = 1.0
    labels: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to a canonical value. Values outside of ``valid`` (after scaling) are unknown.

    ``zero_is_placeholder``: zero is what the exporter says when it does not know. ``times_peak``: the value is a share of the
    chip's peak. ``steps``: (above, value): the value of the highest step that the raw value exceeds. ``unless_zero``: a family that
    is zero where this way says nothing; ``when_zero``: a family that is zero or absent wherever it does.
    """

    terms: tuple[Term, ...]
    labels: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    kind: Kind = Kind.GAUGE
    aggregate: Aggregate = Aggregate.SUM
    scale: float = 1.0
    offset: float = 0.0
    valid: tuple[float, float] = (-inf, inf)
    enum: Mapping[float, float] | None = None
    steps: tuple[tuple[float, float], ...] = ()
    divide_by: Term | None = None
    times_peak: bool = False
    zero_is_placeholder: bool = False
    unless_zero: str = ""
    when_zero: str = ""
    source: Source = Source.DIRECTLY_MEASURED
    statistic: Statistic = Statistic.CURRENT

    @property
    def is_ratio(self) -> bool:
        """Whether the raw family should carry a share of one."""
        return self.scale == 1.0 and self.valid == (0.0, 1.0) and self.enum is None and not self.steps

    @property
    def never_negative(self) -> bool:
        """Whether no raw value that goes into the figure can be below zero."""
        return self.valid[0] >= 0 and self.scale > 0 and not self.offset and self.enum is None and not self.steps


@dataclass(frozen=True, slots=True)
class Sentinel:
    """Raw values from ``low`` to ``high`` mean that there is none. Empty ``families``: of any family.

    ``passed_over``: such a sample is left out of the figure where others of its family are there.
    """

    low: float
    high: float
    reason: str
    families: frozenset[str] = frozenset()
    passed_over: bool = False


class PartitionKind(StrEnum):
    """How an exporter shows parts of a device."""

    # Parts are extra series of the device (MIG instances, virtual functions): the device as a whole is without them.
    INSTANCES = "instances"
    # Every part is a device with an index of its own; what is measured of the chip stands at the primary part only.
    PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The label that numbers the parts, and that of their ``profile``; ``whole``: metrics measured of the chip and not of a part.

    ``takes_work``: programs are given the parts, and not the whole, of a chip that has some.
    """

    label: str
    kind: PartitionKind
    whole: frozenset[Metric]
    primary: frozenset[str] = frozenset({"0"})
    profile: str = ""
    takes_work: bool = False


@dataclass(frozen=True, slots=True)
class FrozenGuard:
    """Old values are served when a counter stands still for ``scrapes`` scrapes and ``after_s`` while the device works.

    ``counters``: names of it, of which the first that is there counts. Without any: when power, temperature and all else the
    exporter says stand still while the device is neither idle nor fully busy.
    """

    counters: tuple[str, ...]
    activity: Metric
    scrapes: int = 3
    after_s: float = 75.0


@dataclass(frozen=True, slots=True)
class Edge:
    """A family that keeps the last error for ever: only its change says something, and only for ``for_s``.

    ``ignored``: codes that are no fault of the device. ``code_label``: the family has a sample of each code, named by this
    label, and its value is the Unix time of its last event.
    """

    family: str
    health: float
    for_s: float
    ignored: frozenset[float] = frozenset()
    code_label: str = ""


@dataclass(frozen=True, slots=True)
class MemorySum:
    """Families whose values must add up: used + free (+ reserved) = total, within ``tolerance`` of the total."""

    used: str
    free: str
    total: str
    reserved: str = ""
    tolerance: float = 0.02


@dataclass(frozen=True)
class ExporterTable:
    """One exporter's table. Families stand here with the default prefix."""

    exporter: str
    metrics: Mapping[Metric, tuple[Alternative, ...]]
    vendor: str = ""
    about: str = ""
    detect: tuple[re.Pattern[str], ...] = ()
    default_prefix: str = ""
    other_prefixes: tuple[str, ...] = ()
    # A sample with this label and a family that ends as one of the table's tells the prefix.
    prefix_label: str = ""
    identity_labels: tuple[str, ...] = ()
    index_labels: tuple[str, ...] = ()
    # A family whose value is the device's index, for exporters that have no label for it.
    index_family: str = ""
    # Devices without an index are numbered in the order of their identities.
    index_by_order: bool = False
    node_label: str = ""
    model_labels: tuple[str, ...] = ()
    partitioning: Partitioning | None = None
    # A family that is 1 while the device is partitioned.
    partitioned_family: str = ""
    sentinels: tuple[Sentinel, ...] = ()
    max_sample_age_s: float = 120.0
    frozen: FrozenGuard | None = None
    edges: tuple[Edge, ...] = ()
    memory_sums: tuple[MemorySum, ...] = ()

    @cached_property
    def families(self) -> frozenset[str]:
        """Every family the table reads."""
        return frozenset(self._families())

    @cached_property
    def passed_over(self) -> tuple[Sentinel, ...]:
        """Sentinels whose samples are left out where others of their family are there."""
        return tuple(item for item in self.sentinels if item.passed_over)

    def is_sentinel(self, family: str, value: float) -> bool:
        """Whether a value of a family stands for none."""
        return any(
            item.low <= value <= item.high and (not item.families or family in item.families) for item in self.sentinels
        )

    def _families(self) -> Iterator[str]:
        for alternatives in self.metrics.values():
            for alternative in alternatives:
                yield from (term.family for term in alternative.terms)
                if alternative.divide_by is not None:
                    yield alternative.divide_by.family
                yield from (name for name in (alternative.unless_zero, alternative.when_zero) if name)
        yield from (name for name in (self.index_family, self.partitioned_family) if name)
        if self.frozen is not None:
            yield from self.frozen.counters
        yield from (edge.family for edge in self.edges)
        for parts in self.memory_sums:
            yield from (name for name in (parts.used, parts.free, parts.total, parts.reserved) if name)

    @property
    def per_device(self) -> bool:
        """Whether readings are of accelerators; otherwise they are of the node as a whole."""
        return bool(self.index_labels or self.index_family or self.index_by_order)

    def canonical(self, family: str) -> str:
        """The family as the table names it; one with no known prefix is returned as it is."""
        for prefix in self.other_prefixes:
            if family.startswith(prefix):
                known = self.default_prefix + family[len(prefix) :]
                if known in self.families:
                    return known
        return family

    def with_prefix(self, prefix: str) -> ExporterTable:
        """The table for an exporter whose families begin with ``prefix`` instead."""
        return self if prefix == self.default_prefix else replace(self, other_prefixes=(prefix,))

    def recognises(self, family: str) -> bool:
        """Whether a family shows that this exporter speaks."""
        # An exporter that may have no prefix at all is known by its own names only.
        names = {family, family if "" in self.other_prefixes else self.canonical(family)}
        return any(pattern.fullmatch(name) for pattern in self.detect for name in names)


def shipped_tables() -> tuple[str, ...]:
    """Names of the tables that come with the agent."""
    folder = resources.files("agent.collectors") / "exporters"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))
