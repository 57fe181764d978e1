"""A question asks about the job as it would be submitted: same deadline, same size, same replicas."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.scheduler.api import parse_spec
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.hypothesis import hypothesis
from services.scheduler.plans.catalogue import register_all
from services.scheduler.times import rfc3339
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


def _a_cluster(rng: random.Random, policy: Policy) -> Cluster:
    """After a cycle some runs end, so that there is room for some who wait."""
    cluster = Cluster(table_of(a_fleet({"a": 2, "b": 1})), policy)
    for number in range(rng.randrange(3, 14)):
        demand = Demand(rng.choice([1, 1, 2]), accelerators=rng.choice([1, 2, 4]))
        key, seconds = UnitKey(f"j{number}", 0), float(rng.choice([60, 300, 900]))
        cluster.add(PendingUnit(key, "lab", rng.choice([0, 0, 1]), float(number), demand, expected_s=seconds))
    cluster.apply(decide(cluster, policy, 20.0, explain=False), 20.0)
    for key in rng.sample(list(cluster.running), rng.randrange(len(cluster.running) + 1)):
        cluster.release(key, 30.0)
    return cluster


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["greedy", "strict", "easy", "conservative"]))
def test_who_is_delayed_are_those_who_start_without_the_job_and_not_with_it(seed: int, discipline: str) -> None:
    rng = random.Random(seed)
    policy = Policy(order=("priority", rng.choice(["age", "smallest"]), "age"), discipline=discipline)
    cluster = _a_cluster(rng, policy)
    kind = rng.choice([JobKind.ARRAY, JobKind.GANG])
    size = {"array_size" if kind is JobKind.ARRAY else "ranks": rng.choice([1, 2, 3])}
    demand = Demand(1, accelerators=rng.choice([1, 2, 4]))
    spec = JobSpec(kind, demand, priority=rng.choice([0, 0, 1]), max_run_time_s=rng.choice([60.0, 900.0]), **size)  # type: ignore[arg-type]
    found = answer(cluster, policy, spec, "lab", 30.0, times=rfc3339)["displaces"]
    without = {item.key for item in decide(cluster.copy(), policy, 30.0).placed}
    other = cluster.copy()
    units = spec.array_size if kind is JobKind.ARRAY else 1
    for index in range(units):
        whole = replace(demand, ranks=1 if kind is JobKind.ARRAY else spec.ranks)
        key, lasts_s = UnitKey("what-if", index), spec.max_run_time_s
        unit = PendingUnit(key, "lab", spec.priority, 30.0, whole, limit_s=lasts_s, expected_s=lasts_s)
        other.add(replace(unit, submitted_at_s=30.0))
    begun = {item.key for item in decide(other, policy, 30.0).placed}
    assert set(found["delayed"]) == {str(key) for key in without - begun}
    assert (found["delayed_units"], found["preempted"]) == (len(found["delayed"]), [])


@pytest.mark.parametrize("discipline", ["greedy", "easy", "conservative", "strict"])
def test_the_place_in_the_queue_is_among_all_that_wait(discipline: str) -> None:
    """A node is held, and five wait of whom a cycle knows already: the sixth stands behind them, or with more priority before them
    all. One that fits beside the others takes no place from anybody."""
    policy = policy_from_json({"order": ["priority", "age"], "discipline": discipline})
    world = World(a_fleet({"a": 2}, devices=4), policy)
    for name in ("runs", *(f"waits-{number}" for number in range(5))):
        world.submit(name, gang(2, accelerators=3))
    world.cycle()
    assert len(world.book.cluster.pending) == 5

    def places(spec: JobSpec, units: int = 1) -> tuple[int, list[int]]:
        found = answer(world.book.cluster, policy, spec, "lab", world.now_s, times=rfc3339)
        assert found["waiting"] == units
        return found["ahead_in_queue"], [item["position"] for item in found["items"]]

    wide = gang(2, accelerators=3)
    assert places(wide) == (5, [6])
    assert places(replace(wide, priority=1)) == (0, [1])
    array = JobSpec(JobKind.ARRAY, Demand(1, accelerators=4), array_size=3, command=("work",))
    assert places(array, 3) == (5, [6, 7, 8])
    if discipline == "greedy":
        found = answer(world.book.cluster, policy, task(accelerators=1), "lab", world.now_s, times=rfc3339)
        assert (found["placeable"], found["ahead_in_queue"]) == (True, 0)


@pytest.mark.parametrize(
    ("change", "pointer", "detail"),
    [
        ({"nodes_dwn": ["a-0"]}, "/change/nodes_dwn", "change.nodes_dwn: there is no such field"),
        ({"a/b~c": 1}, "/change/a~1b~0c", "change.a/b~c: there is no such field"),
        ({"nodes_down": "a-0"}, "/change/nodes_down", "change.nodes_down: must be a list"),
        ({"nodes_down": ["a-0", "x"]}, "/change/nodes_down/1", "change.nodes_down[1]: there is no node 'x'"),
        ({"nodes_down": ["a-0"], "nodes_up": ["a-0"]}, "/change/nodes_up/0", "change.nodes_up[0]: node 'a-0' is in"),
        ({"prices": {"mars.x": 1}}, "/change/prices/mars.x", "change.prices.mars.x: there is no such domain"),
        ({"prices": {"a": -1}}, "/change/prices/a", "change.prices.a: must be a finite number of at least 0, not -1"),
        ({"weights": {"luck": 1}}, "/change/weights/luck", "change.weights.luck: there is no such score; known are"),
        ({"weights": {"price": "x"}}, "/change/weights/price", "change.weights.price: must be a finite number"),
        ({"policy": 7}, "/change/policy", "change.policy: must be a policy document (text)"),
        ({"domains": [3]}, "/change/domains/0", "change.domains[0]: must be an object"),
        ({"domains": [{"domain_id": "b", "cpu": 1}]}, "/change/domains/0/cpu", "change.domains[0].cpu: there is no"),
        ({"domains": [{"domain_id": "a"}]}, "/change/domains/0/domain_id", "change.domains[0].domain_id: must be the"),
        (
            {"domains": [{"domain_id": "b", "nodes": 1.5}]},
            "/change/domains/0/nodes",
            "change.domains[0].nodes: must be a whole",
        ),
        (
            {"domains": [{"domain_id": "b", "nodes": 0}]},
            "/change/domains/0/nodes",
            "change.domains[0].nodes: must be 1 to 10000",
        ),
        (
            {"domains": [{"domain_id": "b", "accelerators": 0.5}]},
            "/change/domains/0/accelerators",
            "change.domains[0].accelerators: must be a whole number, not 0.5",
        ),
        (
            {"domains": [{"domain_id": "b", "accelerators": 65}]},
            "/change/domains/0/accelerators",
            "change.domains[0].acc",
        ),
        (
            {"weights": {"price": 1e300}},
            "/change/weights/price",
            "change.weights.price: must be at most 9.0072e+15, not 1e",
        ),
        ({"prices": {"a": 1e30}}, "/change/prices/a", "change.prices.a: must be at most 1e+15, not 1e+30"),
        ({"domains": [{"domain_id": 1}]}, "/change/domains/0/domain_id", "change.domains[0].domain_id: must be text"),
    ],
)
def test_a_change_that_does_not_fit_is_named_by_its_pointer(change: dict[str, Any], pointer: str, detail: str) -> None:
    world = World(a_fleet({"a": 1}))
    with pytest.raises(InvalidArgumentError) as caught:
        hypothesis(change, world.fleet, world.policy)
    (error,) = caught.value.errors
    assert error.pointer == pointer
    assert caught.value.detail.startswith(detail)
    assert caught.value.detail.endswith(error.detail)


def test_what_is_wrong_in_another_policy_is_named_by_the_field_that_holds_it() -> None:
    world = World(a_fleet({"a": 1}))
    with pytest.raises(InvalidArgumentError) as caught:
        hypothesis({"policy": "name: p\nplanner: sai\ninterval_s: -1"}, world.fleet, world.policy)
    assert [error.pointer for error in caught.value.errors] == ["/change/policy"] * 2
    assert caught.value.errors[1].detail == "line 3: interval_s: must be at least 0, not -1"


def test_under_a_planner_a_job_is_told_its_round() -> None:
    """Rounds every minute, the last one at 0: asked at 10 s, it starts at 60; what needs more than there is never does."""
    register_all()
    policy = Policy(name="rounds", planner="gavel", interval_s=60.0)
    cluster = Cluster(table_of(a_fleet({"a": 1})), policy)
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    found = answer(cluster, policy, task(accelerators=1), "lab", 10.0, times=lambda at_s: f"{at_s:g}")
    (item,) = found["items"]
    assert item["reason"] == "it waits for the next round of the planner gavel, in 50 s"
    assert item["prediction"] == {"start": "60", "low": "60", "high": "60"}
    found = answer(cluster, policy, task(accelerators=9), "lab", 10.0, times=lambda at_s: f"{at_s:g}")
    assert found["items"][0]["prediction"]["never"] is True
