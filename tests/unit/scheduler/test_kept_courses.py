"""Courses kept between questions: the same predictions as from courses followed anew, whatever happened in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.futures.kept_courses import KeptCourses
from services.scheduler.core.futures.prospect import Prospect, order_of, prospects
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.times import rfc3339
from services.scheduler.what_if import answer
from tests.unit.scheduler.world import a_fleet

DISCIPLINES = ["greedy", "strict", "easy", "conservative"]
NOW_S = 50.0
ASKED = UnitKey("asked", 0)


def a_demand(rng: random.Random) -> Demand:
    return Demand(
        rng.choice([1, 1, 1, 2, 3]),
        cpus=float(rng.choice([0, 1, 3])),
        memory_bytes=rng.choice([0, 0, 8]) * 2**30,
        accelerators=rng.choice([0, 1, 2, 4]),
        domains=frozenset(rng.choice([(), (), ("a",), ("b",)])),
        cross_domain=rng.random() < 0.2,
    )


def a_unit(rng: random.Random, name: str, demand: Demand, at_s: float) -> PendingUnit:
    """Round run times now and then, so that ends and begins of reservations meet."""
    expected_s = float(rng.choice([60, 100, 600])) if rng.random() < 0.3 else rng.lognormvariate(5.0, 1.5)
    wide = rng.choice([1.0, 3.0])
    return PendingUnit(
        UnitKey(name, 0),
        f"t{rng.randrange(3)}",
        rng.choice([0, 0, 1]),
        at_s,
        demand,
        expected_s=expected_s,
        low_s=expected_s / wide,
        high_s=expected_s * wide,
    )


def a_cluster(rng: random.Random, discipline: str) -> Cluster:
    """Three small domains after a cycle; of the waiting units many want the same."""
    order = rng.choice([("priority", "age"), ("age",), ("fair_share", "age"), ("shortest", "age")])
    cluster = Cluster(
        table_of(a_fleet({"a": rng.randrange(1, 4), "b": 2, "c": 1})), Policy(order=order, discipline=discipline)
    )
    demands = [a_demand(rng) for _ in range(rng.randrange(1, 6))]
    cluster.extend([a_unit(rng, f"j{n}", rng.choice(demands), float(n)) for n in range(rng.randrange(4, 40))])
    cluster.apply(decide(cluster, cluster.policy, 40.0, explain=False), 40.0)
    return cluster


def asked(rng: random.Random, cluster: Cluster) -> PendingUnit:
    """A unit to be asked about, often one like those that wait."""
    alike = [unit.demand for unit in cluster.pending]
    demand = rng.choice(alike) if alike and rng.random() < 0.4 else a_demand(rng)
    return replace(a_unit(rng, "asked", demand, NOW_S), key=ASKED, priority=rng.choice([0, 0, 1]))


def said(
    cluster: Cluster, unit: PendingUnit, kept: KeptCourses | None, now_s: float = NOW_S
) -> dict[UnitKey, Prospect]:
    other = cluster.copy()
    other.add(unit)
    return prospects(other, cluster.policy, now_s, [unit.key], kept=kept)


# -- what happens in between -------------------------------------------------------------------------------------------


def a_run_ends(cluster: Cluster, rng: random.Random) -> None:
    if cluster.running:
        cluster.release(rng.choice(list(cluster.running)), NOW_S)


def a_unit_comes(cluster: Cluster, rng: random.Random) -> None:
    cluster.add(a_unit(rng, "new", a_demand(rng), 41.0))


def a_unit_leaves(cluster: Cluster, rng: random.Random) -> None:
    if len(cluster.pending):
        cluster.withdraw(rng.choice([unit.key for unit in cluster.pending]))


def an_estimate_changes(cluster: Cluster, rng: random.Random) -> None:
    for unit in list(cluster.pending)[:1]:
        cluster.add(replace(unit, expected_s=unit.expected_s + 500.0, high_s=unit.high_s + 500.0))


def a_run_is_thought_to_last_longer(cluster: Cluster, rng: random.Random) -> None:
    for key, running in list(cluster.running.items())[:1]:
        cluster.running[key] = replace(running, expected_end_s=running.expected_end_s + 700.0)


def a_run_is_said_to_last_longer_in_place(cluster: Cluster, rng: random.Random) -> None:
    for running in list(cluster.running.values())[:1]:
        running.expected_end_s += 700.0


def a_node_fails(cluster: Cluster, rng: random.Random) -> None:
    cluster.view.set_up([rng.randrange(len(cluster.table.nodes))], False)


def a_node_is_kept_for_another(cluster: Cluster, rng: random.Random) -> None:
    """As for a nominated unit: it takes room, and neither waits nor runs."""
    free = [row for row in range(len(cluster.table.nodes)) if cluster.view.free_device_totals[row] == 4]
    for row in free[:1]:
        cluster.view.occupy(row, Demand(1, cpus=1.0, accelerators=4), (0, 1, 2, 3))


def other_nodes_are_allowed(cluster: Cluster, rng: random.Random) -> None:
    cluster.use(replace(cluster.policy, filters=tuple(name for name in cluster.policy.filters if name != "domain")))


def a_cycle_starts_what_fits(cluster: Cluster, rng: random.Random) -> None:
    a_run_ends(cluster, rng)
    cluster.apply(decide(cluster, cluster.policy, NOW_S, explain=False), NOW_S)


def another_discipline(cluster: Cluster, rng: random.Random) -> None:
    other = rng.choice([name for name in DISCIPLINES if name != cluster.policy.discipline])
    cluster.use(replace(cluster.policy, discipline=other))


def another_order(cluster: Cluster, rng: random.Random) -> None:
    cluster.use(replace(cluster.policy, order=("smallest", "age")))


def nothing(cluster: Cluster, rng: random.Random) -> None:
    return


EVENTS: list[Callable[[Cluster, random.Random], None]] = [
    a_run_ends,
    a_unit_comes,
    a_unit_leaves,
    an_estimate_changes,
    a_run_is_thought_to_last_longer,
    a_run_is_said_to_last_longer_in_place,
    a_node_fails,
    a_node_is_kept_for_another,
    other_nodes_are_allowed,
    a_cycle_starts_what_fits,
    another_discipline,
    another_order,
    nothing,
]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(DISCIPLINES), st.lists(st.sampled_from(EVENTS), max_size=4))
def test_predictions_are_those_of_courses_followed_anew(
    seed: int, discipline: str, events: list[Callable[[Cluster, random.Random], None]]
) -> None:
    """Several questions on one state, then something happens, and so on: always as without anything kept."""
    rng = random.Random(seed)
    cluster, kept = a_cluster(rng, discipline), KeptCourses()
    for event in [nothing, *events]:
        event(cluster, rng)
        for _ in range(3):
            unit = asked(rng, cluster)
            assert said(cluster, unit, kept) == said(cluster, unit, None)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_courses_are_followed_once_for_questions_on_one_state(discipline: str) -> None:
    """A second question finds the courses of the first; after an event they are followed anew."""
    cluster = full(discipline)
    kept = KeptCourses()
    for name in ("one", "two"):
        unit = a_unit(random.Random(name), name, Demand(2, cpus=1.0, accelerators=2), NOW_S)
        unit = replace(unit, priority=0)
        assert said(cluster, unit, kept) == said(cluster, unit, None)
        assert kept.followed == 1
    a_run_ends(cluster, random.Random(1))
    assert said(cluster, unit, kept) == said(cluster, unit, None)
    assert kept.followed == 2


def full(discipline: str) -> Cluster:
    rng = random.Random(5)
    cluster = Cluster(table_of(a_fleet({"a": 3, "b": 2})), Policy(order=("priority", "age"), discipline=discipline))
    whole = Demand(1, cpus=1.0, accelerators=4)
    cluster.extend([replace(a_unit(rng, f"j{n}", whole, float(n)), priority=0) for n in range(12)])
    cluster.apply(decide(cluster, cluster.policy, 40.0, explain=False), 40.0)
    return cluster


WHOLE = Demand(1, cpus=1.0, accelerators=4)


def two_nodes(*seconds: float) -> Cluster:
    """Two domains of one node; runs that hold the first of them, or both, for so long from 0 on."""
    cluster = Cluster(table_of(a_fleet({"a": 1, "b": 1})), Policy(order=("age",), discipline="greedy"))
    for name, lasts_s in zip("ab", seconds, strict=False):
        demand = replace(WHOLE, domains=frozenset({name}))
        cluster.add(PendingUnit(UnitKey(name, 0), "t", 0, 0.0, demand, expected_s=lasts_s))
    cluster.apply(decide(cluster, cluster.policy, 0.0, explain=False), 0.0)
    return cluster


def test_room_that_is_taken_without_a_run_counts() -> None:
    """The second node is free, then kept for somebody: the start is now, then when the run on the first ends."""
    cluster, kept = two_nodes(100.0), KeptCourses()
    unit = PendingUnit(ASKED, "t", 0, NOW_S, WHOLE, expected_s=10.0)
    assert said(cluster, unit, kept)[ASKED].start_s == NOW_S
    a_node_is_kept_for_another(cluster, random.Random(0))
    assert said(cluster, unit, kept)[ASKED].start_s == 100.0


def test_nodes_that_those_before_it_may_use_count() -> None:
    """One waits before it that may use the first node only, which is free at 200; then also the second, free at 100."""
    cluster, kept = two_nodes(200.0, 100.0), KeptCourses()
    before = replace(WHOLE, domains=frozenset({"a"}))
    cluster.add(PendingUnit(UnitKey("before", 0), "t", 0, 1.0, before, expected_s=1000.0))
    unit = PendingUnit(ASKED, "t", 0, NOW_S, WHOLE, expected_s=10.0)
    assert said(cluster, unit, kept)[ASKED].start_s == 100.0
    other_nodes_are_allowed(cluster, random.Random(0))
    assert said(cluster, unit, kept)[ASKED].start_s == 200.0


def test_only_the_latest_states_are_kept() -> None:
    """Three states in turn with room for two: none is found again. With two in turn both are."""
    cluster = full("greedy")
    unit = replace(a_unit(random.Random(0), "asked", Demand(1, cpus=1.0, accelerators=2), NOW_S), priority=0)
    states = [cluster.copy() for _ in range(3)]
    for number, state in enumerate(states):
        for key in list(state.running)[:number]:
            state.release(key, NOW_S)
    kept = KeptCourses(most=2)
    for state in states * 2:
        said(state, unit, kept)
    assert (kept.followed, len(kept)) == (6, 2)
    for state in states[1:] * 2:
        said(state, unit, kept)
    assert (kept.followed, len(kept)) == (6, 2)


def test_courses_are_kept_for_a_little_while() -> None:
    """A second later the courses of before still speak, as said then; later, or once a run may have ended, they do not."""
    cluster = full("greedy")
    unit = replace(a_unit(random.Random(0), "asked", Demand(1, cpus=1.0, accelerators=2), NOW_S), priority=0)
    kept = KeptCourses()
    before = said(cluster, unit, kept)
    assert said(cluster, unit, kept, NOW_S + 1.0) == before == said(cluster, unit, None)
    assert kept.followed == 1
    assert said(cluster, unit, kept, NOW_S + 10.0) == said(cluster, unit, None, NOW_S + 10.0)
    assert said(cluster, unit, kept, NOW_S - 1.0) == said(cluster, unit, None, NOW_S - 1.0)
    assert kept.followed == 3


def test_a_prediction_is_not_in_the_past() -> None:
    """Room that is there already: the start is now, also where the courses are a second old."""
    cluster = Cluster(table_of(a_fleet({"a": 1})), Policy(order=("age",), discipline="greedy"))
    unit = PendingUnit(ASKED, "t", 0, NOW_S, Demand(1, cpus=1.0, accelerators=2), expected_s=100.0)
    kept = KeptCourses()
    for now_s in (NOW_S, NOW_S + 1.0):
        found = said(cluster, unit, kept, now_s)[ASKED]
        assert (found.low_s, found.start_s, found.high_s) == (now_s, now_s, now_s)
    assert kept.followed == 1


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_what_if_answers_alike_with_and_without_what_is_kept(discipline: str) -> None:
    cluster, kept = full(discipline), KeptCourses()
    for ranks in (1, 2, 3):
        spec = JobSpec(JobKind.GANG, Demand(1, cpus=1.0, accelerators=4), ranks=ranks, max_run_time_s=300.0)
        with_kept = answer(cluster, cluster.policy, spec, "t1", NOW_S, times=rfc3339, kept=kept)
        assert with_kept == answer(cluster, cluster.policy, spec, "t1", NOW_S, times=rfc3339)
        assert with_kept["items"][0]["prediction"]["start"]
    assert kept.followed == 1


def test_several_units_are_followed_as_before() -> None:
    """An array takes room from its own later units: nothing is kept for it."""
    cluster, kept = full("greedy"), KeptCourses()
    spec = JobSpec(JobKind.ARRAY, Demand(1, cpus=1.0, accelerators=4), array_size=3, max_run_time_s=300.0)
    found = answer(cluster, cluster.policy, spec, "t1", NOW_S, times=rfc3339, kept=kept)
    assert found == answer(cluster, cluster.policy, spec, "t1", NOW_S, times=rfc3339)
    assert kept.followed == 0


def test_the_order_is_that_of_the_policy() -> None:
    """In front of all that wait is another place in the order: other courses, under greedy ones of its own."""
    cluster, kept = full("greedy"), KeptCourses()
    unit = a_unit(random.Random(0), "asked", Demand(1, cpus=1.0, accelerators=2), NOW_S)
    places = []
    for priority in (0, 1):
        mine = replace(unit, priority=priority)
        assert said(cluster, mine, kept) == said(cluster, mine, None)
        with_it = cluster.copy()
        with_it.add(mine)
        places.append([item.key for item in order_of(with_it, NOW_S)].index(mine.key))
    assert places == [len(cluster.pending), 0]
    assert kept.followed == 2
