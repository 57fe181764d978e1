"""What a unit could get at most by taking others off, against what is found when a place is looked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import OrderPreemption, find_room
from services.scheduler.core.reach import Changed, Reach
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares

POLICY = Policy(
    name="shortest",
    filters=("up", "domain", "accelerator", "capacity"),
    scores=(("pack", 1.0),),
    order=("shortest_remaining",),
    preemptions=("order",),
)


def fleet(*devices: int) -> Fleet:
    """A node per number of devices, each in a domain of its own but the last two, which share one."""
    nodes = [
        Node(
            f"n{number}",
            f"d{min(number, max(len(devices) - 2, 0))}",
            cpus=64.0,
            memory_bytes=1 << 40,
            devices=tuple(Device(index, "vendor", "chip") for index in range(count)),
        )
        for number, count in enumerate(devices)
    ]
    names = {node.domain_id for node in nodes}
    return Fleet({name: Domain(name) for name in names}, {node.node_id: node for node in nodes})


def pending(name: str, remaining_s: float, demand: Demand) -> PendingUnit:
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, demand, expected_s=remaining_s)


def running(name: str, remaining_s: float, node: str, domain: str, row: int, devices: tuple[int, ...]) -> RunningUnit:
    unit = pending(name, remaining_s, Demand(1, accelerators=len(devices)))
    ranks = (PlacedRank(0, domain, node, 0, devices, 1000),)
    return RunningUnit(unit, ranks, 0.0, ((row, devices),), expected_end_s=remaining_s)


def test_counts_along_the_order() -> None:
    """Nodes of 4 and 2 devices, one free on each; the order frees 1 on the second, then 2 and 1 on the first."""
    view = View(table_of(fleet(4, 2)))
    order = [
        running("c", 30.0, "n1", "d0", 1, (0,)),
        running("b", 20.0, "n0", "d0", 0, (1, 2)),
        running("a", 10.0, "n0", "d0", 0, (0,)),
    ]
    for item in order:
        for row, devices in item.rows:
            view.occupy(row, item.unit.demand, devices)
    reach = Reach(view, lambda past, until: order[past:until], np.array([True, True]))
    assert [reach.covers(Demand(1, accelerators=count), 0) for count in (1, 2)] == [True, False]
    assert [reach.covers(Demand(1, accelerators=count), 1) for count in (2, 3)] == [True, False]
    assert [reach.covers(Demand(1, accelerators=count), 2) for count in (3, 4)] == [True, False]
    assert reach.covers(Demand(1, accelerators=4), 3)
    # Ranks of two: none, one on the second node, one on each, three.
    assert [reach.covers(Demand(ranks, accelerators=2), 2) for ranks in (2, 3)] == [True, False]
    assert [reach.covers(Demand(ranks, accelerators=2), 3) for ranks in (3, 4)] == [True, False]
    only_second = Reach(view, lambda past, until: order[past:until], np.array([False, True]))
    assert [only_second.covers(Demand(1, accelerators=count), 3) for count in (2, 3)] == [True, False]
    assert only_second.covers(Demand(1, cpus=1.0), 0)


def test_only_nodes_that_changed_are_asked() -> None:
    """Of a full network of nodes with 4, 2 and 2 devices the first has changed: two that run there hold two devices each."""
    cluster = Cluster(table_of(fleet(4, 2, 2)), POLICY)
    for row, devices in ((0, (0, 1, 2, 3)), (1, (0, 1)), (2, (0, 1))):
        cluster.view.occupy(row, Demand(1, accelerators=len(devices)), devices)
    changed = Changed(cluster.view, {0: [(1.0, 2), (3.0, 2)]})

    def may_hold(accelerators: int, place: float, *domains: str) -> bool:
        demand = Demand(1, accelerators=accelerators, domains=frozenset(domains))
        return changed.may_hold(cluster.candidates(demand), place)

    assert [may_hold(count, 2.0) for count in (1, 2, 3)] == [True, True, False], "one of the two is behind"
    assert [may_hold(count, 0.0) for count in (3, 4, 5)] == [True, True, False], "both are"
    assert not may_hold(1, 3.0), "nobody is behind"
    assert may_hold(1, 0.0, "d0")
    assert not may_hold(1, 0.0, "d1"), "the node is none of its domains"
    assert changed.may_hold(cluster.candidates(Demand(1, cpus=1.0)), 9.0), "devices say nothing about it"
    cluster.view.give(0, Demand(1, accelerators=1), (0,))
    assert Changed(cluster.view, {0: []}).may_hold(cluster.candidates(Demand(1, accelerators=1)), 9.0), "it is free"


def test_what_was_touched_since_a_moment() -> None:
    view = View(table_of(fleet(4, 2)))
    mark = view.mark
    assert view.touched_since(mark) == set()
    view.occupy(1, Demand(1, accelerators=1), (0,))
    assert view.touched_since(mark) == {1}
    view.touch([0])
    assert view.touched_since(mark) == {0, 1}
    assert view.touched_since(None) is None
    view.state("price", 1.0)
    assert view.touched_since(mark) is None, "more than nodes changed"
    mark = view.mark
    view.set_up([0], False)
    assert view.touched_since(mark) is None


def test_who_waited_for_one_that_is_withdrawn_is_looked_at_again() -> None:
    """EASY in two domains of their own. In the first a run holds two of four devices until 100 s; "wide" is to have all four
    then, so "long" waits, though it would fit now; without "wide" it runs."""
    easy = replace(POLICY, order=("age",), discipline="easy", preemptions=())
    cluster = Cluster(table_of(fleet(4, 2, 2)), easy)
    cluster.occupy(running("r", 100.0, "n0", "d0", 0, (0, 1)))
    cluster.occupy(running("s", 100.0, "n1", "d1", 1, (0, 1)))
    cluster.occupy(running("t", 100.0, "n2", "d1", 2, (0, 1)))
    here, there = frozenset({"d0"}), frozenset({"d1"})
    cluster.add(pending("wide", 50.0, Demand(1, accelerators=4, domains=here)))
    cluster.add(pending("x-long", 500.0, Demand(1, accelerators=2, domains=here)))
    cluster.add(pending("x-other", 50.0, Demand(1, accelerators=2, domains=there)))

    def begun(now_s: float) -> list[str]:
        found = decide(cluster, easy, now_s, explain=False)
        cluster.apply(found, now_s)
        return [item.key.job_id for item in found.placed]

    assert begun(0.0) == []
    assert begun(1.0) == []
    cluster.withdraw(UnitKey("wide", 0))
    assert begun(2.0) == ["x-long"]


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9)), max_size=8),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)),
)
def test_what_is_out_of_reach_finds_no_room(
    sizes: list[int], held: list[tuple[int, int, int]], wanted: tuple[int, int, int]
) -> None:
    cluster = Cluster(table_of(fleet(*sizes)), POLICY)
    for number, (place, count, remaining) in enumerate(held):
        row = place % len(sizes)
        demand = Demand(1, accelerators=count)
        if cluster.view.free_device_totals[row] >= count:
            devices = cluster.view.take(row, demand, np.array([0]))
            cluster.view.give(row, demand, devices)
            node = cluster.table.nodes[row]
            cluster.occupy(running(f"r{number}", 10.0 * remaining, node.node_id, node.domain_id, row, devices))
    ranks, count, remaining = wanted
    unit = pending("new", 10.0 * remaining + 5.0, Demand(ranks, accelerators=count))
    facts = {"order": cluster.pending.order, "running": cluster.running, "cluster": cluster}
    context = OrderContext(Shares({}, 1.0, 1.0, {}), 0.0, facts)
    runs = list(cluster.running.values())
    plugin = OrderPreemption()
    victims = plugin.victims(unit, runs, context)
    cluster.view.begin()
    found = find_room(cluster, cluster.candidates(unit.demand), victims) if victims else None
    cluster.view.rollback()
    if plugin.out_of_reach(unit, runs, context):
        assert found is None
    elif ranks == 1 and cluster.view.free_device_totals.max() < count:
        # Nobody is taken off for what has room already.
        assert found is not None


def test_a_unit_left_out_of_the_cycle_uses_what_was_taken_off_for_another() -> None:
    """One node of four devices: the first of those that wait takes "long" (all four devices) off for its one; the second is
    shorter than nobody that runs, and finds room beside it."""
    cluster = Cluster(table_of(fleet(4)), POLICY)
    cluster.occupy(running("long", 500.0, "n0", "d0", 0, (0, 1, 2, 3)))
    cluster.add(pending("short", 10.0, Demand(1, accelerators=1)))
    cluster.add(pending("longest", 900.0, Demand(1, accelerators=3)))
    found = decide(cluster, POLICY, 0.0, explain=False)
    assert [item.key.job_id for item in found.preempted] == ["long"]
    assert [item.key.job_id for item in found.placed] == ["short", "longest"]
