"""How many replicas a load asks for, by hand; and that services start and stop as many, once each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.effects import Preempted, Queued, Start, Stop
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.measured import Load, News
from services.scheduler.core.replica_loads import FRESH_S
from services.scheduler.core.replicas import follow
from services.scheduler.core.scaling import Scaler, Scaling, recommended
from services.scheduler.core.state import Demand, FailureKind, JobKind, JobSpec, UnitKey, UnitState
from tests.unit.scheduler.world import World, a_fleet

RULES = Scaling(1, 8, target=100.0, down_after_s=60.0, cooldown_s=10.0)


@pytest.mark.parametrize(
    ("replicas", "loads", "silent", "wanted"),
    [
        # The documentation of Kubernetes: 200 where 100 is wanted doubles, 50 halves.
        (2, [200.0, 200.0], 0, 4),
        (4, [50.0] * 4, 0, 2),
        (2, [105.0, 105.0], 0, 2),
        (2, [95.0, 95.0], 0, 2),
        (3, [120.0, 120.0, 120.0], 0, 4),
        (8, [900.0] * 8, 0, 8),
        (2, [0.0, 0.0], 0, 1),
        (2, [], 2, 2),
        # A replica that has just begun counts as idle for growth: 300 over three is no more than is wanted.
        (3, [150.0, 150.0], 1, 3),
        # For shrinking it counts as loaded: 20 + 20 + 100.
        (3, [20.0, 20.0], 1, 2),
        (3, [290.0, 290.0], 1, 6),
    ],
)
def test_recommendations(replicas: int, loads: list[float], silent: int, wanted: int) -> None:
    assert recommended(RULES, replicas, loads, silent) == wanted


@given(st.integers(1, 8), st.lists(st.floats(0, 1e6), max_size=8), st.integers(0, 8))
def test_bounds_hold_and_what_does_not_report_never_overturns_what_does(
    replicas: int, loads: list[float], silent: int
) -> None:
    found = recommended(RULES, replicas, loads, silent)
    assert 1 <= found <= 8
    if loads and sum(loads) > 1.1 * 100 * (len(loads) + silent):
        assert found >= replicas
    if loads and sum(loads) / len(loads) >= 100:
        assert found >= replicas


def test_growth_is_at_once_and_shrinking_after_the_window() -> None:
    scaler = Scaler()
    assert scaler.step(RULES, 2, [300.0, 300.0], 0, 1000.0) == 6
    assert scaler.step(RULES, 6, [300.0] * 6, 0, 1009.0) == 6, "it has just changed"
    assert scaler.step(RULES, 6, [10.0] * 6, 0, 1030.0) == 6
    assert scaler.step(RULES, 6, [10.0] * 6, 0, 1059.0) == 6, "the window is not full"
    assert scaler.step(RULES, 6, [10.0] * 6, 0, 1065.0) == 6, "more was asked for within the window"
    assert scaler.step(RULES, 6, [50.0] * 6, 0, 1070.0) == 3
    assert scaler.step(RULES, 3, [10.0] * 3, 0, 1071.0) == 3
    assert scaler.step(RULES, 3, [10.0] * 3, 0, 1131.0) == 1


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (replace(RULES, least=3), "min_replicas"),
        (replace(RULES, most=1), "max_replicas"),
        (replace(RULES, target=0.0), "target"),
        (replace(RULES, target=float("nan")), "target"),
        (replace(RULES, tolerance=1.0), "tolerance"),
        (replace(RULES, down_after_s=-1.0), "down_after_s"),
        (replace(RULES, cooldown_s=float("inf")), "cooldown_s"),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(rules: Scaling, field: str) -> None:
    with pytest.raises(MalformedJobError, match=field):
        rules.check(2)


# -- services ------------------------------------------------------------------------------------------------------------


def service(rules: Scaling = RULES, replicas: int = 2) -> JobSpec:
    return JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=replicas, scaling=rules)


def tell(world: World, **loads: float) -> None:
    """Replicas report: ``r0`` is the first."""
    news = News(loads=tuple((UnitKey("web", int(name[1:])), Load(value, world.now_s)) for name, value in loads.items()))
    draft = world.book.draft()
    world.book.learn(news, world.now_s)
    follow(draft, world.book.replicas, world.now_s, world.rules)
    world.merge(draft)


def states(world: World) -> list[UnitState]:
    return [world.book.units[UnitKey("web", index)].state for index in range(8)]


def begun(world: World) -> World:
    world.submit("web", service())
    world.cycle()
    for index in range(2):
        world.start(world.run("web", index))
    return world


def test_it_begins_with_its_replicas_and_grows_with_the_load() -> None:
    world = begun(World(a_fleet({"a": 2})))
    assert states(world) == [UnitState.RUNNING] * 2 + [UnitState.BLOCKED] * 6
    tell(world, r0=200.0, r1=200.0)
    assert states(world) == [UnitState.RUNNING] * 2 + [UnitState.QUEUED] * 2 + [UnitState.BLOCKED] * 4
    assert [effect.unit_index for effect in world.of(Queued)[1:]] == [2, 3]
    assert "4 instead of 2 replicas: load is 200 per replica" in world.book.units[UnitKey("web", 2)].reason
    world.cycle()
    assert len(world.of(Start)) == 4


def test_it_shrinks_from_the_end_and_what_is_stopped_does_not_come_back_by_itself() -> None:
    world = begun(World(a_fleet({"a": 2})))
    tell(world, r0=200.0, r1=200.0)
    world.cycle()
    for index in (2, 3):
        world.start(world.run("web", index))
    for _ in range(8):
        world.now_s += 10.0
        tell(world, r0=50.0, r1=50.0, r2=50.0, r3=50.0)
    assert states(world) == [UnitState.RUNNING] * 2 + [UnitState.BLOCKED] * 6
    assert [effect.run.key.unit_index for effect in world.of(Stop)] == [3, 2]
    assert [effect.run.key.unit_index for effect in world.of(Preempted)] == [3, 2]
    world.fail(world.run("web", 3), FailureKind.STOPPED)
    world.finish(world.run("web", 2))
    world.cycle()
    assert states(world) == [UnitState.RUNNING] * 2 + [UnitState.BLOCKED] * 6
    assert len(world.of(Start)) == 4


def test_replicas_that_wait_are_parked_before_those_that_run() -> None:
    """Room for two of four: the two that never got nodes are given up."""
    world = begun(World(a_fleet({"a": 1}, cpus=2.0)))
    tell(world, r0=200.0, r1=200.0)
    world.cycle()
    for _ in range(8):
        world.now_s += 10.0
        tell(world, r0=60.0, r1=60.0)
    assert states(world) == [UnitState.RUNNING] * 2 + [UnitState.QUEUED] * 2 + [UnitState.BLOCKED] * 4
    for _ in range(8):
        world.now_s += 10.0
        tell(world, r0=0.0, r1=0.0)
    assert states(world)[:2] == [UnitState.RUNNING] * 2
    assert world.of(Stop) == []


def test_old_reports_and_reports_of_others_change_nothing() -> None:
    world = begun(World(a_fleet({"a": 2})))
    tell(world, r0=100.0, r1=100.0)
    world.now_s += FRESH_S + 1.0
    tell(world, r1=500.0)
    assert states(world).count(UnitState.QUEUED) == 3, (
        "500 over two replicas, of which one says nothing: five are wanted"
    )
    world.cancel("web")
    for index in range(2):
        world.fail(world.run("web", index), FailureKind.STOPPED)
    assert not world.book.jobs
    assert not world.book.replicas.loads
    tell(world, r0=900.0)
    assert not world.book.units


def test_a_new_leader_goes_on_with_as_many_as_there_were() -> None:
    world = begun(World(a_fleet({"a": 2})))
    tell(world, r0=200.0, r1=200.0)
    world.cycle()
    world.restart()
    assert states(world) == [UnitState.RUNNING] * 4 + [UnitState.BLOCKED] * 4
    for _ in range(7):
        world.now_s += 10.0
        tell(world, r0=10.0, r1=10.0, r2=10.0, r3=10.0)
    assert states(world).count(UnitState.RUNNING) == 1


def test_a_service_that_is_cancelled_ends_with_its_parked_replicas() -> None:
    world = begun(World(a_fleet({"a": 2})))
    world.cancel("web")
    assert set(states(world)) == {UnitState.CANCELLED}
