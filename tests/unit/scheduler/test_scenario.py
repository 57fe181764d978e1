"""Run times drawn for a prediction: quantiles by hand, age, limits, each level once, and how far units go together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.futures.scenario import COARSE, FINE, Scenario, orders, quantiles, scenarios
from services.scheduler.core.futures.spans import spans_of_runs, spans_of_waiting
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit


def a_unit(name: str = "a", **more: float) -> PendingUnit:
    values = {"expected_s": 100.0, "low_s": 20.0, "high_s": 500.0, **more}
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, Demand(1), **values)  # type: ignore[arg-type]


def at_quantile(part: float) -> Scenario:
    return Scenario({UnitKey("a", 0): part})


MIDDLE = at_quantile(0.5)


def test_a_new_run_at_the_middle_level_takes_its_median() -> None:
    assert MIDDLE.whole_s(a_unit(), 0.0) == pytest.approx(100.0)
    assert MIDDLE.lasts_s(a_unit(attained_s=30.0)) < 100.0


def test_an_older_run_is_drawn_from_those_that_are_longer() -> None:
    """Above the median the chance to be longer falls as 1/t here (500 s is five times the median and has a fifth of it):
    half of the runs longer than 200 s are longer than 400 s. Below, 50 s has passed 0.25 of all: the middle of the rest is
    at 0.625, where 0.375 are longer: 0.5 / 0.375 times the median."""
    assert MIDDLE.whole_s(a_unit(), 200.0) == pytest.approx(400.0)
    assert MIDDLE.whole_s(a_unit(), 5000.0) == pytest.approx(10_000.0)
    assert MIDDLE.whole_s(a_unit(), 50.0) == pytest.approx(100.0 * 0.5 / 0.375)


def test_the_limit_ends_a_run_until_it_is_passed() -> None:
    assert MIDDLE.whole_s(a_unit(limit_s=300.0), 200.0) == pytest.approx(300.0)
    assert MIDDLE.whole_s(a_unit(limit_s=100.0), 200.0) == pytest.approx(400.0)


def test_without_a_band_a_run_takes_what_is_expected() -> None:
    unit = a_unit(low_s=100.0, high_s=100.0)
    assert [item.whole_s(unit, 0.0) for item in scenarios([unit.key], FINE)] == pytest.approx([100.0] * 5)
    assert MIDDLE.whole_s(unit, 150.0) is None
    assert MIDDLE.lasts_s(a_unit(expected_s=math.inf, limit_s=70.0)) == 70.0


@pytest.mark.parametrize("levels", [3, 5])
def test_a_unit_meets_each_of_its_own_levels_once_and_in_all_rounds_each_in_each_scenario(levels: int) -> None:
    found = orders(50, levels, seed=3, rounds=levels).reshape(levels, levels, 50)
    every = np.arange(levels)[:, None]
    for number in range(levels):
        assert (np.sort(found[number], axis=0) == every).all()
        assert (np.sort(found[:, number], axis=0) == every).all()
    assert len(set(map(tuple, found[0].T.tolist()))) > levels


def test_five_rounds_hold_the_band_of_one_unit() -> None:
    """Of 25 quantiles the third is below 0.12, the middle is a half, the third last above 0.88 (normal scores: -1.22 and 1.22)."""
    found = np.sort(quantiles(10, FINE, rounds=5), axis=0)
    assert found[2] == pytest.approx(np.full(10, 0.112), abs=0.001)
    assert found[12] == pytest.approx(np.full(10, 0.5))
    assert found[22] == pytest.approx(np.full(10, 0.888), abs=0.001)


def test_what_is_shared_moves_all_units_the_same_way() -> None:
    """Over many units, the mean quantile of the low scenario is below that of the middle, that below the high one's."""
    middle, low, high = quantiles(300, COARSE).mean(axis=1)
    assert low + 0.15 < middle < high - 0.15
    assert middle == pytest.approx(0.5, abs=0.03)


_times = st.one_of(st.floats(1e-3, 1e7), st.just(math.inf))


@given(
    expected_s=_times,
    low=st.floats(0.0, 1.5),
    high=st.one_of(st.floats(0.5, 100.0), st.just(math.inf)),
    limit_s=_times,
    attained_s=st.floats(0.0, 1e5),
    ran_s=st.floats(0.0, 1e6),
    later=st.floats(0.1, 10.0),
    part=st.floats(0.01, 0.99),
)
def test_many_at_once_are_the_same_as_one_by_one(
    expected_s: float,
    low: float,
    high: float,
    limit_s: float,
    attained_s: float,
    ran_s: float,
    later: float,
    part: float,
) -> None:
    known_s = 1.0 if expected_s == math.inf else expected_s
    unit = a_unit(
        expected_s=expected_s, low_s=low * known_s, high_s=high * known_s, limit_s=limit_s, attained_s=attained_s
    )
    parts = np.array([[part]])
    scenario = at_quantile(part)
    assert spans_of_waiting([unit]).left_s(parts)[0, 0] == pytest.approx(scenario.lasts_s(unit), rel=1e-9)
    run = RunningUnit(unit, (), 0.0, expected_end_s=later * expected_s, limit_end_s=limit_s)
    said_s = scenario.end_s(run, ran_s)
    assert ran_s + spans_of_runs([run], ran_s).left_s(parts)[0, 0] == pytest.approx(said_s, rel=1e-9)


def test_nothing_runs_and_nothing_waits() -> None:
    assert spans_of_waiting([]).left_s(np.zeros((5, 0))).shape == (5, 0)
    assert quantiles(0, FINE).shape == (5, 0)
