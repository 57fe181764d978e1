"""Rounds that would choose the same as jobs get older are not made, and until when is no later than the first that would not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from services.scheduler.core.decide import decide
from services.scheduler.core.planning import same_until_s
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.plans.looking_ahead import Outlook, looked_ahead
from simulation.engine import Simulation
from simulation.model import Throughputs, Trace
from simulation.setting import Setting
from tests.unit.scheduler.plans.small import cluster, job, network, policy, rates

ROUND_S = 60.0


def sized() -> Throughputs:
    found = Throughputs()
    for profile, (speed, slower, gain) in enumerate(((1.0, 0.3, 0.9), (2.0, 0.7, 0.7), (0.5, 0.45, 0.95))):
        for ranks in (1, 2, 3, 4):
            grown = speed * ranks**gain
            found.rates[f"p{profile}", ranks] = {"v100": grown, "t4": grown * slower}
    return found


def waiting(name: str, draw: random.Random, now_s: float) -> PendingUnit:
    demand = Demand(draw.choice([1, 1, 2, 4]), accelerators=1, profile=f"p{draw.randrange(3)}")
    elastic = draw.random() < 0.5
    restart_s = draw.choice([7.0, 60.0, 250.0])
    return PendingUnit(
        UnitKey(name, 0),
        "lab",
        0,
        now_s,
        demand,
        submitted_at_s=now_s,
        work=1e6,
        restart_s=restart_s,
        min_ranks=1 if elastic else 0,
        max_ranks=4 if elastic else 0,
    )


@pytest.mark.parametrize("planner", ["sia", "elastic-exact"])
@pytest.mark.parametrize("seed", range(4))
def test_rounds_until_then_would_change_nothing(planner: str, seed: int) -> None:
    draw = random.Random(seed)
    chosen = policy(planner, ROUND_S)
    held = cluster({"v100": 6, "t4": 8}, chosen, sized())
    left_out = to_the_end = 0
    for number in range(120):
        now_s = ROUND_S * number
        if number % 12 == 0:
            held.add(waiting(f"job-{number}", draw, now_s))
        elif number % 40 == 7 and held.running:
            held.release(draw.choice(list(held.running)), now_s)
        decisions = decide(held, chosen, now_s, explain=False)
        off = [held.running[item.key].unit for item in decisions.preempted]
        begun = {item.unit.key for item in held.apply(decisions, now_s)}
        held.extend([unit for unit in off if unit.key not in begun])
        rounds = stages_of(chosen).planner
        assert rounds is not None
        if decisions.placed or decisions.preempted:
            continue
        until_s = same_until_s(rounds, held, now_s)
        to_the_end += until_s == float("inf")
        for later_s in np.linspace(now_s, min(until_s, now_s + 1e6), 6)[1:] if until_s > now_s else ():
            left_out += 1
            later = decide(held.copy(), chosen, later_s, explain=False)
            assert (later.placed, later.preempted) == ((), ())
    assert left_out > 100
    assert to_the_end > 10


def test_rounds_of_jobs_with_a_choice_are_not_made_while_they_would_change_nothing() -> None:
    # Both types are taken by those whom they suit: of some 270 rounds those after arrivals and ends are made.
    table = rates({"a": {"v100": 2.0, "t4": 1.0}, "b": {"v100": 1.0, "t4": 1.0}})
    jobs = [job("a", 20_000.0, profile="a"), job("b", 16_000.0, profile="b", submit_s=1.0)]
    simulation = Simulation(
        network({"v100": 1, "t4": 1}), Trace("small", jobs, table), Setting("small", policy("sia", ROUND_S), "none")
    )
    assert len(simulation.run().jobs) == 2
    assert len(simulation.decision_s) < 15


def test_it_looks_further_while_the_choice_is_the_same_and_less_far_where_it_is_not() -> None:
    choice, other = np.array([0]), np.array([1])
    asked: list[float] = []

    def choose(later_s: float) -> np.ndarray:
        asked.append(later_s)
        return choice if later_s <= 3000.0 else other

    def look(now_s: float, before: Outlook | None) -> Outlook:
        return looked_ahead(choice, choose, now_s, float("inf"), ROUND_S, before)

    first = look(0.0, None)
    assert (first.until_s, asked) == (-float("inf"), [float("inf")])
    second = look(60.0, first)
    assert second.until_s == asked[-1] == 60.0 + 8 * ROUND_S
    third = look(second.until_s, second)
    assert third.until_s == asked[-1] == second.until_s + 32 * ROUND_S
    fourth = look(third.until_s, third)
    assert fourth.until_s == -float("inf")
    assert asked[-1] > 3000.0
    assert look(third.until_s + 60.0, fourth).until_s == -float("inf")
    assert asked[-1] == third.until_s + 60.0 + 32 * ROUND_S
    assert looked_ahead(choice, choose, 0.0, 60.0, ROUND_S, None).until_s == -float("inf"), "the next round is made"
    assert looked_ahead(choice, lambda later_s: None, 0.0, 600.0, ROUND_S, None).until_s == -float("inf"), "not proven"
