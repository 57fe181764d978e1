"""Policies that follow a planner while rates differ by accelerator: when, who is decided on by it, and what stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from services.scheduler.core.declared_rates import profile_of
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy, RestartRules
from services.scheduler.core.state import FailureKind, JobSpec, RunState, UnitKey
from services.scheduler.core.unlike import Unlike, stages_of_last, unlike
from services.scheduler.plans.completion import CompletionPlanner
from services.scheduler.policy.file import parse, shipped
from tests.unit.scheduler.world import World, a_node, gang, task

AT_ONCE = RestartRules(least_run_s=0.0)
DEFAULT = replace(shipped("balanced"), restarts=AT_ONCE)
PLAIN = replace(DEFAULT, unlike_planner="", options=())


def two_models(each: int = 1) -> Fleet:
    """A fast and a slow node, with so many accelerators each."""
    nodes = [a_node("a-fast", "a", devices=each, model="H100"), a_node("a-slow", "a", devices=each, model="V100")]
    return with_domain(Fleet(), Domain("a"), nodes, full_of="a")


def rated(fast: float, slow: float, steps: int = 0, **more: object) -> JobSpec:
    profile = profile_of([("H100", 1, fast), ("V100", 1, slow)])
    return replace(task(accelerators=1, profile=profile), steps=steps, **more)


def where(world: World, job_id: str) -> str:
    found = world.book.cluster.running.get(UnitKey(job_id, 0))
    return "" if found is None else found.ranks[0].node_id


def test_the_job_that_gains_most_gets_the_fast_chip_though_it_came_later() -> None:
    """By turns the first job holds the fast chip for ever; together 4 + 1 steps a second are made instead of 1.1 + 1."""
    found = {}
    for policy in (DEFAULT, PLAIN):
        world = World(two_models(), policy)
        world.submit("first", rated(1.1, 1.0, steps=4000))
        world.cycle()
        world.now_s += 60.0
        world.checkpoint(world.run("first"), 60)
        world.submit("second", rated(4.0, 1.0, steps=4000))
        world.cycle()
        for run in [item for item in world.book.runs.values() if item.state is RunState.STOPPING]:
            world.fail(run, FailureKind.STOPPED)
        world.cycle()
        found[policy] = where(world, "first"), where(world, "second")
    assert found == {DEFAULT: ("a-slow", "a-fast"), PLAIN: ("a-fast", "a-slow")}


def test_placements_and_waiting_say_that_the_planner_decides() -> None:
    world = World(two_models(), DEFAULT)
    for name in ("one", "two", "three"):
        world.submit(name, rated(2.0, 1.0, steps=100))
    world.cycle()
    why = "the planner completion decides while rates differ by accelerator (3 of 3 units)"
    assert len(world.decisions.placed) == 2
    assert all(item.reason == f"least mean completion time; {why}" for item in world.decisions.placed)
    (left,) = world.decisions.waiting
    assert left.explanation.reason


@pytest.mark.parametrize(("anywhere", "expected"), [(False, {"c-slow"}), (True, {"a-fast", "b-fast"})])
def test_a_gang_is_planned_where_one_domain_has_room(anywhere: bool, expected: set[str]) -> None:
    """Four of the fast chips are free, but two in each of two domains: a gang that may not span them runs on the slow one."""
    fleet = Fleet()
    for name, model in (("a", "H100"), ("b", "H100"), ("c", "V100")):
        node = a_node(f"{name}-{'slow' if name == 'c' else 'fast'}", name, devices=4, model=model)
        fleet = with_domain(fleet, Domain(name), [node], full_of=name)
    world = World(fleet, replace(DEFAULT, restarts=RestartRules(least_run_s=600.0)))
    few, many = profile_of([("H100", 2, 9.0), ("V100", 2, 1.0)]), profile_of([("H100", 4, 8.0), ("V100", 4, 2.0)])
    for name in ("a", "b"):
        held = gang(2, accelerators=1, profile=few, domains=frozenset({name}))
        world.submit(f"held-{name}", replace(held, steps=4000))
    world.cycle()
    world.submit("gang", replace(gang(4, accelerators=1, profile=many, cross_domain=anywhere), steps=4000))
    world.cycle()
    run = world.book.cluster.running.get(UnitKey("gang", 0))
    assert run is not None
    assert {rank.node_id for rank in run.ranks} == expected


@pytest.mark.parametrize(("each", "expected"), [(4, {"c-slow"}), (2, {"a-one", "a-two"})])
def test_ranks_are_planned_where_nodes_have_room_for_them_whole(each: int, expected: set[str]) -> None:
    """Two of five fast chips are free on each of two nodes: four on one node are not."""
    fast = [a_node(name, "a", devices=5, model="H100") for name in ("a-one", "a-two")]
    fleet = with_domain(Fleet(), Domain("a"), fast, full_of="a")
    fleet = with_domain(fleet, Domain("c"), [a_node("c-slow", "c", devices=4, model="V100")], full_of="c")
    world = World(fleet, replace(DEFAULT, restarts=RestartRules(least_run_s=600.0)))
    for name in ("one", "two"):
        held = profile_of([("H100", 1, 9.0), ("V100", 1, 1.0)])
        world.submit(f"held-{name}", replace(gang(1, accelerators=3, profile=held), steps=4000))
    world.cycle()
    ranks = 4 // each
    rates = profile_of([("H100", ranks, 8.0), ("V100", ranks, 2.0)])
    world.submit("gang", replace(gang(ranks, accelerators=each, profile=rates), steps=4000))
    world.cycle()
    run = world.book.cluster.running.get(UnitKey("gang", 0))
    assert run is not None, "it waits beside the free node"
    assert {rank.node_id for rank in run.ranks} == expected


def test_a_job_that_comes_is_planned_beside_runs_that_may_stay_and_not_in_their_place() -> None:
    """Of two nodes of four fast chips one is held by a run that gains least there: both jobs have one, and neither takes the slow one."""
    fast = [a_node(name, "a", devices=4, model="H100") for name in ("a-one", "a-two")]
    fleet = with_domain(Fleet(), Domain("a"), [*fast, a_node("a-slow", "a", devices=4, model="V100")], full_of="a")
    world = World(fleet, DEFAULT)
    for name, rate in (("first", 3.0), ("second", 9.0)):
        rates = profile_of([("H100", 1, rate), ("V100", 1, 1.0)])
        world.submit(name, replace(gang(1, accelerators=4, profile=rates), steps=4000))
        world.cycle()
        world.start(world.run(name))
        world.now_s += 60.0
    assert {where(world, "first"), where(world, "second")} == {"a-one", "a-two"}


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([rated(2.0, 1.0), task(accelerators=1)], Unlike(2, 1, follows=True)),
        ([rated(2.0, 1.0), task(accelerators=1), task(accelerators=1)], Unlike(3, 1)),
        ([rated(1.04, 1.0)] * 4, Unlike(4, 0)),
        ([rated(2.0, 1.0), *[task()] * 5], Unlike(1, 1, follows=True)),
        ([task(accelerators=1, accelerator_types=("V100",), profile=rated(2.0, 1.0).demand.profile)], Unlike(1, 0)),
        ([], Unlike()),
    ],
)
def test_half_of_the_units_with_accelerators_decide(specs: list[JobSpec], expected: Unlike) -> None:
    world = World(two_models(), DEFAULT)
    for number, spec in enumerate(specs):
        world.submit(f"job-{number}", spec)
    assert unlike(world.book.cluster) == expected
    world.cycle()
    assert stages_of_last(world.book.cluster, world.policy).follows == expected.follows


def test_more_units_than_a_cycle_can_plan_are_placed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.core.unlike.MOST_UNITS", 3)
    world = World(two_models(), shipped("balanced"))
    for number in range(4):
        world.submit(f"job-{number}", rated(2.0, 1.0))
        assert unlike(world.book.cluster) == Unlike(number + 1, number + 1, follows=number < 3)


def test_it_goes_on_until_they_are_fewer_than_a_quarter() -> None:
    world = World(two_models(), shipped("balanced"))
    world.submit("rated", rated(2.0, 1.0))
    world.cycle()
    for number in range(4):
        assert unlike(world.book.cluster) == Unlike(1 + number, 1, follows=True)
        world.submit(f"plain-{number}", task(accelerators=1))
        world.cycle()
    assert unlike(world.book.cluster) == Unlike(5, 1)


def test_units_without_accelerators_go_in_the_order_of_the_policy() -> None:
    world = World(two_models(), DEFAULT)
    world.submit("rated", rated(2.0, 1.0))
    for name, priority in (("a-low", 0), ("z-high", 9)):
        world.submit(name, replace(task(cpus=7.5), priority=priority))
    world.submit("b-low", task(cpus=7.5))
    world.cycle()
    assert where(world, "rated")
    # Of 16 cpus the job with an accelerator has one, so there is room for one of them on each node but where it runs.
    assert [item.key.job_id for item in world.decisions.placed if item.key.job_id != "rated"] == ["z-high"]


def test_priority_goes_before_gain_and_tenants_get_equal_parts() -> None:
    world = World(two_models(), DEFAULT)
    world.submit("gains", rated(9.0, 1.0, steps=10))
    world.submit("urgent", rated(1.2, 1.0, steps=100_000, priority=5))
    world.cycle()
    assert where(world, "urgent") == "a-fast"
    world = World(two_models(each=2), DEFAULT)
    for number in range(6):
        world.submit(f"many-{number}", rated(2.0, 1.0, steps=10), tenant="many")
    for number in range(2):
        world.submit(f"few-{number}", rated(2.0, 1.0, steps=100_000), tenant="few")
    world.cycle()
    placed = [item.key.job_id for item in world.decisions.placed]
    assert sorted(name.split("-")[0] for name in placed) == ["few", "few", "many", "many"]


def test_a_run_that_began_too_late_before_is_moved_when_it_may_be() -> None:
    """Nobody comes or goes: 30 s after the second job began both may be moved, and the plan says when that is."""
    world = World(two_models(), shipped("balanced"))
    world.submit("first", rated(1.1, 1.0, steps=4000))
    world.cycle()
    world.now_s += 10.0
    world.submit("second", rated(4.0, 1.0, steps=4000))
    world.cycle()
    assert (where(world, "first"), where(world, "second")) == ("a-fast", "a-slow")
    stages = stages_of_last(world.book.cluster, world.policy)
    assert isinstance(stages.planner, CompletionPlanner)
    moved = []
    for _ in range(2):
        world.now_s = stages.planner.due_s(world.book.cluster)
        world.cycle()
        moved.append((world.now_s, [item.key.job_id for item in world.decisions.preempted]))
    assert moved[0] == (1030.0, [])
    assert moved[1] == (1040.0, ["first", "second"])


def test_a_run_stays_that_would_lose_much_and_so_does_a_service() -> None:
    for kept, stays in ((False, True), (True, False)):
        world = World(two_models(), DEFAULT)
        world.submit("first", rated(1.1, 1.0, steps=100_000))
        world.cycle()
        world.start(world.run("first"))
        world.now_s += 900.0
        if kept:
            world.checkpoint(world.run("first"), 900)
        world.submit("second", rated(4.0, 1.0, steps=4000))
        world.cycle()
        assert [item.key.job_id for item in world.decisions.preempted] == ([] if stays else ["first"])


def test_what_the_policy_does_not_follow_decides_as_if_it_named_no_planner() -> None:
    """Rates that are alike, or none: the same decisions, one by one."""
    specs = [gang(2, accelerators=1), task(accelerators=2), rated(1.0, 1.0), task(), gang(3, accelerators=1)]
    worlds = [World(two_models(each=3), policy) for policy in (DEFAULT, PLAIN)]
    for number, spec in enumerate(specs * 2):
        for world in worlds:
            world.submit(f"job-{number}", spec, tenant=f"tenant-{number % 3}")
            world.now_s += 1.0
            world.cycle(whole=False)
    one, other = worlds
    assert one.book.runs
    assert [(run.key, run.ranks, run.assigned_at_s) for run in one.book.runs.values()] == [
        (run.key, run.ranks, run.assigned_at_s) for run in other.book.runs.values()
    ]


def test_only_a_policy_that_says_nothing_of_selection_and_allocation_inherits_it() -> None:
    assert parse("extends: balanced") == shipped("balanced")
    assert parse("extends: balanced\nrestarts: {backoff_s: 2}").unlike_planner == "completion"
    assert parse("extends: balanced\nallocation: {scores: {price: 1}}").unlike_planner == ""
    assert parse("extends: balanced\nselection: {order: [age]}").options_of("completion") == {}
    followers = {
        name for name in ("fifo", "cheapest", "energy", "drf", "shortest-effort") if shipped(name).unlike_planner
    }
    assert followers == set()
    assert shipped("meridian").unlike_planner == "completion"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("planner: gavel\ninterval_s: 60", "the planner gavel decides already"),
        ("selection: {limits: [quota]}\nqueues: [{name: org, max_running: 3}]", "planners read no limits"),
        ("selection: {discipline: easy}", "wants the discipline greedy, not easy"),
        ("options: {completion: {power: -1}}", "must be at least 0"),
    ],
)
def test_a_policy_that_cannot_follow_is_refused(more: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        parse(f"extends: balanced\nunlike_planner: completion\n{more}")
    with pytest.raises(PolicyError, match="line 2: unlike_planner: there is no planner 'completin'; did you mean"):
        parse("extends: balanced\nunlike_planner: completin")


def test_a_policy_of_before_reads_as_it_was() -> None:
    before = Policy().as_json()
    del before["unlike_planner"], before["version"]
    assert parse(json.dumps(before)) == Policy()
