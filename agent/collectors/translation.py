"""Samples of an exporter become canonical readings. No I/O, no clock of its own; it remembers what it saw.

Doctrine: missing, unsupported, stale and frozen are unknown with a reason, never a healthy zero.

Steps for one scrape: (1) group samples by device, (2) for each metric take the first alternative that gives a known
value, (3) devices that were there or should be and are not: unknown, after ``LOST_AFTER`` scrapes failed, (4) a device
whose counter stands still while it claims to work serves old values: all of it is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from agent.collectors.base import Reading, Source
from agent.collectors.exporter_table import Aggregate, Alternative, ExporterTable, Kind
from agent.collectors.exposition import Sample
from agent.collectors.host import NEEDS_TWO_SAMPLES
from agent.collectors.metrics import HEALTH_FAILED, Metric

LOST_AFTER = 3
FUTURE_TOLERANCE_S = 60.0
NOT_EXPORTED = "not exported"

_AGGREGATES: dict[Aggregate, Callable[[list[float]], float]] = {
    Aggregate.SUM: math.fsum,
    Aggregate.MEAN: lambda values: math.fsum(values) / len(values),
    Aggregate.MAX: max,
    Aggregate.MIN: min,
}

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as an exporter names it; the node as a whole has neither index nor name."""

    index: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Point:
    value: float
    at_s: float


class _UnknownError(Exception):
    """The value is not known; the message is the reason."""


