"""Samples of an exporter become canonical readings. No I/O, no clock of its own; it remembers what it saw.

Doctrine: missing, unsupported, stale and frozen are unknown with a kind and a reason, never a healthy zero.

Steps for one scrape: (1) the exporter's clock is looked at, (2) samples are grouped by device, (3) for each metric the first
alternative that gives a known value is taken, of health the worst, (4) what contradicts itself within a device is unknown
(`consistency`), (5) a device whose counter stands still while it claims to work serves old values: all of it is unknown,
(6) devices that were there or should be and are not: unknown, after ``LOST_AFTER`` scrapes failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from agent.collectors.base import Reading, Source, unknown_from
from agent.collectors.consistency import consistent
from agent.collectors.device import Device, PeakOf
from agent.collectors.error_codes import ErrorCodes
from agent.collectors.exporter_table import ExporterTable, PartitionKind
from agent.collectors.exposition import Sample
from agent.collectors.metrics import HEALTH_FAILED, Metric
from agent.collectors.recognition import instances
from agent.collectors.standing_still import StandingStill
from agent.collectors.unknown import UnknownError, UnknownKind
from agent.collectors.values import (
    FUTURE_TOLERANCE_S,
    NOT_EXPORTED,
    DeviceSamples,
    Moment,
    Point,
    SeriesKey,
    point_of,
    series_of,
)
from agent.collectors.whole_of_parts import add_wholes, with_wholes

LOST_AFTER = 3
# Timestamps of one scrape that differ from our clock by about the same, within this, show the exporter's clock.
SAME_CLOCK_S = 2.0
MAX_INDEX = 1023


class Translator:
    """Translates the scrapes of one exporter on one node. ``expected`` are the devices that the inventory has there."""

    def __init__(
        self,
        table: ExporterTable,
        node_id: str,
        expected: Iterable[Device] = (),
        *,
        peak_of: PeakOf | None = None,
    ) -> None:
        self._table = table
        self._node_id = node_id
        self._peak_of = peak_of or (lambda _device, _model: None)
        self._expected = tuple(expected)
        self._absent_scrapes: dict[Device, int] = dict.fromkeys(self._expected, 0)
        self._earlier: dict[SeriesKey, Point] = {}
        self._error_codes = ErrorCodes(table)
        self._standing_still = StandingStill(table)
        self._order: dict[str, int] = {}
        self._not_ratios: set[str] = set()
        self._ratio_families = frozenset(
            term.family
            for alternatives in table.metrics.values()
            for alternative in alternatives
            if alternative.is_ratio
            for term in alternative.terms
        )
        if not table.per_device and not table.node_label:
            self._absent_scrapes[Device()] = 0

    def translate(self, samples: Iterable[Sample], now: datetime) -> list[Reading]:
        """Readings of one scrape; families may have any of the table's prefixes."""
        known = [self._canonical(sample) for sample in samples]
        several = set() if self._table.node_label else instances(known, self._table)
        if len(several) > 1:
            # A sum over machines is a figure of none of them.
            some = ", ".join(sorted(several)[:3])
            return self.unavailable(UnknownKind.INCONSISTENT, f"the page is of {len(several)} instances: {some}", now)
        moment = self._moment(known, now.timestamp())
        self._earlier = {series_of(sample): point_of(sample, moment.now_s) for sample in known}
        grouped = self._grouped(known)
        add_wholes(grouped, self._table, self._absent_scrapes)
        readings: list[Reading] = []
        for device, families in grouped.items():
            self._absent_scrapes[device] = 0
            taken = self._read(device, families, moment, now)
            readings += self._standing_still.judged(device, taken, families, moment.now_s)
        readings = with_wholes(readings)
        for device in self._absent_scrapes.keys() - grouped.keys():
            readings += self._absent(device, now)
        return readings

    def unavailable(self, kind: UnknownKind, reason: str, now: datetime) -> list[Reading]:
        """Readings when the exporter gave no answer: all unknown. It says nothing about devices being lost."""
        return [
            self._unknown(device, metric, kind, reason, now)
            for device in self._absent_scrapes
            for metric in self._table.metrics
        ]

    # --- the scrape --------------------------------------------------------------------------------------------------

    def _canonical(self, sample: Sample) -> Sample:
        family = self._table.canonical(sample.family)
        return sample if family == sample.family else replace(sample, family=family)

    def _moment(self, samples: Sequence[Sample], now_s: float) -> Moment:
        self._not_ratios |= {
            sample.family
            for sample in samples
            if sample.family in self._ratio_families
            and 1 + 1e-6 < sample.value <= 100
            and not self._table.is_sentinel(sample.family, sample.value)
        }
        return Moment(now_s, self._earlier, self._skew_s(samples, now_s), frozenset(self._not_ratios))

    def _skew_s(self, samples: Sequence[Sample], now_s: float) -> float:
        """The exporter's clock less ours: its timestamps all differ from our clock by the same, and they move with it.

        Without an earlier scrape only a clock that is ahead can be told: old timestamps may as well be old samples.
        """
        offsets = [sample.timestamp_s - now_s for sample in samples if sample.timestamp_s is not None]
        if not offsets or max(offsets) - min(offsets) > SAME_CLOCK_S:
            return 0.0
        if min(offsets) > FUTURE_TOLERANCE_S:
            return min(offsets)
        moved = [
            sample.timestamp_s > point.at_s
            for sample in samples
            if sample.timestamp_s is not None
            and (point := self._earlier.get(series_of(sample))) is not None
            and point.stamped
        ]
        return min(offsets) if moved and all(moved) else 0.0

    def _grouped(self, samples: Sequence[Sample]) -> dict[Device, dict[str, list[Sample]]]:
        indices = self._indices(samples)
        placed = [(self._device_of(sample.labels, indices), sample) for sample in samples]
        # The size of a part may stand at some of its samples only.
        profiles = {device: device.profile for device, _ in placed if device is not None and device.profile}
        # Some samples of a device may lack the label that names it.
        named: dict[Device, set[Device]] = {}
        for device, _ in placed:
            if device is not None and device.name and device.index is not None:
                named.setdefault(replace(device, name=""), set()).add(device)
        grouped: dict[Device, dict[str, list[Sample]]] = {}
        for device, sample in placed:
            if device is None:
                continue
            owners = named.get(device, set())
            owner = self._known_as(next(iter(owners)) if len(owners) == 1 else device)
            if device in profiles:
                owner = replace(owner, profile=profiles[device])
            grouped.setdefault(owner, {}).setdefault(sample.family, []).append(sample)
        return grouped

    # --- devices -----------------------------------------------------------------------------------------------------

    def _indices(self, samples: Sequence[Sample]) -> dict[str, int]:
        """Index by name, for exporters whose samples do not say it."""
        found = {
            self._name_of(sample.labels): int(sample.value)
            for sample in samples
            if sample.family == self._table.index_family
            and sample.value.is_integer()
            and 0 <= sample.value <= MAX_INDEX
        }
        for sample in samples if self._table.index_family else ():
            stated = _stated(sample.labels, self._table.index_labels)
            if stated is not None and stated <= MAX_INDEX:
                found.setdefault(self._name_of(sample.labels), stated)
        if not self._table.index_by_order:
            return found
        names = {self._name_of(sample.labels) for sample in samples if sample.family in self._table.families} - {""}
        declared = {device.name: device.index for device in self._expected if device.name and device.index is not None}
        self._order |= {name: index for name, index in declared.items() if name in names}
        new = sorted(names - self._order.keys())
        free = [index for index in range(len(self._order) + len(new)) if index not in self._order.values()]
        # With one device missing from the first scrape on, the order would name all others wrongly.
        if new and (not self._expected or len(names) >= len(self._expected)):
            self._order |= dict(zip(new, free, strict=False))
        return self._order

    def _device_of(self, labels: Mapping[str, str], indices: Mapping[str, int]) -> Device | None:
        table = self._table
        node = labels.get(table.node_label, "") if table.node_label else ""
        if table.node_label and not node:
            return None
        if not table.per_device:
            return Device(node=node)
        name = self._name_of(labels)
        stated = _stated(labels, table.index_labels)
        index = indices.get(name) if stated is None else stated
        if (index is None and not name) or (index is not None and index > MAX_INDEX):
            return None
        partition = ""
        if table.partitioning is not None and table.partitioning.kind is PartitionKind.INSTANCES:
            partition = labels.get(table.partitioning.label, "")
            if partition:
                return Device(index, name, partition, node, labels.get(table.partitioning.profile, ""))
        return Device(index, name, partition, node)

    def _name_of(self, labels: Mapping[str, str]) -> str:
        return next((labels[label] for label in self._table.identity_labels if labels.get(label)), "")

    def _known_as(self, device: Device) -> Device:
        """The inventory may know a device by its index only."""
        by_index = replace(device, name="")
        return by_index if by_index in self._absent_scrapes else device

    def _absent(self, device: Device, now: datetime) -> list[Reading]:
        self._absent_scrapes[device] += 1
        count = self._absent_scrapes[device]
        reason = f"device absent from {count} scrapes"
        readings = [self._unknown(device, metric, UnknownKind.VANISHED, reason, now) for metric in self._table.metrics]
        if device.partition and count >= LOST_AFTER:
            # Somebody divided the device anew: nothing is lost.
            del self._absent_scrapes[device]
        if count < LOST_AFTER or device.index is None or device.partition:
            return readings
        lost = self._reading(device, Metric.HEALTH, HEALTH_FAILED, Source.ESTIMATION, now)
        return [lost, *(reading for reading in readings if reading.metric is not Metric.HEALTH)]

    # --- readings ----------------------------------------------------------------------------------------------------

    def _read(
        self, device: Device, families: Mapping[str, list[Sample]], moment: Moment, now: datetime
    ) -> list[Reading]:
        samples = DeviceSamples(self._table, families, moment)
        model = self._model_of(families)
        peak = self._peak_of(device, model)
        readings = [
            self._worst_health(device, samples, now)
            if metric is Metric.HEALTH
            else self._first(device, metric, samples, peak, model, now)
            for metric in self._table.metrics
        ]
        readings = self._error_codes.judged(device, readings, families, moment.now_s)
        readings = consistent(self._table, samples, readings)
        readings = [self._of_part(device, reading, families) for reading in readings]
        if self._table.partitioned_family and not device.partition:
            readings = self._of_divided(readings, samples)
        return readings

    def _first(
        self, device: Device, metric: Metric, samples: DeviceSamples, peak: float | None, model: str, now: datetime
    ) -> Reading:
        failures: list[UnknownError] = []
        for alternative in self._table.metrics[metric]:
            try:
                value = samples.value(metric, alternative, peak)
            except UnknownError as unknown:
                failures.append(unknown)
                continue
            reading = self._reading(device, metric, value.value, alternative.source, _time(value.at_s, now))
            return replace(reading, statistic=alternative.statistic)
        why = _telling(failures)
        reason = why.reason
        if why.kind is UnknownKind.NO_REFERENCE and device.partition:
            reason = f"the peak of a part is not known: {model or 'unknown model'}, part {device.partition}"
        elif why.kind is UnknownKind.NO_REFERENCE and model:
            reason = f"{reason}: {model}"
        return self._unknown(device, metric, why.kind, reason, now)

    def _worst_health(self, device: Device, samples: DeviceSamples, now: datetime) -> Reading:
        failures: list[UnknownError] = []
        worst: Reading | None = None
        for alternative in self._table.metrics[Metric.HEALTH]:
            try:
                value = samples.value(Metric.HEALTH, alternative)
            except UnknownError as unknown:
                failures.append(unknown)
                continue
            if worst is None or worst.value is None or value.value < worst.value:
                worst = self._reading(device, Metric.HEALTH, value.value, alternative.source, _time(value.at_s, now))
        # An indicator that is there and cannot be read may be the one that would have told.
        faults = [unknown for unknown in failures if unknown.kind is not UnknownKind.NOT_EXPORTED]
        if worst is not None and (not faults or worst.value == HEALTH_FAILED):
            return worst
        why = _telling(failures)
        return self._unknown(device, Metric.HEALTH, why.kind, why.reason, now)

    def _of_part(self, device: Device, reading: Reading, families: Mapping[str, list[Sample]]) -> Reading:
        """What a part of a device cannot say: figures of the whole chip, and zeros that stand for them."""
        parts = self._table.partitioning
        if parts is not None and reading.metric in parts.whole:
            if parts.kind is PartitionKind.INSTANCES and device.partition:
                return unknown_from(reading, UnknownKind.PARTITIONED, "measured of the device, not of its part")
            label = next((sample.labels.get(parts.label, "") for found in families.values() for sample in found), "")
            secondary = parts.kind is PartitionKind.PRIMARY and label not in parts.primary | {""}
            if secondary and not reading.value:
                return unknown_from(
                    reading, UnknownKind.PARTITIONED, f"partition {label}: the chip is measured at its primary one"
                )
        return reading

    def _of_divided(self, readings: list[Reading], samples: DeviceSamples) -> list[Reading]:
        """What is told of a device as a whole, of which a family says whether it is divided now."""
        try:
            divided = samples.single(self._table.partitioned_family) == 1
        except UnknownError:
            divided = False
        if not divided:
            return readings
        reason = "the device is partitioned: known by part only"
        return [
            replace(
                unknown_from(item, UnknownKind.PARTITIONED, reason) if item.kind is UnknownKind.NOT_EXPORTED else item,
                in_parts=True,
            )
            for item in readings
        ]

    # --- small parts -------------------------------------------------------------------------------------------------

    def _model_of(self, families: Mapping[str, list[Sample]]) -> str:
        for samples in families.values():
            for sample in samples:
                for label in self._table.model_labels:
                    if sample.labels.get(label):
                        return sample.labels[label]
        return ""

    def _reading(self, device: Device, metric: Metric, value: float | None, source: Source, at: datetime) -> Reading:
        return Reading(
            device.node or self._node_id,
            metric,
            value,
            source,
            at,
            accelerator_index=device.index,
            device=device.name,
            partition=device.partition,
            profile=device.profile,
            in_parts=self._in_parts(device),
        )

    def _unknown(self, device: Device, metric: Metric, kind: UnknownKind, reason: str, now: datetime) -> Reading:
        return Reading(
            device.node or self._node_id,
            metric,
            None,
            Source.DIRECTLY_MEASURED,
            now,
            accelerator_index=device.index,
            device=device.name,
            partition=device.partition,
            profile=device.profile,
            reason=reason,
            kind=kind,
            in_parts=self._in_parts(device),
        )

    def _in_parts(self, device: Device) -> bool:
        parts = self._table.partitioning
        return bool(device.partition) and parts is not None and parts.takes_work


def _stated(labels: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The index that the first of the labels with one says: a number, or a device file by its name."""
    stated = (_INDEX.fullmatch(labels.get(name, "")) for name in names)
    return next((int(found[1]) for found in stated if found is not None), None)


_INDEX = re.compile(r"(?:(?:/dev/)?(?:nvidia|npu|rbln|xpu|gpu|card|accel|mlu|dcu))?([0-9]{1,6})", re.ASCII)


def _time(at_s: float | None, now: datetime) -> datetime:
    return now if at_s is None else datetime.fromtimestamp(at_s, UTC)


def _telling(failures: Sequence[UnknownError]) -> UnknownError:
    """The failure that says most: not one that only says that a family is not there."""
    telling = [unknown for unknown in failures if unknown.kind is not UnknownKind.NOT_EXPORTED]
    return telling[0] if telling else UnknownError(UnknownKind.NOT_EXPORTED, NOT_EXPORTED)
