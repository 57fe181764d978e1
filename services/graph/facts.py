"""What is known of one domain: its inventory, newest readings, identities and incidents. Folded from events, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from services.graph.node_state import Incident, NodeSignals, Rule

UTILIZATION = "hw.gpu.utilization"
FREE_CAPACITY = "cpn.compute.capacity_free"
TEMPERATURE = "hw.temperature"
HEALTH = "cpn.health"
CPU_UTILIZATION = "system.cpu.utilization"
# Metrics that the state of a node rests on: a bad reading of one is a sign that something is wrong with the node.
VITAL = frozenset({UTILIZATION, FREE_CAPACITY, HEALTH})
_BAD_KINDS = {
    telemetry_pb2.QUALITY_ISSUE_KIND_OUT_OF_RANGE: "impossible",
    telemetry_pb2.QUALITY_ISSUE_KIND_STALE: "stale",
    telemetry_pb2.QUALITY_ISSUE_KIND_NOT_A_NUMBER: "no number",
    telemetry_pb2.QUALITY_ISSUE_KIND_FROZEN: "frozen",
}
POWER_STATE_LABEL = "power_state"
WHOLE_NODE = -1
# Clocks of services differ by less.
AHEAD_S = 60.0

# metric -> accelerator index (-1: the node) -> value and time in seconds since 1970
Readings = dict[str, dict[int, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The identity of a node (``index`` -1) or accelerator."""

    identity_id: str
    node_id: str
    index: int
    issued_at_s: float
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class NodeIncident:
    """What failover said last of a node."""

    incident: Incident
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Decided:
    """The rule in force for a node (or the model, by the name of its state), and since when."""

    rule: Rule
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What the readings of a node come to: ``metrics`` of the node as a whole, and what the rules look at; None is unknown."""

    metrics: Mapping[str, float]
    health: float | None
    hottest_celsius: float | None
    free_capacity: float | None
    accelerator_utilization: float | None
    cpu_utilization: float | None


@dataclass(slots=True)
class PartsHeard:
    """What came of a report in parts. A process that takes the domain over within one waits for the next."""

    report_id: str
    numbers: set[int] = field(default_factory=set)
    node_ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class DomainFacts:
    """Everything about one domain; changed in place while a batch of events is folded."""

    domain_id: str
    inventory: resource_pb2.DomainInventory | None = None
    observed_at_s: float = 0.0
    silence: str = ""
    readings: dict[str, Readings] = field(default_factory=dict)
    bad_readings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    incidents: dict[str, NodeIncident] = field(default_factory=dict)
    decided: dict[str, Decided] = field(default_factory=dict)
    # Nodes of which readings changed since they were stored.
    touched: set[str] = field(default_factory=set)
    # Of a report that comes in parts: its id, the numbers of the parts that came, and their nodes.
    parts: PartsHeard | None = None
    # Of `oldest_reading_s`, while no reading changes, and of `figures`, while none of the node does.
    _oldest_s: float | None = None
    _figures: dict[str, Figures] = field(default_factory=dict)

    # -- folding -------------------------------------------------------------------------------------------------

    def observe(self, observation: telemetry_pb2.ObservationRecorded, now_s: float) -> None:
        """Take the inventory and the readings. Readings that were set aside are no longer known.

        What is older than the newest is passed over, unless that was `AHEAD_S` ahead of ``now_s``: then a clock was set back.
        """
        observed_at_s = observation.observed_at.ToNanoseconds() / 1e9
        if observed_at_s < self.observed_at_s:
            if self.observed_at_s <= now_s + AHEAD_S:
                return
            self._forget_readings(lambda at_s: at_s > now_s + AHEAD_S)
        self.observed_at_s = observed_at_s
        listed = {node.node_id for node in observation.inventory.nodes}
        if observation.HasField("part"):
            self._take_part(observation.inventory, listed, observation.part)
        else:
            self.inventory, self.parts, self.bad_readings = observation.inventory, None, {}
            self.readings = {node_id: found for node_id, found in self.readings.items() if node_id in listed}
        # Before the readings: one that has an issue and stands, as that of a counter that began anew, is known.
        self._take_issues(observation.issues, listed)
        self._oldest_s = None
        for gone in self._figures.keys() - self.readings.keys():
            del self._figures[gone]
        # Readings of a node follow each other.
        at_node: str | None = None
        taken = False
        found: Readings = {}
        for reading in observation.readings:
            node_id = reading.node_id
            if node_id != at_node:
                at_node, taken = node_id, node_id in listed
                found = self.readings.get(node_id, {})
                self._figures.pop(node_id, None)
            # A part of an accelerator is not the accelerator.
            if not taken or reading.HasField("part"):
                continue
            index = reading.accelerator_index if reading.HasField("accelerator_index") else WHOLE_NODE
            metric = reading.metric
            if not reading.HasField("value"):
                self._forget(node_id, metric, index)
                continue
            if not found:
                found = self.readings.setdefault(node_id, found)
            series = found.get(metric)
            if series is None:
                series = found[metric] = {}
            stamp = reading.observed_at
            series[index] = reading.value, stamp.seconds + stamp.nanos * 1e-9
            self.touched.add(node_id)

    def _take_part(
        self, inventory: resource_pb2.DomainInventory, listed: set[str], part: resource_pb2.ReportPart
    ) -> None:
        """Its nodes stand for what was known of them, the others stay; after the last part those that none listed go."""
        if self.parts is None or self.parts.report_id != part.report_id:
            self.parts = PartsHeard(part.report_id)
        heard = self.parts
        # A node whose readings go on in the next part is listed in both.
        for node_id in listed - heard.node_ids:
            self.bad_readings.pop(node_id, None)
        heard.numbers.add(part.number)
        heard.node_ids |= listed
        whole = len(heard.numbers) == part.of
        known = self.inventory.nodes if self.inventory is not None else ()
        fresh = {node.node_id: node for node in inventory.nodes}
        kept = [fresh.pop(node.node_id, node) for node in known if not whole or node.node_id in heard.node_ids]
        merged = resource_pb2.DomainInventory()
        merged.CopyFrom(inventory)
        del merged.nodes[:]
        merged.nodes.extend([*kept, *fresh.values()])
        self.inventory = merged
        if whole:
            self.readings = {node_id: found for node_id, found in self.readings.items() if node_id in heard.node_ids}
            self.bad_readings = {name: bad for name, bad in self.bad_readings.items() if name in heard.node_ids}
            self.parts = None

    def _take_issues(self, issues: Iterable[telemetry_pb2.QualityIssue], listed: set[str]) -> None:
        bad: dict[str, list[str]] = {}
        for issue in issues:
            if issue.node_id not in listed:
                continue
            index = issue.accelerator_index if issue.HasField("accelerator_index") else WHOLE_NODE
            if issue.kind == telemetry_pb2.QUALITY_ISSUE_KIND_DUPLICATE:
                continue
            self._forget(issue.node_id, issue.metric, index)
            frozen = issue.kind == telemetry_pb2.QUALITY_ISSUE_KIND_FROZEN
            if issue.kind in _BAD_KINDS and (frozen or issue.metric in VITAL):
                place = "" if index == WHOLE_NODE else f" of accelerator {index}"
                bad.setdefault(issue.node_id, []).append(f"{issue.metric}{place} is {_BAD_KINDS[issue.kind]}")
        for node_id, found in bad.items():
            self.bad_readings[node_id] = tuple(sorted({*self.bad_readings.get(node_id, ()), *found}))

    def _forget(self, node_id: str, metric: str, index: int) -> None:
        series = self.readings.get(node_id, {}).get(metric)
        if series is not None:
            self.touched.add(node_id)
            self._figures.pop(node_id, None)
            series.pop(index, None)
            if not series:
                del self.readings[node_id][metric]

    def forget_readings_before(self, limit_s: float) -> None:
        """Drop values older than ``limit_s``."""
        if self.oldest_reading_s() < limit_s:
            self._forget_readings(lambda at_s: at_s < limit_s)

    def _forget_readings(self, is_gone: Callable[[float], bool]) -> None:
        self._oldest_s = None
        self._figures.clear()
        for node_id, found in self.readings.items():
            for metric, series in list(found.items()):
                if not any(is_gone(at_s) for _, at_s in series.values()):
                    continue
                self.touched.add(node_id)
                found[metric] = {index: item for index, item in series.items() if not is_gone(item[1])}
                if not found[metric]:
                    del found[metric]

    def certify(self, event: identity_pb2.IdentityIssued) -> None:
        """A node or accelerator has an identity."""
        index = event.accelerator_index if event.HasField("accelerator_index") else WHOLE_NODE
        issued_at_s = event.issued_at.ToNanoseconds() / 1e9
        self.certificates[event.identity_id] = Certificate(event.identity_id, event.node_id, index, issued_at_s)

    def revoke(self, event: identity_pb2.IdentityRevoked) -> None:
        """An identity must not be accepted any more."""
        known = self.certificates.get(event.identity_id)
        if known is not None:
            self.certificates[event.identity_id] = replace(known, revoked=True)

    def suffer(
        self,
        event: failover_pb2.NodeSuspected
        | failover_pb2.NodeFailed
        | failover_pb2.NodeRecovered
        | failover_pb2.NodeForgotten
        | failover_pb2.DomainUnreachable
        | failover_pb2.DomainReachable
        | failover_pb2.DomainForgotten,
    ) -> None:
        """What failover found."""
        at_s = event.at.ToNanoseconds() / 1e9
        if isinstance(event, failover_pb2.DomainUnreachable):
            self.silence = event.reason or "the agent of the domain is not heard"
        elif isinstance(event, failover_pb2.DomainReachable):
            self.silence = ""
        elif isinstance(event, failover_pb2.DomainForgotten):
            self.silence, self.incidents = "", {}
            if self.inventory is not None:
                self.inventory.ClearField("nodes")
        elif isinstance(event, failover_pb2.NodeRecovered | failover_pb2.NodeForgotten):
            self.incidents.pop(event.node_id, None)
        else:
            incident = Incident.FAILED if isinstance(event, failover_pb2.NodeFailed) else Incident.SUSPECTED
            known = self.incidents.get(event.node_id)
            # A node that is declared dead stays so until it recovers or is forgotten.
            if known is None or known.incident is not Incident.FAILED:
                self.incidents[event.node_id] = NodeIncident(incident, event.reason, at_s)

    # -- looking -------------------------------------------------------------------------------------------------

    def identities(self) -> dict[tuple[str, int], Certificate]:
        """The newest identity of each node and accelerator; one that stands counts before a revoked one."""
        ordered = sorted(self.certificates.values(), key=lambda item: (not item.revoked, item.issued_at_s))
        return {(item.node_id, item.index): item for item in ordered}

    def oldest_reading_s(self) -> float:
        """Time of the oldest reading that stands; that of the observation when there is none."""
        if self._oldest_s is None:
            times = [
                at_s for found in self.readings.values() for series in found.values() for _, at_s in series.values()
            ]
            self._oldest_s = min(times, default=self.observed_at_s)
        return self._oldest_s

    def figures(self, node_id: str) -> Figures:
        """What the readings of a node come to."""
        known = self._figures.get(node_id)
        if known is None:
            known = self._figures[node_id] = _figures_of(self.readings.get(node_id, {}))
        return known

    def signals(self, node: resource_pb2.NodeInventory, now_s: float) -> NodeSignals:
        """What the rules of `node_state` look at."""
        node_id = node.node_id
        found = self.figures(node_id)
        incident = self.incidents.get(node_id)
        return NodeSignals(
            incident=incident.incident if incident else Incident.NONE,
            incident_reason=incident.reason if incident else "",
            domain_silence=self.silence,
            asleep=node.labels.get(POWER_STATE_LABEL, "") == "asleep",
            accelerators=len(node.accelerators),
            health=found.health,
            hottest_celsius=found.hottest_celsius,
            bad_readings=self.bad_readings.get(node_id, ()),
            observation_age_s=now_s - self.observed_at_s,
            free_capacity=found.free_capacity,
            accelerator_utilization=found.accelerator_utilization,
            cpu_utilization=found.cpu_utilization,
        )


def _figures_of(found: Readings) -> Figures:
    health = found.get(HEALTH)
    cpu = found.get(CPU_UTILIZATION, {}).get(WHOLE_NODE)
    return Figures(
        metrics=node_metrics(found),
        health=min([value for value, _ in health.values()]) if health else None,
        hottest_celsius=max(chip_values(found, TEMPERATURE), default=None),
        free_capacity=_mean(chip_values(found, FREE_CAPACITY)),
        accelerator_utilization=_mean(chip_values(found, UTILIZATION)),
        cpu_utilization=cpu[0] if cpu else None,
    )


def chip_values(found: Mapping[str, Mapping[int, tuple[float, float]]], metric: str) -> list[float]:
    """The values of a metric on the accelerators of a node."""
    series = found.get(metric)
    return [value for index, (value, _) in series.items() if index != WHOLE_NODE] if series else []


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def node_metrics(found: Readings) -> dict[str, float]:
    """Value per metric of the node as a whole: what was read of the node, else the mean over its accelerators."""
    metrics = {}
    for metric, series in found.items():
        whole = series.get(WHOLE_NODE)
        if whole is not None:
            metrics[metric] = whole[0]
        elif series:
            metrics[metric] = sum([value for value, _ in series.values()]) / len(series)
    return metrics
