"""What is held against a failed node: nothing once nobody knows it any more, or in the domain that has it now."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import Message

from meridian.contracts.failover.v1 import failover_pb2
from services.scheduler.core.fleet import with_domain
from services.scheduler.core.state import RunState, UnitKey
from services.scheduler.events import Batch, apply
from tests.unit.scheduler.recorded_messages import envelope
from tests.unit.scheduler.world import World, a_fleet, task


def say(world: World, *messages: Message) -> None:
    draft = world.book.draft()
    apply(Batch(draft, world.now_s, world.rules, set()), [envelope(message) for message in messages])
    world.merge(draft)


def test_a_node_that_comes_again_after_it_was_forgotten_takes_work() -> None:
    world = World(a_fleet({"a": 1}))
    say(world, failover_pb2.NodeFailed(domain_id="a", node_id="a-0", reason="dead"))
    world.submit("job", task())
    assert not world.cycle().placed
    key = UnitKey("job", 0)
    draft = world.book.draft()
    draft.units[key] = replace(world.book.units[key], excluded_nodes=frozenset({"a-0"}), excluded_until_s=1e9)
    world.merge(draft)
    say(world, failover_pb2.NodeForgotten(domain_id="a", node_id="a-0"))
    assert not world.book.fleet.marks
    assert [item.key.job_id for item in world.cycle().placed] == ["job"]


def test_a_node_that_another_domain_has_by_now_keeps_what_runs_there() -> None:
    """It failed where it was before, and what ran on it there is lost; failover plans nothing for what runs on it now."""
    world = World(a_fleet({"b": 1}))
    world.submit("job", task())
    world.cycle()
    world.start(world.run("job"))
    say(
        world,
        failover_pb2.NodeFailed(domain_id="a", node_id="b-0", reason="its agent does not name it any more"),
        failover_pb2.NodeRecovered(domain_id="a", node_id="b-0", reason="the agent of another domain names it"),
    )
    world.advance(3600.0)
    assert world.run("job").state is RunState.ACTIVE
    say(world, failover_pb2.NodeFailed(domain_id="b", node_id="b-0", reason="dead"))
    world.advance(3600.0)
    assert world.run("job").state is not RunState.ACTIVE


def test_a_domain_that_is_forgotten_goes_and_takes_work_when_it_comes_again() -> None:
    world = World(a_fleet({"a": 1, "b": 1}))
    before = world.book.fleet
    say(
        world,
        failover_pb2.DomainUnreachable(domain_id="a", reason="silent"),
        failover_pb2.DomainForgotten(domain_id="a", reason="silent for 30 days"),
    )
    fleet = world.book.fleet
    assert set(fleet.domains) == {"b"}
    assert set(fleet.nodes) == {"b-0"}
    assert not fleet.marks
    say(world, failover_pb2.DomainForgotten(domain_id="a"))
    assert world.book.fleet is fleet, "nothing is written for what is not known"
    draft = world.book.draft()
    draft.fleet = with_domain(draft.fleet, before.domains["a"], [before.nodes["a-0"]], full_of="a")
    world.merge(draft)
    world.submit("first", task())
    world.submit("second", task())
    assert len(world.cycle().placed) == 2
