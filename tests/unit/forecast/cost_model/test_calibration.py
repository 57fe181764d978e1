"""What measured runs say of others: cases by hand, runs that have nothing in common, odd runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.forecast.cost_model import ModelShape, TrainingLayout, machine_of
from services.forecast.cost_model.calibration import (
    PRIOR,
    WAITS,
    Likeness,
    Prior,
    Traits,
    believed,
    corrections,
    traits_of,
)
from services.forecast.cost_model.efficiency import PRIOR as PARAMETERS
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.step_time import step_time

A100 = machine_of("A100-SXM4-80GB")
WIDTHS = Prior(amplitude=0.04, reach=2.0, noise=0.03)
RUN = Traits((12.0, 11.0), ("a100", "bf16"), (1.0, 0.0))


def test_one_run_by_hand() -> None:
    # A residual of 0.05 is just what the prior expects: 0.05^2 = 0.04^2 + 0.03^2. The noise's variance v is the fixed point
    # of v = (3 0.03^2 + l^2) / 4 with what is left over, l = v / (0.04^2 + v) 0.05: 0.000737, so 0.6846 is carried.
    alike, apart, unlike = corrections(
        [RUN], [10.0], [10.0 * math.exp(0.05)], [RUN, replace(RUN, sizes=(12.0, 13.0)), _kind("h100")], WIDTHS
    )
    assert math.log(alike.factor) == pytest.approx(0.6846 * 0.05, rel=1e-3)
    assert alike.spread == pytest.approx(math.sqrt(0.3154 * 0.0016 + 0.0009), rel=1e-3)
    # Two steps away, with a reach of two; another chip is one step.
    assert math.log(apart.factor) == pytest.approx(0.6846 * 0.05 / math.e, rel=1e-3)
    assert apart.spread == pytest.approx(math.sqrt(0.0016 * (1 - 0.6846 / math.e**2) + 0.0009), rel=1e-3)
    assert math.log(unlike.factor) == pytest.approx(0.6846 * 0.05 * math.exp(-0.5), rel=1e-3)


def test_another_kind_counts_as_many_steps_as_the_prior_says() -> None:
    """A run of another chip, by a prior in which that is three steps, is told as much as one of three doublings more."""
    apart = replace(WIDTHS, kind=3.0)
    kind, size = (
        corrections([RUN], [10.0], [11.0], [other], apart)[0]
        for other in (_kind("h100"), replace(RUN, sizes=(15.0, 11.0)))
    )
    assert kind == size
    nearer = corrections([RUN], [10.0], [11.0], [_kind("h100")], WIDTHS)[0]
    assert 1.0 < kind.factor < nearer.factor


def test_a_group_that_is_far_off_is_believed() -> None:
    places = [replace(RUN, sizes=(12.0, size)) for size in (9.0, 11.0, 13.0)]
    (found,) = corrections(places, [1.0] * 3, [1.5] * 3, [replace(RUN, sizes=(12.0, 12.0))])
    assert 1.4 < found.factor < 1.5
    # Widths that may be wider carry more of what is far off, and say so in the spread.
    narrow, wide = (
        corrections(places, [1.0] * 3, [1.5, 1.2, 1.4], [RUN], replace(WIDTHS, wider=wider))[0] for wider in (0.0, 0.5)
    )
    assert narrow.factor < wide.factor
    assert narrow.spread < wide.spread


def test_runs_that_are_all_far_off_tell_of_the_whole_group() -> None:
    """Three runs of a chip take half as long again as predicted: so will one of quite other sizes."""
    places = [replace(RUN, sizes=(12.0, size)) for size in (9.0, 11.0, 13.0)]
    unlike = replace(RUN, sizes=(17.0, 20.0))
    (found,) = corrections(places, [1.0] * 3, [1.5] * 3, [unlike])
    assert 1.45 < found.factor <= 1.5
    # One run alone says less, and its spread is wider.
    (from_one,) = corrections(places[:1], [1.0], [1.5], [unlike])
    assert 1.0 < from_one.factor < found.factor
    assert from_one.spread > 1.9 * found.spread
    # Hardly when one of them is as expected, or they are off to both sides.
    for measured in ([1.5, 1.5, 1.02], [1.5, 1.5, 0.66]):
        assert corrections(places, [1.0] * 3, measured, [unlike])[0].factor < 1.1
    # Not where nothing is common to a group.
    assert corrections(places, [1.0] * 3, [1.5] * 3, [unlike], WIDTHS)[0].factor < 1.1


def test_a_common_discrepancy_by_hand() -> None:
    """Three runs far apart that are all 20 % slower: two hypotheses by the rule of Bayes, with Student's noise as above."""
    prior = replace(WIDTHS, common=0.5)
    places = [replace(RUN, sizes=(size, 0.0)) for size in (0.0, 100.0, 200.0)]
    (far,) = corrections(places, [1.0] * 3, [1.2] * 3, [replace(RUN, sizes=(300.0, 0.0))], prior)
    off = math.log(1.2)
    odds, means = [], []
    for common, probability in ((0.0, 0.5), (0.35, 0.5 / 3), (0.6, 0.5 / 3), (1.0, 0.5 / 3)):
        variance = 9e-4
        for _ in range(6):
            # All are alike: the weight of each of three equal residuals.
            weight = off / (16e-4 + variance + 3 * common**2)
            variance = (3 * 9e-4 + (variance * weight) ** 2) / 4
        own = 16e-4 + variance
        total = own + 3 * common**2
        odd = 3 * (math.log(variance / 9e-4) + 9e-4 / variance - 1)
        odds.append(probability * math.exp(-(2 * math.log(own) + math.log(total) + 3 * off**2 / total + 3 * odd) / 2))
        means.append(3 * common**2 / total * off)
    expected = sum(o * m for o, m in zip(odds, means, strict=True)) / sum(odds)
    assert math.log(far.factor) == pytest.approx(expected)


