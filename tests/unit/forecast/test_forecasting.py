from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.forecast.backtest import Backtest, Policy, forecast_all
from services.forecast.evaluate import SERVED, evaluate, main, read_series
from services.forecast.history import History
from services.forecast.ledger import Subject, SubjectKind
from services.forecast.methods import DampedTrend, Persistence, SeasonalNaive, standard_methods

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
        "seasonal_3600s",
        "autoregression",
    ]


def test_methods_by_hand() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert Persistence().forecast(values, 2).tolist() == values.tolist()
    # Period 2, horizon 1: two before the target, that is one before the origin.
    assert SeasonalNaive(2, "s").forecast(values, 1)[0].tolist()[1:] == [1.0, 2.0, 3.0, 4.0]
    assert np.isnan(SeasonalNaive(2, "s").forecast(values, 1)[0, 0])
    # Horizon 3: the season that is complete at the origin, four before the target.
    assert SeasonalNaive(2, "s").forecast(values, 3)[0].tolist()[1:] == [1.0, 2.0, 3.0, 4.0]
    smooth = DampedTrend(0.5, 0.0, 1.0, "x").forecast(values, 4)
    assert smooth[0].tolist() == [1.0, 1.5, 2.25, 3.125, 4.0625]
    # alpha 1, beta 1, no damping: the line goes on.
    line = DampedTrend(1.0, 1.0, 1.0, "x").forecast(values, 3)
    assert line[0].tolist() == [1.0, 5.0, 6.0, 7.0, 8.0]


@settings(max_examples=60, deadline=None)
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
    np.testing.assert_allclose(whole.forecast_at(cut)[0], part.forecast_at(cut)[0])
    np.testing.assert_allclose(whole.forecast_at(cut)[1], part.forecast_at(cut)[1])


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float64, (3, 80), elements=st.floats(0, 1e4)), st.integers(1, 6))
def test_a_band_holds_its_forecast_and_demand_is_not_negative(values: np.ndarray, horizon: int) -> None:
    found = forecast_all(values, horizon, standard_methods(60.0, (600.0,), 80), Policy())
    assert (found.expected >= 0).all()
    assert not np.isnan(found.low).any()
    assert (found.low <= found.expected).all()
    assert (found.high >= found.expected).all()
    assert (found.low >= 0).all()


def test_a_season_is_found_and_a_walk_is_left_to_persistence() -> None:
    values = np.vstack([SEASON, WALK])
    found = forecast_all(values, 20, METHODS, Policy())
    assert found.method == ["seasonal_3600s", "persistence"]
    assert found.expected[0] == pytest.approx(40 + 30 * np.sin(2 * np.pi * 619 / 60))
    assert found.skill[0] > 0.7
    assert abs(found.skill[1]) < 0.05
    assert found.expected[1] == WALK[-1]


def test_the_reported_skill_is_that_of_choosing_not_that_of_the_winner() -> None:
    # Noise: in hindsight one of many seasons wins by luck; chosen at each origin, none keeps its promise.
    noise = np.random.default_rng(5).normal(100, 10, (20, 400))
    methods = [Persistence(), *(SeasonalNaive(period, f"s{period}") for period in range(2, 40))]
    policy = Policy(margin=0.0)
    test = Backtest.of(noise, 1, methods, policy)
    winner = 1 - np.nanmin(np.nanmean(np.abs(test.errors[1:, :, 100:]), axis=2), axis=0) / np.nanmean(
        np.abs(test.errors[0, :, 100:]), axis=1
    )
    found = forecast_all(noise, 1, methods, policy)
    assert winner.mean() > found.skill.mean() + 0.02


def test_short_history_is_served_without_a_band_or_skill() -> None:
    found = forecast_all(np.array([[3.0, 4.0]]), 10, METHODS, Policy())
    assert (found.method, found.expected.tolist()) == (["persistence"], [4.0])
    assert np.isnan([found.low[0], found.high[0], found.skill[0]]).all()
    assert found.errors.tolist() == [0]


def test_a_constant_series_has_a_band_of_no_width() -> None:
    found = forecast_all(np.full((1, 100), 7.0), 5, METHODS, Policy())
    assert (found.expected[0], found.low[0], found.high[0]) == (7.0, 7.0, 7.0)
    assert np.isnan(found.skill[0])


def test_series_that_begin_later_and_many_series_at_once() -> None:
    values = np.tile(SEASON, (300, 1))
    values[150, :500] = np.nan
    found = forecast_all(values, 5, METHODS, Policy())
    assert len(found.method) == 300
    assert found.method[0] == "seasonal_3600s"
    assert found.errors[150] < found.errors[0]
    assert forecast_all(np.empty((0, 5)), 1, METHODS, Policy()).method == []


def test_bands_cover_what_they_promise() -> None:
    values = 50 + np.random.default_rng(1).normal(0, 5, (40, 400))
    test = Backtest.of(values, 3, METHODS, Policy())
    inside = []
    for origin in range(250, 390, 7):
        _, low, high, _ = test.forecast_at(origin)
        target = values[:, origin + 3]
        inside.append((target >= low) & (target <= high))
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)


def test_history_appends_drops_and_forgets() -> None:
    history = History(3)
    a, b = Subject(SubjectKind.TENANT, "a"), Subject(SubjectKind.TENANT, "b")
    history.append({})
    history.append({a: 1.0})
    history.append({a: 2.0, b: 5.0})
    assert history.subjects == [a, b]
    np.testing.assert_array_equal(history.values, [[np.nan, 1, 2], [np.nan, np.nan, 5]])
    history.append({b: 6.0})
    np.testing.assert_array_equal(history.values, [[1, 2, 0], [np.nan, 5, 6]])
    history.drop([a])
    assert history.subjects == [b]
    np.testing.assert_array_equal(history.values, [[np.nan, 5, 6]])
    history.drop([b])
    history.append({a: 1.0})
    np.testing.assert_array_equal(history.values, [[np.nan, np.nan, 1]])


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
