"""A question asks about the job as it would be submitted: same deadline, same size, same replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meridian.errors import InvalidArgumentError
from services.scheduler.api import parse_spec
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.hypothesis import hypothesis
from services.scheduler.plans.catalogue import register_all
from services.scheduler.what_if import answer
from tests.unit.scheduler.world import World, a_fleet, gang, task


def test_the_deadline_of_the_job_counts_in_the_order() -> None:
    policy = policy_from_json({"order": ["deadline", "age"]})
    world = World(a_fleet({"a": 1}, devices=0, cpus=1.0), policy)
    world.submit("other", replace(task(), deadline_s=9000.0))
    urgent, late = (replace(task(), deadline_s=at_s) for at_s in (2000.0, 9001.0))
    assert answer(world.book.cluster, policy, urgent, "lab", world.now_s)["placeable"]
    assert not answer(world.book.cluster, policy, late, "lab", world.now_s)["placeable"]
    world.submit("urgent", urgent)
    assert [item.key.job_id for item in world.cycle().placed] == ["urgent"]


def test_replicas_that_are_not_asked_for_yet_need_no_room() -> None:
    world = World(a_fleet({"a": 1}, devices=0, cpus=2.0))
    scaling = Scaling(1, 5, 1.0)
    spec = JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=2, scaling=scaling, command=("serve",))
    found = answer(world.book.cluster, world.policy, spec, "lab", world.now_s)
    assert found["placeable"]
    assert (found["units_judged"], found["placed_now"], found["waiting"]) == (2, 2, 0)
    assert [item["placeable"] for item in found["items"]] == [True, True, False, False, False]
    assert found["items"][4]["reason"] == "so many replicas are not asked for yet"
    world.submit("service", spec)
    assert [item.key for item in world.cycle().placed] == [UnitKey("service", 0), UnitKey("service", 1)]


def test_a_plan_may_give_a_gang_the_sizes_that_it_allows() -> None:
    register_all()
    policy = policy_from_json({"planner": "greedy-elastic"})
    world = World(a_fleet({"a": 1}, devices=2), policy)
    spec = replace(gang(4, accelerators=1), min_ranks=1, max_ranks=4)
    found = answer(world.book.cluster, policy, spec, "lab", world.now_s)
    world.submit("job", spec)
    (placed,) = world.cycle().placed
    assert found["placeable"]
    assert 1 <= len(found["items"][0]["ranks"]) == len(placed.ranks) <= 2


@pytest.mark.parametrize("spec", ["task", None, 7, [], [["kind", "task"]]])
def test_a_specification_that_is_no_object_is_refused_by_its_name(spec: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="spec: must be an object"):
        parse_spec({"spec": spec})


@pytest.mark.parametrize("field", ["memory_bytes", "security_level", "cpus", "price_micro_units", "accelerators"])
def test_numbers_of_a_domain_that_no_table_holds_are_refused_by_their_name(field: str) -> None:
    world = World(a_fleet({"a": 1}))
    with pytest.raises(InvalidArgumentError, match=rf"change\.domains\[0\]\.{field}: must be at most 1e\+15"):
        hypothesis({"domains": [{"domain_id": "new", field: 1e300}]}, world.fleet, world.policy)


@pytest.mark.parametrize(
    ("count", "nodes", "field"), [(101, 1, r"change\.domains: at most 100"), (3, 4000, r"domains\[2\]\.nodes")]
)
def test_new_domains_are_bounded_together(count: int, nodes: int, field: str) -> None:
    world = World(a_fleet({"a": 1}))
    domains = [{"domain_id": f"new-{number}", "nodes": nodes} for number in range(count)]
    with pytest.raises(InvalidArgumentError, match=field):
        hypothesis({"domains": domains}, world.fleet, world.policy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"nope": 1}}, "change.weights.nope: there is no such score; known are"),
        ({"nodes_down": ["a-0"], "nodes_up": ["a-0"]}, r"change.nodes_up\[0\]: node 'a-0' is in change.nodes_down too"),
    ],
)
def test_a_change_that_makes_no_sense_is_named(change: dict[str, object], message: str) -> None:
    world = World(a_fleet({"a": 1}))
    with pytest.raises(InvalidArgumentError, match=message):
        hypothesis(change, world.fleet, world.policy)
