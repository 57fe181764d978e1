"""JSON that carries Prometheus samples: a dump of client_golang's metrics, or the answer of Prometheus' query API."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.collectors.exposition import Sample

_FAMILY_OF_DESC = re.compile(r'Desc\{fqName: "([a-zA-Z_:][a-zA-Z0-9_:]*)"')
_VALUES = ("gauge", "counter", "untyped")


def samples_of(content: object) -> list[Sample] | None:
    """The samples of a document in one of the two forms; None: it has neither. Entries that cannot be read are left out."""
    if isinstance(content, list) and content and all(isinstance(item, Mapping) and "Desc" in item for item in content):
        return list(_dumped(content))
    data = content.get("data") if isinstance(content, Mapping) else None
    if (
        isinstance(data, Mapping)
        and data.get("resultType") in {"vector", "matrix"}
        and isinstance(data.get("result"), list)
    ):
        return list(_queried(data["result"]))
    return None


def _dumped(items: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    for item in items:
        found = _FAMILY_OF_DESC.match(item["Desc"]) if isinstance(item["Desc"], str) else None
        metric = item.get("Metric")
        if found is None or not isinstance(metric, Mapping):
            continue
        labels = _labels(metric.get("label", []))
        held = [metric[kind] for kind in _VALUES if isinstance(metric.get(kind), Mapping)]
        value = _number(held[0].get("value")) if len(held) == 1 else None
        stamp = metric.get("timestamp_ms")
        stamped = _number(stamp) if stamp is not None else None
        if labels is None or value is None or (stamp is not None and (stamped is None or math.isnan(stamped))):
            continue
        yield Sample(found[1], labels, value, None if stamped is None else stamped / 1000)


def _labels(pairs: object) -> dict[str, str] | None:
    if not isinstance(pairs, list):
        return None
    labels: dict[str, str] = {}
    for pair in pairs:
        name = pair.get("name") if isinstance(pair, Mapping) else None
        value = pair.get("value") if isinstance(pair, Mapping) else None
        if not isinstance(name, str) or not isinstance(value, str) or name in labels:
            return None
        labels[name] = value
    return labels


def _queried(results: Iterable[object]) -> Iterator[Sample]:
    for item in results:
        metric = item.get("metric") if isinstance(item, Mapping) else None
        pair = item.get("value", _last(item.get("values"))) if isinstance(item, Mapping) else None
        if not isinstance(metric, Mapping) or not isinstance(pair, list) or len(pair) != 2:
            continue
        labels = {str(name): value for name, value in metric.items() if isinstance(value, str)}
        family = labels.pop("__name__", "")
        at_s, value = _number(pair[0]), _text_number(pair[1])
        if at_s is None or math.isnan(at_s):
            continue
        if family and len(labels) + 1 == len(metric) and value is not None:
            yield Sample(family, labels, value, at_s)


def _last(pairs: object) -> object:
    """Of a query over a range: the newest pair, which is the last."""
    return pairs[-1] if isinstance(pairs, list) and pairs else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _text_number(value: object) -> float | None:
    if not isinstance(value, str) or not re.fullmatch(r"[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|Inf|NaN)", value, re.ASCII):
        return None
    try:
        return float(value)
    except ValueError:
        return None
