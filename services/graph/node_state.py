"""The state of a node, by rule. Pure: signals and the previous rule in, state with the rule and its reason out.

The first rule that holds decides:

=============  ===========  ========================================================================================
rule           state        holds when
=============  ===========  ========================================================================================
declared-dead  failed       failover declared the node dead; until it recovers or is forgotten
suspected      unreachable  failover suspects the node: its beats are overdue
domain-silent  unreachable  the agent of the domain is not heard
asleep         asleep       the label ``power_state`` of the node says ``asleep``
health-failed  failing      an accelerator or the node reports health 0
health-poor    degraded     an accelerator or the node reports health below 1
hot            degraded     an accelerator reaches 90 Cel; until all are below 85
bad-readings   degraded     a counter is frozen, or a vital metric is stale, impossible or no number
old-readings   degraded     the newest observation of the domain is older than 30 s
allocated      busy         no accelerator has free capacity (at most 1 % of them on average)
utilised       busy         mean utilisation of the accelerators reaches 90 %, until it is below 80 %; for a node without
                            accelerators the utilisation of its processors at 95 %, until below 85 %
fit            healthy      none of the above
=============  ===========  ========================================================================================

Two thresholds, to enter and to leave, keep a node from flapping. What is unknown triggers no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from meridian.contracts.graph.v1 import graph_pb2


class NodeState(IntEnum):
    """Numbers of the contract's ``NodeState``."""

    UNSPECIFIED = graph_pb2.NODE_STATE_UNSPECIFIED
    HEALTHY = graph_pb2.NODE_STATE_HEALTHY
    BUSY = graph_pb2.NODE_STATE_BUSY
    DEGRADED = graph_pb2.NODE_STATE_DEGRADED
    FAILING = graph_pb2.NODE_STATE_FAILING
    UNREACHABLE = graph_pb2.NODE_STATE_UNREACHABLE
    ASLEEP = graph_pb2.NODE_STATE_ASLEEP
    FAILED = graph_pb2.NODE_STATE_FAILED


class Incident(StrEnum):
    """What failover says of a node at present."""

    NONE = "none"
    SUSPECTED = "suspected"
    FAILED = "failed"


class Rule(StrEnum):
    """The names of the rules, in the order in which they are tried."""

    DECLARED_DEAD = "declared-dead"
    SUSPECTED = "suspected"
    DOMAIN_SILENT = "domain-silent"
    ASLEEP = "asleep"
    HEALTH_FAILED = "health-failed"
    HEALTH_POOR = "health-poor"
    HOT = "hot"
    BAD_READINGS = "bad-readings"
    OLD_READINGS = "old-readings"
    ALLOCATED = "allocated"
    UTILISED = "utilised"
    FIT = "fit"
    # Not rules of this module: the trained model decided, see `services.graph.recognition.judgement`.
    MODEL_HEALTHY = "model-healthy"
    MODEL_BUSY = "model-busy"
    MODEL_DEGRADED = "model-degraded"
    MODEL_FAILING = "model-failing"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where the rules begin and end to hold. Temperatures in Celsius, shares 0-1."""

    hot_enter_celsius: float = 90.0
    hot_leave_celsius: float = 85.0
    accelerator_busy_enter: float = 0.90
    accelerator_busy_leave: float = 0.80
    cpu_busy_enter: float = 0.95
    cpu_busy_leave: float = 0.85
    free_capacity: float = 0.01
    silent_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class NodeSignals:
    """What is known of a node now; None is unknown. ``observation_age_s``: age of the domain's newest observation."""

    incident: Incident = Incident.NONE
    incident_reason: str = ""
    domain_silence: str = ""
    asleep: bool = False
    accelerators: int = 0
    health: float | None = None
    hottest_celsius: float | None = None
    bad_readings: tuple[str, ...] = ()
    observation_age_s: float = 0.0
    free_capacity: float | None = None
    accelerator_utilization: float | None = None
    cpu_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """A state, the rule that gave it and why it held."""

    state: NodeState
    rule: Rule
    reason: str


