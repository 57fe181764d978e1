"""Phases of training: hand-made curves with known phases, causality, and what cannot be judged."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forecast.phases.curve import Curve, Phase, moving_slopes
from services.forecast.phases.demand import BatchRamp, InvalidScheduleError, stages
from services.forecast.phases.detector import PhaseDetector, Schedule
from services.forecast.phases.ramps import RampWatch, ramp_end
from services.forecast.phases.scoring import accuracy, detect, macro_f1, score, where_told
from services.forecast.phases.truth import Boundaries, UnknownPhasesError, boundaries


def kinked(at: int = 1000, length: int = 4000, warm_up: int = 0) -> Curve:
    """A loss that falls by 1 per e-fold of steps until ``at`` and then by a fiftieth of that."""
    step = np.arange(length, dtype=float)
    x = np.log(step + 1)
    corner = math.log(at + 1)
    loss = 12 - np.minimum(x, corner) - 0.02 * np.maximum(x - corner, 0)
    lr = np.minimum(1.0, (step + 1) / warm_up) if warm_up else None
    return Curve("r", "f", step, loss, lr=lr, total_steps=float(length))


def test_the_slope_of_a_line_in_log_steps_is_its_slope() -> None:
    step = np.arange(1.0, 500.0)
    slopes = moving_slopes(step, 5 - 0.7 * np.log(step + 1), 0.3, 0.3, 10)
    assert np.isnan(slopes[:3]).all()
    assert np.nanmax(np.abs(slopes - 0.7)) < 1e-9


def test_a_kinked_curve_is_stable_where_the_window_has_left_the_kink() -> None:
    found = boundaries(kinked())
    assert found.warm_up_until == 0
    # Within the window of +-0.3 in ln(step + 1) after the kink: at 1000 * e^0.3 nothing of the fall is left in it.
    assert 1000 < found.stable_from <= 1001 * math.exp(0.3)


def test_a_straight_curve_is_never_stable_and_a_declared_ramp_is_warm_up() -> None:
    assert boundaries(kinked(at=4000)).stable_from == math.inf
    assert boundaries(kinked(warm_up=200)).warm_up_until == 197  # (197 + 1) / 200 = 99 %


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: replace(c, loss=np.full_like(c.loss, 3.0)), "does not fall"),
        (lambda c: replace(c, loss=-c.loss), "does not fall"),
        (lambda c: replace(c, step=c.step[:29], loss=c.loss[:29]), "29 usable samples"),
        (lambda c: replace(c, step=np.where(c.step > 500, c.step + 900, c.step)), "nothing between steps 500 and 1401"),
        (lambda c: replace(c, lr=np.where(c.step > 3980, 1.0, 0.1)), "after the warm-up"),
    ],
)
def test_what_cannot_be_judged_is_unknown(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnknownPhasesError, match=reason):
        boundaries(change(kinked()))


def test_noise_alone_is_unknown() -> None:
    noise = np.random.default_rng(3).normal(3.0, 0.1, 4000)
    with pytest.raises(UnknownPhasesError, match="noise"):
        boundaries(replace(kinked(), loss=noise))


def test_the_detector_tells_the_phases_in_order_and_with_its_known_delay() -> None:
    curve = kinked(warm_up=200)
    _, events = detect(curve, schedule_known=True)
    # Of the first sample alone nobody can say that the rate rises.
    assert [event.phase for event in events] == [Phase.FAST, Phase.WARM_UP, Phase.FAST, Phase.STABLE]
    assert events[1].step == 1
    # The ramp stops to rise at step 199; 20 samples (0.5 % of the run) may be a pause of it.
    assert 199 < events[2].step <= 221
    # The window [x - 0.6, x] sees what the truth sees, exp(0.3) later, and then waits for 2 % of the run.
    true = boundaries(curve).stable_from
    assert true < events[3].step <= true * math.exp(0.3) * 1.01 + 0.03 * curve.length


def test_telemetry_alone_reads_neither_rate_nor_length() -> None:
    curve = kinked(warm_up=200)
    bare = replace(curve, lr=None, total_steps=None)
    assert np.array_equal(detect(curve, schedule_known=False)[0], detect(bare, schedule_known=False)[0])


def test_bad_samples_are_counted_and_change_nothing() -> None:
    detector = PhaseDetector(Schedule())
    detector.observe(5.0, 3.0)
    for step, loss in ((5.0, 2.0), (4.0, 2.0), (math.nan, 2.0), (6.0, math.nan), (6.0, math.inf)):
        assert detector.observe(step, loss) is None
    assert detector.ignored == 5
    assert detector.phase == Phase.FAST


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 380), st.booleans())
def test_the_future_never_changes_what_was_told(seed: int, cut: int, known: bool) -> None:
    chance = np.random.default_rng(seed)
    step = np.cumsum(chance.integers(1, 9, 400)).astype(float)
    loss = 10 - chance.uniform(0.2, 1) * np.log(step) + chance.normal(0, 0.05, 400)
    lr = np.minimum(1.0, step / chance.integers(1, 300))
    whole = Curve("r", "f", step, loss, lr=lr, total_steps=5000.0)
    other = replace(
        whole,
        loss=np.concatenate([loss[:cut], chance.normal(0, 100, 400 - cut)]),
        lr=np.concatenate([lr[:cut], chance.uniform(0, 9, 400 - cut)]),
    )
    one, two = (detect(curve, schedule_known=known)[0] for curve in (whole, other))
    assert np.array_equal(one[:cut], two[:cut])


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(-50, 50))
def test_units_of_the_loss_do_not_matter(scale: float, offset: float) -> None:
    curve = kinked()
    other = replace(curve, loss=curve.loss * scale + offset * scale)
    assert boundaries(other) == boundaries(curve)
    assert [e.phase for e in detect(other, schedule_known=True)[1]] == [
        e.phase for e in detect(curve, schedule_known=True)[1]
    ]


def test_ramps() -> None:
    step = np.arange(6.0)
    assert ramp_end(step, np.array([0.0, 0.5, 1.0, 1.0, 0.8, 0.1])) == 2
    assert ramp_end(step, np.full(6, 0.3)) is None
    assert ramp_end(step, np.full(6, math.nan)) is None
    assert ramp_end(step, np.array([-1.0, -1.0, 0.3, 0.3, 0.3, 0.3])) is None
    # What rises again after a fall is a restart: the ramp ended with the first cycle, though the second one goes higher.
    assert ramp_end(step, np.array([0.1, 0.9, 0.5, 0.1, 1.0, 0.5])) == 1
    assert ramp_end(step, np.array([0.9, 0.5, 0.1, 1.0, 0.5, 0.1])) is None


def watched(values: list[float], total: float | None = 1000.0) -> str:
    """Where `RampWatch` says that a value rises (1), sample by sample."""
    watch = RampWatch(total)
    return "".join(str(int(watch.observe(place, value))) for place, value in enumerate(values))


def test_a_ramp_is_told_from_its_first_rise_to_its_end() -> None:
    # Stages of a batch ramp: pauses of 10 are part of it, one of more than half as long again is its end.
    stages = [16.0] * 10 + [32.0] * 10 + [48.0] * 10 + [64.0] * 30
    assert watched(stages) == "0" * 10 + "1" * 36 + "0" * 14
    # A constant or falling rate is never one, not even its first sample; a rate of 0 can only rise.
    assert watched([0.3] * 20) == "0" * 20
    assert watched([0.3, 0.2, 0.1]) == "000"
    assert watched([0.0, 0.0, 0.1, 0.2, 0.3, 0.2]) == "111110"
    # A restart of the schedule is no second warm-up, even where it goes higher.
    assert watched([0.1, 0.2, 0.3, 0.1, 0.35, 0.1, 0.4]) == "0110000"
    assert watched([1.0, 1.00001, 1.00002, 1.0]) == "0000"
    # Rounding lets a rate stand still at first.
    assert watched([0.001, 0.001, 0.002, 0.003]) == "0011"


def test_the_state_of_a_watch_can_be_kept() -> None:
    values = [0.1, 0.2, 0.3, 0.1, 0.35, 0.4]
    for cut in range(1, len(values)):
        watch = RampWatch(1000)
        for place in range(cut):
            watch.observe(place, values[place])
        other = RampWatch(1000)
        other.restore(json.loads(json.dumps(watch.state())))
        for place in range(cut, len(values)):
            assert other.observe(place, values[place]) == watch.observe(place, values[place])
    old = {name: value for name, value in watch.state().items() if name != "fallen"}
    RampWatch(1000).restore(old)


def test_scores_by_hand() -> None:
    curve = Curve("r", "f", np.arange(100.0), np.zeros(100), total_steps=100.0)
    truth = Boundaries(10.0, 50.0)
    told = Boundaries(10.0, 57.0).phase_at(curve.step)
    result = score(curve, truth, told)
    # Steps 50 to 56 are wrong; of those 50 and 51 lie within two steps of "fast".
    assert accuracy([result.exact]) == pytest.approx(0.93)
    assert accuracy([result.tolerant]) == pytest.approx(0.95)
    assert result.delays == {"warm_up_end": 0.0, "stable_onset": 0.07}
    assert macro_f1([result.exact]) == pytest.approx((1 + 2 * 40 / 87 + 2 * 43 / 93) / 3)
    # Neither of the truth's two boundaries is told.
    assert score(curve, truth, np.ones(100)).missed == 2
    late = np.where((curve.step >= 1) & (curve.step < 13), Phase.WARM_UP, told)
    late[0] = Phase.FAST
    assert score(curve, truth, late).delays["warm_up_end"] == pytest.approx(0.03)
    assert score(curve, Boundaries(10.0, math.inf), told).false == 1


def test_the_tolerance_is_that_of_what_was_recorded() -> None:
    step = np.arange(0.0, 1000.0, 10.0)
    loss = 5 - 0.5 * np.log(step + 1)
    truth = Boundaries(0.0, 500.0)
    told = np.where(step >= 560, float(Phase.STABLE), float(Phase.FAST))
    whole, stopped, open_ended = (Curve("r", "f", step, loss, total_steps=total) for total in (1000.0, 100_000.0, None))
    # Right from 20 steps (2 %) behind the boundary on; samples at 520 to 550 are not.
    for curve in (whole, stopped, open_ended):
        found = score(curve, truth, told)
        assert np.trace(found.tolerant) == pytest.approx(0.96)
        assert found.delays["stable_onset"] == pytest.approx(0.06, rel=0.02)
    some = np.where(step < 700, told, np.nan)
    for curve in (whole, stopped):
        table = where_told(curve, truth, some)
        assert table is not None
        assert np.trace(table) == pytest.approx(66 / 70)


def test_the_batch_ramp_of_a_large_run() -> None:
    # 16 + 16 k to 64 over 96 sequences: 32 at 16, 32 at 32, 32 at 48, then full batches.
    found = stages(256, 64, 10.0, replicas=32, micro_batch=1, ramp=BatchRamp(16, 16, 96))
    assert [(s.first_step, s.end_step, s.global_batch) for s in found] == [
        (0, 2, 16),
        (2, 3, 32),
        (3, 4, 48),
        (4, 7, 64),
    ]
    assert [s.busy_share for s in found] == [0.5, 1, 1, 1]
    assert found[-1].flops == 3 * 64 * 10.0


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"ramp": BatchRamp(16, 7, 96)}, "ramp.increment"),
        ({"micro_batch": -1}, "micro_"),
    ],
)
def test_impossible_schedules_name_the_field(bad, field: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidScheduleError, match=field):
        stages(256, 64, 10.0, **({"replicas": 8} | bad))
