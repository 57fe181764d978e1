from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.forecast.backtest import Backtest, forecast_all, replayed, standard_methods
from services.forecast.evaluate import SERVED, evaluate, main, read_series
from services.forecast.history import History
from services.forecast.ledger import Subject, SubjectKind
from services.forecast.methods import DampedTrend, Persistence, RollingMedian, SeasonalNaive, forecast_history
from services.forecast.rolling import Policy, Rolling, Structural

CHANCE = np.random.default_rng(3)
TIMES = np.arange(600)
SEASON = 40.0 + 30 * np.sin(2 * np.pi * TIMES / 60)
WALK = np.cumsum(CHANCE.normal(0, 1, 600)) + 100
METHODS = standard_methods(60.0, (3600.0, 86_400.0), 600)


def test_seasons_that_do_not_fit_twice_are_not_tried() -> None:
    assert [method.name for method in METHODS] == [
        "persistence",
        "smoothing",
        "damped_trend",
        "settling",
        "median",
        "seasonal_3600s",
        "autoregression",
    ]


def test_methods_by_hand() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert forecast_history(Persistence(), values, 2).tolist() == values.tolist()
    # Period 2, horizon 1: two before the target, that is one before the origin.
    assert forecast_history(SeasonalNaive(2, "s"), values, 1)[0].tolist()[1:] == [1.0, 2.0, 3.0, 4.0]
    assert np.isnan(forecast_history(SeasonalNaive(2, "s"), values, 1)[0, 0])
    # Horizon 3: the season that is complete at the origin, four before the target.
    assert forecast_history(SeasonalNaive(2, "s"), values, 3)[0].tolist()[1:] == [1.0, 2.0, 3.0, 4.0]
    smooth = forecast_history(DampedTrend(0.5, 0.0, 1.0, "x"), values, 4)
    assert smooth[0].tolist() == [1.0, 1.5, 2.25, 3.125, 4.0625]
    # alpha 1, beta 1, no damping: the line goes on.
    line = forecast_history(DampedTrend(1.0, 1.0, 1.0, "x"), values, 3)
    assert line[0].tolist() == [1.0, 5.0, 6.0, 7.0, 8.0]


def test_the_median_is_that_of_its_windows_and_is_taken_anew_in_turn() -> None:
    values = np.array([[9.0, 1.0, 1.0, 5.0, np.nan, 1.0, np.nan, np.nan, np.nan]])
    every = forecast_history(RollingMedian(4, refit=1), values, 2)[0]
    # At 1, 5 is the mean of the two in the middle and no value that was there; two of four known are enough, one is not.
    np.testing.assert_array_equal(every, [np.nan, np.nan, 1, np.nan, 1, 1, np.nan, np.nan, np.nan])
    seldom = forecast_history(RollingMedian(4, refit=3), values, 2)[0]
    np.testing.assert_array_equal(seldom, np.repeat(every[::3], 3))


def test_demand_that_comes_in_single_windows_is_forecast_as_what_it_mostly_is() -> None:
    chance = np.random.default_rng(0)
    values = np.where(chance.random((6, 600)) < 0.1, chance.integers(1, 64, (6, 600)), 0.0)
    test = Backtest.of(values, 1, METHODS, Policy())
    error = np.nansum(np.abs(test.served_errors()[:, 480:]))
    last = np.abs(values[:, 480:] - values[:, 479:-1]).sum()
    assert error < 0.6 * last
    # Demand that stays is left to its last value.
    stays = np.repeat(chance.integers(1, 64, (6, 20)), 30, axis=1).astype(float)
    test = Backtest.of(stays, 1, METHODS, Policy())
    assert np.nansum(np.abs(test.served_errors()[:, 480:])) <= np.abs(stays[:, 480:] - stays[:, 479:-1]).sum()


