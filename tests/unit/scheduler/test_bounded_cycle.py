"""A cycle that ends after so many placements, and those that go on where it ended, decide what one without a bound decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.plans.catalogue import register_all
from tests.unit.scheduler.world import World as BookWorld
from tests.unit.scheduler.world import a_fleet, gang, task

register_all()
TENANTS = ("red", "green", "blue")
QUOTAS = [
    {"name": "root", "nominal": {"accelerators": 40, "cpus": 80}},
    *({"name": name, "parent": "root", "nominal": {"accelerators": 8, "cpus": 30}} for name in TENANTS),
]
TREE = [{"name": "org"}, *({"name": name, "parent": "org", "shares": len(name)} for name in TENANTS)]
BOUNDED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "first in, first out, strict": {"order": ["age"], "discipline": "strict"},
    "easy": {"discipline": "easy"},
    "easy, three, shortest first": {
        "discipline": "easy",
        "reservation_depth": 3,
        "backfill_order": "shortest",
        "order": ["priority", "age"],
    },
    "smallest, spread": {"order": ["smallest", "fair_share", "age"], "scores": {"spread": 1.0, "least_loaded": 1.0}},
    "shortest": {"order": ["shortest", "age"]},
    "attained service": {"order": ["least_attained", "fair_share", "age"]},
    "drf": {"order": ["drf", "age"]},
    "hierarchical drf": {"order": ["hierarchical_drf", "age"], "options": {"hierarchical_drf": {"queues": TREE}}},
    "fair tree": {"order": ["fair_tree", "age"], "options": {"fair_tree": {"queues": TREE}}},
    "usage": {"order": ["usage", "age"]},
    "starvation": {"order": ["starvation", "fair_share", "age"]},
    "most running": {"limits": ["max_running"], "options": {"max_running": {"default": 5, "tenants": {"red": 3}}}},
    "capped": {"limits": ["queue_cap"], "options": {"queue_cap": {"queues": {"red": {"accelerators": 7}}}}},
    "quota": {"limits": ["quota"], "options": {"quota": {"queues": QUOTAS}}, "order": ["priority", "age"]},
    "quota, easy": {"limits": ["quota"], "options": {"quota": {"queues": QUOTAS}}, "discipline": "easy"},
}
WHOLE: dict[str, dict[str, Any]] = {
    "held for others": {
        "limits": ["preallocation"],
        "options": {"preallocation": {"tenants": ["red"], "headroom": 2, "most": 4}},
    },
    "by objectives": {"order": ["sla", "age"]},
    "compared with who waits": {"order": ["multifactor", "age"]},
    "conservative": {"discipline": "conservative"},
    "takes others off": {"preemptions": ["priority"], "order": ["priority", "age"]},
    "planner": {"planner": "gavel"},
}


def a_policy(name: str) -> Policy:
    return policy_from_json({"name": "p", **(BOUNDED | WHOLE)[name]})


def units(source: random.Random, first: int, count: int, now_s: float) -> list[PendingUnit]:
    found = []
    for number in range(first, first + count):
        demand = Demand(
            source.choice([1, 1, 1, 2, 3]),
            cpus=source.choice([0.1, 0.7, 1.0, 2.0]),
            memory_bytes=source.choice([0, 2**33]),
            accelerators=source.choice([0, 1, 1, 2, 4]),
            device_milli=1000,
            cross_domain=source.random() < 0.2,
            domains=frozenset({"a"}) if source.random() < 0.1 else frozenset(),
        )
        tenant = source.choice(TENANTS)
        run_s = float(source.randint(1, 40)) * 10
        found.append(
            PendingUnit(
                UnitKey(f"job-{number}", 0),
                tenant,
                source.randrange(3),
                now_s - source.randrange(50),
                demand,
                queue=tenant,
                limit_s=run_s,
                expected_s=run_s * source.choice([0.5, 1.0]),
            )
        )
    return found


def placed(found: Sequence[Decisions]) -> list[tuple[object, ...]]:
    return [(item.key, item.ranks) for decisions in found for item in decisions.placed]


def waits(decisions: Decisions) -> list[tuple[object, ...]]:
    return [(item.key, item.position, item.start_s) for item in decisions.waiting]


def carried_on(cluster: Cluster, policy: Policy, now_s: float, most: int) -> list[Decisions]:
    """One cycle after the other until one is not cut."""
    found = []
    while True:
        found.append(decide(cluster, policy, now_s, most=most))
        cluster.apply(found[-1], now_s)
        if not found[-1].cut:
            return found


class Course:
    """Two equal clusters over some time, one decided on without a bound and one with."""

    def __init__(self, name: str, seed: int) -> None:
        self.source, self.policy = random.Random(seed), a_policy(name)
        fleet = a_fleet({"a": 4, "b": 3, "c": 2})
        self.free, self.bounded = (Cluster(table_of(fleet), self.policy) for _ in range(2))
        self.known = self.cuts = 0

    def step(self, now_s: float, most: int) -> None:
        """Runs end, units come, it is decided."""
        ends = [key for key in sorted(self.free.running) if self.source.random() < 0.3]
        more = units(self.source, self.known, self.source.randrange(25), now_s)
        self.known += len(more)
        for cluster in (self.free, self.bounded):
            for key in ends:
                cluster.release(key, now_s)
            cluster.extend(more)
        (whole,) = carried_on(self.free, self.policy, now_s, 0)
        parts = carried_on(self.bounded, self.policy, now_s, most)
        self.cuts += len(parts) - 1
        assert placed(parts) == placed([whole])
        assert all(len(item.placed) == most for item in parts[:-1])
        assert {row[0]: row[2] for row in waits(parts[-1]) if row[2]} == {
            row[0]: row[2] for row in waits(whole) if row[2]
        }
        assert parts[-1].reservations == whole.reservations
        assert [item.key for item in whole.preempted] == [item.key for part in parts for item in part.preempted]
        assert set(self.free.running) == set(self.bounded.running)
        assert {unit.key for unit in self.free.pending} == {unit.key for unit in self.bounded.pending}


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 6))
def test_what_is_decided_in_parts_is_what_is_decided_at_once(name: str, seed: int, most: int) -> None:
    course = Course(name, seed)
    for number in range(4):
        course.step(100.0 + 60.0 * number, most)


@pytest.mark.parametrize("name", BOUNDED)
def test_cycles_are_cut(name: str) -> None:
    course = Course(name, 1)
    for number in range(4):
        course.step(100.0 + 60.0 * number, 2)
    assert course.cuts > 3


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_promised_or_taken_is_decided_at_once(name: str) -> None:
    cluster, policy = Cluster(table_of(a_fleet({"a": 4, "b": 3})), a_policy(name)), a_policy(name)
    cluster.extend(units(random.Random(3), 0, 30, 100.0))
    decisions = decide(cluster, policy, 100.0, most=1)
    assert len(decisions.placed) > 1
    assert not decisions.cut


def test_limits_that_weight_models_decide_at_once() -> None:
    policy = a_policy("quota")
    weighted, alike = (
        Cluster(table_of(a_fleet({"a": 4, "b": 3})), policy, facts=facts) for facts in ({"index": {"A100": 2.0}}, {})
    )
    for cluster in (weighted, alike):
        cluster.extend(units(random.Random(3), 0, 30, 100.0))
    assert not decide(weighted, policy, 100.0, most=1).cut
    assert decide(alike, policy, 100.0, most=1).cut


def test_no_cut_behind_a_reservation() -> None:
    """Who overtakes one that waits is decided on together with its reservation."""
    policy = a_policy("easy")
    cluster = Cluster(table_of(a_fleet({"a": 2})), policy)

    def unit(name: str, age: float, **demand: Any) -> PendingUnit:
        return PendingUnit(UnitKey(name, 0), name, 0, age, Demand(**demand), expected_s=50.0, limit_s=50.0)

    cluster.extend([unit("runs", 0.0, ranks=1, cpus=1.0, accelerators=4)])
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    big = unit("big", 1.0, ranks=2, cpus=1.0, accelerators=4)
    cluster.extend([big, *(unit(f"small-{number}", 2.0, ranks=1, cpus=1.0, accelerators=1) for number in range(4))])
    decisions = decide(cluster, policy, 0.0, most=1)
    assert [item.key for item in decisions.reservations] == [big.key]
    assert len(decisions.placed) == 4
    assert not decisions.cut


def test_a_cut_says_that_not_all_were_looked_at() -> None:
    world = BookWorld(a_fleet({"a": 2}))
    for number in range(5):
        world.submit(f"job-{number}", task(accelerators=1))
    world.submit("large", gang(40, accelerators=1))
    cut = decide(world.book.cluster, world.policy, world.now_s, most=2)
    assert (len(cut.placed), cut.cut, cut.partial, cut.most) == (2, True, True, 2)
    enough = decide(world.book.cluster, world.policy, world.now_s, most=100)
    assert (len(enough.placed), enough.cut, enough.partial) == (5, False, False)