def _reaches(value: float | None, enter: float, leave: float, *, held: bool) -> bool:
    return value is not None and value >= (leave if held else enter)


def _utilised(signals: NodeSignals, previous: Rule | None, limits: Thresholds) -> str:
    held = previous is Rule.UTILISED
    if signals.accelerators:
        value = signals.accelerator_utilization
        if _reaches(value, limits.accelerator_busy_enter, limits.accelerator_busy_leave, held=held):
            return f"accelerators are utilised at {value:.0%}"
    elif _reaches(signals.cpu_utilization, limits.cpu_busy_enter, limits.cpu_busy_leave, held=held):
        return f"processors are utilised at {signals.cpu_utilization:.0%}"
    return ""


def _hot(signals: NodeSignals, previous: Rule | None, limits: Thresholds) -> str:
    value = signals.hottest_celsius
    if _reaches(value, limits.hot_enter_celsius, limits.hot_leave_celsius, held=previous is Rule.HOT):
        return f"an accelerator has {value:.0f} Cel"
    return ""


def _allocated(signals: NodeSignals, limits: Thresholds) -> str:
    free = signals.free_capacity
    return (
        "every accelerator is allocated"
        if signals.accelerators and free is not None and free <= limits.free_capacity
        else ""
    )


def _health(signals: NodeSignals, *, failed: bool) -> str:
    health = signals.health
    if health is None or health >= 1 or (health <= 0) is not failed:
        return ""
    return f"health {health:g} is reported"


def _bad_readings(signals: NodeSignals) -> str:
    shown = "; ".join(signals.bad_readings[:3])
    more = len(signals.bad_readings) - 3
    return f"{shown}; and {more} more" if more > 0 else shown


def _old_readings(signals: NodeSignals, limits: Thresholds) -> str:
    if signals.observation_age_s <= limits.silent_after_s:
        return ""
    return f"no observation of the domain for more than {limits.silent_after_s:.0f} s"


def node_state(signals: NodeSignals, previous: Rule | None = None, limits: Thresholds | None = None) -> Assessment:
    """Assess a node. ``previous``: the rule that decided last time, for the thresholds to leave a state."""
    limits = limits or Thresholds()
    declared = signals.incident_reason or "declared by failover"
    rules: tuple[tuple[Rule, NodeState, Callable[[], str]], ...] = (
        (Rule.DECLARED_DEAD, NodeState.FAILED, lambda: declared if signals.incident is Incident.FAILED else ""),
        (Rule.SUSPECTED, NodeState.UNREACHABLE, lambda: declared if signals.incident is Incident.SUSPECTED else ""),
        (Rule.DOMAIN_SILENT, NodeState.UNREACHABLE, lambda: signals.domain_silence),
        (Rule.ASLEEP, NodeState.ASLEEP, lambda: "its power state is asleep" if signals.asleep else ""),
        (Rule.HEALTH_FAILED, NodeState.FAILING, lambda: _health(signals, failed=True)),
        (Rule.HEALTH_POOR, NodeState.DEGRADED, lambda: _health(signals, failed=False)),
        (Rule.HOT, NodeState.DEGRADED, lambda: _hot(signals, previous, limits)),
        (Rule.BAD_READINGS, NodeState.DEGRADED, lambda: _bad_readings(signals)),
        (Rule.OLD_READINGS, NodeState.DEGRADED, lambda: _old_readings(signals, limits)),
        (Rule.ALLOCATED, NodeState.BUSY, lambda: _allocated(signals, limits)),
        (Rule.UTILISED, NodeState.BUSY, lambda: _utilised(signals, previous, limits)),
    )
    for rule, state, holds in rules:
        reason = holds()
        if reason:
            return Assessment(state, rule, reason)
    return Assessment(NodeState.HEALTHY, Rule.FIT, "")