@settings(max_examples=15, deadline=None)
@given(
    hnp.arrays(np.float64, (2, 90), elements=st.floats(0, 1e4)),
    st.integers(1, 12),
    st.integers(0, 89),
)
def test_nothing_looks_into_the_future(values: np.ndarray, horizon: int, cut: int) -> None:
    methods = standard_methods(60.0, (600.0,), 90)
    policy = Policy(recent=50, min_errors=5)
    whole = Backtest.of(values, horizon, methods, policy)
    part = Backtest.of(values[:, : cut + 1], horizon, methods, policy)
    np.testing.assert_array_equal(whole.made[:, :, : cut + 1], part.made)
    for name in ("served", "low", "high"):
        np.testing.assert_array_equal(getattr(whole, name)[:, : cut + 1], getattr(part, name))


@settings(max_examples=15, deadline=None)
@given(hnp.arrays(np.float64, (3, 80), elements=st.floats(0, 1e4)), st.integers(1, 6))
def test_a_band_holds_its_forecast_and_demand_is_not_negative(values: np.ndarray, horizon: int) -> None:
    found = forecast_all(values, [horizon], standard_methods(60.0, (600.0,), 80), Policy())
    assert (found.expected >= 0).all()
    assert not np.isnan(found.low).any()
    assert (found.low <= found.expected).all()
    assert (found.high >= found.expected).all()
    assert (found.low >= 0).all()


def test_a_season_is_found_and_a_walk_is_left_to_persistence() -> None:
    values = np.vstack([SEASON, WALK])
    found = forecast_all(values, [20], METHODS, Policy())
    assert [METHODS[place].name for place in found.method[0]] == ["seasonal_3600s", "persistence"]
    assert found.expected[0, 0] == pytest.approx(40 + 30 * np.sin(2 * np.pi * 619 / 60))
    assert found.skill[0, 0] > 0.7
    assert abs(found.skill[0, 1]) < 0.05
    assert found.expected[0, 1] == WALK[-1]


def test_the_reported_skill_is_that_of_choosing_not_that_of_the_winner() -> None:
    # Noise: in hindsight one of many seasons wins by luck; chosen at each origin, none keeps its promise.
    noise = np.random.default_rng(5).normal(100, 10, (20, 400))
    methods = [Persistence(), *(SeasonalNaive(period, f"s{period}") for period in range(2, 40))]
    policy = Policy(margin=0.0)
    test = Backtest.of(noise, 1, methods, policy)
    winner = 1 - np.nanmin(np.nanmean(np.abs(test.errors[1:, :, 100:]), axis=2), axis=0) / np.nanmean(
        np.abs(test.errors[0, :, 100:]), axis=1
    )
    found = forecast_all(noise, [1], methods, policy)
    assert winner.mean() > found.skill.mean() + 0.02


def test_a_method_that_was_good_for_long_is_set_aside_when_it_fails() -> None:
    # Every night 18 of 144 windows hold 64, for ten nights; then none do for four days, then they do again.
    nights = np.where(np.arange(144 * 24) % 144 < 18, 64.0, 0.0)
    nights[144 * 10 : 144 * 14] = 0.0
    methods = standard_methods(600.0, (3600.0, 86_400.0), len(nights))
    test = Backtest.of(nights[None], 1, methods, Policy())
    missed = np.abs(test.served_errors()[0])
    assert missed[144 * 5 : 144 * 10].sum() == 0
    # Of the 18 windows of the first night without, one is missed; the last value would have missed none.
    assert missed[144 * 10 : 144 * 14].sum() < 2 * 64
    # When nights are back something that knows them is soon better than the last value, which misses by 128 each night.
    assert missed[144 * 16 : 144 * 24].sum() < 0.9 * 8 * 128


def test_a_regression_is_set_aside_after_the_level_has_shifted() -> None:
    chance = np.random.default_rng(4)
    level = np.where(np.arange(1600) < 1300, 50.0, 150.0) + chance.normal(0, 3, (6, 1600))
    errors = {
        horizon: Backtest.of(np.rint(level), horizon, standard_methods(600.0, (3600.0,), 1600), Policy())
        for horizon in (1, 6)
    }
    for horizon, test in errors.items():
        # Forecasts of the first windows were made, and the first of their errors known, before it could be seen.
        known = 1300 + 2 * horizon
        assert np.abs(test.served_errors()[:, known:]).sum() < np.abs(test.errors[0, :, known:]).sum(), horizon


