"""Bands of series that mostly do not change, and the arrivals that are said to come."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecast.arrivals import chosen
from services.forecast.conformal import band


def bands(moves: float, series: int = 40, times: int = 4000) -> tuple[float, float, np.ndarray]:
    """Coverage and mean width, after a while, of bands about the last value of series that change by N(0, 1) at a share of the times."""
    chance = np.random.default_rng(1)
    errors = np.where(chance.random((series, times)) < moves, chance.normal(0, 1, (series, times)), 0.0)
    forecast = np.full_like(errors, 100.0)
    low, high = (bound[:, times // 2 :] for bound in band(forecast, errors, 1))
    value = (forecast + errors)[:, times // 2 :]
    inside = (value >= low) & (value <= high)
    return float(inside.mean()), float((high - low).mean()), inside


def test_a_band_holds_its_share_where_a_third_of_the_windows_change() -> None:
    # Two thirds are hit by any band that holds its forecast; two bounds of a tenth each would hold 0.8 of this share too.
    covered, _, inside = bands(0.35)
    assert covered == pytest.approx(0.8, abs=0.02)
    assert inside.mean(axis=1).min() > 0.75


def test_a_band_holds_no_fewer_than_are_forecast_exactly_and_is_narrow_then() -> None:
    covered, width, _ = bands(0.1)
    assert 0.9 <= covered < 0.93
    # A normal change is 0.8 in size.
    assert width < 0.1


def test_where_work_comes_in_rare_bursts_nothing_is_said_to_come() -> None:
    chance = np.random.default_rng(2)
    arrived = np.where(chance.random((3, 2000)) < 0.05, 100.0, 0.0)
    said = chosen(np.full_like(arrived, 5.0), arrived, 1)
    assert np.isnan(said[:, :2]).all()
    assert (said[:, 200:] == 0).all()


def test_where_rates_are_right_they_are_said() -> None:
    chance = np.random.default_rng(3)
    rate = 50 + 40 * np.sin(np.arange(2000) / 20)[None]
    arrived = chance.poisson(rate, (2, 2000)).astype(float)
    said = chosen(np.broadcast_to(rate, arrived.shape), arrived, 6)
    assert np.abs(said - rate)[:, 500:].max() == 0


def test_what_comes_later_changes_nothing_that_was_said() -> None:
    chance = np.random.default_rng(4)
    expected, arrived = chance.uniform(0, 9, (2, 300)), chance.poisson(3, (2, 300)).astype(float)
    other = arrived.copy()
    # Arrivals of the origins from 195 on are complete after origin 200 only.
    other[:, 195:] = 1e6
    one, two = (chosen(expected, each, 6) for each in (arrived, other))
    assert np.array_equal(one[:, :201], two[:, :201], equal_nan=True)


@pytest.mark.parametrize("horizon", [6, 60, 144])
def test_bands_far_ahead_hold_their_share_although_errors_overlap(horizon: int) -> None:
    # A random walk: errors of horizons that overlap are nearly one. At full steps 0.77, 0.53 and 0.39 are held.
    walk = np.cumsum(np.random.default_rng(5).normal(0, 1, (30, 6000)), axis=1) + 1e4
    forecast = np.roll(walk, horizon, axis=1)
    errors = walk - forecast
    errors[:, :horizon] = np.nan
    low, high = (bound[:, 2000:] for bound in band(forecast, errors, horizon))
    inside = (walk[:, 2000:] >= low) & (walk[:, 2000:] <= high)
    assert inside.mean() == pytest.approx(0.8, abs=0.03)
