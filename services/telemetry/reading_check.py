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
stands in its canonical unit is passed on as it came. What is known is kept by node, so that a report of few nodes costs
no more than these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import inf, isfinite
from operator import itemgetter
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


# A series of a node: the accelerator's index (-1: the node), and the metric; of a part of an accelerator `part_series`.
SeriesKey = tuple[int, str]


class Series(NamedTuple):
    """The newest reading of a series. Times in seconds since 1970.

    With a ``reason`` the present value is not known: there is none, or it is not to be believed (a frozen counter).
    """

    value: float | None
    observed_at_s: float
    source: int
    statistic: int
    # Reports in a row that brought a newer time and the same value, and the time of the first of them (0: none).
    unchanged_reports: int = 0
    # Time of the newest value in the history.
    history_at_s: float = 0.0
    unchanged_since_s: float = 0.0
    # Of an unknown value: `UnknownKind` of the contract.
    unknown_kind: int = 0
    reason: str = ""
    # Of a part of an accelerator.
    part_profile: str = ""
    part_memory_bytes: int = 0


# What is known of the nodes of a domain; the node "" is the domain itself.
SeriesOfNode = dict[SeriesKey, Series]
Known = Mapping[str, SeriesOfNode]


class HistoryRow(NamedTuple):
    """A value that enters the history."""

    node_id: str
    accelerator_index: int
    metric: str
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

    ``changed``: what each series is now, by node. ``standing``: the readings to pass on, in canonical units. ``history``:
    values that are due for the history. ``oldest_s``: time of the oldest reading that was taken, infinite for none.
    """

    def __init__(
        self,
        devices: Mapping[str, frozenset[int]],
        known: Known,
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
        self._seen: dict[str, set[SeriesKey]] = {}
        self.changed: dict[str, SeriesOfNode] = {}
        self.standing: list[pb.Reading] = []
        self.history: list[HistoryRow] = []
        self.issues: list[Issue] = []
        self.oldest_s = inf

    def run(self, readings: Iterable[pb.Reading]) -> None:
        """Check all readings."""
        # Going through a repeated field makes a new object of each message, asking one for a text a new text.
        items = [(reading, reading.node_id, reading.metric) for reading in readings]
        for reading, node_id, metric in items:
            if metric in _CONTEXT_METRICS and not reading.HasField("part"):
                self._note_context(reading, node_id, metric)
        for node_id, of_node in groupby(items, _node_of):
            self._run_node(node_id, of_node)
        self.changed = {node_id: found for node_id, found in self.changed.items() if found}

    def _run_node(self, node_id: str, items: Iterable[tuple[pb.Reading, str, str]]) -> None:
        """Readings of one node that follow each other."""
        now_s, skew_s, oldest_s = self._now_s, self._limits.clock_skew_s, self.oldest_s
        known_series, indices = self._known.get(node_id, _NOTHING), self._devices.get(node_id)
        seen, changed = self._seen.setdefault(node_id, set()), self.changed.setdefault(node_id, {})
        take_value, fields_of = self._take_value, _FIELDS.get
        for reading, _, metric in items:
            index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
            fields = fields_of(metric)
            if fields is None:
                detail = f"{metric[:128]!r} is not in the catalogue of metrics"
                self._set_aside(node_id, (index, metric), IssueKind.UNKNOWN_METRIC, detail)
                continue
            spec, name, stale_after_s, of_nodes, of_accelerators = fields[:5]
            key = (index, name)
            if indices is None or not (of_nodes if index == WHOLE_NODE else (of_accelerators and index in indices)):
                place = self._place_problem(node_id, index, spec)
                if place is not None:
                    self._set_aside(node_id, key, IssueKind.UNKNOWN_DEVICE, place)
                    continue
            part = reading.part if reading.HasField("part") else None
            if part is not None:
                if index == WHOLE_NODE or not is_part_id(part.id):
                    detail = f"{part.id[:64]!r} is no part of an accelerator"
                    self._set_aside(node_id, key, IssueKind.UNKNOWN_DEVICE, detail)
                    continue
                key = (index, part_series(name, part.id))
            if key in seen:
                self._set_aside(node_id, key, IssueKind.DUPLICATE, "the report has read this before")
                continue
            seen.add(key)
            stamp = reading.observed_at
            observed_at_s = stamp.seconds + stamp.nanos * 1e-9
            known = known_series.get(key)
            if (
                not -skew_s <= now_s - observed_at_s <= stale_after_s
                or (known is not None and observed_at_s < known[1])
                or (observed_at_s == 0 and not reading.HasField("observed_at"))
            ):
                self._set_aside(node_id, key, *self._time_problem(reading, spec, observed_at_s, known))
                continue
            if reading.HasField("value"):
                found = take_value(node_id, key, fields, reading, observed_at_s, known)
                if found is None:
                    continue
            else:
                found = self._take_unknown(node_id, key, spec, reading, observed_at_s, known)
            changed[key] = found if part is None else _described(found, part)
            if observed_at_s < oldest_s:  # noqa: PLR1730 (min() would be a call for each reading)
                oldest_s = observed_at_s
        self.oldest_s = oldest_s

    # --- values ------------------------------------------------------------------------------------------------------

    def _take_value(
        self,
        node_id: str,
        key: SeriesKey,
        fields: _Fields,
        reading: pb.Reading,
        observed_at_s: float,
        known: Series | None,
    ) -> Series | None:
        """What the series is now; None for a value that is set aside."""
        spec, _, _, _, _, unit, minimum, maximum, limit_metric, counter = fields
        raw, stated = reading.value, reading.unit
        value = raw if stated == unit else convert(raw, stated, unit)
        if (
            value is None
            or not (minimum <= value <= maximum and value < inf)
            or (limit_metric and value > self._limit_values.get((node_id, key[0], limit_metric), value))
        ):
            self._set_aside(node_id, key, *self._value_problem(node_id, key, spec, reading, value))
            return None
        unchanged, since_s, history_at_s, fresh, frozen = 0, 0.0, 0.0, True, ""
        if known is not None:
            history_at_s, fresh = known[5], observed_at_s > known[1]
            if counter and known[0] is not None:
                unchanged, since_s, frozen = self._standstill(node_id, key, spec, value, observed_at_s, known)
        if not frozen:
            if fresh and observed_at_s - history_at_s >= self._history_interval_s:
                self.history.append(HistoryRow(node_id, key[0], key[1], observed_at_s, value))
                history_at_s = observed_at_s
            self.standing.append(reading if stated == unit and not reading.reason else _canonical(reading, spec, value))
        # Not by the constructor, which takes twice as long.
        return _new_series(
            Series,
            (
                value, observed_at_s, reading.source, reading.statistic, unchanged, history_at_s, since_s,
                pb.UNKNOWN_KIND_FROZEN if frozen else 0, frozen, "", 0,
            ),
        )  # fmt: skip

    def _standstill(
        self, node_id: str, key: SeriesKey, spec: MetricSpec, value: float, observed_at_s: float, known: Series
    ) -> tuple[int, float, str]:
        """A counter of which a value is known: reports in a row with the same value, since when, and why it is frozen if it is."""
        assert known.value is not None
        if known.value != value:
            if value < known.value:
                detail = f"went back from {known.value:g} to {value:g} {spec.unit}"
                self._set_aside(node_id, key, IssueKind.COUNTER_RESET, detail)
            return 0, 0.0, ""
        unchanged = known.unchanged_reports + (1 if observed_at_s > known.observed_at_s else 0)
        since_s = known.unchanged_since_s or known.observed_at_s
        if (
            unchanged < self._limits.frozen_after_reports
            or observed_at_s - since_s < self._limits.frozen_after_s
            or (node_id, key[0]) not in self._active
        ):
            return unchanged, since_s, ""
        reason = f"unchanged at {value:g} {spec.unit} in {unchanged} reports while the device works"
        self._set_aside(node_id, key, IssueKind.FROZEN, reason)
        return unchanged, since_s, reason

    def _take_unknown(
        self,
        node_id: str,
        key: SeriesKey,
        spec: MetricSpec,
        reading: pb.Reading,
        observed_at_s: float,
        known: Series | None,
    ) -> Series:
        # PostgreSQL stores no NUL.
        reason = reading.reason[:MAX_REASON_CHARS].replace("\x00", "\ufffd") or NO_REASON
        kind = reading.unknown_kind
        fault = FAULTS.get(kind)
        if fault is not None:
            self._set_aside(node_id, key, fault, reason)
        unit = spec.unit
        if reading.unit == unit and reading.reason == reason:
            self.standing.append(reading)
        else:
            message = pb.Reading()
            message.CopyFrom(reading)
            message.unit, message.reason = unit, reason
            self.standing.append(message)
        history_at_s = known.history_at_s if known is not None else 0.0
        return Series(None, observed_at_s, reading.source, reading.statistic, 0, history_at_s, 0.0, kind, reason)

    def _note_context(self, reading: pb.Reading, node_id: str, metric: str) -> None:
        """Remember which devices work and what the limits are, whatever the order of the readings."""
        if not reading.HasField("value"):
            return
        index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
        if metric == ACTIVITY_METRIC:
            if reading.value > 0:
                self._active.add((node_id, index))
            return
        value = convert(reading.value, reading.unit, METRICS[metric].unit)
        if value is not None:
            self._limit_values[node_id, index, metric] = value

    # --- problems ----------------------------------------------------------------------------------------------------

    def _set_aside(self, node_id: str, key: SeriesKey, kind: IssueKind, detail: str) -> None:
        self.issues.append(Issue(kind, node_id, key[0], key[1][:128], detail))

    def _place_problem(self, node_id: str, index: int, spec: MetricSpec) -> str | None:
        if not node_id:
            scope = Scope.DOMAIN
        elif node_id not in self._devices:
            return f"node {node_id[:128]!r} is not in the inventory"
        elif index == WHOLE_NODE:
            scope = Scope.NODE
        elif index not in self._devices[node_id]:
            return f"accelerator {index} is not in the inventory"
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
        self, node_id: str, key: SeriesKey, spec: MetricSpec, reading: pb.Reading, value: float | None
    ) -> tuple[IssueKind, str]:
        if not isfinite(reading.value):
            return IssueKind.NOT_A_NUMBER, f"the value is {reading.value}"
        if value is None:
            return IssueKind.WRONG_UNIT, f"unit {reading.unit[:32]!r} cannot be converted to {spec.unit!r}"
        if not spec.minimum <= value <= spec.maximum or not isfinite(value):
            return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit}, possible is {spec.minimum:g} to {spec.maximum:g}"
        limit = self._limit_values[node_id, key[0], spec.limit_metric]
        return IssueKind.OUT_OF_RANGE, f"{value:g} {spec.unit} used of {limit:g}"

    def missing(self) -> float:
        """Add an issue for each series that had a value, is silent beyond its limit and whose device is still listed.

        Returns the time (seconds since 1970) before which nothing that was known before this report can be missing.
        """
        return quiet_until(min(self._missing_among(self._known), self._now_s))

    def missing_of_listed(self, *, domain: bool) -> None:
        """As `missing`, of the nodes in this part of a report alone, and of the ``domain`` where that is said."""
        self._missing_among([*self._devices, *([""] if domain else [])])

    def _missing_among(self, node_ids: Iterable[str]) -> float:
        """Returns the time of the oldest reading that may be missed one day and was not replaced in this report."""
        now_s, forget_s, oldest_s = self._now_s, self._limits.forget_series_after_s, inf
        for node_id in node_ids:
            changed = self.changed.get(node_id, _NOTHING)
            seen = self._seen.get(node_id, _NONE)
            for key, series in self._known.get(node_id, _NOTHING).items():
                silent_s = now_s - series.observed_at_s
                if key in changed or series.reason or silent_s > forget_s:
                    continue
                oldest_s = min(oldest_s, series.observed_at_s)
                if silent_s <= _SHORTEST_LIMIT_S or key in seen:
                    continue
                spec = METRICS.get(key[1])
                if spec is None or self._place_problem(node_id, key[0], spec):
                    continue
                if spec.stale_after_s < silent_s:
                    detail = f"not read for {silent_s:.0f} s although the device is listed"
                    self._set_aside(node_id, key, IssueKind.STALE, detail)
        return oldest_s


_new_series: Callable[[type[Series], tuple[object, ...]], Series] = tuple.__new__
_node_of = itemgetter(1)
_NOTHING: SeriesOfNode = {}
_NONE: frozenset[SeriesKey] = frozenset()
_Fields = tuple[MetricSpec, str, float, bool, bool, str, float, float, str, bool]
# What is asked of a metric for every reading: a tuple is taken apart sooner than ten attributes are read.
_FIELDS: Mapping[str, _Fields] = {
    name: (
        spec, spec.name, spec.stale_after_s, spec.of_nodes, spec.of_accelerators, spec.unit, spec.minimum, spec.maximum,
        spec.limit_metric, spec.counter,
    )
    for name, spec in METRICS.items()
}  # fmt: skip
_SHORTEST_LIMIT_S = min(spec.stale_after_s for spec in METRICS.values())


def quiet_until(oldest_s: float) -> float:
    """The time before which a series that was read at ``oldest_s`` or later cannot be missing."""
    return oldest_s + _SHORTEST_LIMIT_S


def _described(series: Series, part: pb.AcceleratorPart) -> Series:
    # PostgreSQL stores no NUL.
    profile = part.profile[:MAX_PROFILE_CHARS].replace("\x00", "\ufffd")
    return series._replace(part_profile=profile, part_memory_bytes=max(part.memory_bytes, 0))


def _canonical(reading: pb.Reading, spec: MetricSpec, value: float) -> pb.Reading:
    message = pb.Reading()
    message.CopyFrom(reading)
    message.value, message.unit, message.reason = value, spec.unit, ""
    return message
