"""Who runs longer than was thought has more left than those who wait, and may be taken off for them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.state import Demand, Job, UnitKey, UnitSpec
from tests.unit.scheduler.world import World, a_fleet, task


def world_of(order: str) -> World:
    """One cpu; of the jobs "short" most take 100 s and few 5000 s, the jobs "middle" take 150 s."""
    policy = policy_from_json({"order": [order], "preemptions": ["order"]})
    world = World(a_fleet({"a": 1}, devices=0, cpus=1.0), policy)
    for number in range(30):
        for name, ran_s in (("short", 100.0 if number < 28 else 5000.0), ("middle", 150.0)):
            spec = replace(task(), name=name)
            job = Job(f"{name}-{number}", "lab", spec, (UnitSpec(0, Demand(1, cpus=1.0)),), 0.0)
            world.book.run_times.observe(job, job.units[0], ran_s, float(number))
    world.submit("runs", replace(task(), name="short"))
    world.cycle(whole=False)
    world.submit("waits", replace(task(), name="middle"))
    assert not world.cycle(whole=False).placed
    return world


@pytest.mark.parametrize("order", ["shortest_remaining", "least_work"])
def test_a_unit_that_outlives_its_estimate_is_taken_off_for_a_shorter_one_that_waited(order: str) -> None:
    world = world_of(order)
    key = UnitKey("runs", 0)
    end_s = world.book.cluster.running[key].expected_end_s
    assert world.book.next_fall_s() == end_s
    world.now_s = end_s
    found = world.cycle(whole=False)
    assert [item.key for item in found.preempted] == [key]
    assert [item.key.job_id for item in found.placed] == ["waits"]


def test_orders_that_do_not_rest_on_ends_ask_for_no_cycle_then() -> None:
    assert world_of("age").book.next_fall_s() == math.inf