def test_a_little_more_changes_little() -> None:
    """No threshold: what is told of an unlike run grows with what three runs are off, in no leap."""
    places = [replace(RUN, sizes=(12.0, size)) for size in (9.0, 11.0, 13.0)]
    unlike = replace(RUN, sizes=(17.0, 20.0))
    off = np.linspace(0.0, 0.5, 101).tolist()
    told = [math.log(corrections(places, [1.0] * 3, [math.exp(each)] * 3, [unlike])[0].factor) for each in off]
    steps = np.diff(told)
    assert (steps > 0).all()
    assert steps.max() < 0.02


def test_nothing_measured_is_as_uncertain_as_software_that_nobody_has_seen() -> None:
    (found,) = corrections([], [], [], [RUN])
    # A tenth of all groups share a discrepancy of 0.35, 0.6 or 1.0; the others have widths of their own.
    assert found.factor == 1.0
    assert found.spread == pytest.approx(math.sqrt(0.1 * (0.35**2 + 0.6**2 + 1) / 3 + _widths(0.0058)))


def _widths(variance: float) -> float:
    steps = [(1.0, 1.0), (1.6, 0.3), (2.5, 0.09), (4.0, 0.027)]
    return variance * sum(factor**2 * part for factor, part in steps) / sum(part for _, part in steps)


def _kind(chip: str) -> Traits:
    return replace(RUN, kinds=(chip, "bf16"))


def test_runs_that_wait_for_one_thing_say_nothing_of_those_that_wait_for_another() -> None:
    host = replace(RUN, waits=(0.0, 1.0))
    (found,) = corrections([host], [1.0], [1.05], [RUN], WIDTHS)
    assert found.factor == 1.0
    assert found.spread == pytest.approx(math.hypot(0.04, 0.03))
    (own,) = corrections([host], [1.0], [1.05], [host], WIDTHS)
    assert own.factor > 1.03


def test_runs_that_agree_are_believed_more_than_one() -> None:
    one, three = (corrections([RUN] * n, [1.0] * n, [1.1] * n, [RUN], WIDTHS)[0] for n in (1, 3))
    assert 1.0 < one.factor < three.factor < 1.1
    assert three.spread < one.spread


def test_one_wild_run_does_not_rule() -> None:
    (found,) = corrections([RUN] * 3, [1.0] * 3, [1.0, 1.0, 5.0], [RUN], WIDTHS)
    assert found.factor == pytest.approx(1.0, abs=0.02)


def test_nothing_measured_changes_nothing() -> None:
    (found,) = corrections([], [], [], [RUN], WIDTHS)
    assert (found.factor, found.spread) == (1.0, pytest.approx(0.05))
    assert corrections([RUN], [1.0], [1.2], []) == []


RUNS = st.builds(
    Traits,
    sizes=st.tuples(st.floats(0, 20), st.floats(0, 20)),
    kinds=st.tuples(st.sampled_from(["a100", "h100"])),
    waits=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)


