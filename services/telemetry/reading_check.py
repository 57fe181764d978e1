"""Validation of readings: what does not hold up is set aside with its reason, and never becomes a number.

Steps for each reading (`ReadingCheck.check`):

1. The metric is known, the device stands in the inventory, and nobody read the same before in this report.
2. The time is given, not ahead of ours beyond the allowed skew, not older than the metric's limit, and not older than the
   value that is known already.
3. An unknown value stays unknown, with its reason.
4. The value is a finite number in a unit of the right dimension, within the physical range, and a used amount does not
   exceed its limit.
5. A counter of a device that works has moved within the last reports.

Afterwards `missing` names the series that were valued before and that nobody reads any more, although their device is
still listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.issues import WHOLE_NODE, Issue, IssueKind
from services.telemetry.metric_catalogue import ACTIVITY_METRIC, LIMIT_OF, METRICS, MetricSpec, Scope
from services.telemetry.units import convert

NO_REASON = "unknown, no reason given"


class SeriesKey(NamedTuple):
    """A metric of a device. ``accelerator_index`` -1: the node; empty ``node_id``: the domain."""

    node_id: str
    accelerator_index: int
    metric: str


@dataclass(frozen=True, slots=True)
class Series:
    """The newest reading of a series. Times in seconds since 1970.

    With a ``reason`` the present value is not known: there is none, or it is not to be believed (a frozen counter).
    """

    value: float | None
    observed_at_s: float
    source: int
    statistic: int
    reason: str = ""
    # Reports in a row that brought a newer time and the same value.
    unchanged_reports: int = 0
    # Time of the newest value in the history.
    history_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the settings, see there."""

    clock_skew_s: float
    frozen_after_reports: int
    forget_series_after_s: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a series is now. ``fresh``: newer than what was known. Not ``stands``: remembered, but not passed on."""

    key: SeriesKey
    series: Series
    fresh: bool
    stands: bool


def _seconds(reading: pb.Reading) -> float:
    return reading.observed_at.seconds + reading.observed_at.nanos * 1e-9


def devices_of(inventory: pb.DomainInventory) -> dict[str, frozenset[int]]:
    """Accelerator indices of each listed node."""
    return {node.node_id: frozenset(item.index for item in node.accelerators) for node in inventory.nodes}


class ReadingCheck:
    """Checks the readings of one report, in their order."""

    def __init__(
        self,
        devices: Mapping[str, frozenset[int]],
        known: Mapping[SeriesKey, Series],
        now_s: float,
        limits: Limits,
    ) -> None:
        self._devices = devices
        self._known = known
        self._now_s = now_s
        self._limits = limits
        self._active: set[tuple[str, int]] = set()
        self._limit_values: dict[SeriesKey, float] = {}
        self.accepted: dict[SeriesKey, Accepted] = {}
        self.issues: list[Issue] = []
        self._seen: set[SeriesKey] = set()

    def run(self, readings: Iterable[pb.Reading]) -> None:
        """Check all readings; results stand in ``accepted`` and ``issues``."""
        readings = list(readings)
        for reading in readings:
            self._note_context(reading)
        for reading in readings:
            index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
            key = SeriesKey(reading.node_id, index, reading.metric)
            problem = self._problem(key, reading)
            if problem is not None:
                self._set_aside(key, *problem)

    def _set_aside(self, key: SeriesKey, kind: IssueKind, detail: str) -> None:
        self.issues.append(Issue(kind, key.node_id, key.accelerator_index, key.metric[:128], detail))

    def _note_context(self, reading: pb.Reading) -> None:
        """Remember which devices work and what the limits are, whatever the order of the readings."""
        if not reading.HasField("value"):
            return
        index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
        if reading.metric == ACTIVITY_METRIC and reading.value > 0:
            self._active.add((reading.node_id, index))
        elif reading.metric in LIMIT_OF.values():
            value = convert(reading.value, reading.unit, METRICS[reading.metric].unit)
            if value is not None:
                self._limit_values[SeriesKey(reading.node_id, index, reading.metric)] = value

    def _problem(self, key: SeriesKey, reading: pb.Reading) -> tuple[IssueKind, str] | None:
        spec = METRICS.get(key.metric)
        if spec is None:
            return IssueKind.UNKNOWN_METRIC, f"{key.metric[:128]!r} is not in the catalogue of metrics"
        problem = self._place_problem(key, spec)
        if problem is not None:
            return problem
        if key in self._seen:
            return IssueKind.DUPLICATE, "the report has read this before"
        self._seen.add(key)
        observed_at_s = _seconds(reading) if reading.HasField("observed_at") else None
        problem = self._time_problem(key, spec, observed_at_s)
        if problem is not None or observed_at_s is None:
            return problem
        value: float | None = None
        if reading.HasField("value"):
            value = convert(reading.value, reading.unit, spec.unit)
            problem = self._value_problem(key, spec, reading, value)
            if problem is not None:
                return problem
        return self._accept(key, spec, reading, value, observed_at_s)

    def _place_problem(self, key: SeriesKey, spec: MetricSpec) -> tuple[IssueKind, str] | None:
        if not key.node_id:
            scope = Scope.DOMAIN
        elif key.node_id not in self._devices:
            return IssueKind.UNKNOWN_DEVICE, f"node {key.node_id[:128]!r} is not in the inventory"
        elif key.accelerator_index == WHOLE_NODE:
            scope = Scope.NODE
        elif key.accelerator_index not in self._devices[key.node_id]:
            return IssueKind.UNKNOWN_DEVICE, f"accelerator {key.accelerator_index} is not in the inventory"
        else:
            scope = Scope.ACCELERATOR
        if scope not in spec.scopes:
            return IssueKind.UNKNOWN_DEVICE, f"{spec.name} is not read of a whole {scope}"
        return None

    def _time_problem(
        self, key: SeriesKey, spec: MetricSpec, observed_at_s: float | None
    ) -> tuple[IssueKind, str] | None:
        if observed_at_s is None:
            return IssueKind.STALE, "the reading has no time"
        age_s = self._now_s - observed_at_s
        if age_s < -self._limits.clock_skew_s:
            return IssueKind.FROM_FUTURE, f"{-age_s:.1f} s ahead of our clock"
        if age_s > spec.stale_after_s:
            return IssueKind.STALE, f"{age_s:.0f} s old, the limit is {spec.stale_after_s:.0f} s"
        known = self._known.get(key)
        if known is not None and observed_at_s < known.observed_at_s:
            return IssueKind.STALE, f"{known.observed_at_s - observed_at_s:.1f} s older than the value that is known"
        return None

    def _value_problem(
        self, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, value: float | None
    ) -> tuple[IssueKind, str] | None:
        if not isfinite(reading.value):
            return IssueKind.NOT_A_NUMBER, f"the value is {reading.value}"
        if value is None:
            return IssueKind.WRONG_UNIT, f"unit {reading.unit[:32]!r} cannot be converted to {spec.unit!r}"
        if not spec.minimum <= value <= spec.maximum:
            return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit}, possible is {spec.minimum:g} to {spec.maximum:g}"
        limit_metric = LIMIT_OF.get(key.metric)
        if limit_metric is not None:
            limit = self._limit_values.get(key._replace(metric=limit_metric))
            if limit is not None and value > limit:
                return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit} used of {limit:g}"
        return None

    def _accept(
        self, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, value: float | None, observed_at_s: float
    ) -> tuple[IssueKind, str] | None:
        known = self._known.get(key)
        fresh = known is None or observed_at_s > known.observed_at_s
        unchanged = 0
        if spec.counter and known is not None and value is not None and known.value == value:
            unchanged = known.unchanged_reports + (1 if fresh else 0)
        problem: tuple[IssueKind, str] | None = None
        reason = "" if value is not None else (reading.reason[:256] or NO_REASON)
        if unchanged >= self._limits.frozen_after_reports and self._is_active(key):
            reason = f"unchanged at {value:g} {spec.unit} in {unchanged} reports while the device works"
            problem = IssueKind.FROZEN, reason
        series = Series(
            value=value,
            observed_at_s=observed_at_s,
            source=reading.source,
            statistic=reading.statistic,
            reason=reason,
            unchanged_reports=unchanged,
            history_at_s=known.history_at_s if known is not None else 0.0,
        )
        self.accepted[key] = Accepted(key, series, fresh, stands=problem is None)
        return problem

    def _is_active(self, key: SeriesKey) -> bool:
        return (key.node_id, key.accelerator_index) in self._active

    def missing(self) -> list[SeriesKey]:
        """Add an issue for each series that had a value, is silent beyond its limit and whose device is still listed."""
        found = []
        for key, series in self._known.items():
            spec = METRICS.get(key.metric)
            if key in self._seen or spec is None or series.reason or self._place_problem(key, spec):
                continue
            silent_s = self._now_s - series.observed_at_s
            if spec.stale_after_s < silent_s <= self._limits.forget_series_after_s:
                self._set_aside(key, IssueKind.STALE, f"not read for {silent_s:.0f} s although the device is listed")
                found.append(key)
        return found
