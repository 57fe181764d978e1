"""The rules of node states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.graph.node_state import Incident, NodeSignals, NodeState, Rule, node_state

SIGNALS = NodeSignals(accelerators=2)


@pytest.mark.parametrize(
    ("signals", "state", "rule"),
    [
        (SIGNALS, NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(incident=Incident.FAILED), NodeState.FAILED, Rule.DECLARED_DEAD),
        (NodeSignals(incident=Incident.SUSPECTED), NodeState.UNREACHABLE, Rule.SUSPECTED),
        (NodeSignals(domain_silence="no beat"), NodeState.UNREACHABLE, Rule.DOMAIN_SILENT),
        (NodeSignals(asleep=True), NodeState.ASLEEP, Rule.ASLEEP),
        (NodeSignals(health=0.0), NodeState.FAILING, Rule.HEALTH_FAILED),
        (NodeSignals(health=0.5), NodeState.DEGRADED, Rule.HEALTH_POOR),
        (NodeSignals(health=1.0), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(hottest_celsius=90.0), NodeState.DEGRADED, Rule.HOT),
        (NodeSignals(hottest_celsius=89.9), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(bad_readings=("hw.energy is frozen",)), NodeState.DEGRADED, Rule.BAD_READINGS),
        (NodeSignals(observation_age_s=30.1), NodeState.DEGRADED, Rule.OLD_READINGS),
        (NodeSignals(observation_age_s=30.0), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(accelerators=2, free_capacity=0.0), NodeState.BUSY, Rule.ALLOCATED),
        (NodeSignals(accelerators=0, free_capacity=0.0), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(accelerators=2, free_capacity=0.5), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(accelerators=2, accelerator_utilization=0.9), NodeState.BUSY, Rule.UTILISED),
        (NodeSignals(accelerators=2, cpu_utilization=1.0), NodeState.HEALTHY, Rule.FIT),
        (NodeSignals(accelerators=0, cpu_utilization=0.95), NodeState.BUSY, Rule.UTILISED),
    ],
)
def test_each_rule(signals: NodeSignals, state: NodeState, rule: Rule) -> None:
    found = node_state(signals)
    assert (found.state, found.rule) == (state, rule)
    assert bool(found.reason) == (rule is not Rule.FIT)


def test_the_graver_rule_decides() -> None:
    everything = NodeSignals(
        incident=Incident.FAILED, incident_reason="silent for 2 s", domain_silence="x", asleep=True, health=0.0,
        hottest_celsius=99, bad_readings=("x",), observation_age_s=99, accelerators=1, free_capacity=0.0,
    )  # fmt: skip
    found = node_state(everything)
    assert (found.state, found.reason) == (NodeState.FAILED, "silent for 2 s")


@pytest.mark.parametrize(
    ("value", "before", "state"),
    [
        (0.85, None, NodeState.HEALTHY),
        (0.85, Rule.UTILISED, NodeState.BUSY),
        (0.79, Rule.UTILISED, NodeState.HEALTHY),
        (0.85, Rule.HOT, NodeState.HEALTHY),
    ],
)
def test_a_state_is_left_at_another_threshold(value: float, before: Rule | None, state: NodeState) -> None:
    assert node_state(NodeSignals(accelerators=1, accelerator_utilization=value), before).state is state


def test_heat_has_two_thresholds() -> None:
    assert node_state(NodeSignals(hottest_celsius=86), Rule.HOT).rule is Rule.HOT
    assert node_state(NodeSignals(hottest_celsius=86), None).rule is Rule.FIT


signals = st.builds(
    NodeSignals,
    incident=st.sampled_from(Incident),
    incident_reason=st.text(max_size=3),
    domain_silence=st.sampled_from(["", "silent"]),
    asleep=st.booleans(),
    accelerators=st.integers(0, 8),
    health=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    hottest_celsius=st.none() | st.floats(0, 120),
    bad_readings=st.lists(st.sampled_from(["a", "b"]), max_size=5).map(tuple),
    observation_age_s=st.floats(-5, 100),
    free_capacity=st.none() | st.floats(0, 1),
    accelerator_utilization=st.none() | st.floats(0, 1),
    cpu_utilization=st.none() | st.floats(0, 1),
)


@given(signals, st.none() | st.sampled_from(Rule))
def test_a_state_once_reached_holds_while_nothing_changes(found: NodeSignals, before: Rule | None) -> None:
    first = node_state(found, before)
    assert node_state(found, first.rule) == first
    assert first.state is not NodeState.UNSPECIFIED
    assert (first.state is NodeState.FAILED) == (found.incident is Incident.FAILED)
