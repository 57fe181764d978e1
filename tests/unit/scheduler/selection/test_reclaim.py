"""The preemption reclaim in real decisions: Kueue's published cases, cases by hand, whole gangs, an invariant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.stages import check
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.selection.plays import Play, a_cluster, a_policy, a_unit, names, preempted, reasons, run_now
from tests.unit.scheduler.selection.test_quotas import account, loads, trees


def reclaiming(queues: Any, *, lower: bool = False, **fields: Any) -> Policy:
    options: dict[str, Any] = {"quota": {"queues": queues}}
    if lower:
        options["reclaim"] = {"only_lower_priority": True}
    return a_policy(limits=["quota"], preemptions=["reclaim"], options=options, **fields)


# -- published: kubernetes-sigs/kueue, pkg/scheduler/preemption/preemption_test.go ------------------------------------

KUEUE = [
    {"name": "cohort"},
    {"name": "c1", "parent": "cohort", "nominal": {"cpus": 6}, "borrowing_limit": {"cpus": 6}},
    {"name": "c2", "parent": "cohort", "nominal": {"cpus": 6}, "borrowing_limit": {"cpus": 6}},
]


@pytest.mark.parametrize(
    ("case", "lower", "running", "incoming", "expected"),
    [
        (
            "reclaim quota from borrower",
            True,
            [("c1-low", "c1", 3, -1), ("c2-mid", "c2", 3, 0), ("c2-high", "c2", 6, 1)],
            ("c1", 3, 1),
            ["c2-mid"],
        ),
        ("no workloads borrowing", True, [("c1-high", "c1", 4, 1), ("c2-low-1", "c2", 4, -1)], ("c1", 4, 1), []),
        (
            "not enough workloads borrowing",
            True,
            [("c1-high", "c1", 4, 1), ("c2-low-1", "c2", 4, -1), ("c2-low-2", "c2", 4, -1)],
            ("c1", 4, 1),
            [],
        ),
        (
            "do not reclaim borrowed quota from same priority for withinCohort=ReclaimFromLowerPriority",
            True,
            [("c1", "c1", 2, 0), ("c2-1", "c2", 4, 0), ("c2-2", "c2", 4, 0)],
            ("c1", 4, 0),
            [],
        ),
        (
            "reclaim borrowed quota from same priority for withinCohort=ReclaimFromAny",
            False,
            [("c1-1", "c1", 4, 0), ("c1-2", "c1", 4, 1), ("c2", "c2", 2, 0)],
            ("c2", 4, 0),
            ["c1-1"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kueue(
    case: str,
    lower: bool,
    running: list[tuple[str, str, int, int]],
    incoming: tuple[str, int, int],
    expected: list[str],
) -> None:
    policy = reclaiming(KUEUE, lower=lower)
    cluster = a_cluster(policy, 1, cpus=64.0)
    run_now(cluster, policy, *(a_unit(name, queue, cpus=cpus, priority=rank) for name, queue, cpus, rank in running))
    queue, cpus, rank = incoming
    cluster.add(a_unit("in", queue, cpus=cpus, priority=rank))
    decisions = decide(cluster, policy)
    assert preempted(decisions) == expected
    # Kueue's second case asks only about preemption: there, borrowing the 4 that are left was ruled out beforehand.
    starts = bool(expected) or case == "no workloads borrowing"
    assert names(decisions) == (["in"] if starts else [])


# -- by hand ----------------------------------------------------------------------------------------------------------

THREE = [
    {"name": "org"},
    *({"name": name, "parent": "org", "nominal": {"accelerators": 4}} for name in ("a", "b", "c")),
]


def three(cluster: Cluster, policy: Policy) -> None:
    """12 accelerators: b holds 4 + 2, c 4 + 1; so a may take back 4 at most, and 1 is free."""
    run_now(cluster, policy, *(a_unit(f"b{n}", "b", 2) for n in range(3)), *(a_unit(f"c{n}", "c", 1) for n in range(5)))


def test_the_queue_most_over_its_share_pays_first_by_its_cheapest_unit() -> None:
    policy = reclaiming(THREE)
    cluster = a_cluster(policy, 3)
    three(cluster, policy)
    # b owes 2 of 12, c 1 of 12. b1 loses least: its last checkpoint was just now.
    cluster.running[UnitKey("b1", 0)].kept_s = 90.0
    cluster.add(a_unit("a0", "a", 2))
    decisions = decide(cluster, policy, 100.0)
    assert (names(decisions), preempted(decisions)) == (["a0"], ["b1"])
    assert decisions.preempted[0].reason == "taken off by reclaim preemption for a0.0"


def test_it_asks_again_after_each_unit_and_stops_at_what_was_borrowed() -> None:
    policy = reclaiming(THREE)
    cluster = a_cluster(policy, 3)
    three(cluster, policy)
    # 1 is free; a0 needs 3 more: 2 of b, which then owes nothing, 1 of c.
    cluster.add(a_unit("a0", "a", 1, ranks=4))
    decisions = decide(cluster, policy, 100.0)
    assert preempted(decisions) == ["b0", "c0"]
    cluster.apply(decisions, 100.0)
    assert {name: account(cluster).tree.usage(name)["accelerators"] for name in "abc"} == dict.fromkeys("abc", 4000)
    cluster.add(a_unit("a1", "a", 1))
    later = decide(cluster, policy, 200.0)
    assert (names(later), preempted(later)) == ([], [])


def test_a_unit_beyond_its_own_quota_takes_nothing_back() -> None:
    policy = reclaiming(THREE)
    cluster = a_cluster(policy, 3)
    three(cluster, policy)
    cluster.add(a_unit("a0", "a", 5, ranks=1, demand={"device_milli": 1000}))
    cluster.add(a_unit("a1", "a", 3, queued_at_s=1.0, ranks=2))
    assert preempted(decide(cluster, policy)) == []


def test_whole_gangs_go_and_wait_again_with_their_age() -> None:
    policy = reclaiming(THREE[:3])
    cluster = a_cluster(policy, 2)
    gang = a_unit("gang", "b", 2, ranks=3, queued_at_s=5.0, expected_s=1000.0)
    play = Play(cluster, policy)
    play.run([gang, a_unit("a0", "a", 4, queued_at_s=50.0, expected_s=100.0)], 50.0)
    assert set(cluster.running) == {UnitKey("a0", 0)}
    waiting = cluster.pending.get(UnitKey("gang", 0))
    assert waiting is not None
    assert (waiting.queued_at_s, waiting.attained_s) == (5.0, 45.0)
    assert waiting.demand.ranks == 3
    play.run([], 150.0)
    assert set(cluster.running) == {gang.key}


def test_units_that_may_not_be_taken_are_passed_over() -> None:
    policy = reclaiming(THREE)
    cluster = a_cluster(policy, 3)
    fixed = [a_unit(f"b{n}", "b", 2, preemptible=False) for n in range(3)]
    run_now(cluster, policy, *fixed, *(a_unit(f"c{n}", "c", 1) for n in range(6)))
    cluster.add(a_unit("a0", "a", 2))
    assert preempted(decide(cluster, policy)) == ["c0", "c1"]
    cluster.add(a_unit("a1", "a", 2, queued_at_s=1.0))
    decisions = decide(cluster, policy)
    assert (names(decisions), preempted(decisions)) == (["a0"], ["c0", "c1"])
    assert "quota: queue 'a' asks for 2 accelerators" in reasons(decisions)["a1"]


def test_borrowers_make_room_on_nodes_where_the_quota_alone_would_have_let_the_unit_pass() -> None:
    # 8 accelerators on two nodes, quotas of 4 each and a pool of 4 that nodes do not have: b borrows on both nodes.
    policy = reclaiming([{"name": "org", "nominal": {"accelerators": 4}}, *THREE[1:3]])
    cluster = a_cluster(policy, 2)
    run_now(cluster, policy, *(a_unit(f"b{n}", "b", 3) for n in range(2)))
    cluster.add(a_unit("a0", "a", 4))
    decisions = decide(cluster, policy)
    assert (names(decisions), len(preempted(decisions))) == (["a0"], 1)
    # a queue within its quota is not taken from, though there is no room either
    other = a_cluster(policy, 2)
    run_now(other, policy, *(a_unit(f"b{n}", "b", 2) for n in range(2)), a_unit("c", "c", 1), a_unit("d", "c", 1))
    other.add(a_unit("a0", "a", 4))
    assert preempted(decide(other, policy)) == []


def test_nothing_is_taken_off_when_there_is_no_room_even_so() -> None:
    policy = reclaiming(THREE)
    cluster = a_cluster(policy, 3)
    three(cluster, policy)
    cluster.add(a_unit("a0", "a", 2, cpus=9.0))
    free = cluster.view.free_cpus.copy(), cluster.view.free_devices.copy()
    decisions = decide(cluster, policy)
    assert (names(decisions), preempted(decisions)) == ([], [])
    assert (cluster.view.free_cpus == free[0]).all()
    assert (cluster.view.free_devices == free[1]).all()
    account(cluster).settle()
    assert account(cluster).tree.usage("org") == {"accelerators": 11000}


def test_it_needs_the_quota_and_knows_its_options() -> None:
    with pytest.raises(PolicyError, match="preemptions: reclaim needs the limit quota"):
        check(a_policy(preemptions=["reclaim"]))
    options = {"quota": {"queues": THREE}, "reclaim": {"only_lower_priority": 1}}
    with pytest.raises(PolicyError, match=r"options\.reclaim\.only_lower_priority: true or false"):
        check(a_policy(limits=["quota"], preemptions=["reclaim"], options=options))
    with pytest.raises(PolicyError, match=r"options\.reclaim\.lower: unknown"):
        check(a_policy(limits=["quota"], preemptions=["reclaim"], options={**options, "reclaim": {"lower": 1}}))


# -- an invariant -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(trees(), loads(), st.booleans())
def test_victims_are_of_queues_that_borrow_and_everybody_ends_up_within(
    queues: list[dict[str, Any]], units: list[PendingUnit], lower: bool
) -> None:
    policy = reclaiming(queues, lower=lower, order=("priority", "age"))
    cluster = a_cluster(policy, 3)
    run: list[PendingUnit] = sorted(units, key=lambda unit: unit.key)
    for number, unit in enumerate(run):
        cluster.add(unit)
        decisions = decide(cluster, policy, float(number))
        tree = account(cluster).tree
        account(cluster).settle()
        # What this cycle placed before counts, too: a queue may have begun to borrow in it.
        for placed in decisions.placed:
            tree.charge(placed.unit.tenant_id, account(cluster).amounts_of(placed.unit))
        borrowing = {name for name in tree.queues if any(tree.borrowed(name).values())}
        for placed in decisions.placed:
            tree.refund(placed.unit.tenant_id, account(cluster).amounts_of(placed.unit))
        for item in decisions.preempted:
            victim = cluster.running[item.key].unit
            assert victim.tenant_id in borrowing, "it holds no more than its own"
            assert item.beneficiary is not None
            winner = cluster.pending.get(item.beneficiary)
            assert winner is not None
            assert winner.tenant_id != victim.tenant_id
            assert not lower or victim.priority < winner.priority
        off = [cluster.running[item.key].unit for item in decisions.preempted]
        cluster.apply(decisions, float(number))
        for unit_off in off:
            cluster.add(unit_off)
        account(cluster).settle()
        assert all(left >= 0 for name in tree.queues for left in tree.available(name).values())
