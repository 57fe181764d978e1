"""What jobs let expect: run times by hand and by simulation, steps, the queue, arrivals."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forecast.arrivals import Arrivals, Memory
from services.forecast.progress import LEAST_SPREAD, Progress
from services.forecast.run_times import AGES, Hazards, RunTimes, Trust, age_interval, exposure, size_class
from services.forecast.structure import (
    Coming,
    Moments,
    Shares,
    Work,
    asking,
    demand_of_coming,
    demand_of_work,
    middle_of_one,
    starts,
)
from services.forecast.work_store import progress_of

NEVER = Hazards(np.zeros((2, len(AGES))))
PER_HOUR = Hazards(np.full((2, len(AGES)), 1 / 3600))


def work(count: int, **fields: object) -> Work:
    whole: dict[str, object] = {
        "classes": np.zeros(count, np.intp),
        "ages_s": np.zeros(count),
        "waits_s": np.zeros(count),
        "remaining_s": np.full(count, np.nan),
        "spread": np.ones(count),
        "limits_s": np.full(count, np.inf),
    }
    return Work(**{**whole, **{name: np.asarray(value) for name, value in fields.items()}})  # type: ignore[arg-type]


def all_of(count: int) -> Shares:
    return Shares(np.arange(count), np.zeros(count, np.intp), np.ones(count))


def test_sizes() -> None:
    assert [size_class(each) for each in (0, 0.5, 1, 2, 3, 4, 7, 8)] == [0, 0, 1, 2, 2, 3, 3, 4]


@given(st.floats(0, 1e7), st.floats(0, 1e6))
def test_exposure_is_the_time_observed(begin: float, length: float) -> None:
    found = exposure(np.array([begin]), np.array([begin + length]))
    assert found.sum() == pytest.approx((begin + length) - begin)
    assert (found >= 0).all()


def test_a_rate_is_events_over_exposure_and_few_events_are_drawn_to_all() -> None:
    times = RunTimes(Trust(size=0.0001, everyone=0.0001))
    of = np.full(50, times.class_of("a", 1))
    other = times.class_of("b", 1)
    # 50 runs in the interval that holds 600 s: each ends there after half of it.
    low = AGES[age_interval(np.array([600.0]))[0]]
    times.observe(of, np.full(50, low), np.full(50, low + 20.0), np.full(50, True))
    found = times.hazards()
    at = age_interval(np.array([low]))[0]
    assert found.rates[of[0], at] == pytest.approx(1 / 20, rel=0.02)
    # Nothing was seen of b: as all runs of its size.
    assert found.rates[other, at] == pytest.approx(1 / 20, rel=0.03)


def test_runs_that_still_run_are_not_left_out() -> None:
    # Exponential run times of 10 hours, observed for 2: most have not ended. Their mean over those that did would be 1 hour.
    chance = np.random.default_rng(1)
    lengths = chance.exponential(36_000, 3000)
    times = RunTimes(Trust(memory_s=1e12))
    of = np.full(3000, times.class_of("a", 8))
    ended = lengths < 7200
    times.observe(of[ended], np.zeros(int(ended.sum())), lengths[ended], np.full(int(ended.sum()), True))
    found = times.hazards(of[~ended], np.full(int((~ended).sum()), 7200.0))
    survives = found.lasting(of[:1], np.array([600.0]), np.array([3600.0]))[0]
    assert survives == pytest.approx(math.exp(-0.1), abs=0.02)


def test_what_was_counted_fades() -> None:
    times = RunTimes(Trust(size=1.0, everyone=1.0, memory_s=1000.0))
    of = np.full(100, times.class_of("a", 1))
    times.observe(of, np.zeros(100), np.full(100, 60.0), np.full(100, True))
    before = times.hazards().lasting(of[:1], np.zeros(1), np.array([120.0]))[0]
    times.fade(20_000.0)
    assert before < 0.2
    assert times.hazards().lasting(of[:1], np.zeros(1), np.array([120.0]))[0] > 0.9


@settings(max_examples=50)
@given(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e5))
def test_lasting_is_a_probability_that_falls_and_multiplies(age: float, first: float, second: float) -> None:
    hazards = hazards_of([30.0, 400.0, 5e4])
    one = hazards.lasting(np.zeros(1, np.intp), np.array([age]), np.array([first]))[0]
    then = hazards.lasting(np.zeros(1, np.intp), np.array([age + first]), np.array([second]))[0]
    both = hazards.lasting(np.zeros(1, np.intp), np.array([age]), np.array([first + second]))[0]
    assert 0 <= both <= one <= 1
    assert both == pytest.approx(one * then, rel=1e-6, abs=1e-12)


def hazards_of(lengths: list[float]) -> Hazards:
    times = RunTimes()
    of = np.full(len(lengths), times.class_of("a", 1))
    times.observe(of, np.zeros(len(lengths)), np.array(lengths), np.full(len(lengths), True))
    return times.hazards()


def test_progress_tells_the_rest_and_how_sure_it_is() -> None:
    run = Progress(0.0, 0, 1000)
    assert math.isnan(run.remaining_s(10.0))
    # Predicted: a step per 2 s.
    assert run.remaining_s(10.0, expected_rate=0.5) == 1990
    for minute in range(1, 11):
        run = run.reported(60.0 * minute, 60 * minute, 1000)
    assert run.rate == pytest.approx(1.0)
    assert run.remaining_s(660.0) == pytest.approx(340.0)
    assert run.spread == LEAST_SPREAD
    # Half of the time is spent in evaluations from now on: the rate follows, and the rest is less sure.
    slow = run
    for minute in range(11, 21):
        slow = slow.reported(60.0 * minute, 600 + 30 * (minute - 10), 1000)
    assert 0.5 < slow.rate < 0.75
    assert slow.spread > 0.1
    assert run.reported(600.0, 700, 1000) is run
    # Begun anew from a checkpoint.
    again = run.reported(660.0, 400, 1000)
    assert (again.step, again.rate, again.reports) == (400, 0.0, 1)
    assert math.isnan(Progress(0.0, 5, 0, rate=1.0).remaining_s(0.0))
    assert run.remaining_s(5000.0) == 1.0


def test_a_run_asks_until_its_steps_are_done() -> None:
    items = work(3, remaining_s=[1800.0, 1800.0, np.nan], spread=[0.1, 0.1, 1.0], waits_s=[0.0, 900.0, 0.0])
    assert asking(items, NEVER, 1000.0) == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)
    # ln(2000 / 1800) / 0.1 = 1.0536 deviations late: P = 0.1460. The second one starts 900 s later.
    assert asking(items, NEVER, 2000.0) == pytest.approx([0.1460, 1.0, 1.0], abs=1e-4)
    assert asking(items, NEVER, 2900.0)[1] == pytest.approx(0.1460, abs=1e-4)
    # Runs with steps stop early at a rate of their own.
    assert asking(items, NEVER, 1000.0, early_rate=1e-3)[0] == pytest.approx(math.exp(-1), abs=1e-6)


def test_without_steps_the_age_speaks_and_the_limit_ends_it() -> None:
    items = work(2, ages_s=[7200.0, 7200.0], limits_s=[np.inf, 9000.0])
    assert asking(items, PER_HOUR, 1800.0) == pytest.approx([math.exp(-0.5)] * 2)
    assert asking(items, PER_HOUR, 1801.0) == pytest.approx([math.exp(-1801 / 3600), 0.0])


def test_demand_is_the_sum_of_what_its_parts_ask_for() -> None:
    items = work(3)
    # The third counts for both subjects.
    shares = Shares(np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1]), np.array([8.0, 4.0, 2.0, 2.0]))
    found = demand_of_work(items, shares, 2, PER_HOUR, [3600.0], 1e-6)
    p = math.exp(-1)
    assert found.mean[0] == pytest.approx([10 * p, 6 * p])
    assert found.variance[0] == pytest.approx([68 * p * (1 - p), 20 * p * (1 - p)])
    assert found.third[0, 0] == pytest.approx((512 + 8) * p * (1 - p) * (1 - 2 * p))


def test_the_mean_over_the_window_counts_not_its_end() -> None:
    # Half-way through the last window a run ends for sure.
    items = work(1, remaining_s=[3300.0], spread=[0.001])
    assert demand_of_work(items, all_of(1), 1, NEVER, [3600.0], 600.0).mean[0, 0] == pytest.approx(0.5)


def test_quantiles_against_drawn_demand() -> None:
    chance = np.random.default_rng(3)
    amounts, p = chance.choice([1.0, 2, 4, 8], 60), chance.uniform(0.05, 0.95, 60)
    drawn = ((chance.random((20_000, 60)) < p) * amounts).sum(axis=1)
    variance = amounts**2 * p * (1 - p)
    moments = Moments(*(np.array([[part.sum()]]) for part in (amounts * p, variance, amounts * variance * (1 - 2 * p))))
    for z, level in ((-1.2816, 0.1), (0.0, 0.5), (1.2816, 0.9)):
        assert moments.quantile(z)[0, 0] == pytest.approx(np.quantile(drawn, level), abs=1.0)
    assert middle_of_one(np.array([4.0, 4.0]), np.array([0.49, 0.51])).tolist() == [0.0, 4.0]


def test_what_comes_is_there_as_long_as_it_lasts() -> None:
    # 10 per hour of 2 accelerators that last an hour in the mean: 20 (1 - exp(-t)) after t hours (M/M/infinity).
    coming = Coming(np.zeros(1, np.intp), np.array([2.0]), np.array([10 / 3600]))
    found = demand_of_coming(coming, np.zeros(1, np.intp), 1, PER_HOUR, [1800.0, 7200.0], 1e-6)
    assert found.mean[:, 0] == pytest.approx([20 * (1 - math.exp(-0.5)), 20 * (1 - math.exp(-2))], rel=0.01)
    assert found.variance[:, 0] == pytest.approx(2 * found.mean[:, 0])


def test_rates_of_arrivals_are_right_from_the_second_day_on() -> None:
    chance = np.random.default_rng(4)
    arrivals = Arrivals(Memory(3600.0, 86_400.0, 0.5))
    found = []
    for _ in range(3000):
        count = int(chance.poisson(3.0))
        arrivals.advance(600.0)
        arrivals.count(np.full(count, 1), np.full(count, 4.0), chance.uniform(0, 600, count))
        found.append(arrivals.rates()[0][1])
    # After an hour: as if the rest of the day had been quiet.
    assert found[5] == pytest.approx(3 * 6 / 86_400, rel=0.6)
    assert np.mean(found[144:200]) == pytest.approx(3 / 600, rel=0.15)
    assert np.mean(found[200:]) == pytest.approx(3 / 600, rel=0.06)
    assert arrivals.rates()[1][:2].tolist() == [0.0, pytest.approx(4.0)]


def test_a_queue_starts_in_order_when_enough_is_released() -> None:
    # 2 free; 4 more after 100 s, 8 more after 300 s. The third waits behind the second though it would fit.
    found = starts(2.0, [(300.0, 8.0), (100.0, 4.0)], [1.0, 5.0, 1.0, 50.0, 1.0], 10_000.0)
    assert found == [0.0, 100.0, 300.0, 10_000.0, 10_000.0]
    assert starts(0.0, [], [1.0], 60.0) == [60.0]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 16)), max_size=8), st.lists(st.floats(0, 16), max_size=8))
def test_later_in_the_queue_is_never_earlier(releases: list[tuple[float, float]], asked: list[float]) -> None:
    found = starts(4.0, releases, asked, 1e5)
    assert found == sorted(found)
    assert all(0 <= each <= 1e5 for each in found)


def test_stored_progress_may_have_fields_of_a_later_release() -> None:
    run = Progress(0.0, 0, 1000).reported(10.0, 5, 1000)
    assert progress_of({**asdict(run), "pace": 3}) == run
    assert progress_of({"at_s": 1.0, "step": 2.0, "total": 3.0}) == Progress(1.0, 2.0, 3.0)
