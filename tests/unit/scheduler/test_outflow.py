"""The cheap course of things: by hand on small clusters, and against deciding every end by the whole policy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Domain, Fleet, with_domain
from services.scheduler.core.futures.layout import Layout
from services.scheduler.core.futures.outflow import Course, speaks_for
from services.scheduler.core.futures.pools import Pool, Sizes
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.plain_course import PlainCourse, fitting, give, take
from tests.unit.scheduler.world import a_fleet, a_node

_HORIZON_S = 1e9


def a_unit(name: str, seconds: float, demand: Demand, at_s: float = 0.0) -> PendingUnit:
    return PendingUnit(UnitKey(name, 0), "lab", 0, at_s, demand, expected_s=seconds)


def a_cluster(nodes: dict[str, int], discipline: str, running: list[PendingUnit]) -> Cluster:
    policy = Policy(order=("priority", "age"), discipline=discipline)
    cluster = Cluster(table_of(a_fleet(nodes)), policy)
    cluster.extend(running)
    cluster.apply(decide(cluster, policy, 0.0), 0.0)
    assert not len(cluster.pending)
    return cluster


def course_of(cluster: Cluster, units: list[PendingUnit], discipline: str = "greedy") -> Course:
    layout = Layout(cluster, units, discipline)
    ends = [item.end_s(0.0, "expected") for item in cluster.running.values()]
    course = Course(layout, 0.0, ends, [unit.expected_s for unit in units])
    return course.run({unit.key for unit in units}, _HORIZON_S)


def starts(course: Course) -> dict[str, float]:
    return {key.job_id: last_s for key, (_, last_s) in course.found.items()}


def test_a_gang_waits_for_nodes_of_one_domain_and_a_spanning_one_does_not() -> None:
    """Two domains of one node with 4 accelerators; both are held, until 100 and 200. A gang of 2 x 4 fits in no domain ever,
    but may begin at 200 where it may span."""
    whole = Demand(1, accelerators=4)
    running = [a_unit("a", 100.0, whole), a_unit("b", 200.0, whole)]
    gang = a_unit("gang", 50.0, Demand(2, accelerators=4))
    course = course_of(a_cluster({"a": 1, "b": 1}, "greedy", running), [gang])
    assert starts(course) == {}
    assert course.exhausted
    spanning = a_unit("gang", 50.0, Demand(2, accelerators=4, cross_domain=True))
    assert starts(course_of(a_cluster({"a": 1, "b": 1}, "greedy", running), [spanning])) == {"gang": 200.0}


def test_a_gang_that_spans_domains_has_one_accelerator_model() -> None:
    """Domain a has A100s, b and c have 910Bs. A gang of 2 x 4 never gets a node of a and one of b, but b and c when both are
    free; where the policy lets models differ, it begins at once."""
    fleet = Fleet()
    for name, model in (("a", "A100"), ("b", "910B"), ("c", "910B")):
        fleet = with_domain(fleet, Domain(name), [a_node(f"{name}-0", name, model=model)])
    gang = a_unit("gang", 50.0, Demand(2, accelerators=4, cross_domain=True))
    held = a_unit("held", 100.0, Demand(1, accelerators=4, domains=frozenset({"c"})))
    for one_model, start_s in ((True, 100.0), (False, 0.0)):
        policy = Policy(order=("age",), discipline="greedy", one_accelerator_model_per_gang=one_model)
        cluster = Cluster(table_of(fleet), policy)
        cluster.add(held)
        cluster.apply(decide(cluster, policy, 0.0), 0.0)
        assert starts(course_of(cluster, [gang])) == {"gang": start_s}


def test_accelerators_on_different_nodes_do_not_make_one_rank() -> None:
    """Two nodes, each with 2 of 4 held until 100: there are 4 free, but a rank of 4 begins only at 100."""
    halves = [a_unit("a", 100.0, Demand(1, accelerators=2)), a_unit("b", 300.0, Demand(1, accelerators=3))]
    course = course_of(a_cluster({"a": 2}, "greedy", halves), [a_unit("four", 10.0, Demand(1, accelerators=4))])
    assert starts(course) == {"four": 100.0}


def test_ranks_go_to_the_tightest_node() -> None:
    """One of 3 goes where 3 are free, so that one of 4 begins now too."""
    cluster = a_cluster({"a": 2}, "greedy", [a_unit("a", 100.0, Demand(1, accelerators=1))])
    units = [a_unit("three", 10.0, Demand(1, accelerators=3)), a_unit("four", 10.0, Demand(1, accelerators=4))]
    assert starts(course_of(cluster, units)) == {"three": 0.0, "four": 0.0}


def test_who_may_overtake() -> None:
    """A gang of 2 nodes waits until 200; one of 1 node overtakes it at 100 unless the order is strict."""
    running = [a_unit("a", 100.0, Demand(1, accelerators=4)), a_unit("b", 200.0, Demand(1, accelerators=4))]
    gang = a_unit("gang", 50.0, Demand(2, accelerators=4))
    small = a_unit("small", 50.0, Demand(1, accelerators=4))
    cluster = a_cluster({"a": 2}, "greedy", running)
    assert starts(course_of(cluster, [gang, small])) == {"gang": 200.0, "small": 100.0}
    assert starts(course_of(cluster, [gang, small], "strict")) == {"gang": 200.0, "small": 250.0}


def test_cpus_and_memory_must_suffice_in_sum() -> None:
    """A node of 8 cpus, 6 held until 100: 4 begin at 100, 2 begin now."""
    cluster = a_cluster({"a": 1}, "greedy", [a_unit("a", 100.0, Demand(1, cpus=6.0))])
    units = [a_unit("much", 10.0, Demand(1, cpus=4.0)), a_unit("little", 10.0, Demand(1, cpus=2.0))]
    assert starts(course_of(cluster, units)) == {"much": 100.0, "little": 0.0}


def test_ends_of_one_twentieth_are_one_moment() -> None:
    """Ends at 1000 and 1040 s are one moment: whoever starts then starts between them; 1060 is another."""
    running = [a_unit(name, at_s, Demand(1, accelerators=4)) for name, at_s in (("a", 1000.0), ("b", 1040.0))]
    units = [a_unit(name, 20.0, Demand(1, accelerators=4), number) for number, name in enumerate("xyz")]
    course = course_of(a_cluster({"a": 2}, "greedy", running), units)
    assert course.found == {
        UnitKey("x", 0): (1000.0, 1040.0),
        UnitKey("y", 0): (1000.0, 1040.0),
        UnitKey("z", 0): (1060.0, 1060.0),
    }


def test_nodes_that_take_no_work_have_no_place() -> None:
    cluster = a_cluster({"a": 1}, "greedy", [a_unit("a", 100.0, Demand(1, accelerators=4))])
    cluster.view.set_up([0], False)
    assert starts(course_of(cluster, [a_unit("waits", 10.0, Demand(1, accelerators=4))])) == {}


@pytest.mark.parametrize(
    ("demand", "policy"),
    [
        (Demand(1, accelerators=1, device_milli=500), Policy()),
        (Demand(1, service_port=80), Policy()),
        (Demand(1, resources=(("licence", 1.0),)), Policy()),
        (Demand(2, topology="rack", topology_required=True), Policy()),
        (Demand(1), Policy(preemptions=("priority",))),
    ],
)
def test_it_does_not_speak_for_what_it_does_not_follow(demand: Demand, policy: Policy) -> None:
    cluster = a_cluster({"a": 1}, "greedy", [])
    assert not speaks_for(cluster, policy, [a_unit("a", 1.0, demand)])
    assert speaks_for(cluster, Policy(), [a_unit("a", 1.0, Demand(1, accelerators=1))])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("discipline", ["greedy", "strict"])
def test_it_goes_as_the_whole_policy_decides(seed: int, discipline: str) -> None:
    """Units of one rank with powers of two, where best fit is exact: the same starts as deciding at every end, but for ends
    that were taken as one."""
    rng = random.Random(seed)
    units = [
        a_unit(f"j{number}", rng.uniform(100.0, 5000.0), Demand(1, accelerators=rng.choice([1, 2, 4])), float(number))
        for number in range(40)
    ]
    policy = Policy(order=("age",), discipline=discipline)
    cluster = Cluster(table_of(a_fleet({"a": 3})), policy)
    cluster.extend(units)
    cluster.apply(decide(cluster, policy, 0.0, explain=False), 0.0)
    waiting = sorted(cluster.pending, key=lambda unit: unit.queued_at_s)
    course = course_of(cluster, waiting, discipline)
    exact: dict[str, float] = {}
    while len(cluster.pending):
        at_s = min(item.end_s(0.0, "expected") for item in cluster.running.values())
        for key in [key for key, item in cluster.running.items() if item.end_s(0.0, "expected") <= at_s]:
            cluster.release(key, at_s)
        for begun in cluster.apply(decide(cluster, policy, at_s, explain=False), at_s):
            exact[begun.unit.key.job_id] = at_s
    found = starts(course)
    assert found.keys() == exact.keys()
    errors = sorted(abs(found[name] - exact[name]) / exact[name] for name in exact)
    assert errors[len(errors) // 2] < 0.1


def test_who_runs_long_may_have_what_is_free_besides() -> None:
    """Two nodes, 4 held until 100 and 2 until 300. What waits first wants a node: the one at 100, when 2 more are free. Whoever
    wants these 2 may begin now for as long as it likes; once they are gone only who ends by then."""
    running = [a_unit("a", 100.0, Demand(1, accelerators=4)), a_unit("b", 300.0, Demand(1, accelerators=2))]
    whole = a_unit("whole", 50.0, Demand(1, accelerators=4))
    one = Demand(1, accelerators=1)
    long = [a_unit(f"long{number}", 1000.0, one, float(number)) for number in range(3)]
    cluster = a_cluster({"a": 2}, "easy", running)
    assert starts(course_of(cluster, [whole, *long], "easy")) == {
        "whole": 100.0,
        "long0": 0.0,
        "long1": 0.0,
        "long2": 150.0,
    }
    two = [a_unit("two", 1000.0, Demand(1, accelerators=2)), a_unit("short", 90.0, one), a_unit("later", 110.0, one)]
    assert starts(course_of(cluster, [whole, *two[1:]], "easy")) == {"whole": 100.0, "short": 0.0, "later": 0.0}
    assert starts(course_of(cluster, [whole, *two], "easy")) == {
        "whole": 100.0,
        "two": 0.0,
        "short": 150.0,
        "later": 150.0,
    }


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_nothing_is_reserved_for_who_never_fits(discipline: str) -> None:
    """Two nodes of 4, held until 100 and 300. What waits first wants more than there is on any node: the second in the order has
    the reservation, of both nodes at 300. Whoever wants one node begins at 100 only if it ends by then. With a third node
    that is free, 8 are free in sum at 100 and yet for nobody: who wants 4 begins now, however long it runs."""
    running = [a_unit("a", 100.0, Demand(1, accelerators=4)), a_unit("b", 300.0, Demand(1, accelerators=4))]
    whole = Demand(1, accelerators=4)
    both = a_unit("both", 50.0, Demand(2, accelerators=4), 1.0)
    long, short = a_unit("long", 500.0, whole, 2.0), a_unit("short", 150.0, whole, 3.0)
    huge = a_unit("huge", 50.0, Demand(1, accelerators=16))
    found = starts(course_of(a_cluster({"a": 2}, discipline, running), [huge, both, long, short], discipline))
    assert found == {"both": 300.0, "short": 100.0, "long": 350.0}
    large = a_unit("large", 50.0, Demand(1, accelerators=8))
    assert starts(course_of(a_cluster({"a": 3}, discipline, running), [large, long], discipline)) == {"long": 0.0}


def test_nodes_of_several_domains_are_reserved_for_who_may_span_them() -> None:
    """Two domains of a node each, held until 100 and 200. A gang of both waits until 200; nobody begins at 100 who runs longer."""
    running = [a_unit("a", 100.0, Demand(1, accelerators=4)), a_unit("b", 200.0, Demand(1, accelerators=4))]
    gang = a_unit("gang", 50.0, Demand(2, accelerators=4, cross_domain=True))
    long, short = (
        a_unit("long", 150.0, Demand(1, accelerators=4), 1.0),
        a_unit("short", 90.0, Demand(1, accelerators=4), 2.0),
    )
    found = starts(course_of(a_cluster({"a": 1, "b": 1}, "easy", running), [gang, long, short], "easy"))
    assert found == {"gang": 200.0, "short": 100.0, "long": 250.0}


def a_queue(rng: random.Random, discipline: str) -> Cluster:
    """What waits in three small domains after a cycle: gangs and tasks, alike in what they want of accelerators and not in cpus
    and memory; half of the run times are round, so that ends and reservations meet."""
    policy = Policy(order=("priority", "age"), discipline=discipline)
    fleet = a_fleet({"a": rng.randrange(1, 5), "b": 2, "c": 1})
    if rng.random() < 0.5:
        fleet = with_domain(fleet, Domain("e"), [a_node(f"e-{n}", "e", model="910B") for n in range(2)])
    cluster = Cluster(table_of(fleet), policy)
    demands = [
        Demand(
            rng.choice([1, 1, 2, 3, 5]),
            cpus=float(rng.choice([0, 0.5, 1, 3])),
            memory_bytes=rng.choice([0, 0, 8, 20]) * 2**30,
            accelerators=rng.choice([0, 1, 1, 2, 3, 4]),
            domains=frozenset(rng.choice([(), (), ("a",), ("a", "b")])),
            cross_domain=rng.random() < 0.2,
        )
        for _ in range(rng.randrange(1, 12))
    ]
    for number in range(rng.randrange(4, 60)):
        seconds = float(rng.choice([60, 100, 600])) if rng.random() < 0.5 else rng.lognormvariate(5.0, 1.5)
        cluster.add(a_unit(f"j{number}", seconds, rng.choice(demands), float(number)))
    cluster.apply(decide(cluster, policy, 0.0, explain=False), 0.0)
    return cluster


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["greedy", "strict", "easy", "conservative"]))
def test_it_goes_as_when_every_unit_is_asked(seed: int, discipline: str) -> None:
    """Against the rules carried out one unit and one node after the other: the same starts, causes and moments."""
    rng = random.Random(seed)
    cluster = a_queue(rng, discipline)
    units = sorted(cluster.pending, key=lambda unit: unit.queued_at_s)
    layout = Layout(cluster, units, discipline)
    if cluster.running and rng.random() < 0.3:
        cluster.view.set_up([rng.randrange(len(cluster.table.nodes))], False)
        layout = Layout(cluster, units, discipline)
    ends = [rng.choice([80.0, 500.0, rng.uniform(1.0, 5000.0)]) for _ in cluster.running]
    lasts = [rng.choice([60.0, rng.lognormvariate(5.0, 1.5)]) for _ in units]
    wanted = {unit.key for unit in units if rng.random() < 0.9}
    horizon_s = rng.choice([_HORIZON_S, 1000.0])
    course = Course(layout, 0.0, ends, lasts).run(wanted, horizon_s)
    plain = PlainCourse(cluster, layout, 0.0, ends, lasts).run(wanted, horizon_s)
    assert course.found == plain.found
    assert course.cause == plain.cause
    assert (course.until_s, course.cycles, course.exhausted) == (plain.until_s, plain.cycles, plain.exhausted)


@given(st.data())
def test_nodes_taken_together_are_those_taken_one_by_one(data: st.DataObject) -> None:
    """However many ranks go to alike nodes at once: the same nodes, the same left, and counted as anew."""
    top = data.draw(st.sampled_from([4, 8]))
    sizes = Sizes(top, data.draw(st.sets(st.integers(0, top + 2), min_size=1, max_size=4)))
    free = data.draw(st.lists(st.integers(0, top), min_size=1, max_size=12))

    def a_pool() -> Pool:
        room = sizes.none + sum(sizes.worth[level] for level in free)
        pool = Pool(0, sizes, [set() for _ in range(top + 1)], list(free), room, 0, sum(free), 100.0, 100.0)
        for row, level in enumerate(free):
            pool.levels[level].add(row)
        return pool

    def holds(pool: Pool, each: int) -> int:
        """Node by node."""
        return sum(level // each for level in pool.level_of) if each else sizes.none

    quick, plain = a_pool(), a_pool()
    held: list[tuple[Demand, list[tuple[int, int]]]] = []
    for _ in range(8):
        gives = data.draw(st.booleans())
        if held and gives:
            before, nodes = held.pop(data.draw(st.integers(0, len(held) - 1)))
            quick.give(before, before.ranks, nodes)
            give(plain, before, before.ranks, nodes)
            assert (quick.levels, quick.level_of, quick.free) == (plain.levels, plain.level_of, plain.free)
        each = data.draw(st.sampled_from(sizes.all))
        demand = Demand(data.draw(st.integers(1, 12)), cpus=1.0, accelerators=each)
        assert quick.ranks(demand) == fitting(plain, demand)
        if quick.ranks(demand) < demand.ranks:
            continue
        held.append((demand, take(plain, demand, demand.ranks)))
        assert list(quick.take(demand, demand.ranks)) == held[-1][1]
        assert (quick.levels, quick.level_of, quick.free) == (plain.levels, plain.level_of, plain.free)
        for each in (*sizes.all, *range(top + 3)):
            assert sizes.ranks(quick.room, each) == holds(plain, each)
