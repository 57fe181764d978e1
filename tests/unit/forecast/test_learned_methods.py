"""Forecasters that learn from a series' own past, and bands that calibrate themselves: known answers and causality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forecast.autoregression import Autoregression
from services.forecast.backtest import Backtest, standard_methods
from services.forecast.conformal import Tracking, band
from services.forecast.demand_series import carried_forward
from services.forecast.methods import DampedTrend, Persistence, forecast_history
from services.forecast.rolling import Policy
from services.forecast.settling import Settling


def test_a_daily_wave_is_learned() -> None:
    chance = np.random.default_rng(1)
    times = np.arange(3000)
    wave = (60 + 40 * np.sin(2 * np.pi * times / 144) + chance.normal(0, 2, 3000))[None]
    made = forecast_history(Autoregression((144,)), wave, 6)
    tested = slice(2400, 3000)
    error = np.abs(wave[0, tested] - made[0, 2394:2994]).sum()
    assert error < 0.35 * np.abs(wave[0, tested] - wave[0, 2394:2994]).sum()


def test_an_unpredictable_walk_is_left_as_it_is() -> None:
    walk = 500 + np.cumsum(np.random.default_rng(2).choice([-1.0, 1.0], (1, 3000)), axis=1)
    made = forecast_history(Autoregression(()), walk, 1)[0, 2000:-1]
    skill = 1 - np.abs(walk[0, 2001:] - made).sum() / np.abs(np.diff(walk[0, 2000:])).sum()
    assert abs(skill) < 0.02


def test_the_rest_of_a_change_within_a_window_is_expected_in_the_next() -> None:
    # 8 accelerators come half-way through every tenth window and leave half-way through the fifth after it.
    period = [0.0, 4.0, 8.0, 8.0, 8.0, 8.0, 4.0, 0.0, 0.0, 0.0]
    values = np.array([period * 30]) + 0.5 * np.array([np.tile([0, 1, 0, 0, 0, 0, 1, 0, 0, 0], 30)])
    made = forecast_history(Settling(), values, 1)
    # At 4.5, after a rise of 4.5: 5 + ... is below 8.5; the best of the shares is learned after the first periods.
    last = made[0, -10:]
    assert last[1] > 6.5
    assert np.array_equal(last[2:6], [8.0, 8.0, 8.0, 8.0])


def test_whole_numbers_are_never_taken_for_a_change_under_way() -> None:
    values = np.random.default_rng(4).poisson(20, (3, 200)).astype(float)
    assert np.array_equal(forecast_history(Settling(), values, 1), values)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(60, 340))
def test_the_future_never_changes_a_forecast_a_choice_or_a_band(seed: int, horizon: int, cut: int) -> None:
    chance = np.random.default_rng(seed)
    values = np.abs(np.cumsum(chance.normal(0, 2, (3, 400)), axis=1))
    values[chance.random(values.shape) < 0.05] = np.nan
    other = values.copy()
    other[:, cut:] = chance.uniform(0, 1e4, (3, 400 - cut))
    methods = standard_methods(600.0, (3600.0,), 400)
    results = []
    for each in (values, other):
        test = Backtest.of(each, horizon, methods, Policy(), inputs=carried_forward(each, 6))
        results.append((test.made, test.chosen[None], test.served[None], test.low[None], test.high[None]))
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one[:, :, :cut], two[:, :, :cut], equal_nan=True)


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_series_do_not_influence_each_other(order: list[int], seed: int) -> None:
    values = np.abs(np.cumsum(np.random.default_rng(seed).normal(0, 2, (4, 300)), axis=1))
    for method in (Autoregression((36,)), Settling(), Persistence()):
        made = forecast_history(method, values, 3)
        assert np.allclose(forecast_history(method, values[order], 3), made[order], rtol=1e-9, atol=1e-9)


def test_the_stand_in_serves_only_where_it_says_something_else() -> None:
    steps = np.repeat(np.random.default_rng(5).poisson(8, (1, 80)).astype(float), 5, axis=1)
    test = Backtest.of(steps, 1, standard_methods(600.0, (), 400), Policy())
    assert (test.chosen == 0).all()


@pytest.mark.parametrize(("share", "below"), [(0.8, 0.9), (0.5, 0.75)])
def test_tracked_offsets_find_the_quantile_of_the_errors(share: float, below: float) -> None:
    errors = np.random.default_rng(6).normal(0, 3, (6000, 20))
    tracking = Tracking((20,), share)
    under = []
    for row in errors:
        spread = tracking.spread()
        under.append(row <= tracking.bounds(np.full(20, 1e6), spread)[1] - 1e6)
        tracking.advance(row, spread)
    assert np.mean(under[1000:]) == pytest.approx(below, abs=0.01)


def test_coverage_survives_a_change_of_scale() -> None:
    chance = np.random.default_rng(7)
    errors = np.concatenate([chance.normal(0, 1, (50, 2000)), chance.normal(0, 20, (50, 2000))], axis=1)
    forecast = np.full_like(errors, 500.0)
    low, high = band(forecast, errors, 1)
    value = forecast + errors
    inside = ((value >= low) & (value <= high))[:, 2200:]
    assert inside.mean() == pytest.approx(0.8, abs=0.02)


def test_old_values_are_not_carried_on_for_ever() -> None:
    values = np.array([[np.nan, 1.0, np.nan, np.nan, np.nan, 2.0]])
    assert np.array_equal(carried_forward(values, 2), [[np.nan, 1.0, 1.0, 1.0, np.nan, 2.0]], equal_nan=True)


def test_smoothing_starts_anew_after_a_gap() -> None:
    values = np.array([[5.0, 6.0, np.nan, np.nan, 8.0, 8.0, 8.0]])
    made = forecast_history(DampedTrend(0.5, 0.2, 0.9, "d"), values, 1)
    assert np.isnan(made[0, 2:4]).all()
    assert np.array_equal(made[0, 4:], [8.0, 8.0, 8.0])
