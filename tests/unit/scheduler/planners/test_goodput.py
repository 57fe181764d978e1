"""Goodput on small hand-made measurements."""

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.goodput import Application, read_gradient_noise, read_step_times

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,10,1.0,0.0
1,20,2.0,0.0
2,10,1.2,0.2
2,20,2.2,0.2
22,10,1.4,0.4
22,20,2.4,0.4
13,10,9.0,8.0
13,20,9.0,8.0
""".splitlines()
SCALABILITY = """num_nodes,local_bsz,step_time,sync_time,num_replicas
2,10,7.0,0.4,4
4,10,1.8,0.8,8
4,20,2.8,0.8,8
1,10,1.6,0.6,4
""".splitlines()
# Gradient noise scale var / sqr = 10 at the initial batch of 10; at 40 the square is the same.
NOISE = {
    10: "progress,iteration,metric,grad_sqr,grad_var\n100,100,0.5,1.0,10.0\n200,200,0.6,1.0,30.0\n".splitlines(),
    40: "progress,iteration,metric,grad_sqr,grad_var\n101,50,0.5,1.0,10.0\n199,90,0.6,1.0,30.0\n".splitlines(),
}


@pytest.fixture
def times():
    return read_step_times(PLACEMENTS, SCALABILITY)


@pytest.fixture
def application(times):
    return Application("app", {"fast": times}, read_gradient_noise(NOISE), restart_s=30.0)


def test_the_even_placement_counts_and_scalability_fills_gaps(times):
    local, step, synchronise = times.curve(2, 4)
    assert local.tolist() == [10, 20]
    assert step.tolist() == [1.4, 2.4]
    assert synchronise.tolist() == [0.4, 0.4]
    assert times.curve(4, 8)[1].tolist() == [1.8, 2.8]


def test_between_measured_shapes(times):
    # 3 nodes with 2 each: half-way between 2 x 2 and 4 x 2.
    assert times.curve(3, 6)[1] == pytest.approx([1.6, 2.6])
    # 1 node, 3 replicas: between 2 (1.2 s) and 4 (1.6 s), only at the batch size that both have.
    local, step, _ = times.curve(1, 3)
    assert local.tolist() == [10]
    assert step == pytest.approx([1.4])
    assert times.curve(5, 10) is None
    assert times.curve(1, 8) is None


def test_gain_and_efficiency(application):
    # Epoch 0, batch 20, scale 2: (10 + 1) / (10 / 2 + 1) = 11 / 6; efficiency 11 / 12.
    assert application.noise.gain([10, 20], 0) == pytest.approx([1.0, 11 / 6])
    assert application.noise.efficiency([10, 20], 0) == pytest.approx([1.0, 11 / 12])
    # Noisier gradients later make large batches better: (30 + 1) / (30 / 4 + 1) / 4.
    assert application.noise.efficiency([40], 1) == pytest.approx([31 / 8.5 / 4])
    assert application.noise.epoch_ends().tolist() == [100, 199]


def test_one_replica(application):
    # Local batch 10 in 1 s gives 10 examples/s at efficiency 1; accumulating gives no more per second and less efficiency.
    best = application.best("fast", 1, 1, 0)
    assert best.goodput == pytest.approx(10.0)
    assert (best.batch, best.local, best.accumulation) == (10, 10, 0)
    assert application.progress_rate("fast", 1, 1, 0) == pytest.approx(1.0)


def test_two_replicas_choose_the_best_of_all_batches(application):
    # Two replicas: batch b = 2 x local, step 0.2 + local / 10. Goodput = 10 gain / step.
    def goodput(local, parts):
        scale = 2 * local * parts / 10
        step = 0.2 + local / 10 + (parts - 1) * local / 10
        return 10 * 11 / (10 / scale + 1) / step

    exact = max(goodput(local, 1) for local in range(10, 21))
    best = application.best("fast", 1, 2, 0)
    assert best.goodput == pytest.approx(exact)
    assert best.goodput == pytest.approx(goodput(best.local, best.accumulation + 1))


def test_goodput_of_configurations(application):
    values = application.goodput(["fast", "fast", "fast", "absent"], [1, 1, 5, 1], [1, 2, 10, 1], 0)
    assert values[0] == pytest.approx(10.0)
    assert values[1] > values[0]
    # Not measured, and no such type: it cannot run.
    assert values[2:].tolist() == [0, 0]


def test_the_user_may_bound_the_batch(application):
    free = application.best("fast", 1, 2, 1)
    bound = application.best("fast", 1, 2, 1, max_batch=22)
    assert free.batch > 22 >= bound.batch
    assert bound.goodput < free.goodput
    assert application.best("fast", 1, 2, 1, max_batch=19).goodput == 0.0


def test_too_many_replicas_for_the_greatest_batch(application):
    # 8 replicas of at least 10 examples exceed the greatest batch of 40.
    assert application.best("fast", 4, 8, 0).goodput == 0.0


def test_memory_makes_it_accumulate(times):
    small = Application("app", {"fast": times}, read_gradient_noise(NOISE), 30.0, max_local={"fast": 12})
    fixed = small.fixed_batch("fast", 1, 2, 0, 40)
    # 20 examples per replica in two parts of 10; 1.2 s + (1.2 - 0.2) s.
    assert (fixed.local, fixed.accumulation, fixed.batch) == (10, 1, 40)
    assert fixed.step_s == pytest.approx(2.2)
    assert fixed.goodput == pytest.approx(40 * 11 / (10 / 4 + 1) / 4 / 2.2)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        (["placement,local_bsz,step_time,sync_time", "1,10,nan,0"], "placements line 2, step_time: is NaN"),
        (["placement,local_bsz,step_time,sync_time", "1,10,x,0"], "placements line 2, step_time: 'x' is not a number"),
        (["placement,local_bsz,step_time,sync_time", "1,10,1,2"], "placements line 2.*not times of a step"),
        (["placement,local_bsz,step_time,sync_time", "a,10,1,0"], "placements line 2, placement"),
        (["placement,local_bsz,step_time", "1,10,1"], "placements line 2: no column sync_time"),
        (["placement,local_bsz,step_time,sync_time", "1,10,1"], "placements line 2: not as many values"),
    ],
)
def test_bad_tables_are_named(placements, message):
    with pytest.raises(PolicyError, match=message):
        read_step_times(placements, [])


def test_bad_noise_is_named():
    with pytest.raises(PolicyError, match="tables"):
        read_gradient_noise({})
    with pytest.raises(PolicyError, match="validation-10 line 2, grad_sqr: is NaN"):
        read_gradient_noise({10: ["progress,metric,grad_sqr,grad_var", "1,1,nan,1"]})
    with pytest.raises(PolicyError, match="validation-10: no rows"):
        read_gradient_noise({10: ["progress,metric,grad_sqr,grad_var"]})
    with pytest.raises(PolicyError, match="epoch"):
        read_gradient_noise(NOISE).gain([10], 2)


def test_a_missing_curve_has_no_goodput(application):
    assert application.fixed_batch("absent", 1, 1, 0, 10).goodput == 0.0
    assert np.array_equal(application.goodput([], [], [], 0), [])
