"""Capacity held for tenants: reserves by hand, who is held back, options that are wrong, forecasts among the fleet's facts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.forecast.v1.forecast_pb2 import DemandForecast, ForecastPoint
from services.scheduler import events
from services.scheduler.core import fleet as facts
from services.scheduler.core.book import Book
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.outlooks import FleetOutlooks, outlooks_of, with_outlook
from services.scheduler.core.policy import Policy, RestartRules, policy_from_json
from services.scheduler.core.preallocation import FACT, Outlook, PreallocationGate, Settings, lacking, reserves
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.world import World, a_fleet, gang, task

LATER = Outlook(0.0, ((600.0, 6.0, math.nan), (3600.0, 10.0, 14.0)))


def test_the_reserve_is_what_is_expected_beyond_what_is_held() -> None:
    def reserve(held: float, now_s: float = 60.0, **options: Any) -> float:
        settings = Settings(tenants=("a",), most=100.0, **options)
        return reserves(settings, {"a": held, "b": 50.0}, {"a": LATER, "b": LATER}, now_s)["a"]

    assert reserve(4.0, horizon_s=3600.0) == 6.0
    assert reserve(4.0, horizon_s=3600.0, bound="high") == 10.0
    assert reserve(4.0, horizon_s=600.0) == 2.0
    # Without a band the expectation counts; beyond the farthest horizon the farthest.
    assert reserve(4.0, horizon_s=600.0, bound="high") == 2.0
    assert reserve(4.0, horizon_s=86_400.0) == 6.0
    assert reserve(4.0, horizon_s=3600.0, share=0.5) == 1.0
    assert reserve(30.0, horizon_s=3600.0) == 0.0
    assert reserve(30.0, horizon_s=3600.0, headroom=3.0) == 3.0
    assert reserve(4.0, now_s=4000.0, horizon_s=3600.0) == 0.0
    assert reserves(Settings(tenants=("a",), most=5.0), {}, {"a": LATER}, 0.0) == {"a": 5.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "tenants"),
        ({"tenants": ["a"]}, "most"),
        ({"tenants": ["a"], "most": -1}, "most"),
        ({"tenants": "a", "most": 4}, "tenants"),
        ({"tenants": ["a"], "most": 4, "bound": "low"}, "bound"),
        ({"tenants": ["a"], "most": 4, "spare_short": 1}, "spare_short"),
        ({"tenants": ["a"], "most": 4, "mots": 1}, "mots"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        stages_of(policy_from_json({"limits": ["preallocation"], "options": {"preallocation": options}}))


def test_forecasts_of_tenants_are_kept_with_those_of_domains() -> None:
    fleet = facts.with_expected_demand(Fleet(), "north", 7.0)
    fleet = with_outlook(fleet, "a", 5.0, LATER.points)
    fleet = with_outlook(fleet, "a/b", 6.0, [(600.0, 1.0, 2.0)])
    assert fleet.expected_demand["north"] == 7.0
    found = outlooks_of(fleet.expected_demand)
    assert found["a/b"] == Outlook(6.0, ((600.0, 1.0, 2.0),))
    assert (found["a"].made_at_s, found["a"].demand(3600.0, "high")) == (5.0, 14.0)
    # A newer one replaces all of the older, and nothing of others.
    fleet = with_outlook(fleet, "a", 9.0, [(600.0, 3.0, math.nan)])
    assert outlooks_of(fleet.expected_demand)["a"].points[0][:2] == (600.0, 3.0)
    assert len(outlooks_of(fleet.expected_demand)["a"].points) == 1
    assert outlooks_of(fleet.expected_demand)["a/b"].made_at_s == 6.0
    assert fleet.expected_demand["north"] == 7.0


def held_for(*tenants: str) -> Policy:
    options = {"tenants": list(tenants), "most": 8, "horizon_s": 3600, "spare_short": False}
    return policy_from_json({"limits": ["preallocation"], "options": {"preallocation": options}})


def forecast(tenant: str) -> DemandForecast:
    message = DemandForecast(
        subject_kind=forecast_pb2.FORECAST_SUBJECT_KIND_TENANT,
        subject_id=tenant,
        points=[ForecastPoint(horizon_s=3600.0, expected=6.0, high=9.0, has_band=True)],
    )
    message.made_at.FromSeconds(1000)
    return message


def test_the_scheduler_keeps_forecasts_of_the_tenants_that_its_policy_holds_capacity_for() -> None:
    book = Book(held_for("a"))
    draft = book.draft()
    batch = events.Batch(draft, 1000.0, RestartRules(), set())
    events.demand_forecast(batch, forecast("a"))
    events.demand_forecast(batch, forecast("b"))
    book.merge(draft)
    known = book.cluster.view.facts[FACT]
    assert isinstance(known, FleetOutlooks)
    assert dict(known.at(1000.0)) == {"a": Outlook(1000.0, ((3600.0, 6.0, 9.0),))}
    others = Book(Policy())
    draft = others.draft()
    events.demand_forecast(events.Batch(draft, 1000.0, RestartRules(), set()), forecast("a"))
    assert not draft.changed


def told(world: World, tenant: str, expected: float) -> None:
    draft = world.book.draft()
    draft.fleet = with_outlook(draft.fleet, tenant, world.now_s, [(3600.0, expected, math.nan)])
    world.merge(draft)


def placed(world: World, *, whole: bool = True) -> set[str]:
    return {item.key.job_id for item in world.cycle(whole=whole).placed}


def test_others_leave_what_is_held_and_the_tenant_takes_it() -> None:
    world = World(a_fleet({"north": 3}), held_for("a"))
    told(world, "a", 8.0)
    world.submit("small", task(accelerators=2), tenant="b")
    assert placed(world) == {"small"}
    world.submit("other", gang(2, accelerators=2), tenant="b")
    world.submit("next", task(accelerators=1), tenant="b")
    # 10 are free and 8 held for a: one of 1 starts, the gang of 4 waits and says why.
    assert placed(world) == {"next"}
    [waiting] = world.decisions.waiting
    assert waiting.key == UnitKey("other", 0)
    assert "preallocation: 8 of 9 free accelerators" in str(world.decisions.blocked[0].reason)
    world.submit("own", task(accelerators=4), tenant="a")
    assert placed(world) == {"own"}
    # a holds 4 of its 8 now: 4 of the 5 that are free are still held.
    world.submit("one", task(accelerators=1), tenant="c")
    assert placed(world) == {"one"}
    world.submit("two", task(accelerators=1), tenant="c")
    assert placed(world) == set()


def held_back() -> World:
    world = World(a_fleet({"north": 3}), held_for("a"))
    told(world, "a", 8.0)
    world.submit("small", task(accelerators=2), tenant="b")
    assert placed(world) == {"small"}
    world.submit("other", gang(2, accelerators=2), tenant="b")
    assert placed(world) == set()
    assert placed(world, whole=False) == set()
    return world


def test_what_was_held_back_starts_when_less_is_expected() -> None:
    world = held_back()
    told(world, "a", 6.0)
    assert placed(world, whole=False) == {"other"}


def test_what_was_held_back_starts_when_the_forecast_is_old() -> None:
    world = held_back()
    world.now_s += 3601.0
    assert placed(world, whole=False) == {"other"}


@pytest.mark.parametrize(
    ("held", "taken", "after"),
    [
        # 10 are expected and at most 8 kept: what is held, what is taken off, what is kept then.
        (0.0, 4, 8.0),
        (4.0, 4, 8.0),
        (8.0, 4, 6.0),
        # What it held when the cycle began it should be able to hold.
        (30.0, 4, 4.0),
    ],
)
def test_what_is_taken_off_and_put_back_changes_nothing(held: float, taken: int, after: float) -> None:
    settings = Settings(tenants=("a",), most=8.0, horizon_s=3600.0, spare_short=False)
    world = World(a_fleet({"north": 3}), held_for("a"))
    lacks = lacking(settings, {"a": held}, {"a": LATER}, 60.0)
    gate = PreallocationGate(world.book.cluster, settings, lacks)
    world.submit("victim", task(accelerators=taken), tenant="a")
    unit = world.cycle().placed[0].unit
    before = gate.kept()
    assert before == reserves(settings, {"a": held}, {"a": LATER}, 60.0)
    gate.charge(unit, -1)
    assert gate.kept() == {"a": after}
    gate.charge(unit)
    assert gate.kept() == before


@pytest.mark.parametrize(
    ("expected_s", "attained_s", "spared"),
    [(3600.0, 0.0, True), (3601.0, 0.0, False), (4000.0, 400.0, True), (4000.0, 399.0, False), (math.inf, 1e9, False)],
)
def test_what_is_left_of_a_unit_decides_whether_it_may_use_what_is_held(
    expected_s: float, attained_s: float, spared: bool
) -> None:
    settings = Settings(tenants=("a",), most=12.0, horizon_s=3600.0)
    world = World(a_fleet({"north": 3}), held_for("a"))
    gate = PreallocationGate(world.book.cluster, settings, {"a": 10.0})
    unit = PendingUnit(UnitKey("b", 0), "b", 0, 0.0, Demand(1, accelerators=1), expected_s=expected_s)
    said = gate.refuses(replace(unit, attained_s=attained_s))
    # 12 are free and 10 are held for a; with 2 more taken one more is too much.
    world.submit("other", task(accelerators=2), tenant="a")
    assert placed(world) == {"other"}
    assert said == ""
    assert (gate.refuses(replace(unit, attained_s=attained_s)) == "") is spared


def test_what_could_not_start_beside_the_reserve_at_all_is_not_held_back() -> None:
    world = World(a_fleet({"north": 2}), held_for("a"))
    told(world, "a", 6.0)
    world.submit("whole", gang(2, accelerators=4), tenant="b")
    assert placed(world) == {"whole"}


def test_without_a_forecast_only_the_headroom_is_held() -> None:
    options = {"tenants": ["a"], "most": 8, "headroom": 3}
    world = World(
        a_fleet({"north": 1}), policy_from_json({"limits": ["preallocation"], "options": {"preallocation": options}})
    )
    world.submit("x", task(accelerators=1), tenant="b")
    world.submit("y", task(accelerators=1), tenant="c")
    assert placed(world) == {"x"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_points_that_are_no_numbers_are_left_out_of_a_forecast(bad: float) -> None:
    """JSON has no such numbers: the batch could not be written."""
    book = Book(held_for("a"))
    draft = book.draft()
    batch = events.Batch(draft, 1000.0, RestartRules(), set())
    message = forecast("a")
    message.points.add(horizon_s=600.0, expected=bad)
    message.points.add(horizon_s=bad, expected=2.0)
    message.points.add(horizon_s=7200.0, expected=2.0, high=bad, has_band=True)
    events.demand_forecast(batch, message)
    known = outlooks_of(draft.fleet.expected_demand)["a"]
    assert [point[:2] for point in known.points] == [(3600.0, 6.0), (7200.0, 2.0)]
    assert math.isnan(known.points[1][2])
    message.subject_kind = forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN
    events.demand_forecast(batch, message)
    assert draft.fleet.expected_demand["a"] == 6.0
    del message.points[:]
    message.points.add(horizon_s=600.0, expected=bad)
    before = draft.fleet
    events.demand_forecast(batch, message)
    assert draft.fleet is before
    assert all(map(math.isfinite, draft.fleet.expected_demand.values()))
