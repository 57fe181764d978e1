"""The limits quota, max_running and queue_cap in real decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.entitlement.amounts import ACCELERATORS, CPUS
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.ledger import Ledger, Usage
from services.scheduler.core.policy import Policy
from services.scheduler.core.selection.quotas import QuotaAccount
from services.scheduler.core.stages import check
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.selection.plays import Play, a_cluster, a_policy, a_unit, names, reasons, run_now
from tests.unit.scheduler.world import a_fleet

TEAMS = [
    {"name": "org"},
    {"name": "a", "parent": "org", "nominal": {"accelerators": 4}, "borrowing_limit": {"accelerators": 2}},
    {"name": "b", "parent": "org", "nominal": {"accelerators": 4}},
]


def quota(queues: Any = TEAMS, **more: Any) -> Policy:
    return a_policy(limits=["quota"], options={"quota": {"queues": queues, **more}})


def account(cluster: Cluster) -> QuotaAccount:
    found = cluster._observers["quota"][1]
    assert isinstance(found, QuotaAccount)
    return found


def test_a_queue_gets_its_own_and_what_it_may_borrow_and_the_reason_says_what_is_left() -> None:
    # 12 accelerators are free; by hand: a may hold 4 + 2 borrowed.
    policy = quota()
    cluster = a_cluster(policy, 3)
    for number in range(4):
        cluster.add(a_unit(f"a{number}", "a", 2, queued_at_s=float(number)))
    cluster.add(a_unit("b0", "b", 1, queued_at_s=9.0))
    decisions = decide(cluster, policy)
    assert names(decisions) == ["a0", "a1", "a2", "b0"]
    assert reasons(decisions) == {"a3": "quota: queue 'a' asks for 2 accelerators, 0 would be available"}
    assert len(names(decide(cluster, replace(policy, limits=(), options=())))) == 5


def test_the_queue_that_holds_up_is_named() -> None:
    policy = quota()
    cluster = a_cluster(policy, 3)
    run_now(cluster, policy, a_unit("r", "b", 4, ranks=1), a_unit("s", "b", 3))
    cluster.add(a_unit("a0", "a", 2))
    expected = "quota: queue 'a' asks for 2 accelerators, 1 would be available (held up at 'org')"
    assert reasons(decide(cluster, policy)) == {"a0": expected}


def test_the_queue_of_a_unit_counts_before_its_tenant_and_others_go_where_the_policy_says() -> None:
    units = [a_unit("q", "b", 4, queue="a"), a_unit("r", "b", 4), a_unit("s", "stranger", 1)]
    for others, expected in (("", ["q", "r"]), ("b", ["q", "r"]), ("org", ["q", "r"])):
        policy = quota(others=others) if others else quota()
        cluster = a_cluster(policy, 3)
        cluster.extend(units)
        decisions = decide(cluster, policy)
        assert names(decisions) == expected
        why = reasons(decisions)["s"]
        assert ("no queue 'stranger'" in why) == (not others)


def test_usage_is_kept_with_each_event_and_a_cycle_that_is_not_carried_out_leaves_no_trace() -> None:
    policy = quota()
    cluster = a_cluster(policy, 3)
    cluster.extend([a_unit("a0", "a", 4), a_unit("a1", "a", 2, queued_at_s=1.0)])
    first = decide(cluster, policy)
    again = decide(cluster, policy)
    assert names(first) == names(again) == ["a0", "a1"]
    account(cluster).settle()
    assert account(cluster).tree.usage("org") == {ACCELERATORS: 0}
    cluster.apply(first, 0.0)
    assert account(cluster).tree.usage("a") == {ACCELERATORS: 6000}
    assert account(cluster).tree.running("a") == 2
    kept = account(cluster)
    decide(cluster, policy)
    cluster.release(UnitKey("a0", 0))
    assert account(cluster) is kept
    assert kept.tree.usage("a") == {ACCELERATORS: 2000}


def test_running_units_are_charged_once_when_the_limit_comes_into_force() -> None:
    policy = quota()
    cluster = a_cluster(policy, 3)
    run_now(cluster, policy, a_unit("r", "a", 4), a_unit("s", "a", 2))
    cluster.add(a_unit("t", "a", 1))
    assert not decide(cluster, policy).placed
    cluster.release(UnitKey("s", 0))
    assert names(decide(cluster, policy)) == ["t"]


def test_other_quotas_count_what_runs_anew() -> None:
    policy = quota()
    cluster = a_cluster(policy, 3)
    run_now(cluster, policy, a_unit("r", "a", 4))
    cluster.add(a_unit("t", "a", 3))
    assert not decide(cluster, policy).placed
    wider = quota([{"name": "org"}, {"name": "a", "parent": "org", "nominal": {"accelerators": 7}}])
    assert names(decide(cluster, wider)) == ["t"]


def test_a_snapshot_charges_the_tenants_of_its_ledger() -> None:
    ledger = Ledger()
    ledger.tenants["a"] = Usage(cpus=1.0, accelerator_milli=5_000)
    snapshot = Snapshot(table_of(a_fleet({"a": 3})), ledger, [a_unit("t", "a", 2), a_unit("u", "a", 1)])
    assert names(decide(snapshot, quota())) == ["u"]


def test_accelerators_count_by_their_index_the_heaviest_that_a_waiting_unit_may_take() -> None:
    policy = quota()
    for index, expected in ((1.0, ["t", "u"]), (1.5, ["t", "u"]), (1.6, ["t"]), (3.1, ["t"])):
        cluster = a_cluster(policy, 3, {"index": {"A100": index}})
        cluster.extend([a_unit("t", "a", 2), a_unit("u", "a", 2, queued_at_s=1.0)])
        assert names(decide(cluster, policy)) == (expected if 2 * index <= 6 else [])


def test_shares_of_devices_and_named_resources_count() -> None:
    queues = [{"name": "a", "nominal": {"accelerators": 1, "licence": 2}}]
    policy = quota(queues)
    cluster = a_cluster(policy, 3)
    for number in range(3):
        cluster.add(a_unit(f"t{number}", "a", 1, queued_at_s=float(number), demand={"device_milli": 400}))
    assert names(decide(cluster, policy)) == ["t0", "t1"]


def test_the_most_running_units_of_a_queue_and_all_below() -> None:
    queues = [{"name": "org", "max_running": 3}, {"name": "a", "parent": "org", "max_running": 2}, *TEAMS[2:]]
    policy = quota(queues)
    cluster = a_cluster(policy, 3)
    for number in range(3):
        cluster.add(a_unit(f"a{number}", "a", queued_at_s=float(number)))
        cluster.add(a_unit(f"b{number}", "b", queued_at_s=10.0 + number))
    decisions = decide(cluster, policy)
    assert names(decisions) == ["a0", "a1", "b0"]
    assert reasons(decisions)["a2"] == "quota: queue 'a' has as many running units as it may"
    assert reasons(decisions)["b1"] == "quota: queue 'b' has as many running units as it may (held up at 'org')"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"queues": [{"name": "a", "nominal": {"cpus": -1}}]}, "options.quota.queues[0].nominal.cpus"),
        ({"queues": [{"name": "a", "nominal": 5}]}, "options.quota.queues[0].nominal"),
        ({"queues": [{"name": "a"}, {"parent": "a"}]}, "options.quota.queues[1].name"),
        ({"queues": [{"name": "a", "max_running": 1.5}]}, "options.quota.queues[0].max_running"),
        ({"queues": [{"name": "a", "weight": 0}]}, "options.quota.queues[0].weight"),
        ({"queues": [{"name": "a", "nominall": {}}]}, "options.quota.queues[0].nominall"),
        ({"queues": [{"name": "a", "parent": "b"}]}, "options.quota.queues: queue 'a': parent 'b' does not exist"),
        ({"queues": "a"}, "options.quota.queues"),
        ({"queues": [{"name": "a"}], "others": "b"}, "options.quota.others"),
        ({"queue": []}, "options.quota.queue"),
        ({}, "options.quota.queues"),
    ],
)
def test_wrong_options_are_named_by_their_path(options: dict[str, Any], path: str) -> None:
    policy = a_policy(limits=["quota"], options={"quota": options} if options else {})
    with pytest.raises(PolicyError) as caught:
        check(policy)
    assert caught.value.detail.startswith(path)


# -- caps -------------------------------------------------------------------------------------------------------------


def test_max_running_by_tenant_and_queue() -> None:
    options = {"max_running": {"default": 2, "tenants": {"big": 3}, "queues": {"night": 1}}}
    policy = a_policy(limits=["max_running"], options=options)
    cluster = a_cluster(policy, 3)
    run_now(cluster, policy, a_unit("r", "small"))
    for number in range(4):
        cluster.add(a_unit(f"big{number}", "big", queued_at_s=float(number)))
        cluster.add(a_unit(f"small{number}", "small", queued_at_s=float(number)))
        cluster.add(a_unit(f"night{number}", f"t{number}", queue="night", queued_at_s=float(number)))
    decisions = decide(cluster, policy)
    assert sorted(names(decisions)) == ["big0", "big1", "big2", "night0", "small0"]
    assert reasons(decisions)["big3"] == "max_running: tenant 'big' has 3 running units, as many as it may"
    assert reasons(decisions)["night1"] == "max_running: queue 'night' has 1 running units, as many as it may"
    cluster.release(UnitKey("r", 0))
    assert "small1" in names(decide(cluster, policy))


def test_queue_cap() -> None:
    policy = a_policy(limits=["queue_cap"], options={"queue_cap": {"queues": {"a": {"accelerators": 5, "cpus": 3}}}})
    cluster = a_cluster(policy, 3)
    run_now(cluster, policy, a_unit("r", "a", 2))
    cluster.extend([a_unit("s", "a", 4), a_unit("t", "a", 3, queued_at_s=1.0), a_unit("u", "b", 4, queued_at_s=2.0)])
    decisions = decide(cluster, policy)
    assert names(decisions) == ["t", "u"]
    assert reasons(decisions) == {"s": "queue_cap: queue 'a' asks for 4 accelerators, 3 would be available"}
    cluster.apply(decisions, 0.0)
    cluster.add(a_unit("v", "a", cpus=1.5, queued_at_s=3.0))
    assert "queue 'a' asks for 1.5 cpus, 1 would be available" in reasons(decide(cluster, policy))["v"]


@pytest.mark.parametrize(
    ("limit", "options", "path"),
    [
        ("max_running", {"default": -1}, "options.max_running.default"),
        ("max_running", {"tenants": {"a": 1.5}}, "options.max_running.tenants.a"),
        ("max_running", {"queues": 3}, "options.max_running.queues"),
        ("max_running", {"queue": {}}, "options.max_running.queue"),
        ("max_running", {}, "options.max_running"),
        ("queue_cap", {"queues": {"a": {"cpus": "many"}}}, "options.queue_cap.queues.a.cpus"),
        ("queue_cap", {"queues": {"a": 3}}, "options.queue_cap.queues.a"),
        ("queue_cap", {}, "options.queue_cap.queues"),
    ],
)
def test_wrong_caps_are_named_by_their_path(limit: str, options: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check(a_policy(limits=[limit], options={limit: options} if options else {}))
    assert caught.value.detail.startswith(path)


# -- invariants -------------------------------------------------------------------------------------------------------

amounts = st.integers(0, 8).map(float)
TENANTS = ("a1", "a2", "b1")


@st.composite
def trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    def limits() -> dict[str, Any]:
        found: dict[str, Any] = {"nominal": {ACCELERATORS: draw(amounts), CPUS: draw(amounts)}}
        for name in ("borrowing_limit", "lending_limit"):
            if draw(st.booleans()):
                found[name] = {ACCELERATORS: draw(amounts)}
        return found

    return [
        {"name": "org", "nominal": {ACCELERATORS: draw(amounts), CPUS: draw(amounts)}},
        {"name": "a", "parent": "org", **limits()},
        *({"name": name, "parent": name[0] if name != "b1" else "org", **limits()} for name in TENANTS),
    ]


@st.composite
def loads(draw: st.DrawFn) -> list[PendingUnit]:
    count = draw(st.integers(1, 25))
    return [
        a_unit(
            f"u{number:02}",
            draw(st.sampled_from(TENANTS)),
            draw(st.integers(0, 3)),
            draw(st.sampled_from([1.0, 2.0])),
            ranks=draw(st.integers(1, 2)),
            priority=draw(st.integers(0, 2)),
            queued_at_s=float(draw(st.integers(0, 30))),
            expected_s=float(draw(st.integers(1, 20))),
        )
        for number in range(count)
    ]


def held_by(cluster: Cluster, queues: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What runs in each queue and all below it, added up from what runs."""
    parent = {queue["name"]: queue.get("parent", "") for queue in queues}
    found = {name: {ACCELERATORS: 0.0, CPUS: 0.0} for name in parent}
    for running in cluster.running.values():
        demand, at = running.unit.demand, running.unit.tenant_id
        while at:
            found[at][ACCELERATORS] += demand.ranks * demand.accelerators
            found[at][CPUS] += demand.ranks * demand.cpus
            at = parent[at]
    return found


