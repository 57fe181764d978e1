"""What orders keep from cycle to cycle follows the nodes: a scheduler decides before it knows its fleet."""

from __future__ import annotations

import pytest

from services.scheduler.core import lifecycle
from services.scheduler.core.fleet import Fleet, with_domain
from services.scheduler.core.lifecycle import RunReport
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.selection.amounts import Meter
from services.scheduler.core.selection.history import history_of
from services.scheduler.core.state import Demand
from tests.unit.scheduler.world import World, a_fleet, a_node, task


def finish(world: World, job_id: str) -> None:
    """The job ends now, and no cycle has been since it began."""
    draft = world.book.draft()
    draft.at_s = world.now_s
    run = world.run(job_id)
    lifecycle.finished(draft, RunReport(run.run_id, run.domains[0]), world.now_s, world.rules)
    world.merge(draft)


@pytest.mark.parametrize(
    "options",
    [
        {"order": ["usage", "age"]},
        {"order": ["multifactor"], "options": {"multifactor": {"weights": {"fair_share": 1}}}},
    ],
)
def test_use_is_counted_though_the_first_cycle_knew_no_node(options: dict[str, object]) -> None:
    world = World(Fleet(), policy_from_json(options))
    world.submit("before", task(), tenant="busy")
    world.cycle()
    draft = world.book.draft()
    draft.fleet = a_fleet({"a": 1}, devices=0, cpus=1.0)
    world.merge(draft)
    world.cycle()
    world.now_s += 1000.0
    world.submit("again", task(), tenant="busy")
    world.now_s += 1.0
    world.submit("first", task(), tenant="idle")
    finish(world, "before")
    assert [item.key.job_id for item in world.cycle().placed] == ["first"]


def test_the_size_of_jobs_is_that_of_the_cluster_as_it_is() -> None:
    weights = {"weights": {"size": 1.0}, "favor_small": True}
    world = World(Fleet(), policy_from_json({"order": ["multifactor"], "options": {"multifactor": weights}}))
    world.submit("a-large", task(cpus=4.0))
    world.submit("b-small", task(cpus=3.0))
    world.cycle()
    draft = world.book.draft()
    draft.fleet = a_fleet({"a": 1}, devices=0, cpus=4.0)
    world.merge(draft)
    assert [item.key.job_id for item in world.cycle().placed] == ["b-small"]


def test_a_meter_follows_the_fleet_and_its_copies_go_their_own_way() -> None:
    world = World(a_fleet({"a": 1}, devices=1, cpus=8.0))
    cluster = world.book.cluster
    cluster.view.facts["index"] = {"A100": 1.0, "H100": 3.0}
    meter = Meter(cluster)
    wanted = Demand(1, accelerators=1)
    assert meter.of(wanted)["accelerators"] == 1000
    assert meter.capacity() | {"memory_bytes": 0} == {"accelerators": 1000, "cpus": 8000, "memory_bytes": 0}
    draft = world.book.draft()
    draft.fleet = with_domain(draft.fleet, None, [a_node("a-1", "a", devices=2, model="H100", cpus=4.0)])
    world.merge(draft)
    assert meter.of(wanted)["accelerators"] == 3000
    assert meter.capacity() | {"memory_bytes": 0} == {"accelerators": 7000, "cpus": 12000, "memory_bytes": 0}


def test_a_run_is_counted_up_to_its_end_though_nobody_decided_meanwhile() -> None:
    options = {"order": ["usage"], "options": {"usage": {"half_life_s": 0}}}
    world = World(a_fleet({"a": 1}, devices=0, cpus=4.0), policy_from_json(options))
    world.submit("job", task(cpus=2.0), tenant="busy")
    world.cycle()
    world.now_s += 1000.0
    finish(world, "job")
    world.now_s += 500.0
    world.submit("next", task(), tenant="idle")
    world.cycle()
    history = history_of(world.book.cluster, 0.0)
    assert history.values(world.now_s) == {"busy": pytest.approx(500.0), "idle": 0.0}
