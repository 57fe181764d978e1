"""The phase of a unit from the reports of its program: known curves, restarts, and reports that must never give a wrong phase."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forecast.phases.curve import Phase, moving_slopes
from services.forecast.phases.detector import PhaseDetector, Schedule
from services.forecast.phases.tracking import Report, Told, UnitPhases, report_of
from services.forecast.phases.window import SlopeWindow

LENGTH, CORNER, WARM_UP = 4000, 1000, 200


def loss_at(step: int) -> float:
    """Falls by 1 per e-fold of steps until `CORNER`, then by a fiftieth of that."""
    x, corner = math.log(step + 1), math.log(CORNER + 1)
    return 12 - min(x, corner) - 0.02 * max(x - corner, 0.0)


def report(step: int, epoch: int = 1, total: int = LENGTH, **others: float) -> Report:
    made = Report(epoch, step, 10.0 * step + 1e6 * epoch, total, loss_at(max(step, 0)), min(1.0, (step + 1) / WARM_UP))
    return replace(made, **others)  # type: ignore[arg-type]


def follow(unit: UnitPhases, reports: Iterable[Report]) -> list[Told]:
    return [told for item in reports if (told := unit.observe(item)) is not None]


def phases(told: Iterable[Told]) -> list[Phase | None]:
    return [item.phase for item in told]


def test_a_run_is_told_warm_up_fast_stable_and_the_time_of_its_steps() -> None:
    unit = UnitPhases()
    told = follow(unit, map(report, range(LENGTH)))
    assert phases(told) == [Phase.WARM_UP, Phase.FAST, Phase.STABLE]
    assert told[0].step == 1  # at step 0 no rate has risen yet
    assert WARM_UP < told[1].step <= 221
    assert CORNER < told[2].step < CORNER * math.exp(0.6) + 0.05 * LENGTH
    assert (unit.taken, unit.left_aside, unit.total_steps) == (LENGTH, 0, LENGTH)
    assert unit.step_s(Phase.STABLE) == pytest.approx(10.0)


def test_a_kept_state_goes_on_as_if_nothing_had_happened() -> None:
    whole, parted = UnitPhases(), UnitPhases()
    expected = follow(whole, map(report, range(LENGTH)))
    told: list[Told] = []
    for first in range(0, LENGTH, 487):
        told += follow(parted, map(report, range(first, min(LENGTH, first + 487))))
        text = json.dumps(parted.state(), allow_nan=False)
        assert len(text) < 16_000
        parted = UnitPhases.restored(json.loads(text))
    assert told == expected
    assert parted.state() == whole.state()


def test_a_state_with_facts_that_a_later_release_adds_is_read() -> None:
    unit = UnitPhases()
    follow(unit, [report(step) for step in range(0, 200, 10)])
    kept = unit.state()
    later = {**kept, "facts": {**kept["facts"], "of_a_later_release": 1}}
    assert UnitPhases.restored(later).state() == kept


def test_names_of_the_protocol_are_read() -> None:
    made = report_of(2, 7, 0, 1.5, {"train_loss": 3.0, "lr": 0.1, "batch_size": 64.0, "tokens_per_s": 5.0})
    assert made == Report(2, 7, 1.5, 0, 3.0, 0.1, 64.0)
    assert math.isnan(report_of(1, 1, 0, 0.0, {"accuracy": 0.5}).loss)


def test_a_single_bad_report_changes_nothing_and_many_make_the_phase_unknown() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(700)))
    assert unit.told.phase is Phase.FAST
    assert follow(unit, [report(700, loss=math.nan), report(650), report(600), report(701)]) == []
    assert unit.left_aside == 3
    told = follow(unit, [report(step, loss=math.nan) for step in range(702, 708)])
    assert phases(told) == [None]
    assert "of the newest 8" in told[0].reason
    # Told again once half of the newest reports can be used.
    assert phases(follow(unit, map(report, range(708, 716)))) == [Phase.FAST]


def test_ranks_that_all_report_are_one_run() -> None:
    """Four ranks, up to two steps apart, each with a loss of its own: the first report of a step counts."""
    alone, gang = UnitPhases(), UnitPhases()
    expected = follow(alone, map(report, range(LENGTH)))
    reports = (
        report(step - behind, loss=loss_at(step - behind) + behind)
        for step in range(LENGTH)
        for behind in (0, 1, 0, 2)
        if step >= behind
    )
    assert follow(gang, reports) == expected
    assert (gang.taken, gang.left_aside) == (LENGTH, 0)


def test_steps_that_stand_still_are_no_phase() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(700)))
    told = follow(unit, (report(699) for _ in range(80)))
    assert phases(told) == [None]
    assert unit.left_aside == 80 - 64


def test_a_run_that_starts_again_from_a_checkpoint_keeps_its_phase() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(2500)))
    assert unit.told.phase is Phase.STABLE
    assert follow(unit, (report(step, epoch=2) for step in range(2400, 2600))) == []
    assert (unit.left_aside, unit.epoch, unit.step) == (0, 2, 2599)
    # What the old run still says is left aside.
    assert unit.observe(report(2601)) is None
    assert unit.left_aside == 1


def test_a_run_that_starts_from_the_beginning_is_judged_anew() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(2500)))
    again = follow(unit, (report(step, epoch=2) for step in range(LENGTH)))
    assert phases(again) == [None, Phase.WARM_UP, Phase.FAST, Phase.STABLE]


def test_a_run_whose_beginning_was_not_seen_is_unknown() -> None:
    unit = UnitPhases()
    assert follow(unit, map(report, range(1500, LENGTH))) == []
    assert "before 1500" in unit.told.reason


def test_a_leap_of_one_report_is_left_aside_and_a_hole_is_unknown() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(700)))
    assert follow(unit, [report(3900), report(700), report(701)]) == []
    assert (unit.left_aside, unit.step) == (1, 701)
    told = follow(unit, map(report, range(2000, 2100)))
    assert phases(told) == [None]
    assert "not reported" in unit.told.reason


def test_a_length_that_contradicts_itself_is_unknown_until_the_next_run() -> None:
    unit = UnitPhases()
    follow(unit, map(report, range(700)))
    assert phases(follow(unit, [report(700, total=9000)])) == [None]
    assert "4000" in unit.told.reason
    assert phases(follow(unit, (report(step, epoch=2) for step in range(690, 720)))) == [Phase.FAST]


def test_a_loss_that_rises_is_no_stable_phase() -> None:
    unit = UnitPhases()
    rising = (report(step, loss=loss_at(min(step, 600)) + max(0, step - 600) * 0.01) for step in range(LENGTH))
    told = follow(unit, rising)
    assert Phase.STABLE not in phases(told)
    assert unit.told == Told(unit.told.step, None, "the loss rises")


@pytest.mark.parametrize("seed", range(12))
def test_noise_alone_has_no_phase(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(3.0, 0.1, 1500)
    unit = UnitPhases()
    told = follow(unit, (report(step, total=1500, loss=float(noise[step]), rate=1.0) for step in range(1500)))
    assert told == []
    assert "stands out of its noise" in unit.told.reason


def test_without_a_learning_rate_fast_waits_for_the_peak_of_the_pace() -> None:
    unit = UnitPhases()
    told = follow(unit, (report(step, rate=math.nan) for step in range(LENGTH)))
    assert phases(told) == [Phase.FAST, Phase.STABLE]
    assert told[0].step > CORNER


def test_a_rate_below_zero_stands_for_none() -> None:
    without, marked = UnitPhases(), UnitPhases()
    for step in range(0, LENGTH, 10):
        without.observe(report(step, rate=math.nan))
        marked.observe(report(step, rate=-1.0, batch=-1.0))
        assert marked.told == without.told
    assert without.told.phase is Phase.STABLE


def test_a_declared_warm_up_needs_no_learning_rate() -> None:
    unit = UnitPhases(Schedule(warm_up_steps=300.0))
    told = follow(unit, (report(step, rate=math.nan) for step in range(LENGTH)))
    assert phases(told) == [Phase.WARM_UP, Phase.FAST, Phase.STABLE]
    assert told[1].step == 300


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-5, 400),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
            st.integers(-1, 400),
            st.integers(1, 3),
        ),
        max_size=60,
    )
)
def test_any_reports_leave_a_state_that_can_be_kept(items: list[tuple[int, float, float, int, int]]) -> None:
    unit = UnitPhases()
    for step, loss, rate, total, epoch in items:
        unit.observe(Report(epoch, step, 0.0, total, loss, rate))
    kept = json.loads(json.dumps(unit.state(), allow_nan=False))
    assert UnitPhases.restored(kept).state() == unit.state()


def test_the_window_gives_the_slope_of_least_squares_and_its_error() -> None:
    chance = np.random.default_rng(5)
    step = np.arange(1.0, 3000.0)
    x = np.log(step + 1)
    loss = 4 - 0.5 * x + chance.normal(0, 0.05, len(x))
    window = SlopeWindow(0.6)
    for place, value in enumerate(x):
        window.add(float(value), float(loss[place]))
    found = window.slope(10)
    assert found is not None
    inside = x >= (math.floor((x[-1] - 0.6) / (0.6 / 64))) * (0.6 / 64)
    assert found.samples == inside.sum()
    (slope, _), covariance = np.polyfit(x[inside], loss[inside], 1, cov=True)
    assert found.fall == pytest.approx(-slope, rel=1e-6)
    assert found.error == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-6)
    exact = moving_slopes(step, loss, 0.6, 0.0, 10)[-1]
    assert found.fall == pytest.approx(exact, abs=4 * found.error)


def test_a_detector_ignores_what_it_ignored_before_a_restart() -> None:
    detector = PhaseDetector(Schedule(total_steps=100.0))
    detector.observe(5.0, 3.0)
    other = PhaseDetector(Schedule(total_steps=100.0))
    other.restore(json.loads(json.dumps(detector.state())))
    other.observe(5.0, 2.0)
    assert (other.ignored, other.phase) == (1, detector.phase)
