"""Validation of readings: what does not hold up is set aside with its reason, and never becomes a number.

Steps for each reading (`ReadingCheck.run`):

1. The metric is known, the device stands in the inventory, and nobody read the same before in this report.
2. The time is given, not ahead of ours beyond the allowed skew, not older than the metric's limit, and not older than the
   value that is known already.
3. An unknown value stays unknown, with its reason; when the agent found a fault, that is an issue too.
4. The value is a finite number in a unit of the right dimension, within the physical range, and a used amount does not
   exceed its limit.
5. A counter of a device that works has moved within the last reports; one that went back has been reset.

Afterwards `missing` names the series that were valued before and that nobody reads any more, although their device is
still listed.

This runs for every reading of the network: one pass without an object per reading but what is kept, and a reading that
stands in its canonical unit is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from meridian.contracts.resource.v1 import resource_pb2 as pb
from services.telemetry.issues import FAULTS, WHOLE_NODE, Issue, IssueKind
from services.telemetry.metric_catalogue import ACTIVITY_METRIC, LIMIT_OF, METRICS, MetricSpec, Scope
from services.telemetry.units import convert

NO_REASON = "unknown, no reason given"
MAX_REASON_CHARS = 256
PART_MARK = "#"
MAX_PART_ID_CHARS = 64
MAX_PROFILE_CHARS = 64
_LIMIT_METRICS = frozenset(LIMIT_OF.values())
_CONTEXT_METRICS = _LIMIT_METRICS | {ACTIVITY_METRIC}


class SeriesKey(NamedTuple):
    """A metric of a device. ``accelerator_index`` -1: the node; empty ``node_id``: the domain.

    Of a part of an accelerator ``metric`` is that of the part: `part_series`.
    """

    node_id: str
    accelerator_index: int
    metric: str


class Series(NamedTuple):
    """The newest reading of a series. Times in seconds since 1970.

    With a ``reason`` the present value is not known: there is none, or it is not to be believed (a frozen counter).
    """

    value: float | None
    observed_at_s: float
    source: int
    statistic: int
    reason: str = ""
    # Reports in a row that brought a newer time and the same value, and the time of the first of them.
    unchanged_reports: int = 0
    # Time of the newest value in the history.
    history_at_s: float = 0.0
    unchanged_since_s: float = 0.0
    # Of an unknown value: `UnknownKind` of the contract.
    unknown_kind: int = 0
    # Of a part of an accelerator.
    part_profile: str = ""
    part_memory_bytes: int = 0


class HistoryRow(NamedTuple):
    """A value that enters the history."""

    key: SeriesKey
    observed_at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the settings, see there."""

    clock_skew_s: float
    frozen_after_reports: int
    forget_series_after_s: float
    frozen_after_s: float = 0.0


def devices_of(inventory: pb.DomainInventory) -> dict[str, frozenset[int]]:
    """Accelerator indices of each listed node."""
    return {node.node_id: frozenset([item.index for item in node.accelerators]) for node in inventory.nodes}


def part_series(metric: str, part_id: str) -> str:
    """The series of a part of an accelerator: its metric, and the part behind a ``#`` that no metric has."""
    return f"{metric}{PART_MARK}{part_id}"


def is_part_id(text: str) -> bool:
    """1 to 64 printable characters, none of them the mark."""
    return 0 < len(text) <= MAX_PART_ID_CHARS and text.isprintable() and PART_MARK not in text


