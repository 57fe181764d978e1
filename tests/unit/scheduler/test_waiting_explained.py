"""What is said of a unit that waits is as it is now, whatever was judged before, and as it is wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.state import JobSpec, UnitKey
from services.scheduler.outlook import blocked_by, reserved_in
from services.scheduler.policy.file import parse, shipped
from services.scheduler.times import rfc3339
from tests.unit.scheduler.world import World, a_fleet, a_node, gang, task


def waiting(world: World) -> Explanation:
    return world.cycle().waiting[0].explanation


def rejected(explanation: Explanation) -> dict[str, int]:
    return {item.filter: item.rejected for item in explanation.rejections if item.rejected}


def test_nodes_that_filled_up_since_a_class_was_judged_are_counted() -> None:
    world = World(a_fleet({"a": 2}, devices=1))
    for name in ("first", "second"):
        world.submit(name, task(accelerators=1))
        world.cycle()
    world.submit("third", task(accelerators=1))
    found = waiting(world)
    assert rejected(found) == {"capacity": 2}
    assert found.reason.endswith("of 2 nodes rejected: 2 by capacity")
    assert found.rejections[-1].examples[0] == ("a-0", "0 of 1 accelerators free, 1 wanted")
    world.restart()
    assert waiting(world).reason == found.reason


def test_nodes_that_came_free_since_are_not_counted() -> None:
    world = World(a_fleet({"a": 2}, devices=1))
    for name in ("first", "second"):
        world.submit(name, task(accelerators=1))
    world.cycle()
    world.submit("wide", gang(2, accelerators=1))
    assert rejected(waiting(world)) == {"capacity": 2}
    world.finish(world.run("first"))
    assert rejected(waiting(world)) == {"capacity": 1}


def test_a_unit_that_a_limit_holds_back_is_not_said_to_wait_for_capacity() -> None:
    policy = parse("selection: {limits: [quota]}\nqueues: [{name: lab, nominal: {accelerators: 1}}]")
    world = World(a_fleet({"a": 2, "b": 1}, devices=1), policy)
    for name, spec in (("one", gang(2, accelerators=1)), ("both", gang(3, accelerators=1, cross_domain=True))):
        world.submit(name, spec)
    found = {item.key.job_id: item.explanation.as_json() for item in world.cycle().waiting}
    assert found["one"]["stage"] == found["both"]["stage"] == "limit"
    assert found["one"]["room"].startswith("there is room: 2 ranks wanted, free now: most in a (2)")
    assert found["both"]["room"].startswith("there is room: 3 ranks wanted, free now: most in a (2)")


def test_a_gang_that_would_fit_on_accelerators_in_use_is_not_too_large() -> None:
    fleet = a_fleet({"a": 2}, devices=1, model="A100")
    fleet = with_domain(fleet, Domain("b"), [a_node("b-0", "b", devices=1, model="H100")], full_of="b")
    world = World(fleet)
    world.submit("first", gang(2, accelerators=1))
    world.cycle()
    world.submit("second", gang(2, accelerators=1))
    # One free H100 is nearer than no A100, but two H100 there will never be.
    found = waiting(world)
    assert found.stage == "capacity"
    assert found.reason.startswith(
        "waiting for capacity: 2 ranks wanted, free now: none anywhere of A100; of 3 nodes rejected"
    )
    assert dict(zip(found.domains.places, found.domains.fits, strict=True)) == {"a": 0, "b": 1}
    world.submit("third", gang(3, accelerators=1))
    third = world.cycle().waiting[1].explanation
    assert third.stage == "size"
    # In all there are three accelerators.
    assert "could hold 2 when empty, on A100 alone (all its accelerators are of one model)" in third.reason


def test_ranks_that_must_share_a_rack_cannot_span_domains_whatever_they_may_otherwise() -> None:
    world = World(a_fleet({"a": 1, "b": 1}, devices=1, topology={"rack": "r"}))
    world.submit("job", gang(2, accelerators=1, cross_domain=True, topology="rack", topology_required=True))
    found = waiting(world)
    assert found.stage == "size"
    assert "2 ranks wanted, any rack of a qualifying domain could hold 1 when empty" in found.reason


def test_a_part_of_an_accelerator_lacks_only_where_no_device_has_it_free() -> None:
    world = World(a_fleet({"a": 1}, devices=1, cpus=2.0, resources={"licence": 1.0}))
    world.submit("job", task(cpus=2.0, accelerators=1, device_milli=300, resources=(("licence", 1.0),)))
    world.cycle()
    world.submit("same", task(cpus=1.0, accelerators=1, device_milli=300))
    assert waiting(world).rejections[-1].examples == (("a-0", "0 of 2 cpus free, 1 wanted"),)
    world.cancel("same")
    world.submit("more", task(cpus=0.0, accelerators=1, device_milli=800, resources=(("licence", 1.0),)))
    lacks = "0.7 of an accelerator free, 0.8 wanted; 0 licence free, 1 wanted"
    assert waiting(world).rejections[-1].examples == (("a-0", lacks),)


def test_what_no_node_has_enough_of_is_named_with_the_most_there_is() -> None:
    world = World(a_fleet({"a": 2}, devices=1, cpus=4.0, resources={"licence": 2.0}))
    world.submit("job", task(cpus=5.0, resources=(("licence", 3.0), ("tape", 1.0))))
    found = waiting(world)
    assert found.stage == "size"
    assert found.reason.endswith(
        "any qualifying domain could hold 0 when empty; a rank asks for 5 cpus, the most that a qualifying node has is 4; "
        "a rank asks for 3 licence, the most that a qualifying node has is 2; "
        "a rank asks for 1 tape, the most that a qualifying node has is 0"
    )
    fleet = with_domain(
        Fleet(), Domain("a"), [a_node("a-0", "a", cpus=8.0), a_node("a-1", "a", resources={"tape": 1.0})]
    )
    world = World(fleet)
    world.submit("both", task(cpus=8.5, resources=(("tape", 1.0),)))
    assert "a rank asks for 8.5 cpus, the most that a qualifying node has is 8" in waiting(world).reason
    fleet = with_domain(
        Fleet(), Domain("a"), [a_node("a-0", "a", cpus=9.0), a_node("a-1", "a", resources={"tape": 1.0})]
    )
    world = World(fleet)
    world.submit("both", task(cpus=9.0, resources=(("tape", 1.0),)))
    assert waiting(world).reason.endswith("no qualifying node has all that a rank asks for together")


@pytest.mark.parametrize("name", ["easy-backfill", "conservative-backfill"])
def test_for_whom_nodes_are_reserved_is_told(name: str) -> None:
    world = World(a_fleet({"a": 2}, devices=4), shipped(name))

    def limited(spec: JobSpec, limit_s: float) -> JobSpec:
        return replace(spec, max_run_time_s=limit_s)

    world.submit("runs", limited(gang(6, accelerators=1), 60.0))
    world.cycle()
    world.submit("large", limited(gang(8, accelerators=1), 60.0))
    world.submit("long", limited(gang(2, accelerators=1), 600.0))
    waiting_units = world.cycle(whole=False).waiting
    assert [item.key.job_id for item in waiting_units] == ["large", "long"]
    cluster = world.book.cluster.copy()
    told = blocked_by(cluster, UnitKey("long", 0), world.now_s, reserved_in(cluster))["reservations"]
    assert [item["unit"] for item in told] == ["large.0"]
    assert told[0]["from"] == rfc3339(waiting_units[0].start_s)