class Translator:
    """Translates the scrapes of one exporter on one node. ``expected`` are the devices the inventory has there."""

    def __init__(self, table: ExporterTable, node_id: str, expected: Iterable[Device] = ()) -> None:
        self._table = table
        self._node_id = node_id
        self._absent_scrapes: dict[Device, int] = dict.fromkeys(expected, 0)
        self._rate_families = table.rate_families
        self._earlier: dict[SeriesKey, _Point] = {}
        self._still_scrapes: dict[Device, tuple[float, int]] = {}
        if not table.per_device:
            self._absent_scrapes[Device()] = 0

    def translate(self, samples: Iterable[Sample], now: datetime) -> list[Reading]:
        """Readings of one scrape."""
        samples = list(samples)
        indices = {
            self._name_of(sample.labels): int(sample.value)
            for sample in samples
            if sample.family == self._table.index_family and sample.value.is_integer()
        }
        grouped: dict[Device, dict[str, list[Sample]]] = {}
        earlier, self._earlier = self._earlier, {}
        for sample in samples:
            if sample.family in self._rate_families:
                self._earlier[_series(sample)] = _point(sample, now)
            device = self._device_of(sample.labels, indices)
            if device is not None:
                grouped.setdefault(device, {}).setdefault(sample.family, []).append(sample)
        readings: list[Reading] = []
        for device, families in grouped.items():
            known = self._known_as(device)
            self._absent_scrapes[known] = 0
            taken = [self._read(known, metric, families, now, earlier) for metric in self._table.metrics]
            readings += self._unless_frozen(known, taken, families)
        for device in self._absent_scrapes.keys() - {self._known_as(device) for device in grouped}:
            readings += self._absent(device, now)
        return readings

    def unavailable(self, reason: str, now: datetime) -> list[Reading]:
        """Readings when the exporter gave no answer: all unknown. It says nothing about devices being lost."""
        return [
            self._unknown(device, metric, reason, now)
            for device in self._absent_scrapes
            for metric in self._table.metrics
        ]

    # --- devices -----------------------------------------------------------------------------------------------------

    def _device_of(self, labels: Mapping[str, str], indices: Mapping[str, int]) -> Device | None:
        if not self._table.per_device:
            return Device()
        name = self._name_of(labels)
        if self._table.index_family:
            return Device(indices[name], name) if name in indices else None
        index = labels.get(self._table.index_label, "")
        return Device(int(index), name) if index.isdecimal() else None

    def _name_of(self, labels: Mapping[str, str]) -> str:
        return "/".join(labels[label] for label in self._table.identity_labels if labels.get(label))

    def _known_as(self, device: Device) -> Device:
        """The inventory may know a device by its index only."""
        by_index = Device(device.index)
        return by_index if by_index in self._absent_scrapes else device

    def _absent(self, device: Device, now: datetime) -> list[Reading]:
        self._absent_scrapes[device] += 1
        count = self._absent_scrapes[device]
        reason = f"device absent from {count} scrapes"
        readings = [self._unknown(device, metric, reason, now) for metric in self._table.metrics]
        if count < LOST_AFTER or device.index is None:
            return readings
        lost = Reading(
            self._node_id,
            Metric.HEALTH,
            HEALTH_FAILED,
            Source.ESTIMATION,
            now,
            accelerator_index=device.index,
            device=device.name,
        )
        return [lost, *(reading for reading in readings if reading.metric is not Metric.HEALTH)]

    def _unless_frozen(
        self, device: Device, taken: list[Reading], families: Mapping[str, list[Sample]]
    ) -> list[Reading]:
        counter = families.get(self._table.frozen_counter)
        if not counter:
            return taken
        active = any(
            reading.metric is self._table.frozen_activity and reading.value is not None and reading.value > 0
            for reading in taken
        )
        value = counter[0].value
        last, count = self._still_scrapes.get(device, (math.nan, 0))
        count = count + 1 if active and value == last else 1
        self._still_scrapes[device] = (value, count)
        if count < self._table.frozen_scrapes:
            return taken
        reason = f"frozen: {self._table.frozen_counter} stood still for {count} scrapes while the device claims to work"
        return [replace(reading, value=None, reason=reason) for reading in taken]

    # --- values ------------------------------------------------------------------------------------------------------

    def _read(
        self,
        device: Device,
        metric: Metric,
        families: Mapping[str, list[Sample]],
        now: datetime,
        earlier: Mapping[SeriesKey, _Point],
    ) -> Reading:
        reasons: list[str] = []
        for alternative in self._table.metrics[metric]:
            try:
                value = self._evaluate(alternative, families, now, earlier)
            except _UnknownError as unknown:
                reasons.append(str(unknown))
                continue
            return Reading(
                self._node_id,
                metric,
                value,
                alternative.source,
                now,
                accelerator_index=device.index,
                device=device.name,
                statistic=alternative.statistic,
            )
        telling = [reason for reason in reasons if reason != NOT_EXPORTED]
        return self._unknown(device, metric, telling[0] if telling else NOT_EXPORTED, now)

    def _evaluate(
        self,
        alternative: Alternative,
        families: Mapping[str, list[Sample]],
        now: datetime,
        earlier: Mapping[SeriesKey, _Point],
    ) -> float:
        total = 0.0
        for term in alternative.terms:
            matching = [
                sample
                for sample in families.get(term.family, ())
                if all(pattern.fullmatch(sample.labels.get(name, "")) for name, pattern in alternative.labels.items())
            ]
            if not matching:
                raise _UnknownError(NOT_EXPORTED)
            values = [self._raw(sample, now) for sample in matching]
            if alternative.kind is Kind.RATE:
                values = _rates(matching, now, earlier)
            total += term.factor * _AGGREGATES[alternative.aggregate](values)
        if alternative.enum is not None:
            if total not in alternative.enum:
                raise _UnknownError(f"unknown state {total:g}")
            return alternative.enum[total]
        value = alternative.offset + alternative.scale * total
        low, high = alternative.valid
        if not low <= value <= high:
            raise _UnknownError(f"out of range: {value:g}")
        return value

    def _raw(self, sample: Sample, now: datetime) -> float:
        if not math.isfinite(sample.value):
            raise _UnknownError("not a number")
        for sentinel in self._table.sentinels:
            if sentinel.low <= sample.value <= sentinel.high:
                raise _UnknownError(sentinel.reason)
        if sample.timestamp_s is not None:
            age_s = now.timestamp() - sample.timestamp_s
            if age_s > self._table.max_sample_age_s:
                raise _UnknownError(f"stale: sample is {age_s:.0f} s old")
            if age_s < -FUTURE_TOLERANCE_S:
                raise _UnknownError(f"sample is {-age_s:.0f} s in the future")
        return sample.value

    def _unknown(self, device: Device, metric: Metric, reason: str, now: datetime) -> Reading:
        return Reading(
            self._node_id,
            metric,
            None,
            Source.DIRECTLY_MEASURED,
            now,
            accelerator_index=device.index,
            device=device.name,
            reason=reason,
        )


def _series(sample: Sample) -> SeriesKey:
    return sample.family, frozenset(sample.labels.items())


def _point(sample: Sample, now: datetime) -> _Point:
    return _Point(sample.value, now.timestamp() if sample.timestamp_s is None else sample.timestamp_s)


def _rates(samples: list[Sample], now: datetime, earlier: Mapping[SeriesKey, _Point]) -> list[float]:
    """Increase per second of each series that was there before."""
    rates: list[float] = []
    for sample in samples:
        before, point = earlier.get(_series(sample)), _point(sample, now)
        if before is None or point.at_s <= before.at_s:
            continue
        if point.value < before.value:
            raise _UnknownError("a counter went back")
        rates.append((point.value - before.value) / (point.at_s - before.at_s))
    if not rates:
        raise _UnknownError(NEEDS_TWO_SAMPLES)
    return rates