def test_short_history_is_served_without_a_band_or_skill() -> None:
    found = forecast_all(np.array([[3.0, 4.0]]), [10], METHODS, Policy())
    assert (found.method.tolist(), found.expected.tolist()) == ([[0]], [[4.0]])
    assert np.isnan([found.low[0, 0], found.high[0, 0], found.skill[0, 0]]).all()
    assert found.errors.tolist() == [[0]]


def test_a_constant_series_has_a_band_of_no_width() -> None:
    found = forecast_all(np.full((1, 100), 7.0), [5], METHODS, Policy())
    assert (found.expected[0, 0], found.low[0, 0], found.high[0, 0]) == (7.0, 7.0, 7.0)
    assert np.isnan(found.skill[0, 0])


def test_several_horizons_are_forecast_as_each_alone() -> None:
    values = np.vstack([SEASON, WALK, np.rint(WALK)])
    together = forecast_all(values, [3, 20], METHODS, Policy())
    for place, horizon in enumerate((3, 20)):
        alone = forecast_all(values, [horizon], METHODS, Policy())
        for name in ("method", "expected", "low", "high", "skill", "wape", "errors"):
            np.testing.assert_allclose(getattr(together, name)[place], getattr(alone, name)[0], rtol=1e-9)


def test_series_that_begin_later() -> None:
    values = np.tile(SEASON, (3, 1))
    values[1, :500] = np.nan
    found = forecast_all(values, [5], METHODS, Policy())
    assert found.errors[0].tolist() == [595, 95, 595]
    assert METHODS[found.method[0, 0]].name == "seasonal_3600s"


def test_series_that_come_and_go_do_not_touch_the_others() -> None:
    walk = np.rint(np.abs(np.cumsum(CHANCE.normal(0, 3, (3, 300)), axis=1)))
    whole = replayed(walk, [2, 9], METHODS, Policy()).current()
    rolling = Rolling(METHODS, [2, 9], Policy(), 2)
    for t in range(300):
        if t == 100:
            # The first leaves; the second moves up, and another one comes.
            rolling.rearrange(np.array([1, -1]))
        values = walk[[0, 1], t] if t < 100 else walk[[1, 2], t]
        rolling.advance(values)
    found = rolling.current()
    for name in ("method", "expected", "low", "high", "skill", "wape", "errors"):
        np.testing.assert_array_equal(getattr(found, name)[:, 0], getattr(whole, name)[:, 1])
    fresh = replayed(walk[2:, 100:], [2, 9], METHODS, Policy()).current()
    np.testing.assert_array_equal(found.errors[:, 1], fresh.errors[:, 0])


def test_nothing_is_forecast_before_the_next_window_of_other_series() -> None:
    rolling = replayed(np.ones((2, 3)), [1], METHODS, Policy())
    rolling.rearrange(np.array([0]))
    with pytest.raises(ValueError, match="no window"):
        rolling.current()


def test_structure_that_knows_better_takes_over_and_one_that_misleads_does_not() -> None:
    walk = np.rint(100 + np.cumsum(np.random.default_rng(9).normal(0, 4, (2, 500)), axis=1))
    said = np.full_like(walk, np.nan)
    said[0, :-3] = walk[0, 3:]
    said[1, :-3] = 2 * walk[1, :-3]
    structure = Structural(said, np.full_like(walk, 2.0), walk)
    test = Backtest.of(walk, 3, METHODS, Policy(), structure)
    assert np.mean(test.served[0, 200:-3] == walk[0, 203:]) > 0.95
    assert np.mean(test.served[1, 200:-3] == walk[1, 200:-3]) > 0.95


def test_the_level_of_the_moment_serves_where_it_is_best() -> None:
    # A window is the mean of the levels at its ends; the structure is noise.
    chance = np.random.default_rng(4)
    ends = np.cumsum(chance.normal(0, 4, (1, 601)), axis=1) + 500
    values, level = (ends[:, 1:] + ends[:, :-1]) / 2, ends[:, 1:]
    noise = Structural(level + chance.normal(0, 30, level.shape), np.full_like(level, 9.0), level)
    test = Backtest.of(values, 1, METHODS, Policy(), noise)
    assert np.mean(test.served[0, 200:] == level[0, 200:]) > 0.95


