"""What is thought about running units is asked again at the policy's interval; service is counted over restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.policy import Policy
from services.scheduler.core.state import FailureKind, JobSpec, UnitKey
from tests.unit.scheduler.world import World, a_fleet, task

GITTINS = Policy(name="gittins", order=("service_index", "age"), preemptions=("order",), interval_s=300.0)
EFFORT = replace(GITTINS, order=("shortest_effort", "age"), options=(("order", (("ratio", 1.5),)),))
LAS = Policy(
    name="las",
    order=("least_attained", "age"),
    preemptions=("order",),
    options=(("least_attained", (("threshold_s", 100.0),)),),
)


def job(name: str) -> JobSpec:
    return replace(task(accelerators=4), name=name)


def learned(policy: Policy) -> World:
    """One node of four accelerators. Jobs named "mixed" ended after 10 s four times of five, else after an hour; "middling"
    ones after 100 s."""
    world = World(a_fleet({"a": 1}), policy)
    world.submit("mixed", job("mixed"))
    known = world.book.jobs["mixed"]
    world.submit("middling", job("middling"))
    middling = world.book.jobs["middling"]
    for number in range(40):
        world.book.run_times.observe(known, known.units[0], 3600.0 if number % 5 == 0 else 10.0, float(number))
        world.book.run_times.observe(middling, middling.units[0], 100.0, float(number))
    world.cancel("mixed")
    world.cancel("middling")
    world.submit("long", job("mixed"))
    world.cycle()
    world.start(world.run("long"))
    world.submit("short", job("middling"))
    return world


@pytest.mark.parametrize("policy", [GITTINS, EFFORT])
def test_a_job_that_outlived_most_of_its_kind_gives_way_to_one_that_ends_sooner(policy: Policy) -> None:
    world = learned(policy)
    world.cycle(whole=False)
    assert UnitKey("long", 0) in world.book.cluster.running
    began = world.book.cluster.running[UnitKey("long", 0)]
    world.now_s += 299.0
    world.cycle(whole=False)
    assert world.book.cluster.running[UnitKey("long", 0)].service_index == began.service_index
    world.now_s += 1.0
    world.cycle(whole=False)
    [(run, why)] = world.last.preempted
    assert (run.key.job_id, str(why.beneficiary)) == ("long", "short.0")


def test_a_new_leader_decides_the_same_though_it_never_saw_the_run_begin() -> None:
    world = learned(GITTINS)
    world.cycle(whole=False)
    world.now_s += 100.0
    world.checkpoint(world.run("long"), 1)
    run_times = world.book.run_times
    world.now_s += 200.0
    old = world.book
    world.restart()
    world.book.run_times = run_times
    running = world.book.cluster.running[UnitKey("long", 0)]
    assert running.ran_s(world.now_s) == old.cluster.running[UnitKey("long", 0)].ran_s(world.now_s) == 300.0
    world.cycle(whole=False)
    assert [run.key.job_id for run, _ in world.last.preempted] == ["long"]


def test_without_an_interval_nothing_is_asked_again() -> None:
    world = learned(replace(GITTINS, interval_s=0.0))
    assert world.book.next_renewal_s() == float("inf")
    began = world.book.cluster.running[UnitKey("long", 0)].service_index
    world.now_s += 300.0
    world.cycle(whole=False)
    running = world.book.cluster.running[UnitKey("long", 0)]
    assert running.service_index == began


def test_a_renewal_waits_for_somebody_who_could_take_nodes() -> None:
    world = learned(GITTINS)
    world.cycle(whole=False)
    assert world.book.next_renewal_s() == world.now_s + 300.0
    world.cancel("short")
    assert world.book.next_renewal_s() == float("inf")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_without_checkpoints_keeps_the_service_that_it_got(restarted: bool) -> None:
    """Four accelerators for 30 s are 120 accelerator-seconds: the second queue, also after the work was lost."""
    world = World(a_fleet({"a": 1}), LAS)
    world.submit("old", task(accelerators=4))
    world.cycle()
    run = world.run("old")
    world.start(run)
    world.now_s += 30.0
    world.fail(run, FailureKind.STOPPED)
    assert world.book.units[UnitKey("old", 0)].served_s == 30.0
    world.now_s += 1.0
    world.submit("new", task(accelerators=4))
    if restarted:
        world.restart()
    world.cycle()
    assert [item.key.job_id for item in world.last.begun] == ["new"]


def test_a_preempted_run_is_served_until_it_has_ended() -> None:
    world = World(a_fleet({"a": 1}), LAS)
    world.submit("old", task(accelerators=4))
    world.cycle()
    run = world.run("old")
    world.start(run)
    world.now_s += 26.0
    world.submit("new", task(accelerators=4))
    world.cycle()
    assert [run.key.job_id for run, _ in world.last.preempted] == ["old"]
    world.now_s += 4.0
    world.fail(run, FailureKind.STOPPED)
    assert world.book.units[UnitKey("old", 0)].served_s == 30.0
