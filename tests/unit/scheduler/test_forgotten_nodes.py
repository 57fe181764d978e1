"""What was held against a failed node goes with it when nobody knows it any more."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import Message

from meridian.contracts.failover.v1 import failover_pb2
from services.scheduler.core.state import UnitKey
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
