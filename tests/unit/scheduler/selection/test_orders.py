"""The orders drf, hierarchical_drf, usage, fair_tree, multifactor, slack and sla in real decisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import ORDERS
from services.scheduler.core.selection.history import UsageHistory
from services.scheduler.core.selection.objectives_sla import SlaAccounts, objectives_of
from services.scheduler.core.stages import check
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from tests.unit.scheduler.selection.plays import a_cluster, a_policy, a_unit, names, run_now

DAY_S = 86400.0


def ordered(name: str, *then: str, **options: Any) -> Policy:
    return a_policy(order=[name, *(then or ("age",))], options={name: options} if options else {})


def drained(cluster: Cluster, now_s: float = 0.0, *, charge: bool = True) -> list[str]:
    """The order in which a cycle with room for everything would take the units."""
    facts = {**cluster.view.facts, "cluster": cluster}
    selection = Selection(cluster.pending, OrderContext(cluster.shares(), now_s, facts))
    found = []
    while (unit := selection.pop()) is not None:
        found.append(unit.key.job_id)
        if charge:
            selection.charge(unit)
    return found


# -- drf --------------------------------------------------------------------------------------------------------------


def test_drf_gives_the_published_allocation() -> None:
    # Ghodsi et al. 2011, section 4.1: 9 cpus, 18 GB; A asks <1 cpu, 4 GB>, B <3 cpus, 1 GB>: A runs 3 tasks, B 2.
    policy = ordered("drf")
    cluster = a_cluster(policy, 1, devices=0, cpus=9.0)
    gb = 64 * 2**30 // 18
    for number in range(9):
        memory = {"memory_bytes": 4 * gb}
        cluster.add(a_unit(f"A{number}", "A", cpus=1.0, demand=memory, queued_at_s=100.0 + number))
        cluster.add(a_unit(f"B{number}", "B", cpus=3.0, demand={"memory_bytes": gb}, queued_at_s=float(number)))
    placed = names(decide(cluster, policy))
    assert sorted(placed) == ["A0", "A1", "A2", "B0", "B1"]
    by_age = a_policy()
    cluster.use(by_age)
    assert sorted(names(decide(cluster, by_age))) == ["B0", "B1", "B2"]


def test_drf_counts_what_runs_by_index_and_divides_by_weight() -> None:
    # Held: x 2 of 8 accelerators, y 1. At index 1 y goes first; with weight 3, x does.
    for weights, expected in (({}, "y"), ({"x": 3.0}, "x")):
        policy = a_policy(order=["drf", "age"], tenant_weights=weights)
        cluster = a_cluster(policy, 2)
        run_now(cluster, policy, a_unit("rx", "x", 2, cpus=0.0), a_unit("ry", "y", 1, cpus=0.0))
        cluster.extend([a_unit("nx", "x", 1), a_unit("ny", "y", 1)])
        assert drained(cluster)[0] == f"n{expected}"


def test_drf_follows_ends_and_queues_and_leaves_no_trace() -> None:
    policy = ordered("drf")
    cluster = a_cluster(policy, 2)
    run_now(cluster, policy, a_unit("r0", "x", 2, queue="q"), a_unit("r1", "y", 1))
    waiting = [a_unit(f"n{number}", "x", 1, queue="q", queued_at_s=float(number)) for number in range(2)]
    cluster.extend([*waiting, a_unit("m", "y", 1, queued_at_s=0.5)])
    assert drained(cluster) == drained(cluster) == ["m", "n0", "n1"]
    cluster.release(UnitKey("r0", 0))
    assert drained(cluster) == ["n0", "m", "n1"]


# -- hierarchical drf -------------------------------------------------------------------------------------------------

TREE = [
    {"name": "n1"},
    {"name": "n2"},
    {"name": "n1,1", "parent": "n1"},
    {"name": "n1,2", "parent": "n1"},
    {"name": "n2,1", "parent": "n2"},
    {"name": "n2,2", "parent": "n2"},
]


def test_hierarchical_drf_shares_between_organisations_first() -> None:
    # By hand: 12 cpus; n1 has one busy user, n2 two. Flat: a third each; by the tree 6 for n1, 3 for each user of n2.
    policy = ordered("hierarchical_drf", queues=TREE)
    cluster = a_cluster(policy, 1, devices=0, cpus=12.0)
    for number in range(12):
        for tenant in ("n1,1", "n2,1", "n2,2"):
            cluster.add(a_unit(f"{tenant}/{number:02}", tenant, queued_at_s=float(number)))
    placed = names(decide(cluster, policy))
    assert [sum(name.startswith(tenant) for name in placed) for tenant in ("n1,1", "n2,1", "n2,2")] == [6, 3, 3]
    flat = ordered("drf")
    cluster.use(flat)
    placed = names(decide(cluster, flat))
    assert [sum(name.startswith(tenant) for name in placed) for tenant in ("n1,1", "n2,1", "n2,2")] == [4, 4, 4]


def test_hierarchical_drf_does_not_starve_a_leaf_with_a_complementary_demand() -> None:
    # Bhattacharya et al. 2013, figure 3: 10 cpus, 10 accelerators; n1,1 and n2,1... asks <1,0>, n2,2 <0,1>. H-DRF: n1,1 gets 1/2 of the
    # cpus, n2,1 the other half, n2,2 all it can (10); the naive version would starve n2,1.
    policy = ordered("hierarchical_drf", queues=TREE)
    cluster = a_cluster(policy, 1, devices=10, cpus=10.0)
    for number in range(12):
        cluster.add(a_unit(f"p{number:02}", "n1,1", cpus=1.0, queued_at_s=float(number)))
        cluster.add(a_unit(f"q{number:02}", "n2,1", cpus=1.0, queued_at_s=float(number)))
        cluster.add(a_unit(f"r{number:02}", "n2,2", 1, cpus=0.0, queued_at_s=float(number)))
    placed = names(decide(cluster, policy))
    assert [sum(name.startswith(letter) for name in placed) for letter in "pqr"] == [5, 5, 10]


def test_queues_outside_the_tree_come_last() -> None:
    policy = ordered("hierarchical_drf", queues=TREE)
    cluster = a_cluster(policy)
    cluster.extend([a_unit("s", "stranger"), a_unit("k", "n1,1", queued_at_s=9.0)])
    assert drained(cluster) == ["k", "s"]


# -- usage ------------------------------------------------------------------------------------------------------------


def test_usage_fades_and_who_used_least_goes_first() -> None:
    # x used half of the cluster for 100 s long ago, y a quarter for 100 s just now. Half-life 100 s.
    policy = ordered("usage", half_life_s=100.0)
    cluster = a_cluster(policy, 2)
    cluster.extend([a_unit("nx", "x"), a_unit("ny", "y")])
    drained(cluster)
    cluster.begin(a_unit("rx", "x", 4, cpus=0.0), (), 0.0)
    cluster.release(UnitKey("rx", 0), 100.0)
    assert drained(cluster, 100.0) == ["ny", "nx"]
    cluster.begin(a_unit("ry", "y", 2, cpus=0.0), (), 300.0)
    cluster.release(UnitKey("ry", 0), 400.0)
    history = cluster._observers["usage 100"][1]
    assert isinstance(history, UsageHistory)
    # by hand: share x integral of 2 ** (-(end - t) / 100) over 100 s = share x 100 / (2 ln 2)
    one = 100.0 / (2.0 * math.log(2.0))
    assert history.values(400.0) == pytest.approx({"x": 0.5 * one / 8, "y": 0.25 * one})
    assert drained(cluster, 400.0) == ["nx", "ny"]


def test_usage_counts_what_runs_and_a_look_ahead_changes_nothing() -> None:
    policy = ordered("usage", half_life_s=0.0)
    cluster = a_cluster(policy, 2)
    run_now(cluster, policy, a_unit("rx", "x", 4, cpus=0.0))
    cluster.extend([a_unit("nx", "x"), a_unit("ny", "y", queued_at_s=5.0)])
    history = UsageHistory(0.0, cluster)
    history.began(cluster.running[UnitKey("rx", 0)])
    assert history.values(10.0) == {"x": 5.0}
    assert history.values(1000.0) == {"x": 500.0}
    history.ended(cluster.running[UnitKey("rx", 0)], 20.0)
    assert history.values(1000.0) == {"x": 10.0}
    assert names(decide(cluster, policy, 10.0)) == ["ny", "nx"]


def test_an_end_without_a_time_counts_as_one_at_the_next_cycle() -> None:
    policy = ordered("usage", half_life_s=0.0)
    cluster = a_cluster(policy, 2)
    cluster.add(a_unit("nx", "x"))
    drained(cluster)
    cluster.begin(a_unit("rx", "x", 4, cpus=0.0), (), 0.0)
    cluster.release(UnitKey("rx", 0))
    drained(cluster, 30.0)
    assert cluster._observers["usage 0"][1].values(500.0) == {"x": 15.0}


runs = st.tuples(st.sampled_from("xyz"), st.integers(0, 4), st.integers(0, 500), st.integers(0, 300))


@given(st.lists(runs, max_size=20), st.sampled_from([0.0, 50.0, 1000.0]))
def test_kept_usage_is_the_integral_over_all_runs(found: list[tuple[str, int, int, int]], half_life_s: float) -> None:
    cluster = a_cluster(ordered("usage"), 2)
    history = UsageHistory(half_life_s, cluster)
    events = []
    for number, (tenant, devices, start, length) in enumerate(found):
        events += [(start, 0, number, tenant, devices), (start + length, 1, number, tenant, devices)]
    running = {}
    for at, kind, number, tenant, devices in sorted(events):
        if kind == 0:
            running[number] = cluster.begin(a_unit(f"r{number}", tenant, devices, cpus=0.0), (), float(at))
            history.began(running[number])
        else:
            history.ended(running[number], float(at))
    decay = math.log(2) / half_life_s if half_life_s else 0.0
    expected: dict[str, float] = {}
    for tenant, devices, start, length in found:
        end = start + length
        kept = math.exp(-decay * (900 - end)) * (-math.expm1(-decay * length) / decay if decay else length)
        expected[tenant] = expected.get(tenant, 0.0) + devices / 8 * kept
    assert history.values(900.0) == pytest.approx(expected, abs=1e-9)


# -- fair tree --------------------------------------------------------------------------------------------------------


def test_fair_tree_puts_the_under_served_organisation_first_whatever_its_users_did() -> None:
    queues = [{"name": "A"}, {"name": "B"}, {"name": "a", "parent": "A"}, *({"name": n, "parent": "B"} for n in "bc")]
    policy = ordered("fair_tree", queues=queues, half_life_s=0)
    cluster = a_cluster(policy, 3)
    cluster.extend([a_unit(f"n{tenant}", tenant) for tenant in ("a", "b", "c", "stranger")])
    drained(cluster)
    # a used 4, b 3 and c 0 of the accelerators: A's part is 4/7, B's 3/7; inside B c is before b.
    run_now(cluster, policy, a_unit("ra", "a", 4), a_unit("rb", "b", 3))
    cluster.use(policy)
    assert drained(cluster, 100.0) == ["nc", "nb", "na", "nstranger"]
    flat = ordered("usage", half_life_s=0)
    cluster.use(flat)
    assert drained(cluster, 100.0) == ["nc", "nstranger", "nb", "na"]


# -- multifactor ------------------------------------------------------------------------------------------------------


def test_multifactor_by_hand() -> None:
    weights = {"age": 1000, "fair_share": 0, "size": 100, "qos": 500}
    policy = ordered("multifactor", weights=weights, max_age_s=1000.0, top_priority=10)
    cluster = a_cluster(policy, 2)
    # at 500 s: old 500 + 0 + 100/8 x 0; big 100 + 100 + 0; high 0 + 12.5 + 500
    cluster.add(a_unit("old", "x", cpus=0.0, queued_at_s=0.0))
    cluster.add(a_unit("big", "y", 4, cpus=0.0, ranks=2, queued_at_s=400.0))
    cluster.add(a_unit("high", "z", 1, cpus=0.0, priority=10, queued_at_s=500.0))
    assert drained(cluster, 500.0) == ["high", "old", "big"]
    assert drained(cluster, 520.0) == ["high", "old", "big"]
    # at 1500 s both ages of old and high are at the cap: 1000 against 1000 + 512.5; big is at the cap, too: 1100
    assert drained(cluster, 1500.0) == ["high", "big", "old"]
    plugin = cluster.pending.order[0]
    context = OrderContext(cluster.shares(), 500.0, {"cluster": cluster})
    units = list(cluster.pending)
    assert [plugin.key(unit, context) for unit in units] == pytest.approx([-500.0, -200.0, -512.5])
    assert plugin.keys(units, context).tolist() == pytest.approx([-500.0, -200.0, -512.5])  # type: ignore[attr-defined]
    parts = plugin.parts(units, context)  # type: ignore[attr-defined]
    assert parts["size"].tolist() == [0.0, 100.0, 12.5]


def test_multifactor_small_jobs_requested_resources_and_starvation() -> None:
    small = ordered("multifactor", weights={"size": 10, "age": 0, "qos": 0, "fair_share": 0}, favor_small=True)
    tres = ordered("multifactor", weights={"age": 0, "qos": 0, "fair_share": 0, "tres": {"accelerators": 5}})
    starving = ordered("multifactor", weights={"age": 0, "size": 10, "qos": 0, "fair_share": 0}, starvation_age_s=100.0)
    units = [a_unit("big", "x", 4, queued_at_s=50.0), a_unit("small", "y", 1)]
    for policy, now_s, expected in (
        (small, 60.0, ["small", "big"]),
        (tres, 60.0, ["big", "small"]),
        (starving, 60.0, ["big", "small"]),
        (starving, 100.0, ["small", "big"]),
    ):
        cluster = a_cluster(policy, 2)
        cluster.extend(units)
        assert drained(cluster, now_s) == expected


def test_multifactor_fair_share_from_usage_flat_and_by_tree() -> None:
    weights = {"age": 0, "qos": 0, "fair_share": 1000}
    tree = [{"name": "A"}, {"name": "x", "parent": "A"}, {"name": "B"}, {"name": "y", "parent": "B"}]
    for options in ({}, {"queues": tree}):
        policy = ordered("multifactor", weights=weights, half_life_s=0.0, **options)
        cluster = a_cluster(policy, 2)
        cluster.extend([a_unit("nx", "x", queued_at_s=0.0), a_unit("ny", "y", queued_at_s=1.0)])
        assert drained(cluster, 2.0) == ["nx", "ny"]
        run_now(cluster, policy, a_unit("rx", "x", 2))
        assert drained(cluster, 100.0) == ["ny", "nx"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3), st.integers(0, 900), st.integers(0, 3)), max_size=25),
    st.integers(900, 2000),
)
def test_multifactor_takes_units_by_falling_priority(rows: list[tuple[str, int, int, int]], now_s: int) -> None:
    policy = ordered("multifactor", max_age_s=500.0, starvation_age_s=700.0, weights={"size": 300, "qos": 400})
    cluster = a_cluster(policy, 2)
    for number, (tenant, devices, queued, rank) in enumerate(rows):
        cluster.add(a_unit(f"u{number:02}", tenant, devices, queued_at_s=float(queued), priority=rank))
    plugin = cluster.pending.order[0]
    context = OrderContext(cluster.shares(), float(now_s), {"cluster": cluster})
    keys = {unit.key.job_id: (plugin.key(unit, context), unit.queued_at_s, unit.key) for unit in cluster.pending}
    assert drained(cluster, float(now_s)) == sorted(keys, key=keys.__getitem__)


# -- slack and sla ----------------------------------------------------------------------------------------------------


def test_slack_is_the_time_left_to_start() -> None:
    policy = ordered("slack")
    cluster = a_cluster(policy)
    cluster.add(a_unit("far", deadline_s=1000.0, expected_s=950.0))
    cluster.add(a_unit("near", deadline_s=500.0, expected_s=100.0))
    cluster.add(a_unit("limit", deadline_s=500.0, limit_s=200.0))
    cluster.add(a_unit("unknown", deadline_s=350.0))
    cluster.add(a_unit("never"))
    assert drained(cluster) == ["far", "limit", "unknown", "near", "never"]


def test_sla_judges_by_the_accounts_and_gives_up_lost_causes() -> None:
    objectives = objectives_of(
        "options",
        {
            "gold": [{"kind": "average_wait", "target": 100, "window_s": 3600, "penalty_micro_units": 50}],
            "silver": [{"kind": "deadline", "target": 0, "window_s": 3600, "penalty_micro_units": 10}],
        },
    )
    accounts = SlaAccounts(objectives)
    policy = ordered("sla")
    cluster = a_cluster(policy, 1, {"sla": accounts})
    units = [
        a_unit("gold", "gold", queued_at_s=0.0),
        a_unit("silver", "silver", deadline_s=200.0, expected_s=80.0),
        a_unit("free", "nobody", deadline_s=110.0, expected_s=0.0),
        a_unit("none", "nobody"),
    ]
    for unit in units:
        cluster.add(unit)
        accounts.queued(unit, 0.0)
    # at 0: slack of gold 100, silver 200 - 80 = 120, free 110
    assert drained(cluster) == ["gold", "free", "silver", "none"]
    # at 150 the deadline of free is missed and no longer counts; gold is overdue by 50; silver has -30
    assert drained(cluster, 150.0) == ["gold", "silver", "free", "none"]
    # at 201 silver is lost, too
    assert drained(cluster, 201.0)[0] == "gold"
    assert drained(cluster, 201.0)[1:] == ["free", "none", "silver"]


def test_sla_rows_for_reports() -> None:
    objectives = objectives_of(
        "options",
        {
            "gold": [
                {"kind": "average_wait", "target": 10, "window_s": 100, "penalty_micro_units": 7, "currency": "CNY"},
                {"kind": "recovery_time", "target": 30, "window_s": 1000, "penalty_micro_units": 3},
            ]
        },
    )
    accounts = SlaAccounts(objectives)
    unit, stranger = a_unit("u", "gold"), a_unit("s", "nobody")
    for each in (unit, stranger):
        accounts.queued(each, 0.0)
        accounts.started(each, 25.0)
    accounts.queued(unit, 40.0, lost_at_s=40.0)
    accounts.started(unit, 45.0)
    accounts.recovered(unit, 90.0, 50.0)
    accounts.finished(unit, 95.0)
    wait, recovery = accounts.rows(100.0)
    # waits 25 and 5: on average 15 > 10, judged at the end of the window, 100 s
    assert (wait.tenant_id, wait.kind, wait.value, wait.met, wait.observations) == (
        "gold",
        "average_wait",
        15.0,
        False,
        2,
    )
    assert (wait.violations, wait.penalty_micro_units, wait.currency) == (1, 7, "CNY")
    assert (recovery.value, recovery.violations, recovery.penalty_micro_units) == (0.0, 1, 3)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("drf", {"x": 1}, "options.drf.x"),
        ("hierarchical_drf", {}, "options.hierarchical_drf.queues"),
        ("hierarchical_drf", {"queues": [{"name": "a", "shares": 0}]}, "options.hierarchical_drf.queues[0].shares"),
        ("hierarchical_drf", {"queues": [{"name": "a", "parent": "b"}]}, "options.hierarchical_drf.queues: queue 'a'"),
        ("usage", {"half_life_s": -1}, "options.usage.half_life_s"),
        ("fair_tree", {"queues": [{}]}, "options.fair_tree.queues[0].name"),
        ("fair_tree", {"queues": [{"name": "a"}], "half_life_s": "x"}, "options.fair_tree.half_life_s"),
        ("fair_tree", {"half_life_s": 1.0}, "options.fair_tree.queues"),
        ("multifactor", {"weights": {"age": -1}}, "options.multifactor.weights.age"),
        ("multifactor", {"weights": {"nice": 1}}, "options.multifactor.weights.nice"),
        ("multifactor", {"weights": {"tres": {"disk": 1}}}, "options.multifactor.weights.tres.disk"),
        ("multifactor", {"max_age_s": 0}, "options.multifactor: max_age_s"),
        ("multifactor", {"favor_small": 1}, "options.multifactor.favor_small"),
        ("multifactor", {"queues": [{"name": ""}]}, "options.multifactor.queues[0].name"),
        ("multifactor", {"protected_qos": 2}, "options.multifactor: protected_qos"),
        ("slack", {"x": 1}, "options.slack.x"),
        ("sla", {"step_s": -1}, "options.sla.step_s"),
    ],
)
def test_wrong_options_are_named_by_their_path(name: str, options: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check(ordered(name, **options))
    assert caught.value.detail.startswith(path)


@pytest.mark.parametrize(
    ("objective", "path"),
    [
        ({"kind": "uptime", "target": 1, "window_s": 1}, "x.t[0].kind"),
        ({"kind": "deadline", "window_s": 1}, "x.t[0].target"),
        ({"kind": "deadline", "target": 1, "window_s": 0}, "x.t[0].window_s"),
        ({"kind": "deadline", "target": 1, "window_s": 1, "penalty_micro_units": 0.5}, "x.t[0].penalty_micro_units"),
    ],
)
def test_wrong_objectives_are_named_by_their_path(objective: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        objectives_of("x", {"t": [objective]})
    assert caught.value.detail.startswith(path)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1,1", "n1,2", "n2,1", "n2,2"]), st.integers(0, 2), st.sampled_from([0.0, 1.0, 2.0])
        ),
        max_size=20,
    ),
    st.sampled_from(["drf", "hierarchical_drf"]),
)
@settings(max_examples=60, deadline=None)
def test_the_selection_takes_the_least_key_at_every_step(rows: list[tuple[str, int, float]], name: str) -> None:
    policy = ordered(name, **({"queues": TREE} if name == "hierarchical_drf" else {}))
    cluster = a_cluster(policy, 4)
    for number, (tenant, devices, cpus) in enumerate(rows):
        if devices or cpus:
            cluster.add(a_unit(f"u{number:02}", tenant, devices, cpus, queued_at_s=float(number)))
    context = OrderContext(cluster.shares(), 0.0, {"cluster": cluster})
    selection = Selection(cluster.pending, context)
    left: list[PendingUnit] = list(cluster.pending)
    while (unit := selection.pop()) is not None:
        least = min(left, key=lambda item: (cluster.pending.key(item, context), item.queued_at_s, item.key))
        assert unit == least
        left.remove(unit)
        selection.charge(unit)
    assert not left


def test_orders_are_registered_with_what_their_keys_depend_on() -> None:
    kinds = {name: ORDERS[name].per for name in ("drf", "usage", "fair_tree", "hierarchical_drf", "multifactor", "sla")}
    assert kinds == {
        "drf": "tenant",
        "usage": "tenant",
        "fair_tree": "tenant",
        "hierarchical_drf": "placements",
        "multifactor": "time",
        "sla": "time",
    }
    assert np.isfinite(ORDERS["slack"].key(a_unit("u", deadline_s=5.0), OrderContext(None)))  # type: ignore[arg-type]


def test_drf_counts_named_resources() -> None:
    # x holds 1 of 2 licences (1/2), y 3 of 8 accelerators.
    policy = ordered("drf")
    cluster = a_cluster(policy, 2, resources={"licence": 1.0})
    run_now(
        cluster,
        policy,
        a_unit("rx", "x", demand={"resources": (("licence", 1.0),)}),
        a_unit("ry", "y", 3, cpus=0.0),
    )
    cluster.extend([a_unit("nx", "x"), a_unit("ny", "y", queued_at_s=9.0)])
    assert drained(cluster) == ["ny", "nx"]
