"""When stable is told, is told for sure and is taken back, and from which peak."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from services.forecast.phases.curve import Curve, Phase
from services.forecast.phases.detector import PhaseDetector, Schedule
from services.forecast.phases.onset import StableWatch, stands_out, student_quantile
from services.forecast.phases.scoring import detect, score
from services.forecast.phases.truth import Boundaries, boundaries
from services.forecast.phases.window import Slope, SlopeWindow

LENGTH = 1000.0


def watch_with_peak(peak: float = 1.0) -> StableWatch:
    watch = StableWatch(0.1, 0.02)
    assert not watch.observe(1.0, Slope(peak, 0.01, 100), None, LENGTH)
    return watch


def test_quantiles_of_student_are_those_of_the_table() -> None:
    # One-sided level 0.00135: t(8) = 4.277, t(30) = 3.270, t(inf) = 3.000.
    assert student_quantile(3.0, 8) == pytest.approx(4.277, rel=0.02)
    assert student_quantile(3.0, 30) == pytest.approx(3.270, rel=0.002)
    assert student_quantile(3.0, 1e9) == pytest.approx(3.0)


def test_a_slope_of_few_samples_must_stand_out_further() -> None:
    assert stands_out(Slope(3.5, 1.0, 100))
    assert not stands_out(Slope(3.5, 1.0, 10))


def test_stable_is_told_soon_by_the_newer_half_and_taken_back_where_it_rises() -> None:
    watch = watch_with_peak()
    high, low = Slope(0.2, 0.01, 100), Slope(0.05, 0.01, 50)
    assert not watch.observe(100.0, high, low, LENGTH)
    assert not watch.observe(104.0, high, low, LENGTH)
    # 0.5 % of 1,000 steps later; the whole window still lies above the border of 0.1.
    assert watch.observe(105.0, high, low, LENGTH)
    assert not watch.sure
    assert watch.observe(106.0, high, Slope(0.105, 0.01, 50), LENGTH)  # within its error of the border
    assert not watch.observe(107.0, high, Slope(0.12, 0.01, 50), LENGTH)


def test_a_newer_half_that_cannot_see_the_border_tells_nothing() -> None:
    watch = watch_with_peak()
    for step in range(100, 200, 10):
        assert not watch.observe(float(step), Slope(0.2, 0.01, 100), Slope(-0.1, 0.09, 12), LENGTH)


def test_a_sure_phase_is_taken_back_by_a_new_peak_only() -> None:
    watch = watch_with_peak()
    assert not watch.observe(100.0, Slope(0.05, 0.01, 100), None, LENGTH)
    assert watch.observe(120.0, Slope(0.05, 0.01, 100), None, LENGTH)
    assert watch.sure
    assert watch.observe(130.0, Slope(0.9, 0.01, 100), Slope(0.9, 0.01, 50), LENGTH)
    assert not watch.observe(140.0, Slope(1.1, 0.01, 100), Slope(0.0, 0.01, 50), LENGTH)
    assert watch.border == pytest.approx(0.11)


def test_a_stretch_that_was_too_short_for_the_run_as_it_became_is_taken_back() -> None:
    low, high = Slope(0.05, 0.01, 100), Slope(0.5, 0.01, 100)
    for late, told in ((900.0, True), (1100.0, False)):
        # The length is not known: 20 steps from 100 on are 2 % of 1,000.
        watch = StableWatch(0.1, 0.02)
        watch.observe(1.0, Slope(1.0, 0.01, 100), None, 2.0)
        for step in (100.0, 110.0, 120.0):
            watch.observe(step, low, None, 2 * step, step)
        assert watch.sure
        restored = StableWatch(0.1, 0.02)
        restored.restore(json.loads(json.dumps(watch.state())))
        for each in (watch, restored):
            assert each.observe(130.0, high, high, 260.0, 130.0)
            assert each.observe(late, high, high, 2 * late, late) is told
    # Of a length that is declared the stretch was long enough from the beginning.
    watch = watch_with_peak()
    for step in (100.0, 110.0, 120.0):
        watch.observe(step, low, None, LENGTH)
    assert watch.observe(990.0, high, high, LENGTH)
    # A pace that is not clearly above the border speaks against nothing.
    watch = StableWatch(0.1, 0.02)
    watch.observe(1.0, Slope(1.0, 0.01, 100), None, 2.0)
    for step in (100.0, 110.0, 120.0):
        watch.observe(step, low, None, 2 * step, step)
    assert watch.observe(2000.0, Slope(0.21, 0.01, 100), high, 4000.0, 2000.0)


def test_a_lull_early_in_a_run_of_unknown_length_is_not_stable_for_ever() -> None:
    step = np.arange(12_000.0)
    x = np.log(step + 1)
    # The loss stands still from step 100 to 220 and falls again.
    loss = 12 - x + np.clip(x, math.log(101), math.log(221)) + np.random.default_rng(0).normal(0, 0.01, len(step))
    curve = Curve("r", "f", step, loss)
    assert math.isinf(boundaries(curve).stable_from)
    told, events = detect(curve, schedule_known=True)
    assert [event.phase for event in events] == [Phase.FAST, Phase.STABLE, Phase.FAST]
    # The window lies in the lull for some 80 steps, which are 2.7 % of 3,000.
    assert events[-1].step < 4000
    assert np.mean(told == Phase.STABLE) < 0.35


@pytest.mark.parametrize("fall", [0.05, -0.4])
def test_below_a_peak_that_is_noise_nothing_is_stable(fall: float) -> None:
    watch = StableWatch(0.1, 0.02)
    for step in range(10, 900, 10):
        noise = Slope(1.0, 0.5, 10) if step == 10 else Slope(fall, 0.01, 100)
        assert not watch.observe(float(step), noise, Slope(fall, 0.01, 50), LENGTH)


def test_a_run_from_a_checkpoint_that_falls_evenly_is_never_stable() -> None:
    # Even in steps, so ever faster in ln(step + 1); its first windows hold noise alone.
    step = np.arange(1.0, 289.0)
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(0, 0.01, len(step))
        curve = Curve("r", "f", step, 2.78 - 0.1 * step / 288 + noise, total_steps=288.0)
        told, _ = detect(curve, schedule_known=True)
        assert np.mean(told == Phase.STABLE) < 0.1


def test_the_newer_half_is_told_before_the_whole_window_is_through() -> None:
    step = np.arange(6000.0)
    x, corner = np.log(step + 1), math.log(2001)
    noise = np.random.default_rng(0).normal(0, 0.01, len(step))
    curve = Curve("r", "f", step, 12 - np.minimum(x, corner) + noise, total_steps=6000.0)
    true = boundaries(curve).stable_from
    _, events = detect(curve, schedule_known=True)
    assert [event.phase for event in events] == [Phase.FAST, Phase.STABLE]
    # The window of 0.6 would be through the corner at 2,001 x e^0.6 less a tenth, and hold for 2.7 % of the run.
    assert true < events[1].step < 2001 * math.exp(0.35)


def test_the_newest_part_of_a_window_is_its_own_least_squares() -> None:
    chance = np.random.default_rng(4)
    x = np.sort(chance.uniform(0, 3, 300))
    y = -2 * x + chance.normal(0, 0.1, 300)
    window = SlopeWindow(0.6)
    for at, value in zip(x.tolist(), y.tolist(), strict=True):
        window.add(at, value)
    cell = 0.6 / 64
    newest = np.floor(x / cell) > np.floor(x[-1] / cell) - 32
    found = window.slope(3, 0.3)
    assert found is not None
    assert found.samples == int(newest.sum())
    assert found.fall == pytest.approx(-np.polyfit(x[newest], y[newest], 1)[0])


def test_a_state_kept_before_the_onset_had_its_own_is_read() -> None:
    detector = PhaseDetector(Schedule(total_steps=3000.0))
    for step in range(2500):
        detector.observe(float(step), 12 - math.log(min(step, 300) + 1))
    assert detector.phase is Phase.STABLE
    kept = json.loads(json.dumps(detector.state()))
    onset = kept.pop("onset")
    older = PhaseDetector(Schedule(total_steps=3000.0))
    older.restore(kept | {"peak": onset["peak"], "below_from": onset["below_from"]})
    assert older.phase is Phase.STABLE
    assert older.observe(2500.0, 12 - math.log(301)) is None


def test_scores_count_what_was_taken_back_and_take_the_last_onset() -> None:
    curve = Curve("r", "f", np.arange(100.0), np.zeros(100), total_steps=100.0)
    told = np.ones(100)
    told[20:30] = told[60:] = Phase.STABLE
    found = score(curve, Boundaries(0.0, 50.0), told)
    assert found.taken_back == 1
    assert found.delays == {"stable_onset": pytest.approx(0.1)}
    told[60:] = Phase.FAST
    again = score(curve, Boundaries(0.0, 50.0), told)
    assert (again.missed, again.false, again.taken_back) == (1, 0, 1)


def test_a_loss_that_rises_is_not_stable() -> None:
    watch = watch_with_peak()
    for step in range(100, 300, 10):
        assert not watch.observe(float(step), Slope(-0.2, 0.01, 100), None, LENGTH)
    # No more than its noise, or than the border: the loss stands still.
    for fall, error in ((-0.2, 0.19), (-0.09, 0.0)):
        watch = watch_with_peak()
        assert not watch.observe(100.0, Slope(fall, error, 100), None, LENGTH)
        assert watch.observe(120.0, Slope(fall, error, 100), None, LENGTH)
