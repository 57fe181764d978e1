"""Reads an exporter table from YAML. A wrong entry is named by its place in the file and its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

import yaml

from agent.collectors.base import Source, Statistic
from agent.collectors.exporter_table import (
    Aggregate,
    Alternative,
    Edge,
    ExporterTable,
    FrozenGuard,
    Kind,
    MemorySum,
    Partitioning,
    PartitionKind,
    Sentinel,
    Term,
    shipped_tables,
)
from agent.collectors.metrics import Metric
from meridian import plain_yaml
from meridian.errors import ConfigurationError

_TOP = frozenset({
    "exporter", "vendor", "about", "detect", "prefix", "identity_labels", "index_label", "index_family", "index_by_order",
    "node_label", "model_label", "partition", "partitioned_family", "sentinels", "max_sample_age_s", "frozen_guard",
    "edges", "memory_sum", "metrics",
})  # fmt: skip
_ALTERNATIVE = frozenset({
    "family", "sum_of", "labels", "kind", "aggregate", "scale", "offset", "valid", "enum", "steps", "divide_by", "times",
    "zero", "unless_zero", "when_zero", "source", "statistic",
})  # fmt: skip
MAX_TABLE_CHARS = 256 * 1024


_Choice = TypeVar("_Choice", Kind, Aggregate, Source, Statistic, Metric, PartitionKind)


class _WrongError(ValueError):
    """Something in the table cannot be; ``path`` leads to it."""

    def __init__(self, path: tuple[str | int, ...], detail: str) -> None:
        super().__init__(detail)
        self.path = path
        self.detail = detail


@cache
def _shipped(name: str) -> ExporterTable:
    return read_table((resources.files("agent.collectors") / "exporters" / f"{name}.yaml").read_text(), name)


def load_table(name_or_path: str) -> ExporterTable:
    """A shipped table by its name (``dcgm-exporter``) or one's own by its path.

    :raises ConfigurationError: there is none, or it says what cannot be.
    """
    if name_or_path in shipped_tables():
        return _shipped(name_or_path)
    try:
        text = Path(name_or_path).read_text()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"no exporter table {name_or_path!r}: {error}") from None
    return read_table(text, name_or_path)


def read_table(text: str, name: str) -> ExporterTable:
    """A table from the text of its YAML; ``name`` is what errors call it.

    :raises ConfigurationError: names the entry and the line.
    """
    if len(text) > MAX_TABLE_CHARS:
        raise ConfigurationError(f"exporter table {name!r}: longer than {MAX_TABLE_CHARS} characters")
    try:
        content = plain_yaml.load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"exporter table {name!r}: {error}") from None
    try:
        return parse_table(content)
    except _WrongError as error:
        where = ".".join(str(step) for step in error.path) or "the table"
        line = _line_of(text, error.path)
        raise ConfigurationError(f"exporter table {name!r}, line {line}: {where}: {error.detail}") from None


def _line_of(text: str, path: tuple[str | int, ...]) -> int:
    """Line (from 1) of the deepest entry of ``path`` that the file has."""
    node = yaml.compose(text)
    line = 1
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if str(pair[0].value) == str(step)]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line


# --- checked access -----------------------------------------------------------------------------------------------------


class _Entry:
    """A mapping of the file with the path to it."""

    def __init__(self, content: object, path: tuple[str | int, ...], known: frozenset[str]) -> None:
        if not isinstance(content, Mapping):
            raise _WrongError(path, f"must be a mapping, not {type(content).__name__}")
        self.content: Mapping[Any, Any] = content
        self.path = path
        unknown = sorted(str(key) for key in content if key not in known)
        if unknown:
            raise _WrongError((*path, unknown[0]), f"unknown keys {unknown}; known are {sorted(known)}")

    def wrong(self, key: str, detail: str) -> _WrongError:
        return _WrongError((*self.path, key), detail)

    def text(self, key: str, default: str = "") -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be text, not {value!r}")
        return value

    def needed(self, key: str) -> str:
        value = self.text(key)
        if not value:
            raise self.wrong(key, "is missing")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(float(value)):
            raise self.wrong(key, f"must be a finite number, not {value!r}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.content.get(key, ())
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            raise self.wrong(key, f"must be a list of texts, not {value!r}")
        return tuple(items)

    def items(self, key: str) -> list[Any]:
        value = self.content.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, f"must be a list, not {value!r}")
        return value

    def pattern(self, key: str, text: object) -> re.Pattern[str]:
        try:
            return re.compile(str(text))
        except re.error as error:
            raise self.wrong(key, f"{text!r} is no pattern: {error}") from None

    def one_of(self, key: str, kind: type[_Choice], default: _Choice | None = None) -> _Choice:
        value = self.content.get(key, default)
        try:
            return kind(value)
        except ValueError:
            raise self.wrong(key, f"{value!r} is none of {[item.value for item in kind]}") from None


def parse_table(content: object) -> ExporterTable:
    """A table from what YAML gave.

    :raises ValueError: it says what cannot be.
    """
    top = _Entry(content, (), _TOP)
    per_device = any(key in top.content for key in ("index_label", "index_family", "index_by_order"))
    prefix = _Entry(top.content.get("prefix", {}), ("prefix",), frozenset({"default", "others", "label"}))
    table = ExporterTable(
        exporter=top.needed("exporter"),
        vendor=top.text("vendor"),
        about=top.text("about"),
        detect=tuple(top.pattern("detect", item) for item in top.texts("detect")),
        default_prefix=prefix.text("default"),
        other_prefixes=tuple(sorted(prefix.texts("others"), key=len, reverse=True)),
        prefix_label=prefix.text("label"),
        identity_labels=top.texts("identity_labels"),
        index_labels=top.texts("index_label"),
        index_family=top.text("index_family"),
        index_by_order=bool(top.content.get("index_by_order", False)),
        node_label=top.text("node_label"),
        model_labels=top.texts("model_label"),
        partitioning=_partitioning(top),
        partitioned_family=top.text("partitioned_family"),
        sentinels=tuple(_sentinel(item, ("sentinels", place)) for place, item in enumerate(top.items("sentinels"))),
        max_sample_age_s=top.number("max_sample_age_s", 120.0),
        frozen=_frozen(top),
        edges=tuple(_edge(item, ("edges", place)) for place, item in enumerate(top.items("edges"))),
        memory_sums=_memory_sums(top),
        metrics=_metrics(top, Aggregate.ONE if per_device else Aggregate.SUM),
    )
    if table.frozen is not None and table.frozen.activity not in table.metrics:
        raise top.wrong("frozen_guard", f"{table.frozen.activity} is not among the metrics")
    return table


def _metrics(top: _Entry, default: Aggregate) -> dict[Metric, tuple[Alternative, ...]]:
    named = top.content.get("metrics")
    if not isinstance(named, Mapping) or not named:
        raise top.wrong("metrics", "must be a mapping of canonical metrics")
    found: dict[Metric, tuple[Alternative, ...]] = {}
    for name, alternatives in named.items():
        path = ("metrics", str(name))
        if name not in set(Metric):
            raise _WrongError(path, f"{name!r} is no canonical metric; they are {[item.value for item in Metric]}")
        if not isinstance(alternatives, list) or not alternatives:
            raise _WrongError(path, "must be a list of alternatives")
        found[Metric(name)] = tuple(
            _alternative(entry, (*path, place), default) for place, entry in enumerate(alternatives)
        )
    return found


def _labels(entry: _Entry) -> dict[str, re.Pattern[str]]:
    labels = entry.content.get("labels", {})
    if not isinstance(labels, Mapping):
        raise entry.wrong("labels", "must be a mapping of label to pattern")
    return {str(name): entry.pattern("labels", pattern) for name, pattern in labels.items()}


def _term(item: object, path: tuple[str | int, ...]) -> Term:
    if isinstance(item, str) and item.removeprefix("-"):
        return Term(item.removeprefix("-"), -1.0 if item.startswith("-") else 1.0)
    entry = _Entry(item, path, frozenset({"family", "factor", "labels", "kind"}))
    kind = entry.one_of("kind", Kind) if "kind" in entry.content else None
    return Term(entry.needed("family"), entry.number("factor", 1.0), _labels(entry), kind)


def _alternative(content: object, path: tuple[str | int, ...], default: Aggregate) -> Alternative:
    entry = _Entry(content, path, _ALTERNATIVE)
    if ("family" in entry.content) == ("sum_of" in entry.content):
        raise entry.wrong("family", "an alternative names either a family or sum_of")
    named = entry.items("sum_of") if "sum_of" in entry.content else [entry.needed("family")]
    if not named:
        raise entry.wrong("sum_of", "names no family")
    divide = entry.content.get("divide_by")
    times, zero = entry.text("times"), entry.text("zero")
    if times not in {"", "peak_flops"}:
        raise entry.wrong("times", f"{times!r} is not peak_flops")
    if zero not in {"", "placeholder"}:
        raise entry.wrong("zero", f"{zero!r} is not placeholder")
    return Alternative(
        terms=tuple(_term(item, (*path, "sum_of", place)) for place, item in enumerate(named)),
        labels=_labels(entry),
        kind=entry.one_of("kind", Kind, Kind.GAUGE),
        aggregate=entry.one_of("aggregate", Aggregate, default),
        scale=entry.number("scale", 1.0),
        offset=entry.number("offset", 0.0),
        valid=_pair(entry, "valid", (-inf, inf)),
        enum=_enum(entry),
        steps=_steps(entry),
        divide_by=None if divide is None else _term(divide, (*path, "divide_by")),
        times_peak=bool(times),
        zero_is_placeholder=bool(zero),
        unless_zero=entry.text("unless_zero"),
        when_zero=entry.text("when_zero"),
        source=entry.one_of("source", Source, Source.DIRECTLY_MEASURED),
        statistic=entry.one_of("statistic", Statistic, Statistic.CURRENT),
    )


def _pair(entry: _Entry, key: str, default: tuple[float, float]) -> tuple[float, float]:
    value = entry.content.get(key)
    if value is None:
        return default
    numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
    if not isinstance(value, list) or not numbers or len(value) != 2 or not value[0] <= value[1]:
        raise entry.wrong(key, f"must be [least, greatest], not {value!r}")
    return float(value[0]), float(value[1])


def _enum(entry: _Entry) -> dict[float, float] | None:
    value = entry.content.get("enum")
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(item, int | float) for pair in value.items() for item in pair
    ):
        raise entry.wrong("enum", f"must be a mapping of number to number, not {value!r}")
    return {float(raw): float(known) for raw, known in value.items()}


def _steps(entry: _Entry) -> tuple[tuple[float, float], ...]:
    steps = []
    for item in entry.items("steps"):
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, int | float) for part in item):
            raise entry.wrong("steps", f"must be pairs [above, value], not {item!r}")
        steps.append((float(item[0]), float(item[1])))
    return tuple(sorted(steps))


def _sentinel(content: object, path: tuple[str | int, ...]) -> Sentinel:
    entry = _Entry(content, path, frozenset({"from", "to", "reason", "families", "pass_over"}))
    low = entry.number("from", 0.0)
    families = frozenset(entry.texts("families"))
    return Sentinel(low, entry.number("to", low), entry.needed("reason"), families, entry.flag("pass_over"))


def _edge(content: object, path: tuple[str | int, ...]) -> Edge:
    entry = _Entry(content, path, frozenset({"family", "health", "for_s", "ignore", "code_label"}))
    ignored = entry.items("ignore")
    if not all(isinstance(code, int | float) for code in ignored):
        raise entry.wrong("ignore", f"must be a list of numbers, not {ignored!r}")
    return Edge(
        family=entry.needed("family"),
        health=entry.number("health", 0.5),
        for_s=entry.number("for_s", 300.0),
        ignored=frozenset(float(code) for code in ignored),
        code_label=entry.text("code_label"),
    )


def _partitioning(top: _Entry) -> Partitioning | None:
    if "partition" not in top.content:
        return None
    entry = _Entry(
        top.content["partition"],
        ("partition",),
        frozenset({"label", "kind", "whole", "primary", "profile", "takes_work"}),
    )
    whole = entry.texts("whole")
    for name in whole:
        if name not in set(Metric):
            raise entry.wrong("whole", f"{name!r} is no canonical metric")
    return Partitioning(
        label=entry.needed("label"),
        kind=entry.one_of("kind", PartitionKind),
        whole=frozenset(Metric(name) for name in whole),
        primary=frozenset(entry.texts("primary") or ("0",)),
        profile=entry.text("profile"),
        takes_work=entry.flag("takes_work"),
    )


def _frozen(top: _Entry) -> FrozenGuard | None:
    if "frozen_guard" not in top.content:
        return None
    known = frozenset({"counter", "while_above_zero", "scrapes", "after_s"})
    entry = _Entry(top.content["frozen_guard"], ("frozen_guard",), known)
    return FrozenGuard(
        counters=entry.texts("counter"),
        activity=entry.one_of("while_above_zero", Metric),
        scrapes=max(2, int(entry.number("scrapes", 3))),
        after_s=entry.number("after_s", 75.0),
    )


def _memory_sums(top: _Entry) -> tuple[MemorySum, ...]:
    content = top.content.get("memory_sum", [])
    if not isinstance(content, list):
        return (_memory_sum(content, ("memory_sum",)),)
    return tuple(_memory_sum(item, ("memory_sum", place)) for place, item in enumerate(content))


def _memory_sum(content: object, path: tuple[str | int, ...]) -> MemorySum:
    entry = _Entry(content, path, frozenset({"used", "free", "total", "reserved", "tolerance"}))
    return MemorySum(
        used=entry.needed("used"),
        free=entry.needed("free"),
        total=entry.needed("total"),
        reserved=entry.text("reserved"),
        tolerance=entry.number("tolerance", 0.02),
    )
