import numpy as np
import pytest
from adamw import AdamW, Schedule, clip_by_norm


def test_the_rate_rises_linearly_and_falls_to_a_tenth():
    schedule = Schedule(peak=1.0, warmup_steps=10, total_steps=110)
    assert schedule.learning_rate(5) == 0.5
    assert schedule.learning_rate(10) == 1.0
    assert schedule.learning_rate(60) == pytest.approx(0.55)
    assert schedule.learning_rate(110) == pytest.approx(0.1)
    assert schedule.learning_rate(500) == pytest.approx(0.1)


def test_the_first_update_moves_by_the_rate_against_the_gradient():
    parameters, first, second = np.array([1.0, 1.0]), np.zeros(2), np.zeros(2)
    AdamW(decay_mask=np.zeros(2)).update(parameters, np.array([4.0, -0.5]), first, second, step=1, rate=0.1)
    np.testing.assert_allclose(parameters, [0.9, 1.1], rtol=1e-6)


def test_decay_is_decoupled_from_the_gradient_and_masked():
    parameters = np.array([2.0, 2.0])
    optimizer = AdamW(decay_mask=np.array([1.0, 0.0]), weight_decay=0.5)
    optimizer.update(parameters, np.zeros(2), np.zeros(2), np.zeros(2), step=1, rate=0.1)
    np.testing.assert_allclose(parameters, [1.9, 2.0])


def test_it_finds_the_minimum_of_a_parabola():
    parameters, first, second = np.array([5.0]), np.zeros(1), np.zeros(1)
    optimizer = AdamW(decay_mask=np.zeros(1))
    for step in range(1, 401):
        optimizer.update(parameters, 2 * (parameters - 3.0), first, second, step, 0.1 * (1 - step / 401))
    assert parameters[0] == pytest.approx(3.0, abs=1e-2)


def test_clipping_keeps_the_direction_and_reports_the_norm_before():
    gradient = np.array([3.0, 4.0], dtype=np.float32)
    assert clip_by_norm(gradient, 1.0) == 5.0
    np.testing.assert_allclose(gradient, [0.6, 0.8], rtol=1e-6)
    short = np.array([0.3, 0.4])
    clip_by_norm(short, 1.0)
    np.testing.assert_array_equal(short, [0.3, 0.4])
