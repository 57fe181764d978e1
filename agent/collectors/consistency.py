"""Readings of one device against each other: what contradicts itself is unknown. Pure.

Rules: (1) used + free (+ reserved) is the total, (2) not more is used than there is, and of a limit in a wrong unit no use is
known, (3) a device of which every figure that cannot be zero is zero does not answer: its other zeros are placeholders too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.collectors.base import Reading
from agent.collectors.exporter_table import ExporterTable, MemorySum
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownError, UnknownKind
from agent.collectors.values import DeviceSamples

_MEMORY = frozenset({Metric.GPU_MEMORY_USAGE, Metric.GPU_MEMORY_LIMIT})
_LIMITS = {Metric.GPU_MEMORY_USAGE: Metric.GPU_MEMORY_LIMIT, Metric.MEMORY_USAGE: Metric.MEMORY_LIMIT}
# Used may exceed the limit by what rounding to whole MiB makes of it.
ROUNDING_BYTES = 2.0**21
# Without a figure for it, this share of the memory may be the driver's own.
UNTOLD_RESERVE = 0.08


def consistent(table: ExporterTable, samples: DeviceSamples, readings: Iterable[Reading]) -> list[Reading]:
    """The readings, those that contradict each other as unknown."""
    checked = list(readings)
    for parts in table.memory_sums:
        reason = _sum_problem(parts, samples)
        if reason:
            checked = [_unknown(item, UnknownKind.INCONSISTENT, reason, _MEMORY) for item in checked]
    checked = _within_limits(checked)
    return _without_placeholders(table, samples, checked)


def _sum_problem(parts: MemorySum, samples: DeviceSamples) -> str:
    def figure(family: str) -> float | None:
        try:
            return samples.single(family) if family else None
        except UnknownError:
            return None

    used, free, total, reserved = (figure(name) for name in (parts.used, parts.free, parts.total, parts.reserved))
    if used is None or free is None or not total:
        return ""
    most = used + free + (reserved or 0.0)
    slack = parts.tolerance * total
    untold = UNTOLD_RESERVE * total if reserved is None else 0.0
    # Some drivers count the reserve as used: then used + free is the total already.
    if used + free > total + slack or most < total - slack - untold:
        return f"used {used:g} and free {free:g} do not make the total {total:g}"
    return ""


def _within_limits(readings: list[Reading]) -> list[Reading]:
    by_metric = {reading.metric: reading for reading in readings}
    for use, limit_metric in _LIMITS.items():
        used, limit = by_metric.get(use), by_metric.get(limit_metric)
        if used is None or limit is None or used.value is None:
            continue
        if limit.kind is UnknownKind.WRONG_UNIT:
            by_metric[use] = replace(used, value=None, kind=limit.kind, reason=f"of a limit that is {limit.reason}")
        elif limit.value is not None and used.value > limit.value + ROUNDING_BYTES:
            reason = f"{used.value:g} used of {limit.value:g}"
            by_metric[use] = replace(used, value=None, kind=UnknownKind.INCONSISTENT, reason=reason)
            by_metric[limit_metric] = replace(limit, value=None, kind=UnknownKind.INCONSISTENT, reason=reason)
    return [by_metric[reading.metric] for reading in readings]


def _without_placeholders(table: ExporterTable, samples: DeviceSamples, readings: list[Reading]) -> list[Reading]:
    never_zero = [
        term.family
        for alternatives in table.metrics.values()
        for alternative in alternatives
        if alternative.zero_is_placeholder
        for term in alternative.terms
    ]
    if not samples.zeros_only(never_zero):
        return readings
    reason = "zero, as all that the exporter says of the device: it does not answer"
    return [
        replace(item, value=None, kind=UnknownKind.PLACEHOLDER, reason=reason)
        if item.value == 0 and item.metric is not Metric.HEALTH
        else item
        for item in readings
    ]


def _unknown(reading: Reading, kind: UnknownKind, reason: str, metrics: frozenset[Metric]) -> Reading:
    if reading.metric not in metrics or reading.value is None:
        return reading
    return replace(reading, value=None, kind=kind, reason=reason)
