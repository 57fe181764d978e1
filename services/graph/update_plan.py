"""What is to be published of a domain now: a pure decision over its facts and what consumers know."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from meridian.contracts.graph.v1 import graph_pb2
from services.graph.facts import Decided, DomainFacts, NodeIncident
from services.graph.image import (
    Difference,
    DomainImage,
    Judge,
    StateChange,
    applied,
    build_image,
    difference,
    state_changes,
    whole,
)
from services.graph.node_state import Thresholds


class ChangeKind(StrEnum):
    """Kinds of the change log. An image repeats what is known, the others are changes."""

    STRUCTURE = "structure"
    METRICS = "metrics"
    IMAGE = "image"


@dataclass(slots=True)
class TrackedDomain:
    """The facts of a domain, and what was told about it and when (seconds since 1970; 0 never).

    ``observed``: an observation was folded since it was loaded.
    """

    facts: DomainFacts
    published: DomainImage = field(default_factory=DomainImage)
    metrics_published_at_s: float = 0.0
    image_published_at_s: float = 0.0
    image_logged_at_s: float = 0.0
    observed: bool = False
    # Time of the oldest reading that was told; 0: not known in this process.
    oldest_told_s: float = 0.0
    # As stored: the node as published, its bad readings, the rule; and when the domain was stored (NaN: not as it is now).
    stored: dict[str, tuple[graph_pb2.GraphNode, tuple[str, ...], Decided]] = field(default_factory=dict)
    stored_at_s: float = math.nan
    stored_incidents: dict[str, NodeIncident] = field(default_factory=dict)

    def state_of(self, node_id: str) -> tuple[graph_pb2.GraphNode, tuple[str, ...], Decided]:
        """What is stored of a node beside its readings."""
        facts = self.facts
        return self.published.nodes[node_id], facts.bad_readings.get(node_id, ()), facts.decided[node_id]

    def unsaved(self) -> list[str]:
        """Nodes that are not stored as they are now. Messages and decisions are replaced, never changed: identity tells."""
        found = []
        for node_id in self.published.nodes:
            before, now = self.stored.get(node_id), self.state_of(node_id)
            same = before is not None and before[0] is now[0] and before[1] == now[1] and before[2] is now[2]
            if not same or node_id in self.facts.touched:
                found.append(node_id)
        return found

    def leave(self, now_s: float) -> None:
        """It left the network: only that its nodes are gone is told, no image follows."""
        if self.published.nodes:
            self.image_published_at_s = now_s
        else:
            self.facts.inventory = None

    def saved(self, now_s: float) -> None:
        """All of it was stored."""
        self.stored = {node_id: self.state_of(node_id) for node_id in self.published.nodes}
        self.stored_incidents = dict(self.facts.incidents)
        self.facts.touched.clear()
        self.stored_at_s = now_s


@dataclass(frozen=True, slots=True)
class Pace:
    """Of the settings, see there."""

    metric_refresh_s: float
    metric_tolerance: float
    image_interval_s: float
    log_image_interval_s: float
    reading_ttl_s: float


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """An update without its version. ``logged``: it enters the change log."""

    update: graph_pb2.GraphUpdated
    kind: ChangeKind
    logged: bool
    states: tuple[StateChange, ...] = ()


def _due(at_s: float, now_s: float, interval_s: float) -> bool:
    """Whether the interval has passed since ``at_s``; also when the clock was set back, as nobody knows how long it was."""
    return not 0 <= now_s - at_s < interval_s


def plan_updates(
    domain: TrackedDomain, now_s: float, pace: Pace, limits: Thresholds, judge: Judge | None = None
) -> list[PlannedUpdate]:
    """The updates that are due; ``domain`` then stands as if they were published.

    1. A domain that was never shown, and one that lost a link, is shown whole.
    2. Otherwise what changed in structure or state is told at once, metrics alone at their pace, or when all are newer by so much.
    3. The whole image follows regularly, for those who missed something; not of a silent domain whose nodes are gone, which is on its
       way to be forgotten by all.
    """
    facts = domain.facts
    if facts.inventory is None:
        return []
    facts.forget_readings_before(now_s - pace.reading_ttl_s)
    after, decided = build_image(facts, now_s, limits, judge)
    metrics_due = _due(domain.metrics_published_at_s, now_s, pace.metric_refresh_s)
    # A report of everything may follow one of few readings at once: it must not wait because of that one.
    if domain.oldest_told_s and facts.oldest_reading_s() - domain.oldest_told_s >= pace.metric_refresh_s:
        metrics_due = True
    if not domain.image_published_at_s:
        found: Difference | None = Difference(whole(after), structure=True)
    else:
        found = difference(domain.published, after, metrics=metrics_due, tolerance=pace.metric_tolerance)
    states = state_changes(domain.published, after, facts.decided, decided)
    facts.decided = decided
    planned = []
    if found is not None:
        domain.published = applied(domain.published, [found.update])
        kind = ChangeKind.STRUCTURE if found.structure else ChangeKind.METRICS
        planned.append(PlannedUpdate(found.update, kind, logged=True, states=tuple(states)))
        if metrics_due:
            domain.metrics_published_at_s = now_s
            domain.oldest_told_s = facts.oldest_reading_s()
        if found.update.full:
            domain.image_published_at_s = domain.image_logged_at_s = now_s
    if _due(domain.image_published_at_s, now_s, pace.image_interval_s):
        logged = _due(domain.image_logged_at_s, now_s, pace.log_image_interval_s)
        if domain.published.nodes or not facts.silence:
            planned.append(PlannedUpdate(whole(domain.published), ChangeKind.IMAGE, logged))
        domain.image_published_at_s = now_s
        if logged:
            domain.image_logged_at_s = now_s
    for item in planned:
        item.update.domain_id = facts.domain_id
        # Without metrics an update makes those that were told no younger.
        oldest_s = min(facts.oldest_reading_s(), domain.oldest_told_s or facts.oldest_reading_s())
        item.update.oldest_reading_at.FromNanoseconds(int(oldest_s * 1e9))
        # Of the same precision as the log, so that the graph can be asked for as of exactly this time.
        item.update.updated_at.FromDatetime(datetime.fromtimestamp(now_s, UTC))
    return planned
