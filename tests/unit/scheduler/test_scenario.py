"""Run times drawn for a prediction: quantiles by hand, age, limits, and each level once."""

from __future__ import annotations

import math

import pytest

from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.scenario import COARSE, FINE, scenarios
from services.scheduler.core.state import Demand, UnitKey


def a_unit(name: str = "a", **more: float) -> PendingUnit:
    values = {"expected_s": 100.0, "low_s": 20.0, "high_s": 500.0, **more}
    return PendingUnit(UnitKey(name, 0), "lab", 0, 0.0, Demand(1), **values)  # type: ignore[arg-type]


MIDDLE = scenarios((0.0,))[0]


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
    assert [item.whole_s(unit, 0.0) for item in scenarios(FINE)] == pytest.approx([100.0] * 5)
    assert MIDDLE.whole_s(unit, 150.0) is None
    assert MIDDLE.lasts_s(a_unit(expected_s=math.inf, limit_s=70.0)) == 70.0


@pytest.mark.parametrize("levels", [FINE, COARSE])
def test_a_unit_meets_each_of_its_own_levels_once(levels: tuple[float, ...]) -> None:
    found = scenarios(levels, seed=3)
    for name in "abcdefgh":
        own = [item._parts.index(item.part(UnitKey(name, 0))) for item in found]
        assert sorted(own) == list(range(len(levels)))


def test_what_is_shared_moves_all_units_the_same_way() -> None:
    """Over many units, the mean quantile of the low scenario is below that of the middle, that below the high one's."""
    middle, low, high = (
        sum(item.part(UnitKey(f"u{number}", 0)) for number in range(300)) / 300 for item in scenarios(COARSE)
    )
    assert low + 0.15 < middle < high - 0.15
    assert middle == pytest.approx(0.5, abs=0.03)
