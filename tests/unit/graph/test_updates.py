"""Snapshot and updates give the later snapshot, whatever happens; and what is told when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from services.graph.facts import DomainFacts
from services.graph.image import DomainImage, LinkChange, applied, build_image, difference, link_change
from services.graph.node_state import NodeState, Thresholds
from services.graph.update_plan import ChangeKind, Pace, PlannedUpdate, TrackedDomain, plan_updates
from tests.unit.graph.build import NOW_S, issued, link, node, observation, revoked, stamp

PACE = Pace(metric_refresh_s=5, metric_tolerance=0.01, image_interval_s=60, log_image_interval_s=600, reading_ttl_s=60)
LIMITS = Thresholds()
UTILIZATION, FREE, HEALTH = "hw.gpu.utilization", "cpn.compute.capacity_free", "cpn.health"


def fold(domain: TrackedDomain, event: Any) -> None:
    facts = domain.facts
    if isinstance(event, telemetry_pb2.ObservationRecorded):
        facts.observe(event, NOW_S)
    elif isinstance(event, identity_pb2.IdentityIssued):
        facts.certify(event)
    elif isinstance(event, identity_pb2.IdentityRevoked):
        facts.revoke(event)
    else:
        facts.suffer(event)


def told(domain: TrackedDomain, at_s: float, *events: Any) -> list[PlannedUpdate]:
    for event in events:
        fold(domain, event)
    return plan_updates(domain, at_s, PACE, LIMITS)


def fresh() -> TrackedDomain:
    return TrackedDomain(DomainFacts("beijing"))


def shown(domain: TrackedDomain, node_id: str = "a") -> graph_pb2.GraphNode:
    return domain.published.nodes[node_id]


def state(domain: TrackedDomain, node_id: str = "a") -> NodeState:
    return NodeState(shown(domain, node_id).state)


# -- the property ----------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
nodes = st.lists(
    st.builds(node, names, st.integers(0, 2), power_state=st.sampled_from(["on", "asleep"])),
    max_size=3,
    unique_by=lambda item: item.node_id,
)
values = st.dictionaries(
    st.tuples(names, st.sampled_from([None, 0, 1]), st.sampled_from([UTILIZATION, FREE, HEALTH, "hw.power"])),
    st.none() | st.floats(0, 1),
    max_size=8,
)
links = st.lists(
    st.builds(link, st.sampled_from(["x", "y"]), st.floats(0, 1)), max_size=2, unique_by=lambda item: item.to_domain_id
)
Event = Callable[[float], Any]


def at(kind: Any) -> Callable[[str], Event]:
    return lambda name: lambda now_s: kind(domain_id="beijing", node_id=name, reason="why", at=stamp(now_s))


events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        lambda found, read, joined, name: lambda now_s: observation(found, read, links=joined, at_s=now_s, name=name),
        nodes, values, links, st.sampled_from(["Beijing", "Peking"]),
    ),
    st.builds(lambda name, index: lambda now_s: issued(f"id-{name}-{index}", name, index, at_s=now_s), names, st.none() | st.integers(0, 1)),
    st.builds(lambda name, index: lambda _: revoked(f"id-{name}-{index}", name, index), names, st.none() | st.integers(0, 1)),
    st.builds(at(failover_pb2.NodeSuspected), names),
    st.builds(at(failover_pb2.NodeFailed), names),
    st.builds(lambda name: lambda now_s: failover_pb2.NodeRecovered(domain_id="beijing", node_id=name, at=stamp(now_s)), names),
    st.builds(lambda name: lambda now_s: failover_pb2.NodeForgotten(domain_id="beijing", node_id=name, at=stamp(now_s)), names),
    st.just(lambda now_s: failover_pb2.DomainUnreachable(domain_id="beijing", reason="silent", at=stamp(now_s))),
    st.just(lambda now_s: failover_pb2.DomainReachable(domain_id="beijing", at=stamp(now_s))),
)  # fmt: skip


def without_metrics(image: DomainImage) -> DomainImage:
    bare = image.copy()
    for node_id, item in image.nodes.items():
        copy = graph_pb2.GraphNode()
        copy.CopyFrom(item)
        copy.metrics.clear()
        bare.nodes[node_id] = copy
    return bare


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.lists(events, max_size=3)), max_size=12))
def test_a_consumer_that_applies_the_updates_has_the_graph(steps: Sequence[tuple[float, Sequence[Event]]]) -> None:
    domain, consumer, now_s = fresh(), DomainImage(), NOW_S
    joined_late: DomainImage | None = None
    for wait_s, batch in steps:
        now_s += wait_s
        before = dict(domain.published.nodes)
        planned = told(domain, now_s, *(event(now_s) for event in batch))
        # What is sent is what arrives: the bytes.
        updates = [graph_pb2.GraphUpdated.FromString(item.update.SerializeToString()) for item in planned]
        consumer = applied(consumer, updates)
        assert consumer == domain.published
        truth, _ = build_image(domain.facts, now_s, LIMITS)
        if domain.facts.inventory is not None:
            assert without_metrics(consumer) == without_metrics(truth)
        if joined_late is not None:
            joined_late = applied(joined_late, updates)
            assert joined_late == consumer
        elif domain.image_published_at_s:
            joined_late = consumer.copy()
        changed = {change.node_id for item in planned for change in item.states}
        for node_id, item in consumer.nodes.items():
            known = before.get(node_id)
            assert node_id in changed or (known is not None and known.state == item.state)


@given(st.tuples(nodes, values, links), st.tuples(nodes, values, links))
def test_a_difference_leads_from_one_image_to_the_other(one: Any, other: Any) -> None:
    images = []
    for found, read, joined in (one, other):
        facts = DomainFacts("beijing")
        facts.observe(observation(found, read, links=joined), NOW_S)
        images.append(build_image(facts, NOW_S, LIMITS)[0])
    earlier, later = images
    change = difference(earlier, later)
    assert (applied(earlier, [change.update]) if change else earlier) == later
    assert difference(later, later) is None


# -- what is told when -----------------------------------------------------------------------------------------------


def test_a_new_domain_is_shown_whole_and_then_only_what_changes() -> None:
    domain = fresh()
    first = told(domain, NOW_S, observation([node("a"), node("b")], links=[link("x")]))
    assert [(item.kind, item.update.full) for item in first] == [(ChangeKind.STRUCTURE, True)]
    assert {change.node_id for change in first[0].states} == {"a", "b"}
    assert told(domain, NOW_S + 1, observation([node("a"), node("b")], links=[link("x")], at_s=NOW_S + 1)) == []
    changed = told(domain, NOW_S + 2, observation([node("a", 2)], links=[link("x", 0.5)], at_s=NOW_S + 2))
    update = changed[0].update
    assert [item.inventory.node_id for item in update.nodes] == ["a"]
    assert list(update.removed_node_ids) == ["b"]
    assert [item.rtt_s for item in update.links] == [0.5]
    assert not update.full
    assert not update.HasField("domain")


def test_a_lost_link_is_told_by_a_whole_image() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")], links=[link("x"), link("y")]))
    changed = told(domain, NOW_S + 1, observation([node("a")], links=[link("y")], at_s=NOW_S + 1))
    assert changed[0].update.full
    assert changed[0].kind is ChangeKind.STRUCTURE


def test_metrics_alone_wait_for_their_turn_and_small_moves_are_not_told() -> None:
    domain = fresh()

    def read(at_s: float, value: float) -> list[ChangeKind]:
        reading = observation([node("a")], {("a", 0, UTILIZATION): value}, at_s=NOW_S + at_s)
        return [item.kind for item in told(domain, NOW_S + at_s, reading)]

    assert read(0, 0.500) == [ChangeKind.STRUCTURE]
    assert read(2, 0.600) == []
    assert read(5, 0.600) == [ChangeKind.METRICS]
    assert read(10, 0.603) == []
    assert read(15, 0.607) == [ChangeKind.METRICS]
    assert shown(domain).metrics[UTILIZATION] == 0.607


def test_states_are_told_at_once() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")]))
    failed = failover_pb2.NodeFailed(domain_id="beijing", node_id="a", reason="no beat for 1 s", at=stamp(NOW_S))
    [update] = told(domain, NOW_S + 0.1, failed)
    [change] = update.states
    assert (change.previous, change.state, change.decided.reason) == (
        NodeState.HEALTHY,
        NodeState.FAILED,
        "no beat for 1 s",
    )
    suspected = failover_pb2.NodeSuspected(domain_id="beijing", node_id="a", at=stamp(NOW_S))
    assert told(domain, NOW_S + 0.2, suspected) == []
    told(domain, NOW_S + 0.3, failover_pb2.NodeRecovered(domain_id="beijing", node_id="a", at=stamp(NOW_S)))
    assert state(domain) is NodeState.HEALTHY


def test_a_node_that_comes_again_after_it_was_forgotten_is_a_new_one() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a"), node("b")]))
    told(domain, NOW_S + 1, failover_pb2.NodeFailed(domain_id="beijing", node_id="a", at=stamp(NOW_S)))
    told(domain, NOW_S + 2, observation([node("b")], at_s=NOW_S + 2))
    told(domain, NOW_S + 3, failover_pb2.NodeForgotten(domain_id="beijing", node_id="a", at=stamp(NOW_S + 3)))
    assert domain.facts.incidents == {}
    told(domain, NOW_S + 4, observation([node("a"), node("b")], at_s=NOW_S + 4))
    assert state(domain) is NodeState.HEALTHY


def test_of_a_silent_domain_without_nodes_no_image_follows() -> None:
    """Whoever has forgotten it would have it again."""
    domain = fresh()
    told(domain, NOW_S, observation([node("a")]))
    told(domain, NOW_S + 1, failover_pb2.DomainUnreachable(domain_id="beijing", at=stamp(NOW_S + 1)))
    assert [item.update.full for item in told(domain, NOW_S + 70)] == [True]
    assert domain.facts.inventory is not None
    domain.facts.inventory.ClearField("nodes")
    [gone] = told(domain, NOW_S + 71)
    assert list(gone.update.removed_node_ids) == ["a"]
    assert told(domain, NOW_S + 200) == []
    assert told(domain, NOW_S + 201, failover_pb2.DomainForgotten(domain_id="beijing", at=stamp(NOW_S + 201))) == []
    assert (domain.facts.silence, domain.facts.incidents) == ("", {})


def test_the_image_follows_every_minute() -> None:
    domain = fresh()
    seen = []
    for second in range(0, 200, 5):
        planned = told(domain, NOW_S + second, observation([node("a")], at_s=NOW_S + second))
        seen += [(second, item.kind) for item in planned if item.update.full]
    assert seen == [(0, "structure"), (60, "image"), (120, "image"), (180, "image")]


def test_certified_only_while_node_and_accelerators_stand() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a", 1)]))
    assert not shown(domain).certified
    told(domain, NOW_S, issued("n1", "a"), issued("d1", "a", 0))
    assert shown(domain).certified
    assert (shown(domain).inventory.compute_id, shown(domain).inventory.accelerators[0].compute_id) == ("n1", "d1")
    told(domain, NOW_S, revoked("d1", "a", 0))
    assert not shown(domain).certified
    told(domain, NOW_S, issued("d2", "a", 0, at_s=NOW_S + 1))
    assert shown(domain).certified
    told(domain, NOW_S, revoked("n1", "a"))
    assert not shown(domain).certified
    assert shown(domain).inventory.compute_id == ""


def test_a_compute_id_that_an_agent_made_up_is_not_shown() -> None:
    domain = fresh()
    claimed = node("a")
    claimed.compute_id = "made-up"
    told(domain, NOW_S, observation([claimed]))
    assert shown(domain).inventory.compute_id == ""


def test_bad_readings_degrade_and_are_not_shown() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")], {("a", 0, HEALTH): 1.0}))
    assert shown(domain).metrics[HEALTH] == 1.0
    issue = telemetry_pb2.QualityIssue(
        kind=telemetry_pb2.QUALITY_ISSUE_KIND_STALE, node_id="a", accelerator_index=0, metric=HEALTH
    )
    told(domain, NOW_S + 5, observation([node("a")], issues=[issue], at_s=NOW_S + 5))
    assert state(domain) is NodeState.DEGRADED
    assert "stale" in shown(domain).state_reason
    assert HEALTH not in shown(domain).metrics


def test_a_counter_that_began_anew_is_shown() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")], {("a", None, "hw.energy"): 1e6}))
    issue = telemetry_pb2.QualityIssue(
        kind=telemetry_pb2.QUALITY_ISSUE_KIND_COUNTER_RESET, node_id="a", metric="hw.energy"
    )
    told(domain, NOW_S + 10, observation([node("a")], {("a", None, "hw.energy"): 5.0}, issues=[issue], at_s=NOW_S + 10))
    assert dict(shown(domain).metrics) == {"hw.energy": 5.0}


def test_what_is_unknown_or_old_leaves_the_metrics() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")], {("a", 0, UTILIZATION): 0.5, ("a", None, "hw.power"): 300.0}))
    told(domain, NOW_S + 10, observation([node("a")], {("a", 0, UTILIZATION): None}, at_s=NOW_S + 10))
    assert dict(shown(domain).metrics) == {"hw.power": 300.0}
    told(domain, NOW_S + 61, observation([node("a")], at_s=NOW_S + 61))
    assert dict(shown(domain).metrics) == {}


def test_metrics_are_the_mean_over_accelerators_unless_read_of_the_node() -> None:
    domain = fresh()
    read = {
        ("a", 0, UTILIZATION): 0.2,
        ("a", 1, UTILIZATION): 0.6,
        ("a", 0, "hw.power"): 100.0,
        ("a", None, "hw.power"): 900.0,
    }
    told(domain, NOW_S, observation([node("a", 2)], read))
    assert dict(shown(domain).metrics) == {UTILIZATION: 0.4, "hw.power": 900.0}


def test_an_observation_that_comes_late_changes_nothing() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")]))
    assert told(domain, NOW_S, observation([], at_s=NOW_S - 1)) == []


def test_a_silent_domain_is_degraded_by_time_alone() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")]))
    assert told(domain, NOW_S + 30) == []
    told(domain, NOW_S + 31)
    assert state(domain) is NodeState.DEGRADED


# -- measured links --------------------------------------------------------------------------------------------------


def measured(rtt_s: float, at_s: float = NOW_S, *, loss: float = 0.0, price: int = 0) -> resource_pb2.Link:
    found = link("x", rtt_s)
    found.loss, found.bandwidth_bytes_per_s = loss, 1e9
    found.measured_at.CopyFrom(stamp(at_s))
    found.price_per_gb.micro_units = price
    return found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, measured(0.03), LinkChange.STRUCTURE),
        (link("x", 0.03), measured(0.03), LinkChange.STRUCTURE),
        (link("x", 0.03), link("x", 0.031), LinkChange.STRUCTURE),
        (measured(0.03), measured(0.03), LinkChange.NONE),
        (measured(0.03), measured(0.0312, NOW_S + 14), LinkChange.NONE),
        (measured(0.03), measured(0.0312, NOW_S + 15), LinkChange.MEASURED),
        (measured(0.03), measured(0.032, NOW_S + 1), LinkChange.MEASURED),
        (measured(0.03), measured(0.03, NOW_S + 1, loss=0.02), LinkChange.MEASURED),
        (measured(0.03), measured(0.03, NOW_S + 1, price=5), LinkChange.STRUCTURE),
    ],
)
def test_what_matters_of_a_link(
    before: resource_pb2.Link | None, after: resource_pb2.Link, expected: LinkChange
) -> None:
    assert link_change(before, after, 0.01) is expected


def test_new_measurements_wait_for_the_pace_of_metrics() -> None:
    domain = fresh()
    told(domain, NOW_S, observation([node("a")], links=[measured(0.03)]))
    soon = told(domain, NOW_S + 1, observation([node("a")], links=[measured(0.06, NOW_S + 1)], at_s=NOW_S + 1))
    assert soon == []
    [later] = told(domain, NOW_S + 6, observation([node("a")], links=[measured(0.06, NOW_S + 6)], at_s=NOW_S + 6))
    assert (later.kind, [item.rtt_s for item in later.update.links]) == (ChangeKind.METRICS, [0.06])


def test_metrics_are_due_when_all_readings_are_newer_and_updates_say_how_old() -> None:
    domain = fresh()
    power = ("a", None, "hw.power")
    told(domain, NOW_S, observation([node("a"), node("b")], {power: 1.0}, at_s=NOW_S - 3))
    # A change of structure two seconds later tells it, but its readings are still those of before.
    [early] = told(domain, NOW_S + 1, observation([node("a", 2), node("b")], {}, at_s=NOW_S + 1))
    assert early.update.oldest_reading_at == stamp(NOW_S - 3)
    # Told 2 s ago, but the readings are 5 s newer.
    [later] = told(domain, NOW_S + 2, observation([node("a", 2), node("b")], {power: 9.0}, at_s=NOW_S + 2))
    assert (later.kind, later.update.oldest_reading_at) == (ChangeKind.METRICS, stamp(NOW_S + 2))
    assert told(domain, NOW_S + 6, observation([node("a", 2), node("b")], {power: 5.0}, at_s=NOW_S + 6)) == []
    [due] = told(domain, NOW_S + 7, observation([node("a", 2), node("b")], {power: 6.0}, at_s=NOW_S + 7))
    assert due.update.nodes[0].metrics["hw.power"] == 6.0


def test_observations_are_heard_after_a_clock_was_set_back() -> None:
    """An hour ahead, then right again: what was read in the hour to come is not known any more, and nothing waits for it."""
    domain = fresh()
    ahead_s = NOW_S + 3600
    early = observation([node("a")], {("a", 0, UTILIZATION): 0.9, ("a", None, HEALTH): 1.0}, at_s=ahead_s)
    told(domain, NOW_S, early)
    told(domain, NOW_S, observation([node("a"), node("b")], {("a", 0, UTILIZATION): 0.1}, at_s=NOW_S))
    assert domain.facts.observed_at_s == NOW_S
    assert sorted(domain.published.nodes) == ["a", "b"]
    assert domain.facts.readings["a"] == {UTILIZATION: {0: (0.1, NOW_S)}}
    # What only comes late is passed over, as before, also by a clock that is a little ahead.
    told(domain, NOW_S, observation([node("b")], at_s=NOW_S + 30), observation([node("a")], at_s=NOW_S))
    assert sorted(domain.published.nodes) == ["b"]


def test_metrics_and_images_are_told_after_the_own_clock_was_set_back() -> None:
    domain = fresh()
    told(domain, NOW_S + 3600, observation([node("a")], {("a", 0, UTILIZATION): 0.1}, at_s=NOW_S + 3600))
    planned = told(domain, NOW_S, observation([node("a")], {("a", 0, UTILIZATION): 0.2}, at_s=NOW_S))
    assert [item.kind for item in planned] == [ChangeKind.METRICS, ChangeKind.IMAGE]
    assert told(domain, NOW_S + 1, observation([node("a")], {("a", 0, UTILIZATION): 0.1}, at_s=NOW_S + 1)) == []
