"""Planners see the rates that programs reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.declared_rates import profile_of
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.measured import Cell, Done, News
from services.scheduler.core.policy import Policy, RestartRules
from services.scheduler.core.state import UnitKey
from services.scheduler.plans.catalogue import register_all
from services.scheduler.plans.elastic import round_of
from services.scheduler.plans.state import jobs_of
from tests.unit.scheduler.world import World, a_node, gang

register_all()


def fleet() -> Fleet:
    nodes = [a_node(f"{model}-0", "a", devices=2, model=model) for model in ("A100", "H100")]
    return with_domain(Fleet(), Domain("a"), nodes, full_of="a")


def world_of(planner: str) -> World:
    rules = RestartRules(least_run_s=0.0, restart_cost_s=1.0)
    return World(fleet(), Policy(name=planner, planner=planner, interval_s=10.0, restarts=rules))


def test_what_was_measured_counts_and_the_rest_follows_from_it() -> None:
    world = world_of("gavel")
    world.submit("plain", gang(1, accelerators=1))
    profile = profile_of([("A100", 1, 1.0), ("H100", 1, 3.0)])
    world.submit("declared", replace(gang(1, accelerators=1, profile=profile), steps=100))
    before = jobs_of(world.book.cluster, world.now_s)
    assert before.keys == (UnitKey("declared", 0), UnitKey("plain", 0))
    assert before.throughput.tolist() == [[1.0, 3.0], [1.0, 1.0]]
    assert "its rates are not known" in before.assumed(1)
    a100 = Cell("A100", 1)
    world.book.learn(News((("plain", a100, 5.0), ("declared", a100, 2.0))), world.now_s)
    after = jobs_of(world.book.cluster, world.now_s)
    assert after.throughput.tolist() == [[2.0, pytest.approx(6.0)], [5.0, 5.0]]
    assert "its rates are measured where it ran" in after.assumed(1)
    assert "rates" not in after.assumed(0)


def test_work_left_is_steps_left() -> None:
    world = world_of("gavel")
    world.submit("job", gang(1, accelerators=1))
    key = UnitKey("job", 0)
    world.cycle()
    world.start(world.run("job"))
    world.now_s += 50.0
    held = world.run("job").ranks[0].node_id.split("-")[0]
    world.book.learn(News((("job", Cell(held, 1), 2.0),), ((key, Done(40, 100, world.now_s - 5.0)),)), world.now_s)
    found = jobs_of(world.book.cluster, world.now_s)
    assert found.work.tolist() == [50.0], "60 steps at the report, 2 per second for 5 s since"
    assert found.seconds.tolist() == [[25.0, 25.0]]
    assert "a day is assumed" not in found.assumed(0)


def test_elastic_configurations_have_measured_rates() -> None:
    """Measured 3 with one and 4 with two A100: two are less than twice one. H100 count alike, per rank."""
    world = world_of("elastic-exact")
    world.submit("job", replace(gang(1, accelerators=1), min_ranks=1, max_ranks=2))
    world.book.learn(News((("job", Cell("A100", 1), 3.0), ("job", Cell("A100", 2), 4.0))), world.now_s)
    this = round_of(world.book.cluster, world.now_s, growth=0.0)
    found = {
        (this.jobs.models[kind], int(devices)): float(rate)
        for kind, devices, rate in zip(this.offered.kind, this.offered.devices, this.goodput[0], strict=True)
    }
    assert found == {("A100", 1): 3.0, ("A100", 2): 4.0, ("H100", 1): 2.5, ("H100", 2): 5.0}


def test_gavel_gives_the_faster_type_to_the_job_that_was_measured_to_gain_from_it() -> None:
    """Two jobs, two types of two devices; each job asks for two. Who gains from H100 by its reports gets it."""
    world = world_of("gavel")
    for name in ("x", "y"):
        world.submit(name, gang(2, accelerators=1))
    a100, h100 = Cell("A100", 2), Cell("H100", 2)
    rates = (("x", a100, 1.0), ("x", h100, 1.1), ("y", a100, 1.0), ("y", h100, 4.0))
    world.book.learn(News(rates), world.now_s)
    world.policy = replace(world.policy, options=(("gavel", (("objective", "max_throughput"),)),))
    world.cycle()
    assert world.run("y").ranks[0].node_id == "H100-0"
    assert world.run("x").ranks[0].node_id == "A100-0"
