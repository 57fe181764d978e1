"""Rounds of the rolling program: none is asked for that would begin nobody, and who is behind the window begins as if all were planned."""

from __future__ import annotations

import random

import numpy as np
import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.planning import same_until_s, settled_until_s
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares
from services.scheduler.planners.milp import free_devices, rolling_plan
from services.scheduler.plans.rolling import RollingPlanner
from services.scheduler.plans.state import jobs_of
from simulation.engine import Simulation
from simulation.model import Trace
from simulation.setting import Setting
from tests.unit.scheduler.plans.small import cluster, job, network, policy

ROUND_S = 360.0


def waiting(name: str, ranks: int, now_s: float, runs_s: float) -> PendingUnit:
    demand = Demand(ranks, accelerators=1)
    return PendingUnit(UnitKey(name, 0), "lab", 0, now_s, demand, submitted_at_s=now_s, expected_s=runs_s)


def begins(held: Cluster, now_s: float, first: int) -> set[UnitKey]:
    """Who begins where the whole queue is planned at once."""
    jobs = jobs_of(held.copy(), now_s)
    run, waits = np.flatnonzero(jobs.kind >= 0), np.flatnonzero(jobs.kind < 0)
    left_s = jobs.seconds[run, jobs.kind[run]]
    room = free_devices(jobs.capacity, jobs.kind[run], jobs.devices[run], left_s, 6, 3600.0)
    plan = rolling_plan(jobs.seconds[waits], jobs.devices[waits], np.ones(waits.size), room, 3600.0, first=first)
    return {jobs.keys[job] for job in waits[plan.slot == 0].tolist()}


@pytest.mark.parametrize("seed", range(8))
def test_who_begins_is_as_of_the_whole_queue_and_settled_rounds_begin_nobody(seed: int) -> None:
    draw = random.Random(seed)
    chosen = policy("rolling-milp", ROUND_S, first=3, slots=6)
    planner = RollingPlanner(first=3, slots=6)
    held = cluster({"v100": 12}, chosen)
    started = settled = same = 0
    for number in range(120):
        now_s = ROUND_S * number
        event = draw.random()
        if event < 0.5 or number < 8:
            held.add(waiting(f"job-{number}", draw.choice([1, 1, 2, 4, 8]), now_s, draw.uniform(60.0, 30000.0)))
        elif event < 0.75 and held.running:
            held.release(draw.choice(list(held.running)), now_s)
        # The table that follows is the one that is made anew.
        kept, anew = jobs_of(held, now_s), jobs_of(held.copy(), now_s)
        assert kept.keys == anew.keys
        assert (kept.devices.tolist(), kept.kind.tolist()) == (anew.devices.tolist(), anew.kind.tolist())
        targets = planner.plan(held.copy(), OrderContext(Shares({}, 1.0, 1.0, {}), now_s))
        assert {target.key for target in targets} - set(held.running) == begins(held, now_s, 3)
        decisions = decide(held, chosen, now_s, explain=False)
        assert not decisions.preempted
        held.apply(decisions, now_s)
        started += len(decisions.placed)
        rounds = stages_of(chosen).planner
        assert rounds is not None
        if settled_until_s(rounds, held, now_s) == float("inf"):
            settled += 1
            later = decide(held.copy(), chosen, now_s + 10 * ROUND_S, explain=False)
            assert (later.placed, later.preempted) == ((), ())
        until_s = same_until_s(rounds, held, now_s)
        if not decisions.placed and now_s < until_s < float("inf"):
            same += 1
            for part in (0.25, 0.5, 0.75, 1.0):
                assert begins(held, now_s + part * (until_s - now_s), 3) == begins(held, now_s, 3)
    assert started > 20
    assert same > 5
    assert 20 < settled < 120


def test_a_round_that_came_before_others_says_nothing_of_them() -> None:
    chosen = policy("rolling-milp", ROUND_S)
    held = cluster({"v100": 2}, chosen)
    held.add(waiting("a", 1, 0.0, 100.0))
    held.apply(decide(held, chosen, 0.0, explain=False), 0.0)
    rounds = stages_of(chosen).planner
    assert rounds is not None
    assert settled_until_s(rounds, held, 0.0) == float("inf")
    assert settled_until_s(rounds, held, 10.0) == -float("inf")
    held.add(waiting("b", 1, 0.0, 100.0))
    assert settled_until_s(rounds, held, 0.0) == -float("inf")


def test_rounds_in_which_nobody_could_begin_are_not_made() -> None:
    # The second waits for the first to end at 6,360: of some thirty rounds those at 360 and 6,480.
    jobs = [job("a", 6000.0), job("b", 6000.0, submit_s=1.0)]
    setting = Setting("small", policy("rolling-milp", ROUND_S), "exact")
    simulation = Simulation(network({"v100": 1}), Trace("small", jobs), setting)
    assert len(simulation.run().jobs) == 2
    assert len(simulation.decision_s) == 2
