"""Amounts that a job may ask for, and that nodes may stop to have: none stops the scheduler."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import with_domain
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.selection.amounts import Meter
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import UNBOUNDED
from services.scheduler.core.units import units_of
from tests.unit.scheduler.world import World, a_fleet, a_node, task


def test_a_resource_that_leaves_the_fleet_while_it_is_held_stays_with_its_run() -> None:
    world = World(a_fleet({"a": 1}, resources={"licence": 2.0, "tape": 3.0}))
    world.submit("job", task(resources=(("licence", 1.0), ("tape", 1.0))))
    world.cycle()
    run = world.run("job")
    draft = world.book.draft()
    draft.fleet = with_domain(world.book.fleet, None, [a_node("a-0", "a", resources={"tape": 3.0})])
    world.merge(draft)
    view = world.book.cluster.view
    assert view.table.resource_names == ("tape",)
    assert view.free_resources.tolist() == [[2.0]]
    world.restart()
    world.finish(run)
    assert world.book.cluster.view.free_resources.tolist() == [[3.0]]


def test_none_of_a_resource_may_be_asked_for_where_no_node_has_it() -> None:
    world = World(a_fleet({"a": 1}))
    world.submit("job", task(resources=(("licence", 0.0),)))
    assert [item.key.job_id for item in world.cycle().placed] == ["job"]


@pytest.mark.parametrize("amount", [math.inf, math.nan, -1.0, 1e16])
def test_amounts_that_no_node_may_have_are_refused_by_name(amount: float) -> None:
    with pytest.raises(MalformedJobError, match=r"resources\.cpus must"):
        units_of(task(cpus=amount))
    with pytest.raises(MalformedJobError, match=r"resources\.user_resources\.licence must be 0-1e\+15"):
        units_of(task(resources=(("licence", amount),)))


def test_endless_cpus_end_the_job_and_not_the_cycle() -> None:
    queues = [{"name": "lab", "nominal": {"cpus": 4}}]
    policy = policy_from_json({"limits": ["quota"], "options": {"quota": {"queues": queues}}})
    world = World(a_fleet({"a": 1}), policy)
    world.submit("endless", task(cpus=math.inf))
    world.submit("job", task())
    assert [item.key.job_id for item in world.cycle().placed] == ["job"]


@pytest.mark.parametrize("cpus", [1e-300, 5e-324])
def test_what_is_too_small_to_count_fits(cpus: float) -> None:
    world = World(a_fleet({"a": 1}, resources={"licence": 1.0}))
    world.submit("first", task(cpus=cpus, resources=(("licence", cpus),)))
    world.cycle()
    # The second is counted on the one node that was touched, the first on all.
    for name in ("second", "third"):
        world.submit(name, task(cpus=cpus))
        assert [item.key.job_id for item in world.cycle().placed] == [name]
    demand = world.book.spec_of(world.run("third").key).demand
    view = world.book.cluster.view
    assert view.ranks_that_fit(demand, view.columns(demand)).tolist() == [UNBOUNDED]


def test_a_device_that_leaves_its_node_while_it_is_held_counts_as_one_that_may_be_asked_for() -> None:
    world = World(a_fleet({"a": 1}, devices=2))
    world.submit("job", task(accelerators=1))
    world.cycle()
    cluster = world.book.cluster
    cluster.view.facts["index"] = {"A100": 2.0}
    held = Meter(cluster).held(cluster.running[UnitKey("job", 0)])
    assert held == Meter(cluster).of(task(accelerators=1).demand)
    node = a_node("a-0", "a", devices=2)
    draft = world.book.draft()
    left = tuple(item for item in node.devices if item.index not in world.run("job").ranks[0].devices)
    draft.fleet = with_domain(world.book.fleet, None, [replace(node, devices=left)])
    world.merge(draft)
    assert Meter(cluster).held(cluster.running[UnitKey("job", 0)]) == held