def most(queues: list[dict[str, Any]], resource: str) -> dict[str, float]:
    """What the queues can hold at the very most: their own and all below them, and what they may borrow of the rest."""
    nominal = {queue["name"]: queue["nominal"].get(resource, 0.0) for queue in queues}
    whole = sum(nominal.values())
    below = {"org": whole, "a": nominal["a"] + nominal["a1"] + nominal["a2"], **{n: nominal[n] for n in TENANTS}}
    return {
        queue["name"]: min(
            whole,
            below[queue["name"]] + queue.get("borrowing_limit", {}).get(resource, whole)
            if "parent" in queue
            else whole,
        )
        for queue in queues
    }


@settings(max_examples=60, deadline=None)
@given(
    trees(), loads(), st.sampled_from(["greedy", "easy", "strict"]), st.sampled_from([(), ("reclaim",), ("priority",)])
)
def test_no_queue_ever_holds_more_than_the_tree_allows(
    queues: list[dict[str, Any]], units: list[PendingUnit], discipline: str, preemptions: tuple[str, ...]
) -> None:
    policy = a_policy(
        limits=["quota"],
        options={"quota": {"queues": queues}},
        order=("priority", "age"),
        discipline=discipline,
        preemptions=preemptions,
    )
    cluster = a_cluster(policy, 3)
    bounds = {resource: most(queues, resource) for resource in (ACCELERATORS, CPUS)}

    def watch(play: Play) -> None:
        held = held_by(play.cluster, queues)
        for resource, bound in bounds.items():
            for name, amount in bound.items():
                assert held[name][resource] <= amount + 1e-9, (name, resource)
        tree = account(play.cluster).tree
        account(play.cluster).settle()
        for name in tree.queues:
            assert tree.usage(name) == {key: round(held[name][key] * 1000) for key in tree.resources}
            assert all(left >= 0 for left in tree.available(name).values())

    Play(cluster, policy, watch).run(units, 200.0)
