"""Rounds in which no job has a choice: the same targets as by tables, and none is made that would change nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.scheduler.core.decide import decide
from services.scheduler.core.planning import settled_until_s
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares
from services.scheduler.plans import elastic
from services.scheduler.plans.elastic import SiaPlanner
from services.scheduler.plans.rigid import rigid_round
from services.scheduler.plans.state import jobs_of
from simulation.engine import Simulation
from simulation.model import Trace
from simulation.setting import Setting
from tests.unit.scheduler.plans.small import cluster, job, network, policy

ROUND_S = 60.0


def waiting(name: str, ranks: int, now_s: float, **more: object) -> PendingUnit:
    demand = Demand(ranks, accelerators=1)
    return PendingUnit(UnitKey(name, 0), "lab", 0, now_s, demand, submitted_at_s=now_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_targets_are_those_by_tables_and_settled_rounds_would_change_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    rules = RestartRules(least_run_s=draw.choice([0.0, 30.0, 90.0]), restart_cost_s=draw.choice([7.0, 60.0, 90.0]))
    chosen = replace(policy("sia", ROUND_S), restarts=rules)
    held = cluster({"v100": 12}, chosen)
    by_tables = SiaPlanner()
    moved = settled = 0
    for number in range(80):
        now_s = ROUND_S * number
        event = draw.random()
        if event < 0.5 or number < 8:
            preemptible = draw.random() < 0.9 or seed % 2 == 0
            held.add(waiting(f"job-{number}", draw.choice([1, 1, 2, 4, 8]), now_s, preemptible=preemptible))
        elif event < 0.7 and held.running:
            held.release(draw.choice(list(held.running)), now_s)
        jobs = jobs_of(held, now_s)
        assert rigid_round(held, jobs) is not None
        copy = held.copy()
        with monkeypatch.context() as patched:
            patched.setattr(elastic, "rigid_round", lambda *given: None)
            expected = by_tables.plan(copy, OrderContext(Shares({}, 1.0, 1.0, {}), now_s))
        assert by_tables.plan(held.copy(), OrderContext(Shares({}, 1.0, 1.0, {}), now_s)) == expected
        decisions = decide(held, chosen, now_s, explain=False)
        off = [held.running[item.key].unit for item in decisions.preempted]
        moved += len(off)
        begun = {item.unit.key for item in held.apply(decisions, now_s)}
        held.extend([unit for unit in off if unit.key not in begun])
        rounds = stages_of(chosen).planner
        assert rounds is not None
        if settled_until_s(rounds, held, now_s) == float("inf"):
            settled += 1
            later = decide(held.copy(), chosen, now_s + ROUND_S, explain=False)
            assert (later.placed, later.preempted) == ((), ())
    assert moved, "not all had room"
    if max(rules.least_run_s, rules.restart_cost_s) > ROUND_S:
        assert not settled, "who begins is still starting in the next round"
    elif seed % 2 == 0:
        assert settled == 80


def test_there_are_tables_where_a_job_has_a_choice_or_there_are_two_types() -> None:
    chosen = policy("sia", ROUND_S)
    two = cluster({"v100": 2, "k80": 2}, chosen)
    two.add(waiting("job", 1, 0.0))
    assert rigid_round(two, jobs_of(two, 0.0)) is None
    one = cluster({"v100": 2}, chosen)
    one.add(waiting("job", 1, 0.0))
    assert rigid_round(one, jobs_of(one, 0.0)) is not None
    one.add(waiting("elastic", 1, 0.0, min_ranks=1, max_ranks=2))
    assert rigid_round(one, jobs_of(one, 0.0)) is None


@pytest.mark.parametrize(("restart_s", "rounds"), [(7.0, 2), (60.0, 2), (90.0, 4)])
def test_the_round_after_a_start_is_made_only_while_it_hangs_on_the_start(restart_s: float, rounds: int) -> None:
    # At 60 and after the end; a start of 90 s is over by 180.
    jobs = [job(name, 6000.0, restart_cost_s=restart_s) for name in ("a", "b")]
    setting = Setting("small", policy("sia", ROUND_S), "exact")
    simulation = Simulation(network({"v100": 3}), Trace("small", jobs), setting)
    assert len(simulation.run().jobs) == 2
    assert len(simulation.decision_s) == rounds
