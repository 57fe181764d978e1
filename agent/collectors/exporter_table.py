"""How an exporter's metrics become canonical ones: a table in YAML, one file per exporter, read and checked here.

A metric has alternatives (``from``), the first that gives a known value for a device wins. An alternative names one
family or the sum of several (``-name`` is subtracted), optionally with label patterns, and how to make the canonical
value of it: ``value = offset + scale * aggregate(samples)``; ``kind: rate`` first makes a counter a rate per second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from agent.collectors.base import Source, Statistic
from agent.collectors.metrics import Metric
from meridian.errors import ConfigurationError


class Kind(StrEnum):
    """What a family is."""

    GAUGE = "gauge"
    RATE = "rate"


class Aggregate(StrEnum):
    """How samples of one device become one value."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Term:
    """One family; ``factor`` is its sign or weight in a sum."""

    family: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to a canonical value. Values outside of ``valid`` (after scaling) are unknown."""

    terms: tuple[Term, ...]
    labels: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    kind: Kind = Kind.GAUGE
    aggregate: Aggregate = Aggregate.SUM
    scale: float = 1.0
    offset: float = 0.0
    valid: tuple[float, float] = (float("-inf"), float("inf"))
    enum: Mapping[float, float] | None = None
    source: Source = Source.DIRECTLY_MEASURED
    statistic: Statistic = Statistic.CURRENT


@dataclass(frozen=True, slots=True)
class Sentinel:
    """Raw values from ``low`` to ``high`` mean that there is none."""

    low: float
    high: float
    reason: str


@dataclass(frozen=True, slots=True)
class ExporterTable:
    """One exporter's table."""

    exporter: str
    identity_labels: tuple[str, ...]
    index_label: str
    # A family whose value is the device's index, for exporters that have no label for it.
    index_family: str
    metrics: Mapping[Metric, tuple[Alternative, ...]]
    sentinels: tuple[Sentinel, ...] = ()
    max_sample_age_s: float = 120.0
    frozen_counter: str = ""
    frozen_activity: Metric | None = None
    frozen_scrapes: int = 4

    @property
    def families(self) -> frozenset[str]:
        """Every family the table reads."""
        named = {term.family for ways in self.metrics.values() for alternative in ways for term in alternative.terms}
        return frozenset(named | ({self.frozen_counter, self.index_family} - {""}))

    @property
    def per_device(self) -> bool:
        """Whether readings are of accelerators; otherwise they are of the node as a whole."""
        return bool(self.index_label or self.index_family)

    @property
    def rate_families(self) -> frozenset[str]:
        """Families of which rates are taken."""
        return frozenset(
            term.family
            for alternatives in self.metrics.values()
            for alternative in alternatives
            if alternative.kind is Kind.RATE
            for term in alternative.terms
        )


def shipped_tables() -> tuple[str, ...]:
    """Names of the tables that come with the agent."""
    folder = resources.files("agent.collectors") / "exporters"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_table(name_or_path: str) -> ExporterTable:
    """A shipped table by its name (``dcgm-exporter``) or one's own by its path.

    :raises ConfigurationError: there is none, or it says what cannot be.
    """
    if name_or_path in shipped_tables():
        text = (resources.files("agent.collectors") / "exporters" / f"{name_or_path}.yaml").read_text()
    else:
        try:
            text = Path(name_or_path).read_text()
        except OSError as error:
            raise ConfigurationError(f"no exporter table {name_or_path!r}: {error}") from None
    try:
        return parse_table(yaml.safe_load(text))
    except (KeyError, TypeError, ValueError, yaml.YAMLError, re.error) as error:
        raise ConfigurationError(f"exporter table {name_or_path!r}: {error!r}") from None


def parse_table(table: dict[str, Any]) -> ExporterTable:
    """A table from its YAML. KeyError, TypeError or ValueError for what cannot be."""
    frozen = table.get("frozen_guard", {})
    # Exporters repeat a device's value for each tenant it is shared by: the sum would count it several times.
    default = Aggregate.MAX if table.get("index_label") or table.get("index_family") else Aggregate.SUM
    return ExporterTable(
        exporter=table["exporter"],
        identity_labels=tuple(table.get("identity_labels", ())),
        index_label=table.get("index_label", ""),
        index_family=table.get("index_family", ""),
        metrics={
            Metric(name): tuple(_alternative(entry, default) for entry in alternatives)
            for name, alternatives in table["metrics"].items()
        },
        sentinels=tuple(
            Sentinel(float(entry["from"]), float(entry["to"]), entry["reason"]) for entry in table.get("sentinels", ())
        ),
        max_sample_age_s=float(table.get("max_sample_age_s", 120.0)),
        frozen_counter=frozen.get("counter", ""),
        frozen_activity=Metric(frozen["while_above_zero"]) if frozen else None,
        frozen_scrapes=int(frozen.get("scrapes", 4)),
    )


_KNOWN = {"family", "sum_of", "labels", "kind", "aggregate", "scale", "offset", "valid", "enum", "source", "statistic"}


def _alternative(entry: dict[str, Any], default: Aggregate) -> Alternative:
    unknown = set(entry) - _KNOWN
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    named = entry["sum_of"] if "sum_of" in entry else [entry["family"]]
    terms = [Term(name.removeprefix("-"), -1.0 if name.startswith("-") else 1.0) for name in named]
    low, high = entry.get("valid", (float("-inf"), float("inf")))
    return Alternative(
        terms=tuple(terms),
        labels={name: re.compile(pattern) for name, pattern in entry.get("labels", {}).items()},
        kind=Kind(entry.get("kind", "gauge")),
        aggregate=Aggregate(entry.get("aggregate", default)),
        scale=float(entry.get("scale", 1.0)),
        offset=float(entry.get("offset", 0.0)),
        valid=(float(low), float(high)),
        enum={float(raw): float(value) for raw, value in entry["enum"].items()} if "enum" in entry else None,
        source=Source(entry.get("source", "directly_measured")),
        statistic=Statistic(entry.get("statistic", "cur")),
    )