def test_without_history_the_structure_speaks_with_its_own_band() -> None:
    rolling = Rolling(METHODS, [1, 6], Policy(), 2)
    expected = np.array([[8.0, np.nan], [4.0, np.nan]])
    rolling.advance(
        np.full(2, np.nan), Structural(expected, np.array([[1.0, np.nan], [2.0, np.nan]]), np.array([8.0, np.nan]))
    )
    found = rolling.current()
    np.testing.assert_array_equal(found.expected, expected)
    # 80 % of a normal distribution lie within 1.2816 deviations.
    np.testing.assert_allclose(found.low[:, 0], [8 - 1.2816, 4 - 2 * 1.2816])
    np.testing.assert_allclose(found.high[:, 0], [8 + 1.2816, 4 + 2 * 1.2816])
    assert np.isnan(found.low[:, 1]).all()


def test_bands_cover_what_they_promise() -> None:
    values = 50 + np.random.default_rng(1).normal(0, 5, (40, 1200))
    test = Backtest.of(values, 3, METHODS, Policy())
    target = values[:, 303:]
    inside = (target >= test.low[:, 300:-3]) & (target <= test.high[:, 300:-3])
    assert inside.mean() == pytest.approx(0.8, abs=0.02)


def test_a_history_read_again_goes_on_as_if_it_had_been_kept() -> None:
    a, b, c = (Subject(SubjectKind.TENANT, name) for name in "abc")
    windows: list[dict[Subject, float]] = [{}, {a: 1.0}, {a: 2.0, b: 5.0}, {b: 6.0}, {a: 3.0, b: 6.0, c: 1.0}]
    kept = History(lambda: Rolling(METHODS, [1, 2]), 4)
    for window in windows:
        kept.append(window)
    read = History(lambda: Rolling(METHODS, [1, 2]), 4)
    read.replay(windows)
    for history in (kept, read):
        assert history.subjects == [a, b, c]
        assert [history.windows_of(row) for row in range(3)] == [4, 3, 1]
        # A subject that was missing in a window had no demand.
        np.testing.assert_array_equal(history.rolling.current().history, [[3, 6, 1], [3, 6, 1]])
        assert history.rolling.current().wape[0, 0] == pytest.approx(((1 + 2 + 3) / (2 + 0 + 3)), rel=0.01)
    kept.drop([a])
    kept.append({b: 7.0})
    assert kept.subjects == [b, c]
    assert [kept.windows_of(row) for row in range(2)] == [4, 2]
    np.testing.assert_array_equal(kept.rolling.current().history[0], [7, 0])
    kept.drop([b, c])
    kept.append({a: 1.0})
    np.testing.assert_array_equal(kept.rolling.current().history, [[1], [1]])


def test_the_line_of_a_value_that_cannot_be_read_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("series,time,value\n\na,0,1\n\na,60,many\n")
    with pytest.raises(ValueError, match="line 5: needs series, time, value"):
        read_series(path)


def test_evaluate_scores_the_newest_fifth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "series.csv.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("series,time,value\n")
        stream.writelines(f"season,{time},{value}\n" for time, value in zip(TIMES, SEASON, strict=True))
    assert main([str(path), "--window-s", "60", "--horizon-s", "1200"]) == 0
    assert "seasonal_3600s" in capsys.readouterr().out
    scores = {score.method: score for score in evaluate(read_series(path), 60.0, [1200.0])}
    assert scores["persistence"].skill == 0
    assert scores["seasonal_3600s"].wape == pytest.approx(0, abs=1e-9)
    assert scores[SERVED].skill == pytest.approx(1)
    assert scores[SERVED].targets == 120
    assert scores["persistence"].wape_changed > scores["persistence"].wape


def test_evaluate_names_the_bad_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("series,time,value\na,0,1\na,1,x\n")
    assert main([str(path), "--window-s", "60"]) == 2
    assert "line 3" in capsys.readouterr().err
