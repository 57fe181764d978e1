"""Units that run go to other nodes, where they fit at once, so that one that waits has room."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.explaining.explanation import MOVED
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.room_by_moving import MovePreemption
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, FailureKind, PlacedRank, RunState, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares
from tests.unit.scheduler.world import World, a_fleet, task

NOW_S = 10_000.0
POLICY = Policy(
    name="moving",
    filters=("up", "domain", "accelerator", "capacity"),
    scores=(("pack", 1.0),),
    order=("age",),
    preemptions=("move",),
)


def asked(name: str, devices: int, *, remaining_s: float = math.inf, ranks: int = 1, **more: object) -> PendingUnit:
    demand = Demand(ranks, accelerators=devices, **more)  # type: ignore[arg-type]
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, demand, expected_s=remaining_s, restart_s=10.0)


def cluster_of(fleet: Fleet, held: dict[str, tuple[str, int]], policy: Policy = POLICY, **more: object) -> Cluster:
    """A cluster on which units run since 0: (node, devices) by name. They lose nothing but a restart of 10 s."""
    cluster = Cluster(table_of(fleet), policy)
    for name, (node, devices) in held.items():
        row = cluster.table.node_index[node]
        before = sum(len(taken) for unit in cluster.running.values() for at, taken in unit.rows if at == row)
        taken = tuple(range(before, before + devices))
        unit = replace(asked(name, devices, remaining_s=NOW_S + 5000.0), **more)  # type: ignore[arg-type]
        rank = PlacedRank(0, node.rpartition("-")[0], node, 0, taken, 1000)
        cluster.occupy(RunningUnit(unit, (rank,), 0.0, kept_s=math.inf, expected_end_s=NOW_S + 5000.0))
    return cluster


def carried_out(cluster: Cluster, *units: PendingUnit, policy: Policy = POLICY) -> Decisions:
    cluster.extend(units)
    return decide(cluster, policy, NOW_S)


def places(decisions: Decisions) -> dict[str, list[str]]:
    return {item.key.job_id: sorted({rank.node_id for rank in item.ranks}) for item in decisions.placed}


def test_a_gang_of_a_node_gets_one_by_moving_the_smaller_half_onto_the_other() -> None:
    cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)})
    decisions = carried_out(cluster, asked("gang", 4))
    assert places(decisions) == {"gang": ["a-0"], "one": ["a-1"]}
    (off,) = decisions.preempted
    assert (off.key.job_id, off.beneficiary, off.reason) == ("one", UnitKey("gang", 0), f"{MOVED} for gang.0")


def test_nobody_moves_where_all_that_is_free_does_not_suffice() -> None:
    cluster = cluster_of(a_fleet({"a": 2}), {"two": ("a-0", 2), "three": ("a-1", 3)})
    decisions = carried_out(cluster, asked("gang", 4))
    assert not decisions.placed
    assert not decisions.preempted


def test_nobody_moves_who_finds_no_room_and_the_view_is_as_it_was() -> None:
    """On three nodes of four 1, 1 and 2 devices are free: enough for the gang, not for the unit of three."""
    cluster = cluster_of(a_fleet({"a": 3}), {"left": ("a-0", 3), "mid": ("a-1", 3), "right": ("a-2", 2)})
    before = cluster.view.free_amounts()
    decisions = carried_out(cluster, asked("gang", 4, domains=frozenset({"a"})))
    assert not decisions.placed
    assert not decisions.preempted
    assert not cluster.view.is_more_free(before)
    assert not any((now > then).any() for now, then in zip(before, cluster.view.free_amounts(), strict=True))


def test_a_gang_of_two_nodes_takes_the_cheapest_two_of_one_domain() -> None:
    held = {"a0": ("a-0", 1), "a1": ("a-1", 1), "a2": ("a-2", 2), "b0": ("b-0", 1), "b1": ("b-1", 1)}
    decisions = carried_out(cluster_of(a_fleet({"a": 3, "b": 2}), held), asked("gang", 4, ranks=2))
    assert places(decisions) == {"gang": ["a-0", "a-1"], "a0": ["a-2"], "a1": ["a-2"]}


@pytest.mark.parametrize("data", [(), (("a", 1e9),)])
def test_who_has_input_data_stays_in_its_domain(data: tuple[tuple[str, float], ...]) -> None:
    cluster = cluster_of(a_fleet({"a": 1, "b": 1}), {"one": ("a-0", 1), "two": ("b-0", 1)})
    for item in cluster.running.values():
        item.unit = replace(item.unit, demand=replace(item.unit.demand, data=data))
    decisions = carried_out(cluster, asked("gang", 4))
    assert len(decisions.placed) == (0 if data else 2)


def test_one_that_could_stay_in_its_domain_does() -> None:
    held = {"one": ("a-0", 1), "two": ("a-1", 2), "three": ("b-0", 3), "four": ("b-1", 4)}
    decisions = carried_out(cluster_of(a_fleet({"a": 2, "b": 2}), held), asked("gang", 4))
    assert places(decisions) == {"gang": ["a-0"], "one": ["a-1"]}


def test_a_unit_is_not_moved_to_another_model() -> None:
    fleet = a_fleet({"a": 1})
    slow = a_fleet({"b": 1}, model="T4")
    both = replace(fleet, domains={**fleet.domains, **slow.domains}, nodes={**fleet.nodes, **slow.nodes})
    decisions = carried_out(cluster_of(both, {"one": ("a-0", 1)}), asked("gang", 4, accelerator_types=("A100",)))
    assert not decisions.placed


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({}, True),
        ({"preemptible": False}, False),
        ({"restart_s": 200.0}, True),
        ({"restart_s": 201.0}, False),
        # The policy says 30 s where a unit says nothing.
        ({"restart_s": 0.0}, True),
    ],
)
def test_a_move_costs_a_unit_at_most_its_share_of_the_time_that_it_ran(change: dict[str, Any], moves: bool) -> None:
    cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)}, **change)
    # The other one may not move either way.
    other = cluster.running[UnitKey("two", 0)]
    other.unit = replace(other.unit, preemptible=False)
    assert bool(carried_out(cluster, asked("gang", 4)).placed) is moves


def test_work_since_the_last_checkpoint_is_part_of_the_price() -> None:
    def moves(kept_s: float) -> bool:
        cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)})
        for item in cluster.running.values():
            item.kept_s = kept_s
        return bool(carried_out(cluster, asked("gang", 4)).placed)

    assert moves(NOW_S - 190.0)
    assert not moves(NOW_S - 191.0)


def test_a_short_unit_is_not_worth_a_move() -> None:
    """Moving one device costs 10 device-seconds: 2 % of 500, of four devices for 125 s."""
    for remaining_s, moves in ((124.0, False), (125.0, True)):
        cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)})
        assert bool(carried_out(cluster, asked("gang", 4, remaining_s=remaining_s)).placed) is moves


def test_a_longer_unit_of_the_same_demand_is_asked_though_a_short_one_was_not_worth_it() -> None:
    cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)})
    group = cluster.candidates(Demand(1, accelerators=4))
    facts = {"cluster": cluster, "running": dict(cluster.running)}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), NOW_S, facts)
    cluster.view.begin()
    assert MovePreemption().moves(asked("short", 4, remaining_s=100.0), group, context) is None
    found = MovePreemption().moves(asked("long", 4, remaining_s=1000.0), group, context)
    cluster.view.rollback()
    assert found is not None
    assert [move.running.unit.key.job_id for move in found.moved] == ["one"]


def test_who_moves_keeps_what_it_did_and_is_thought_to_end_when_it_was() -> None:
    cluster = cluster_of(a_fleet({"a": 2}), {"one": ("a-0", 1), "two": ("a-1", 2)})
    decisions = carried_out(cluster, asked("gang", 4))
    for running in cluster.apply(decisions, NOW_S):
        if running.unit.key.job_id == "one":
            assert running.unit.attained_s == running.unit.served_s == NOW_S
            assert running.expected_end_s == NOW_S + 5000.0
    assert sorted(key.job_id for key in cluster.running) == ["gang", "one", "two"]
    assert int(cluster.view.free_device_totals.sum()) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(1, 4), st.integers(1, 2))
def test_after_any_move_all_run_and_no_device_is_given_twice(held: list[int], devices: int, ranks: int) -> None:
    names = {f"u{number}": (f"a-{number}", count) for number, count in enumerate(held) if count}
    cluster = cluster_of(a_fleet({"a": len(held)}), names)
    free = int(cluster.view.free_device_totals.sum())
    decisions = carried_out(cluster, asked("gang", devices, ranks=ranks))
    cluster.apply(decisions, NOW_S)
    placed = UnitKey("gang", 0) in cluster.running
    assert {key.job_id for key in cluster.running} - {"gang"} == set(names)
    assert int(cluster.view.free_device_totals.sum()) == free - placed * devices * ranks
    taken = [
        (rank.node_id, device) for run in cluster.running.values() for rank in run.ranks for device in rank.devices
    ]
    assert len(taken) == len(set(taken)) == sum(held) + placed * devices * ranks
    if free < devices * ranks:
        assert not placed


def test_live_the_nodes_are_kept_for_both_until_the_run_has_stopped() -> None:
    policy = replace(POLICY, restarts=replace(POLICY.restarts, restart_cost_s=0.0))
    world = World(a_fleet({"a": 2}), policy)
    world.submit("one", task(accelerators=3))
    world.cycle()
    world.submit("two", task(accelerators=3))
    world.cycle()
    world.submit("small", task(accelerators=1))
    world.cycle()
    small = world.run("small")
    blocker = next(name for name in ("one", "two") if world.run(name).ranks[0].node_id == small.ranks[0].node_id)
    for name in ("one", "two", "small"):
        world.start(world.run(name))
    world.now_s += 1000.0
    world.finish(world.run(blocker))
    world.checkpoint(world.run("small"), 1)
    world.now_s += 1.0
    world.submit("gang", task(accelerators=4))
    decisions = world.cycle()
    assert [item.key.job_id for item in decisions.preempted] == ["small"]
    assert world.run("small").state is RunState.STOPPING
    kept = {key.job_id for key in world.book.nominated}
    assert kept == {"gang", "small"}
    world.fail(small, FailureKind.STOPPED)
    world.cycle()
    assert world.run("gang").ranks[0].node_id == small.ranks[0].node_id
    assert world.run("small").ranks[0].node_id != small.ranks[0].node_id


@pytest.mark.parametrize(("overhead", "message"), [(-0.1, "at least 0"), (1.5, "at most 1"), ("much", "finite number")])
def test_overhead_is_a_share(overhead: object, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"options\.move\.overhead: .*{message}"):
        MovePreemption().configured({"overhead": overhead})
    with pytest.raises(PolicyError, match=r"options\.move\.more: unknown option"):
        MovePreemption().configured({"more": 1})
