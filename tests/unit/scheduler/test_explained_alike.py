"""Explaining changes nothing: cycles with explanations, without, and with some of both place the same units on the same devices."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Table, table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import a_node

DEMANDS = (
    Demand(1, cpus=1.0, accelerators=1),
    Demand(1, cpus=4.0),
    Demand(1, cpus=1.0, accelerators=2),
    Demand(2, cpus=2.0, accelerators=1, cross_domain=True),
    Demand(2, cpus=1.0, accelerators=2),
)
SCORES = (
    (("least_loaded", 1.0), ("spread", 1.0)),
    (("fgd", 1.0),),
    (("pack", 1.0), ("spread", 0.5)),
    (("best_fit", 1.0),),
    (("health", 0.5), ("price", 1.0), ("pack", 1.0), ("spread", 1.0)),
)
ORDERS = (("age",), ("shortest",), ("smallest", "age"), ("priority", "fair_share", "age"))
Found = list[tuple[int, tuple[object, ...]]]


def a_network(draw: random.Random) -> Table:
    fleet = Fleet()
    for name in "abc"[: draw.randint(1, 3)]:
        nodes = [
            a_node(
                f"{name}-{number}",
                name,
                cpus=draw.choice([4.0, 8.0, 16.0]),
                devices=draw.choice([0, 1, 2, 4]),
                model=draw.choice(["A100", "V100"]),
            )
            for number in range(draw.randint(1, 5))
        ]
        domain = Domain(name, price_micro_units=draw.randint(1, 5), currency="CNY")
        fleet = with_domain(fleet, domain, nodes, full_of=name)
    return table_of(fleet)


def history(seed: int, policy: Policy, explained: Callable[[int], bool]) -> Found:
    """What each of 25 cycles places; units end when they said, earlier or later, whatever is explained."""
    draw = random.Random(seed)
    cluster = Cluster(a_network(draw), policy)
    now_s, number, found = 0.0, 0, []
    ends: dict[UnitKey, float] = {}
    for cycle in range(25):
        now_s += draw.choice([1.0, 5.0, 20.0])
        for _ in range(draw.choice([0, 1, 2, 4, 8])):
            limit_s = draw.choice([10.0, 50.0, 100.0, 500.0])
            demand = draw.choice(DEMANDS)
            unit = PendingUnit(
                UnitKey(f"j{number}", 0),
                draw.choice("xyz"),
                draw.choice([0, 0, 0, 5]),
                now_s,
                demand,
                submitted_at_s=now_s,
                limit_s=limit_s,
                expected_s=limit_s * draw.choice([0.3, 1.0]),
            )
            ends[unit.key] = limit_s * random.Random(f"{seed}{unit.key}").choice([0.2, 0.5, 1.0, 1.0, 1.3])
            cluster.add(unit)
            number += 1
        for key in sorted(cluster.running):
            if cluster.running[key].since_s + ends[key] <= now_s:
                cluster.release(key, now_s)
        decisions = decide(cluster, policy, now_s, explain=explained(cycle))
        cluster.apply(decisions, now_s)
        found.append((cycle, tuple(sorted((item.key, item.ranks) for item in decisions.placed))))
    return found


@pytest.mark.parametrize(("discipline", "depth"), [("greedy", 1), ("easy", 1), ("easy", 3), ("conservative", 1)])
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    scores=st.sampled_from(SCORES),
    order=st.sampled_from(ORDERS),
    shortest=st.booleans(),
)
# Nodes were judged when somebody was explained, and not when they were reserved.
@example(seed=1144, scores=SCORES[0], order=("shortest",), shortest=False)
# A unit whose reservation was made again got another one beside it.
@example(seed=1155, scores=SCORES[1], order=("age",), shortest=False)
def test_explaining_changes_no_decision(
    discipline: str,
    depth: int,
    seed: int,
    scores: tuple[tuple[str, float], ...],
    order: tuple[str, ...],
    shortest: bool,
) -> None:
    policy = Policy(
        "p",
        discipline=discipline,
        reservation_depth=depth,
        backfill_order="shortest" if shortest and discipline == "easy" else "",
        order=order,
        scores=scores,
        estimate="limit",
    )
    explained = history(seed, policy, lambda cycle: True)
    assert history(seed, policy, lambda cycle: False) == explained
    assert history(seed, policy, lambda cycle: cycle % 2 == 0) == explained
