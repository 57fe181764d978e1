"""Decisions: filters, scores, gangs over one and several domains, classes, explanations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core import filters, scores
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import (
    Device,
    Domain,
    Fleet,
    Link,
    Mark,
    MarkKind,
    Node,
    NodeState,
    with_domain,
    with_expected_demand,
    with_mark,
)
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.state import Demand, PlacedRank, Run, UnitKey
from services.scheduler.core.table import DeviceModel, table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import GIB, World, a_fleet, a_node, gang, task


def place(fleet: Fleet, *demands: Demand, policy: Policy | None = None, ledger: Ledger | None = None):  # type: ignore[no-untyped-def]
    pending = [PendingUnit(UnitKey("job", n), "lab", 0, float(n), demand) for n, demand in enumerate(demands)]
    return decide(Snapshot(table_of(fleet), ledger or Ledger(), pending), policy or Policy())


def nodes_of(decisions, unit: int = 0) -> list[str]:  # type: ignore[no-untyped-def]
    found = [item for item in decisions.placed if item.key.unit_index == unit]
    return [rank.node_id for rank in found[0].ranks] if found else []


def rejected(decisions) -> dict[str, int]:  # type: ignore[no-untyped-def]
    return {item.filter: item.rejected for item in decisions.waiting[0].explanation.rejections if item.rejected}


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (Mark(MarkKind.NODE_FAILED, "a-0"), "declared failed"),
        (Mark(MarkKind.NODE_SUSPECTED, "a-0"), "suspected to have failed"),
        (Mark(MarkKind.DOMAIN_UNREACHABLE, "a"), "its domain is unreachable"),
        (Mark(MarkKind.NODE_REVOKED, "id/a-0", node_id="a-0"), "its identity was revoked"),
        (Mark(MarkKind.AGENT_REVOKED, "agent-7", domain_id="a"), "the identity of its domain's agent was revoked"),
    ],
)
def test_a_node_that_is_down_takes_nothing(mark: Mark, reason: str) -> None:
    decisions = place(with_mark(a_fleet({"a": 1}), mark), Demand(1, cpus=1.0))
    assert not decisions.placed
    assert rejected(decisions) == {"up": 1}
    assert decisions.waiting[0].explanation.rejections[0].examples == (("a-0", reason),)
    assert decisions.waiting[0].explanation.reason == "no node qualifies: of 1 nodes rejected: 1 by up"


@pytest.mark.parametrize("state", list(NodeState))
def test_the_state_in_the_graph_decides_whether_a_node_is_used(state: NodeState) -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a", state=state)])
    usable = state in {NodeState.UNKNOWN, NodeState.HEALTHY, NodeState.BUSY, NodeState.DEGRADED}
    assert bool(place(fleet, Demand(1, cpus=1.0)).placed) == usable


@pytest.mark.parametrize(
    ("demand", "by"),
    [
        (Demand(1, cpus=1.0, domains=frozenset({"b"})), "domain"),
        (Demand(1, cpus=1.0, excluded_domains=frozenset({"a"})), "domain"),
        (Demand(1, cpus=1.0, min_security_level=4), "security"),
        (Demand(1, cpus=1.0, accelerators=1, accelerator_types=("H800",)), "accelerator"),
        (Demand(1, cpus=1.0, accelerators=1, real_accelerators=True), "real_accelerator"),
        (Demand(1, cpus=1.0, excluded_nodes=frozenset({"a-0"})), "excluded_node"),
        (Demand(1, cpus=9.0), "capacity"),
        (Demand(1, memory_bytes=65 * GIB), "capacity"),
        (Demand(1, accelerators=5), "capacity"),
    ],
)
def test_each_filter_names_itself(demand: Demand, by: str) -> None:
    node = replace(a_node("a-0", "a"), devices=tuple(Device(n, "NVIDIA", "A100", emulated=True) for n in range(4)))
    decisions = place(with_domain(Fleet(), Domain("a", security_level=3), [node]), demand)
    assert rejected(decisions) == {by: 1}
    assert decisions.waiting[0].explanation.rejections[0] is not None
    assert all(reason for item in decisions.waiting[0].explanation.rejections for _, reason in item.examples)


def test_a_fixed_port_is_given_once_per_address() -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a"), a_node("a-1", "a", address="10.0.0.1")])
    service = Demand(1, cpus=1.0, service_port=8080)
    decisions = place(fleet, service, service, service)
    assert {nodes_of(decisions, 0)[0], nodes_of(decisions, 1)[0]} == {"a-0", "a-1"}
    assert [item.key.unit_index for item in decisions.waiting] == [2]


def test_revoked_devices_are_not_given_out() -> None:
    fleet = with_mark(a_fleet({"a": 1}), Mark(MarkKind.DEVICE_REVOKED, "a-0/1"))
    decisions = place(fleet, Demand(1, accelerators=3))
    assert decisions.placed[0].ranks[0].devices == (0, 2, 3)
    assert not place(fleet, Demand(1, accelerators=4)).placed


def test_accelerator_types_match_by_words() -> None:
    model = DeviceModel("NVIDIA", "A100-SXM4-80GB", emulated=False)
    assert all(model.matches([name]) for name in ("A100", "nvidia a100", "a100-80gb", "NVIDIA"))
    assert not any(model.matches([name]) for name in ("A10", "A1000", "H100", "a100-40gb", ""))


# -- scores ------------------------------------------------------------------------------------------------------------


def two_domains(**right: object) -> Fleet:
    fleet = with_domain(
        Fleet(), Domain("left", price_micro_units=2, currency="CNY", carbon_g_per_kwh=500), [a_node("l", "left")]
    )
    domain = replace(Domain("right", price_micro_units=2, currency="CNY", carbon_g_per_kwh=500), **right)  # type: ignore[arg-type]
    return with_domain(fleet, domain, [a_node("r", "right")])


@pytest.mark.parametrize(
    ("fleet", "demand"),
    [
        (two_domains(price_micro_units=1), Demand(1, accelerators=1)),
        (two_domains(carbon_g_per_kwh=30.0), Demand(1, cpus=1.0)),
        (two_domains(), Demand(1, cpus=1.0, checkpoint_domain="right")),
        (with_expected_demand(two_domains(), "left", 4.0), Demand(1, cpus=1.0)),
        (with_domain(two_domains(), None, [a_node("l", "left", state=NodeState.DEGRADED), a_node("l2", "left")]), None),
    ],
    ids=["price", "carbon", "locality", "expected_demand", "health"],
)
def test_each_score_tips_the_balance(fleet: Fleet, demand: Demand | None) -> None:
    if demand is None:
        assert nodes_of(place(fleet, Demand(1, cpus=1.0, domains=frozenset({"left"})))) == ["l2"]
    else:
        assert nodes_of(place(fleet, demand)) == ["r"]


def test_spread_keeps_domains_evenly_loaded_and_pack_fills_nodes() -> None:
    fleet = a_fleet({"a": 2, "b": 2})
    decisions = place(fleet, *[Demand(1, cpus=1.0, accelerators=1)] * 8)
    by_domain: dict[str, list[str]] = {}
    for item in decisions.placed:
        by_domain.setdefault(item.ranks[0].domain_id, []).append(item.ranks[0].node_id)
    assert {name: len(nodes) for name, nodes in by_domain.items()} == {"a": 4, "b": 4}
    assert all(len(set(nodes)) == 1 for nodes in by_domain.values()), "one node of each domain stays whole"


def test_cpu_work_stays_off_accelerator_nodes() -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a"), a_node("a-1", "a", devices=0)])
    assert nodes_of(place(fleet, Demand(1, cpus=1.0))) == ["a-1"]


def test_prices_in_another_currency_are_neutral() -> None:
    view = View(table_of(two_domains(price_micro_units=1, currency="USD")), Ledger())
    values = scores.PriceScore().domains(view, Demand(1, accelerators=1))
    assert sorted(values.tolist()) == [0.5, 1.0]


def test_a_slow_link_makes_a_checkpoint_far() -> None:
    links = (Link("b", 0.01, 1e9), Link("c", 0.01, 1e7))
    fleet = with_domain(Fleet(), Domain("a", links=links), [a_node("a-0", "a")])
    for name in ("b", "c"):
        fleet = with_domain(fleet, Domain(name), [a_node(f"{name}-0", name)])
    demand = Demand(1, checkpoint_domain="a", checkpoint_bytes=6 * 10**9)
    values = scores.LocalityScore().domains(View(table_of(fleet), Ledger()), demand)
    assert values.tolist() == pytest.approx([1.0, 0.9, 60 / 660])


def test_scaled_values_are_in_range_whatever_is_unknown() -> None:
    assert scores.least_is_best(np.array([np.nan, 4.0, 2.0])).tolist() == [0.5, 0.0, 1.0]
    assert scores.least_is_best(np.array([np.nan, np.nan])).tolist() == [0.5, 0.5]
    assert scores.least_is_best(np.array([3.0, 3.0])).tolist() == [1.0, 1.0]


# -- gangs -------------------------------------------------------------------------------------------------------------


def test_a_gang_gets_all_ranks_or_none() -> None:
    fleet = a_fleet({"a": 2, "b": 1})
    decisions = place(fleet, Demand(2, cpus=1.0, accelerators=4))
    assert nodes_of(decisions) == ["a-0", "a-1"]
    assert [rank.devices for rank in decisions.placed[0].ranks] == [(0, 1, 2, 3)] * 2
    too_large = place(fleet, Demand(3, cpus=1.0, accelerators=4))
    assert not too_large.placed
    assert "3 ranks wanted, any qualifying domain could hold 2" in too_large.waiting[0].explanation.reason


def test_a_gang_spans_domains_only_if_allowed_and_then_the_nearest() -> None:
    fleet = Fleet()
    links = {"a": (("b", 0.2), ("c", 0.001)), "b": (("a", 0.2), ("c", 0.2)), "c": (("a", 0.001), ("b", 0.2))}
    for name, ways in links.items():
        domain = Domain(name, links=tuple(Link(other, rtt, 1e9) for other, rtt in ways))
        fleet = with_domain(fleet, domain, [a_node(f"{name}-0", name)])
    demand = Demand(2, cpus=1.0, accelerators=4)
    assert not place(fleet, demand).placed
    spanning = place(fleet, replace(demand, cross_domain=True))
    assert {rank.domain_id for rank in spanning.placed[0].ranks} == {"a", "c"}
    assert spanning.placed[0].explanation.as_json()["chosen"]["place"] in {"a+c", "c+a"}
    assert len({item.domain_id for item in place(fleet, Demand(2, cpus=1.0, cross_domain=True)).placed[0].ranks}) == 1


def test_a_gang_takes_one_accelerator_model() -> None:
    nodes = [a_node("a-0", "a"), a_node("a-1", "a", model="910B")]
    fleet = with_domain(Fleet(), Domain("a"), nodes)
    assert not place(fleet, Demand(2, accelerators=4)).placed
    assert len(set(nodes_of(place(fleet, Demand(2, accelerators=2))))) == 1
    assert place(fleet, Demand(2, accelerators=4), policy=Policy(one_accelerator_model_per_gang=False)).placed


def test_a_gang_is_explained_beside_the_domains_with_other_models() -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a", devices=2)])
    fleet = with_domain(fleet, Domain("b"), [a_node("b-0", "b", devices=8, model="910B")])
    explanation = place(fleet, Demand(2, accelerators=1)).placed[0].explanation
    body = explanation.as_json()
    assert {item["place"]: item["ranks_that_fit"] for item in body["domains"]} == {"a": 2, "b": 8}
    assert body["domains"][0]["place"] == body["chosen"]["place"]
    assert "best of 2 domains" in explanation.reason
    waiting = place(fleet, Demand(9, accelerators=1)).waiting[0].explanation.as_json()
    assert {item["place"] for item in waiting["domains"]} == {"a", "b"}


def test_a_gang_uses_the_fewest_nodes() -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a", devices=2), a_node("a-1", "a", devices=8, cpus=16)])
    assert nodes_of(place(fleet, Demand(8, cpus=1.0, accelerators=1))) == ["a-1"] * 8
    assert nodes_of(place(fleet, Demand(9, cpus=1.0, accelerators=1))) == ["a-1"] * 8 + ["a-0"]


# -- classes and the cycle ---------------------------------------------------------------------------------------------


def test_what_was_placed_first_is_seen_by_all_that_follow() -> None:
    fleet = a_fleet({"a": 1})
    decisions = place(fleet, Demand(1, cpus=5.0), Demand(1, cpus=4.0), Demand(1, cpus=3.0), Demand(1, cpus=5.0))
    assert [item.key.unit_index for item in decisions.placed] == [0, 2]
    assert [item.key.unit_index for item in decisions.waiting] == [1, 3]
    assert decisions.classes == 3


def test_a_node_that_another_class_took_from_stays_excluded() -> None:
    fleet = with_domain(Fleet(), Domain("a"), [a_node("a-0", "a", cpus=64.0), a_node("a-1", "a")])
    elsewhere = Demand(1, cpus=1.0, excluded_nodes=frozenset({"a-0"}))
    decisions = place(fleet, elsewhere, Demand(1, cpus=20.0), *[elsewhere] * 8)
    assert nodes_of(decisions, 1) == ["a-0"]
    assert all(nodes_of(decisions, number) == ["a-1"] for number in (0, *range(2, 9)))
    assert [item.key.unit_index for item in decisions.waiting] == [9]


def test_tenants_share_what_a_cycle_gives() -> None:
    pending = [
        PendingUnit(UnitKey(tenant, number), tenant, 0, since_s + number, Demand(1, cpus=1.0))
        for tenant, since_s in (("first", 0.0), ("second", 100.0))
        for number in range(8)
    ]
    decisions = decide(Snapshot(table_of(a_fleet({"a": 1})), Ledger(), pending), Policy())
    assert [item.key.job_id for item in decisions.placed].count("first") == 4
    assert [item.position for item in decisions.waiting] == list(range(1, 9))


def test_what_runs_hold_is_not_free() -> None:
    fleet, ledger = a_fleet({"a": 1}), Ledger()
    ranks = (PlacedRank(0, "a", "a-0", 0, (1, 2)),)
    ledger.move(None, Run("r", UnitKey("j", 0), 1, "lab", ranks, frozenset({"a"}), 6.0, GIB, 0.0))
    assert place(fleet, Demand(1, cpus=2.0, accelerators=2), ledger=ledger).placed[0].ranks[0].devices == (0, 3)
    assert not place(fleet, Demand(1, cpus=2.5), ledger=ledger).placed
    assert not place(fleet, Demand(1, accelerators=3), ledger=ledger).placed


def test_decisions_are_the_same_for_the_same_snapshot() -> None:
    fleet = a_fleet({"a": 3, "b": 3, "c": 2})
    demands = [Demand(1 + n % 3, cpus=1.0, accelerators=n % 4) for n in range(30)]
    first, second = place(fleet, *demands), place(fleet, *demands)
    assert [(item.key, item.ranks) for item in first.placed] == [(item.key, item.ranks) for item in second.placed]
    assert first.policy_version == second.policy_version


def test_fractions_of_cpus_fill_a_node_exactly() -> None:
    decisions = place(a_fleet({"a": 1}), *[Demand(1, cpus=0.1)] * 81)
    assert (len(decisions.placed), len(decisions.waiting)) == (80, 1)


def test_an_explanation_shows_the_arithmetic() -> None:
    explanation = place(two_domains(price_micro_units=1), Demand(1, accelerators=1)).placed[0].explanation.as_json()
    assert explanation["chosen"]["place"] == "right"
    assert [item["place"] for item in explanation["domains"]] == ["right", "left"]
    best, other = explanation["domains"]
    assert (best["parts"]["price"], other["parts"]["price"]) == (1.0, 0.0)
    weights = explanation["weights"]
    # The round trip inside one domain counts for every candidate.
    total = sum(value * weights[name] for name, value in best["parts"].items()) + weights["rtt"]
    assert best["score"] == pytest.approx(total, abs=1e-3) == explanation["chosen"]["score"]
    assert explanation["nodes"][0]["place"] == "r"


def test_a_network_without_nodes_says_so() -> None:
    assert place(Fleet(), Demand(1)).waiting[0].explanation.reason == "no node is known yet"
    assert (
        place(with_domain(Fleet(), Domain("a"), []), Demand(1)).waiting[0].explanation.reason == "no node is known yet"
    )


def test_a_thousand_equal_units_are_judged_once() -> None:
    fleet = a_fleet({"a": 4, "b": 4, "c": 3, "d": 3, "e": 3}, cpus=64.0, devices=8)
    decisions = place(fleet, *[Demand(1, cpus=1.0)] * 1000)
    assert (len(decisions.placed), decisions.classes) == (1000, 1)


# -- policy ------------------------------------------------------------------------------------------------------------


def test_weights_change_the_choice_and_the_version() -> None:
    fleet = two_domains(price_micro_units=1, carbon_g_per_kwh=900.0)
    cheap = policy_from_json({"scores": {"price": 1, "carbon": 0.1}})
    clean = policy_from_json({"scores": {"price": 0.1, "carbon": 1}})
    assert nodes_of(place(fleet, Demand(1, accelerators=1), policy=cheap)) == ["r"]
    assert nodes_of(place(fleet, Demand(1, accelerators=1), policy=clean)) == ["l"]
    assert cheap.version != clean.version
    assert cheap.version == policy_from_json({"scores": {"price": 1, "carbon": 0.1}}).version


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"scores": {"no_such": 1}}, "no_such"),
        ({"filters": ["no_such"]}, "no_such"),
        ({"order": ["no_such"]}, "no_such"),
        ({"scores": {"price": float("nan")}}, "price"),
        ({"scores": 3}, "scores: a mapping is wanted"),
        ({"tenant_weights": {"lab": 0}}, "lab"),
        ({"restarts": {"no_such": 1}}, "no_such"),
    ],
)
def test_a_wrong_policy_names_what_is_wrong(body: dict[str, object], names: str) -> None:
    with pytest.raises(PolicyError, match=names):
        place(a_fleet({"a": 1}), Demand(1), policy=policy_from_json(body))


def test_a_policy_without_scores_places_too() -> None:
    decisions = place(a_fleet({"a": 1}), Demand(1, cpus=1.0), policy=Policy(scores=()))
    assert nodes_of(decisions) == ["a-0"]


def test_third_parties_add_plugins() -> None:
    class OddFilter:
        name = "odd"
        dynamic = False

        def passes(self, view, demand, rows):  # type: ignore[no-untyped-def]
            return np.array([node.node_id.endswith("1") for node in view.table.nodes])[rows]

        def why(self, view, demand, row):  # type: ignore[no-untyped-def]
            return "it is even"

    filters.register(OddFilter())
    try:
        with pytest.raises(PolicyError, match="exists already"):
            filters.register(OddFilter())
        decisions = place(a_fleet({"a": 2}), *[Demand(1, cpus=8.0)] * 2, policy=Policy(filters=("odd",)))
        assert nodes_of(decisions) == ["a-1"]
        assert decisions.waiting[0].explanation.rejections[0].examples == (("a-0", "it is even"),)
    finally:
        del filters.FILTERS["odd"]


def test_capacity_cannot_be_switched_off() -> None:
    assert not place(a_fleet({"a": 1}), Demand(1, cpus=9.0), policy=Policy(filters=())).placed


def test_units_of_one_world_flow_through() -> None:
    world = World(a_fleet({"a": 1}))
    world.submit("job-1", gang(4, accelerators=1))
    world.submit("job-2", task(accelerators=1))
    assert [str(item.key) for item in world.cycle().placed] == ["job-1.0"]
    assert "waiting for capacity" in world.decisions.waiting[0].explanation.reason
    assert isinstance(world.book.fleet.nodes["a-0"], Node)


def test_places_in_the_queue_follow_the_policy_not_age() -> None:
    pending = [
        PendingUnit(UnitKey("old", 0), "lab", 0, 1.0, Demand(1, accelerators=9)),
        PendingUnit(UnitKey("urgent", 0), "lab", 5, 2.0, Demand(1, accelerators=8)),
        PendingUnit(UnitKey("new", 0), "lab", 0, 3.0, Demand(1, accelerators=7)),
    ]
    decisions = decide(Snapshot(table_of(a_fleet({"a": 1})), Ledger(), pending), Policy())
    assert [(item.position, item.key.job_id) for item in decisions.waiting] == [(1, "urgent"), (2, "old"), (3, "new")]


def test_who_began_before_one_of_higher_priority_is_taken_off_in_the_next_cycle() -> None:
    """An order in which priority comes last, or not at all: the older unit begins, and gives way to the urgent one as soon as it
    runs, though nothing came free since. Where priority comes first the urgent one begins."""
    whole = Demand(1, accelerators=4)
    for order, first in ((("age",), "old"), (("age", "priority"), "old"), (("priority", "age"), "urgent")):
        policy = Policy(order=order, preemptions=("priority",))
        cluster = Cluster(table_of(a_fleet({"a": 1})), policy)
        cluster.add(PendingUnit(UnitKey("old", 0), "lab", 0, 0.0, whole))
        cluster.add(PendingUnit(UnitKey("urgent", 0), "lab", 1, 1.0, whole))
        decisions = decide(cluster, policy, 2.0)
        assert [item.key.job_id for item in decisions.placed] == [first]
        cluster.apply(decisions, 2.0)
        following = decide(cluster, policy, 3.0)
        assert [item.key.job_id for item in following.preempted] == ([] if first == "urgent" else ["old"])
        assert [item.key.job_id for item in following.placed] == ([] if first == "urgent" else ["urgent"])