class ReadingCheck:
    """Checks the readings of one report, in their order.

    ``changed``: what each series is now. ``standing``: the readings to pass on, in canonical units. ``history``: values that
    are due for the history.
    """

    def __init__(
        self,
        devices: Mapping[str, frozenset[int]],
        known: Mapping[SeriesKey, Series],
        now_s: float,
        limits: Limits,
        history_interval_s: float = 0.0,
    ) -> None:
        self._devices = devices
        self._known = known
        self._now_s = now_s
        self._limits = limits
        self._history_interval_s = history_interval_s
        self._active: set[tuple[str, int]] = set()
        self._limit_values: dict[tuple[str, int, str], float] = {}
        self._seen: set[SeriesKey] = set()
        self.changed: dict[SeriesKey, Series] = {}
        self.standing: list[pb.Reading] = []
        self.history: list[HistoryRow] = []
        self.issues: list[Issue] = []

    def run(self, readings: Iterable[pb.Reading]) -> None:
        """Check all readings."""
        # A repeated field makes a new object of each message whenever it is gone through.
        items = list(readings)
        for reading in items:
            if reading.metric in _CONTEXT_METRICS and not reading.HasField("part"):
                self._note_context(reading)
        specs, seen, devices, known_series = METRICS, self._seen, self._devices, self._known
        now_s, skew_s = self._now_s, self._limits.clock_skew_s
        for reading in items:
            node_id, metric = reading.node_id, reading.metric
            index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
            key = SeriesKey(node_id, index, metric)
            spec = specs.get(metric)
            if spec is None:
                detail = f"{metric[:128]!r} is not in the catalogue of metrics"
                self._set_aside(key, IssueKind.UNKNOWN_METRIC, detail)
                continue
            indices = devices.get(node_id)
            if indices is None or not (
                spec.of_nodes if index == WHOLE_NODE else (spec.of_accelerators and index in indices)
            ):
                place = self._place_problem(key, spec)
                if place is not None:
                    self._set_aside(key, IssueKind.UNKNOWN_DEVICE, place)
                    continue
            if reading.HasField("part"):
                part_id = reading.part.id
                if index == WHOLE_NODE or not is_part_id(part_id):
                    self._set_aside(key, IssueKind.UNKNOWN_DEVICE, f"{part_id[:64]!r} is no part of an accelerator")
                    continue
                key = SeriesKey(node_id, index, part_series(metric, part_id))
            if key in seen:
                self._set_aside(key, IssueKind.DUPLICATE, "the report has read this before")
                continue
            seen.add(key)
            stamp = reading.observed_at
            observed_at_s = stamp.seconds + stamp.nanos * 1e-9
            known = known_series.get(key)
            age_s = now_s - observed_at_s
            if (
                not -skew_s <= age_s <= spec.stale_after_s
                or (known is not None and observed_at_s < known.observed_at_s)
                or not reading.HasField("observed_at")
            ):
                self._set_aside(key, *self._time_problem(reading, spec, observed_at_s, known))
                continue
            if reading.HasField("value"):
                self._take_value(key, spec, reading, observed_at_s, known)
            else:
                self._take_unknown(key, spec, reading, observed_at_s, known)
            if reading.HasField("part") and key in self.changed:
                self._describe_part(key, reading.part)

    # --- values ------------------------------------------------------------------------------------------------------

    def _take_value(
        self, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, observed_at_s: float, known: Series | None
    ) -> None:
        raw, unit = reading.value, reading.unit
        value = raw if unit == spec.unit else convert(raw, unit, spec.unit)
        if (
            value is None
            or not spec.minimum <= value <= spec.maximum
            or not isfinite(raw)
            or (spec.limit_metric and value > self._limit_values.get((key[0], key[1], spec.limit_metric), value))
        ):
            self._set_aside(key, *self._value_problem(key, spec, reading, value))
            return
        history_at_s, unchanged, since_s = 0.0, 0, observed_at_s
        fresh = True
        if known is not None:
            history_at_s = known.history_at_s
            fresh = observed_at_s > known.observed_at_s
            if spec.counter and known.value is not None:
                if known.value == value:
                    unchanged = known.unchanged_reports + (1 if fresh else 0)
                    since_s = known.unchanged_since_s or known.observed_at_s
                elif value < known.value:
                    detail = f"went back from {known.value:g} to {value:g} {spec.unit}"
                    self._set_aside(key, IssueKind.COUNTER_RESET, detail)
        if unchanged >= self._limits.frozen_after_reports and self._is_frozen(key, observed_at_s - since_s):
            reason = f"unchanged at {value:g} {spec.unit} in {unchanged} reports while the device works"
            self._set_aside(key, IssueKind.FROZEN, reason)
            self.changed[key] = Series(
                value, observed_at_s, reading.source, reading.statistic, reason, unchanged, history_at_s, since_s,
                pb.UNKNOWN_KIND_FROZEN,
            )  # fmt: skip
            return
        if fresh and observed_at_s - history_at_s >= self._history_interval_s:
            self.history.append(HistoryRow(key, observed_at_s, value))
            history_at_s = observed_at_s
        self.changed[key] = Series(
            value, observed_at_s, reading.source, reading.statistic, "", unchanged, history_at_s, since_s
        )
        self.standing.append(reading if unit == spec.unit and not reading.reason else _canonical(reading, spec, value))

    def _take_unknown(
        self, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, observed_at_s: float, known: Series | None
    ) -> None:
        # PostgreSQL stores no NUL.
        reason = reading.reason[:MAX_REASON_CHARS].replace("\x00", "\ufffd") or NO_REASON
        kind = reading.unknown_kind
        fault = FAULTS.get(kind)
        if fault is not None:
            self._set_aside(key, fault, reason)
        history_at_s = known.history_at_s if known is not None else 0.0
        self.changed[key] = Series(
            None, observed_at_s, reading.source, reading.statistic, reason, 0, history_at_s, 0.0, kind
        )
        unit = spec.unit
        if reading.unit == unit and reading.reason == reason:
            self.standing.append(reading)
            return
        message = pb.Reading()
        message.CopyFrom(reading)
        message.unit, message.reason = unit, reason
        self.standing.append(message)

    def _describe_part(self, key: SeriesKey, part: pb.AcceleratorPart) -> None:
        # PostgreSQL stores no NUL.
        profile = part.profile[:MAX_PROFILE_CHARS].replace("\x00", "\ufffd")
        self.changed[key] = self.changed[key]._replace(
            part_profile=profile, part_memory_bytes=max(part.memory_bytes, 0)
        )

    def _is_frozen(self, key: SeriesKey, still_s: float) -> bool:
        return (key.node_id, key.accelerator_index) in self._active and still_s >= self._limits.frozen_after_s

    def _note_context(self, reading: pb.Reading) -> None:
        """Remember which devices work and what the limits are, whatever the order of the readings."""
        if not reading.HasField("value"):
            return
        metric = reading.metric
        index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
        if metric == ACTIVITY_METRIC:
            if reading.value > 0:
                self._active.add((reading.node_id, index))
            return
        value = convert(reading.value, reading.unit, METRICS[metric].unit)
        if value is not None:
            self._limit_values[reading.node_id, index, metric] = value

    # --- problems ----------------------------------------------------------------------------------------------------

    def _set_aside(self, key: SeriesKey, kind: IssueKind, detail: str) -> None:
        self.issues.append(Issue(kind, key.node_id, key.accelerator_index, key.metric[:128], detail))

    def _place_problem(self, key: SeriesKey, spec: MetricSpec) -> str | None:
        if not key.node_id:
            scope = Scope.DOMAIN
        elif key.node_id not in self._devices:
            return f"node {key.node_id[:128]!r} is not in the inventory"
        elif key.accelerator_index == WHOLE_NODE:
            scope = Scope.NODE
        elif key.accelerator_index not in self._devices[key.node_id]:
            return f"accelerator {key.accelerator_index} is not in the inventory"
        else:
            scope = Scope.ACCELERATOR
        return None if scope in spec.scopes else f"{spec.name} is not read of a whole {scope}"

    def _time_problem(
        self, reading: pb.Reading, spec: MetricSpec, observed_at_s: float, known: Series | None
    ) -> tuple[IssueKind, str]:
        if not reading.HasField("observed_at"):
            return IssueKind.STALE, "the reading has no time"
        age_s = self._now_s - observed_at_s
        if age_s < -self._limits.clock_skew_s:
            return IssueKind.FROM_FUTURE, f"{-age_s:.1f} s ahead of our clock"
        if age_s > spec.stale_after_s or known is None:
            return IssueKind.STALE, f"{age_s:.0f} s old, the limit is {spec.stale_after_s:.0f} s"
        return IssueKind.STALE, f"{known.observed_at_s - observed_at_s:.1f} s older than the value that is known"

    def _value_problem(
        self, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, value: float | None
    ) -> tuple[IssueKind, str]:
        if not isfinite(reading.value):
            return IssueKind.NOT_A_NUMBER, f"the value is {reading.value}"
        if value is None:
            return IssueKind.WRONG_UNIT, f"unit {reading.unit[:32]!r} cannot be converted to {spec.unit!r}"
        if not spec.minimum <= value <= spec.maximum:
            return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit}, possible is {spec.minimum:g} to {spec.maximum:g}"
        limit = self._limit_values[key.node_id, key.accelerator_index, spec.limit_metric]
        return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit} used of {limit:g}"

    def missing(self) -> list[SeriesKey]:
        """Add an issue for each series that had a value, is silent beyond its limit and whose device is still listed."""
        return self._missing_among(self._known.items())

    def missing_of_listed(self, *, domain: bool) -> list[SeriesKey]:
        """As `missing`, of the nodes in this part of a report alone, and of the ``domain`` where that is said."""
        places = [(node_id, index) for node_id, indices in self._devices.items() for index in (WHOLE_NODE, *indices)]
        if domain:
            places.append(("", WHOLE_NODE))
        wanted = (SeriesKey(node_id, index, metric) for node_id, index in places for metric in METRICS)
        return self._missing_among((key, self._known[key]) for key in wanted if key in self._known)

    def _missing_among(self, known: Iterable[tuple[SeriesKey, Series]]) -> list[SeriesKey]:
        found = []
        now_s, forget_s, seen = self._now_s, self._limits.forget_series_after_s, self._seen
        for key, series in known:
            # Nothing that was read a moment ago is missed, whatever its limit.
            silent_s = now_s - series.observed_at_s
            if silent_s <= _SHORTEST_LIMIT_S or key in seen or series.reason:
                continue
            spec = METRICS.get(key.metric)
            if spec is None or self._place_problem(key, spec):
                continue
            if spec.stale_after_s < silent_s <= forget_s:
                detail = f"not read for {silent_s:.0f} s although the device is listed"
                self._set_aside(key, IssueKind.STALE, detail)
                found.append(key)
        return found


_SHORTEST_LIMIT_S = min(spec.stale_after_s for spec in METRICS.values())


def _canonical(reading: pb.Reading, spec: MetricSpec, value: float) -> pb.Reading:
    message = pb.Reading()
    message.CopyFrom(reading)
    message.value, message.unit, message.reason = value, spec.unit, ""
    return message
