"""Idle nodes are put to sleep: which ones, when, and what keeps them awake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.effects import Sleep, Start, Wake
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import (
    Domain,
    Fleet,
    MarkKind,
    NodeState,
    with_domain,
    with_expected_demand,
    with_node_state,
)
from services.scheduler.core.idle_nodes import IdleNodes, IdleRules, idle_rules_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.sleeping import ASKED_AGAIN_S, PATIENCE_S, asleep_now, follow
from services.scheduler.core.stages import check
from services.scheduler.policy.file import parse
from tests.unit.scheduler.world import World, a_fleet, a_node, task


def policy(after_s: float = 100.0, reserve: int = 0) -> Policy:
    return Policy(name="rest", options=(("idle_nodes", (("sleep_after_s", after_s), ("reserve", reserve))),))


def fleet(nodes: int = 3, wake_s: float = 5.0) -> Fleet:
    found = [replace(a_node(f"a-{number}", "a", devices=1), wake_s=wake_s) for number in range(nodes)]
    return with_domain(Fleet(), Domain("a"), found, full_of="a")


def world_of(rules: Policy, of: Fleet | None = None) -> World:
    world = World(of or fleet(), rules)
    world.book.begin(world.now_s)
    return world


def rest(world: World) -> list[str]:
    """Look now; the nodes that are told to sleep."""
    before = len(world.of(Sleep))
    rules, idle = idle_rules_of(world.policy), world.book.idle
    assert rules is not None
    assert idle is not None
    draft = world.book.draft()
    draft.at_s = world.now_s
    follow(draft, idle, rules, world.now_s)
    world.merge(draft)
    return [node_id for effect in world.of(Sleep)[before:] for node_id in effect.node_ids]


def state(world: World, node_id: str, to: NodeState) -> None:
    """The graph says so."""
    draft = world.book.draft()
    draft.at_s = world.now_s
    changed = with_node_state(draft.fleet, node_id, to, "")
    marks = {key: mark for key, mark in changed.marks.items() if key[1] not in asleep_now(changed)}
    draft.fleet = replace(changed, marks=marks)
    world.merge(draft)


def test_a_node_sleeps_when_it_was_idle_for_long_enough_and_not_before() -> None:
    world = world_of(policy())
    world.now_s += 99.0
    assert rest(world) == []
    world.now_s += 1.0
    assert rest(world) == ["a-0", "a-1", "a-2"]
    assert [effect.domain_id for effect in world.of(Sleep)] == ["a"]
    world.now_s += 1.0
    assert rest(world) == [], "it was told twice"


def test_what_runs_ends_or_is_kept_for_a_unit_is_not_idle_and_time_counts_from_the_end() -> None:
    world = world_of(policy())
    world.submit("x", task(accelerators=1))
    world.cycle()
    run = world.run("x")
    held = run.ranks[0].node_id
    world.now_s += 200.0
    assert held not in rest(world)
    world.now_s += 50.0
    draft = world.book.draft()
    draft.at_s = world.now_s
    world.merge(draft)
    world.finish(run)
    assert rest(world) == []
    world.now_s += 100.0
    assert rest(world) == [held]


def test_a_reserve_of_each_pool_stays_awake() -> None:
    of = fleet(4)
    other = replace(a_node("b-0", "b", devices=1), wake_s=5.0)
    chips = replace(a_node("a-9", "a", devices=1, model="H100"), wake_s=5.0)
    of = with_domain(of, None, [chips])
    of = with_domain(of, Domain("b"), [other], full_of="b")
    world = world_of(policy(reserve=1), of)
    world.now_s += 100.0
    assert rest(world) == ["a-0", "a-1", "a-2"], "one A100 in a, the only H100 and the only node of b stay"


def test_forecast_demand_keeps_accelerators_awake() -> None:
    world = world_of(policy(), with_expected_demand(fleet(4), "a", 2.5))
    world.now_s += 100.0
    assert rest(world) == ["a-0"], "three are needed for 2.5"


def test_nodes_that_cannot_wake_are_left_alone() -> None:
    world = world_of(policy(), fleet(wake_s=0.0))
    world.now_s += 500.0
    assert rest(world) == []


def test_nodes_that_somebody_waits_for_stay_awake() -> None:
    """The unit needs more accelerators than a node has; nodes without accelerators are no use to it."""
    of = with_domain(fleet(2), None, [replace(a_node("cpu", "a", devices=0), wake_s=5.0)])
    world = world_of(policy(), of)
    world.submit("large", task(accelerators=2))
    world.cycle()
    world.now_s += 100.0
    assert rest(world) == ["cpu"]
    world.cancel("large")
    assert rest(world) == ["a-0", "a-1"]


def test_between_the_order_and_the_sleep_nothing_is_placed_there_and_then_it_is_woken() -> None:
    world = world_of(policy(), fleet(1))
    world.now_s += 100.0
    assert rest(world) == ["a-0"]
    world.submit("x", task(accelerators=1))
    world.cycle()
    assert world.of(Start) == []
    assert world.of(Wake) == []
    state(world, "a-0", NodeState.ASLEEP)
    assert not world.book.fleet.marks
    world.cycle()
    assert [effect.node_ids for effect in world.of(Wake)] == [("a-0",)]
    state(world, "a-0", NodeState.HEALTHY)
    world.cycle()
    assert len(world.of(Start)) == 1


def test_a_node_that_does_not_fall_asleep_works_again_and_is_left_alone_for_a_while() -> None:
    world = world_of(policy(), fleet(1))
    world.now_s += 100.0
    assert rest(world) == ["a-0"]
    world.now_s += PATIENCE_S
    assert rest(world) == []
    world.submit("x", task(accelerators=1))
    world.cycle()
    world.finish(world.run("x"))
    world.now_s += 200.0
    assert rest(world) == []
    world.now_s += ASKED_AGAIN_S
    assert rest(world) == ["a-0"]


def test_a_node_that_awoke_is_idle_since_then() -> None:
    world = world_of(policy(), with_node_state(fleet(1), "a-0", NodeState.ASLEEP, ""))
    world.now_s += 1000.0
    state(world, "a-0", NodeState.HEALTHY)
    world.now_s += 99.0
    assert rest(world) == []
    world.now_s += 1.0
    assert rest(world) == ["a-0"]


def test_a_new_leader_waits_its_time_and_keeps_what_was_told() -> None:
    world = world_of(policy(), fleet(2))
    world.submit("x", task(accelerators=1))
    world.cycle()
    world.now_s += 100.0
    [told] = rest(world)
    world.restart()
    world.book.begin(world.now_s)
    assert world.book.fleet.marks.keys() == {(MarkKind.NODE_RESTING, told)}
    world.finish(world.run("x"))
    assert rest(world) == []
    world.now_s += 100.0
    assert rest(world) == [f"a-{1 - int(told[-1])}"], "the other has been told, and is looked at again after its time"


def test_without_rules_nothing_is_watched() -> None:
    world = World(fleet(), Policy())
    world.book.begin(world.now_s)
    assert world.book.idle is None
    world.book.use(policy(), world.now_s)
    assert world.book.idle is not None
    world.book.use(Policy(), world.now_s)
    assert world.book.idle is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ((("sleep_after_s", 0),), "sleep_after_s"),
        ((("reserve", 1),), "sleep_after_s"),
        ((("sleep_after_s", 10), ("reserve", 1.5)), "reserve"),
        ((("sleep_after_s", 10), ("reserve", -1)), "reserve"),
        ((("sleep_after_s", 10), ("nap", 1)), "nap"),
    ],
)
def test_wrong_rules_are_named(options: tuple[tuple[str, object], ...], field: str) -> None:
    with pytest.raises(PolicyError, match=field):
        check(Policy(options=(("idle_nodes", options),)))


def test_a_policy_file_has_them_as_a_section_and_inherits_them() -> None:
    found = parse("name: night\nidle_nodes: {sleep_after_s: 600, reserve: 2}\n", "night.yaml")
    assert idle_rules_of(found) == IdleRules(600.0, 2)
    with pytest.raises(PolicyError, match=r"line 2.*sleep_after_s"):
        parse("name: night\nidle_nodes: {sleep_after_s: soon}\n", "night.yaml")


def test_nothing_is_remembered_of_nodes_that_are_gone() -> None:
    """Clouds name each node anew: what was told to those before would pile up."""
    before, after = a_fleet({"a": 2}), a_fleet({"a": 1})
    idle = IdleNodes(0.0, at_s=5.0)
    idle.fleet_changed(Fleet(), before)
    idle.asked.update({"a-0": 10.0, "a-1": 10.0})
    idle.refused.update({"a-0": 20.0, "a-1": 20.0})
    idle.fleet_changed(before, after)
    assert (idle.asked, idle.refused) == ({"a-0": 10.0}, {"a-0": 20.0})
    assert idle.asked_s("a-1") == 0.0