@given(st.lists(st.tuples(RUNS, st.floats(0.2, 5)), min_size=1, max_size=5), RUNS)
def test_any_runs_in_any_order_leave_a_spread_above_the_noise(
    measured: list[tuple[Traits, float]], other: Traits
) -> None:
    def found(order: list[tuple[Traits, float]]) -> tuple[float, float]:
        traits, times = [each for each, _ in order], [seconds for _, seconds in order]
        (answer,) = corrections(traits, [1.0] * len(order), times, [other])
        return answer.factor, answer.spread

    factor, spread = found(measured)
    # Both of a step's causes may be as wide as products are.
    widest = math.hypot(4 * PRIOR.amplitude * math.sqrt(2), 4 * PRIOR.noise, 1.0)
    # Hypotheses differ by at most what was measured.
    furthest = max(abs(math.log(seconds)) for _, seconds in measured)
    assert PRIOR.noise <= spread <= math.hypot(widest, 2 * furthest)
    assert abs(math.log(factor)) <= 2 * furthest
    assert found(measured[::-1]) == pytest.approx((factor, spread))
    assert factor > 0


def test_expected_is_the_regression_on_measured_runs() -> None:
    # Two measured runs, each one step from the other run and two from one another: by the normal equations.
    near = [replace(RUN, sizes=(12.0, 10.0)), replace(RUN, sizes=(12.0, 12.0))]
    residuals = np.array([0.01, -0.02])
    belief = believed(residuals, Likeness.of(near, near), Likeness.of([RUN], near), WIDTHS)
    (mean,), (explained,) = belief.mean, belief.explained
    step = math.exp(-0.5)
    # Reweighting: noise variance of each run, iterated by hand from its definition.
    variance = [9e-4, 9e-4]
    for _ in range(6):
        left = _left(residuals, step, variance)
        variance = [(3 * 9e-4 + each**2) / 4 for each in left]
    weights = np.linalg.solve(_inner(step, variance), [16e-4 * step] * 2)
    assert mean[0] == pytest.approx(float(weights @ residuals))
    assert explained[0] == pytest.approx(float(weights.sum() * 16e-4 * step))


def _inner(step: float, variance: list[float]) -> np.ndarray:
    return np.array([[16e-4 + variance[0], 16e-4 * step**2], [16e-4 * step**2, 16e-4 + variance[1]]])


def _left(residuals: np.ndarray, step: float, variance: list[float]) -> list[float]:
    weights = np.linalg.solve(_inner(step, variance), residuals)
    return [weight * each for weight, each in zip(weights.tolist(), variance, strict=True)]


def test_a_slower_stack_is_found() -> None:
    shape = model_named("llama3-8b")
    layouts = [TrainingLayout(sequence=4096, global_batch=64 * n, dp=8, zero=3) for n in (1, 2, 4, 8)]
    traits = [traits_of(shape, layout, A100, PARAMETERS) for layout in layouts]
    predicted = [step_time(shape, layout, A100, PARAMETERS).total_s for layout in layouts]
    (found,) = corrections(traits[:3], predicted[:3], [1.1 * each for each in predicted[:3]], traits[3:])
    assert found.factor == pytest.approx(1.1, abs=0.025)


def test_traits_of_a_run() -> None:
    shape = model_named("llama2-7b")
    large = TrainingLayout(sequence=4096, global_batch=64, micro_batch=2, dp=16, zero=1)
    found = traits_of(shape, large, A100, PARAMETERS)
    # Hidden 4096, sequence 4096, micro batch 2, nothing divided, two nodes of eight.
    assert found.sizes == (12, 12, 1, 0, 0, 0, 0, 0, 1)
    assert found.kinds[:3] == ("a100-sxm4-80gb", "bf16", "none")
    causes = dict(zip(WAITS, found.waits, strict=True))
    # Products rule; each share counts as often as that cause is less sure than products, so together they are more than one.
    assert 0.7 < causes["products"] < 0.95
    assert causes["host"] == 0.0
    assert sum(share / WAITS[cause][1] for cause, share in causes.items()) == pytest.approx(1, abs=0.01)
    small = replace(shape, hidden=256, heads=2, kv_heads=2, ffn=512, vocabulary=512)
    assert isinstance(small, ModelShape)
    waiting = traits_of(small, replace(large, sequence=64, micro_batch=1), A100, PARAMETERS)
    causes = dict(zip(WAITS, waiting.waits, strict=True))
    assert causes["host"] > 0.9
    assert causes["products"] == pytest.approx(0, abs=0.02)
