"""Nodes that sleep are woken for a unit that fits nowhere else."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.cycle import run_cycle
from services.scheduler.core.effects import Start, Wake
from services.scheduler.core.explaining.explanation import sentences
from services.scheduler.core.fleet import Domain, Fleet, NodeState, with_domain, with_node_state
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import UnitKey
from tests.unit.scheduler.world import World, a_node, gang, task


def fleet(*asleep: str, wake_s: float = 5.0) -> Fleet:
    """Nodes a-0, a-1 and a-2 of one accelerator each, some of them asleep."""
    nodes = [a_node(f"a-{number}", "a", devices=1) for number in range(3)]
    slept = [replace(node, state=NodeState.ASLEEP, wake_s=wake_s) if node.node_id in asleep else node for node in nodes]
    return with_domain(Fleet(), Domain("a"), slept, full_of="a")


def awake(world: World, node_id: str) -> None:
    draft = world.book.draft()
    draft.fleet = with_node_state(draft.fleet, node_id, NodeState.HEALTHY, "")
    world.merge(draft)


def test_awake_nodes_are_taken_first_whatever_the_scores_say() -> None:
    world = World(fleet("a-0", "a-1"), Policy(scores=(("pack", 1.0),)))
    world.submit("x", task(accelerators=1))
    world.cycle()
    assert world.run("x").ranks[0].node_id == "a-2"
    assert world.of(Wake) == []


def test_a_unit_that_fits_only_on_a_sleeping_node_wakes_it_and_starts_when_it_is_awake() -> None:
    world = World(fleet("a-0", "a-1"))
    for name in ("x", "y"):
        world.submit(name, task(accelerators=1))
        world.now_s += 1
    world.cycle()
    [asked] = world.of(Wake)
    unit = world.book.units[UnitKey("y", 0)]
    assert unit.nomination is not None
    [rank] = unit.nomination.ranks
    assert (asked.domain_id, asked.node_ids, asked.reason) == ("a", (rank.node_id,), "y.0 waits for them")
    assert unit.nomination.until_s == world.now_s + 15.0 + 3 * 5.0
    world.now_s += 3
    world.cycle()
    assert len(world.of(Wake)) == 1, "it was asked for twice"
    assert len(world.of(Start)) == 1
    awake(world, rank.node_id)
    world.cycle()
    assert world.run("y").ranks == (rank,)


def test_a_gang_takes_what_is_awake_and_wakes_the_rest() -> None:
    world = World(fleet("a-1", "a-2"))
    world.submit("x", gang(2, accelerators=1))
    world.cycle()
    [asked] = world.of(Wake)
    assert set(asked.node_ids) <= {"a-1", "a-2"}
    for node_id in asked.node_ids:
        awake(world, node_id)
    world.cycle()
    assert len(world.run("x").ranks) == 2


def test_the_explanation_says_who_was_woken() -> None:
    world = World(fleet("a-0", "a-1", "a-2"))
    world.submit("x", task(accelerators=1))
    draft = world.book.draft()
    run_cycle(draft, world.policy, world.now_s, lambda: "d")
    body = dict(draft.records[0].explanation)
    assert body["woken"]["wake_s"] == 5.0
    said = f"It fits only where nodes sleep: {body['woken']['nodes'][0]} woken, in about 5 s."
    assert said in sentences(body)


def test_a_node_that_does_not_wake_is_left_aside_for_a_while() -> None:
    world = World(fleet("a-0", "a-1", "a-2"))
    world.submit("x", task(accelerators=1))
    world.cycle()
    first = world.of(Wake)[0].node_ids
    world.advance(31.0)
    unit = world.book.units[UnitKey("x", 0)]
    assert unit.nomination is None
    assert unit.reason == f"{first[0]} did not wake in time"
    world.cycle()
    second = world.of(Wake)[1].node_ids
    assert second != first


def test_a_node_that_does_not_wake_does_not_bring_back_exclusions_that_are_over() -> None:
    world = World(fleet("a-0", "a-1", "a-2"))
    world.submit("x", task(accelerators=1))
    draft = world.book.draft()
    unit = world.book.units[UnitKey("x", 0)]
    # Its run failed on a-2 long ago: recovery plans write it like that.
    draft.units[unit.key] = replace(unit, excluded_nodes=frozenset({"a-2"}), excluded_until_s=world.now_s - 1.0)
    world.merge(draft)
    world.cycle()
    (kept,) = world.of(Wake)[0].node_ids
    world.advance(31.0)
    assert world.book.units[unit.key].excluded_nodes == {kept}


def test_a_cancelled_job_is_not_started_when_the_node_wakes() -> None:
    world = World(fleet("a-0", "a-1", "a-2"))
    world.submit("x", task(accelerators=1))
    world.cycle()
    world.cancel("x")
    awake(world, world.of(Wake)[0].node_ids[0])
    world.cycle()
    assert world.of(Start) == []


def test_a_node_that_sleeps_for_good_takes_nothing() -> None:
    world = World(fleet("a-0", "a-1", "a-2", wake_s=0.0))
    world.submit("x", task(accelerators=1))
    world.cycle()
    assert world.of(Wake) == []
    assert world.book.units[UnitKey("x", 0)].nomination is None


def test_a_restart_while_a_node_wakes_keeps_the_place() -> None:
    world = World(fleet("a-0", "a-1", "a-2"))
    world.submit("x", task(accelerators=1))
    world.cycle()
    node_id = world.of(Wake)[0].node_ids[0]
    world.restart()
    awake(world, node_id)
    world.cycle()
    assert world.run("x").ranks[0].node_id == node_id
