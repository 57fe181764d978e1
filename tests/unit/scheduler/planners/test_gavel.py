"""Gavel's programs on cases computed by hand, against exhaustive search, and its rounds."""

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners import gavel


def rates(throughput, allocation):
    return (np.asarray(throughput) * allocation).sum(axis=1)


def assert_feasible(allocation, scale, capacity):
    assert (allocation >= 0).all()
    assert (allocation.sum(axis=1) <= 1 + 1e-6).all()
    assert (np.asarray(scale) @ allocation <= np.asarray(capacity) + 1e-6).all()


def test_each_job_gets_the_type_that_it_is_better_on():
    # References (half of each type): 2.5 and 1.5. Job 1 cannot have more than 2 / 1.5, and gets it on type 1.
    allocation = gavel.max_min_fairness([[4, 1], [1, 2]], [1, 1], [1, 1])
    assert allocation == pytest.approx(np.eye(2), abs=1e-6)


def test_max_min_when_both_want_the_same_type():
    # X = (x, 1 - x), (1 - x, x): (1 + 3 x) / 2.5 = (2 - x) / 1.5 gives x = 1/2, both 1.
    allocation = gavel.max_min_fairness([[4, 1], [2, 1]], [1, 1], [1, 1])
    assert allocation == pytest.approx(np.full((2, 2), 0.5), abs=1e-5)


def test_a_job_on_fewer_devices_gets_more_time():
    # Terms 2 x0 and 1 x1, 2 x0 + x1 <= 2, x <= 1: x1 = 1 and x0 = 1/2.
    allocation = gavel.max_min_fairness([[1], [1]], [2, 1], [2])
    assert allocation == pytest.approx(np.array([[0.5], [1.0]]), abs=1e-5)


def test_weights_are_shares():
    allocation = gavel.max_min_fairness([[1], [5]], [1, 1], [1], [2, 1])
    assert allocation == pytest.approx(np.array([[2 / 3], [1 / 3]]), abs=1e-5)


def test_fill_uses_what_the_bottleneck_leaves():
    # Job 1 runs at one speed everywhere, so its term is 1 on either type; job 0 is four times as fast on type 0.
    allocation = gavel.max_min_fairness([[4, 1], [1, 1]], [1, 1], [1, 1])
    assert allocation == pytest.approx(np.eye(2), abs=1e-5)


def test_min_makespan():
    # One device: time in proportion to work; both end after 40.
    allocation = gavel.min_makespan([[1], [1]], [1, 1], [1], [10, 30])
    assert allocation == pytest.approx(np.array([[0.25], [0.75]]), abs=1e-5)
    # No work: no share.
    assert gavel.min_makespan([[1], [1]], [1, 1], [1], [10, 0]).ravel() == pytest.approx([1, 0], abs=1e-6)


def test_max_throughput():
    # Relative to the fastest: job 0 loses 3/4 on type 1, job 1 half. 1 + 0.5 against 0.25 + 1.
    assert gavel.max_throughput([[4, 1], [2, 1]], [1, 1], [1, 1]) == pytest.approx(np.eye(2), abs=1e-6)
    # Three times the weight turns it round: 0.25 + 3 against 1 + 1.5.
    turned = gavel.max_throughput([[4, 1], [2, 1]], [1, 1], [1, 1], [1, 3])
    assert turned == pytest.approx(np.eye(2)[::-1], abs=1e-6)


def test_fifo_and_shortest_first():
    throughput, scale, capacity = [[1.0], [1.0], [1.0]], [1, 1, 1], [2]
    assert gavel.fifo(throughput, scale, capacity).ravel() == pytest.approx([1, 1, 0], abs=1e-6)
    assert gavel.fifo(throughput, scale, capacity, [30, 10, 20]).ravel() == pytest.approx([0, 1, 1], abs=1e-6)
    short = gavel.shortest_job_first(throughput, scale, capacity, [5, 9, 1])
    assert short.ravel() == pytest.approx([1, 0, 1], abs=1e-6)


def test_finish_time_fairness_of_jobs_alike():
    # 6 rho^2 - 7 rho + 1 = 0 with X0 = 10 / (30 rho - 10), X1 = 10 / (20 rho): rho = 1, half each.
    allocation = gavel.finish_time_fairness([[1], [1]], [1, 1], [1], [10, 10], [10, 0])
    assert allocation == pytest.approx(np.array([[0.5], [0.5]]), abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_two_jobs_on_two_types_against_exhaustive_search(seed):
    # Two jobs, one device of each type: X1 = 1 - X0 without loss, so a line is searched.
    random = np.random.default_rng(seed)
    throughput = random.uniform(0.5, 5, (2, 2))
    steps, elapsed = random.uniform(5, 50, 2), random.uniform(0, 30, 2)
    share = np.linspace(0, 1, 20001)
    first = throughput[0, 0] * share + throughput[0, 1] * (1 - share)
    second = throughput[1, 0] * (1 - share) + throughput[1, 1] * share
    alone = elapsed + steps / throughput.mean(axis=1)

    def rho(one, two):
        return np.maximum((elapsed[0] + steps[0] / one) / alone[0], (elapsed[1] + steps[1] / two) / alone[1])

    allocation = gavel.finish_time_fairness(throughput, [1, 1], [1, 1], steps, elapsed)
    assert_feasible(allocation, [1, 1], [1, 1])
    assert rho(*rates(throughput, allocation)) == pytest.approx(rho(first, second).min(), rel=1e-3)

    allocation = gavel.max_min_fairness(throughput, [1, 1], [1, 1])
    least = np.minimum(first / throughput[0].mean(), second / throughput[1].mean()).max()
    assert (rates(throughput, allocation) / throughput.mean(axis=1)).min() == pytest.approx(least, rel=1e-3)

    allocation = gavel.min_makespan(throughput, [1, 1], [1, 1], steps)
    last = np.maximum(steps[0] / first, steps[1] / second).min()
    assert (steps / rates(throughput, allocation)).max() == pytest.approx(last, rel=1e-3)


def policies(throughput, scale, capacity):
    steps = np.arange(1.0, len(scale) + 1)
    return [
        gavel.max_min_fairness(throughput, scale, capacity),
        gavel.min_makespan(throughput, scale, capacity, steps),
        gavel.finish_time_fairness(throughput, scale, capacity, steps, steps),
        gavel.max_throughput(throughput, scale, capacity),
        gavel.fifo(throughput, scale, capacity),
        gavel.shortest_job_first(throughput, scale, capacity, steps),
    ]


def test_random_clusters_are_feasible():
    random = np.random.default_rng(1)
    throughput = random.uniform(0, 5, (12, 3)) * (random.random((12, 3)) > 0.3)
    scale, capacity = random.choice([1, 2, 4, 8], 12), [4, 2, 8]
    for allocation in policies(throughput, scale, capacity):
        assert_feasible(allocation, scale, capacity)
        assert allocation[throughput == 0].max(initial=0.0) == 0.0


def test_who_cannot_run_does_not_hold_the_others_back():
    # Job 1 has no throughput, job 2 is larger than the cluster.
    for allocation in policies([[2.0, 1.0], [0.0, 0.0], [3.0, 3.0]], [1, 1, 9], [4, 4]):
        assert allocation[0] == pytest.approx([1, 0], abs=1e-4)
        assert allocation[1:].max() == 0


def test_no_jobs_and_no_devices():
    for allocation in policies(np.zeros((0, 2)), [], [1, 1]):
        assert allocation.shape == (0, 2)
    for allocation in policies(np.ones((2, 2)), [1, 1], [0, 0]):
        assert (allocation == 0).all()
    assert gavel.round_selection(np.zeros((0, 2)), np.zeros((0, 2)), [], [1, 1]).shape == (0,)


@pytest.mark.parametrize(
    ("throughput", "scale", "capacity", "message"),
    [
        ([[1.0, np.nan]], [1], [1, 1], r"throughput\[0, 1\]: is NaN"),
        ([[1.0, -1.0]], [1], [1, 1], r"throughput\[0, 1\]: -1 is outside"),
        ([[1.0, 1.0]], [0], [1, 1], r"scale\[0\]"),
        ([[1.0, 1.0]], [1], [np.inf, 1], r"capacity\[0\]: inf is infinite"),
        ([[1.0, 1.0]], [1], [1], r"throughput: shape \(1, 2\), expected \(1, 1\)"),
    ],
)
def test_bad_input_is_named(throughput, scale, capacity, message):
    with pytest.raises(PolicyError, match=message):
        gavel.max_min_fairness(throughput, scale, capacity)


def test_bad_steps_are_named():
    with pytest.raises(PolicyError, match=r"steps\[0\]"):
        gavel.min_makespan([[1.0]], [1], [1], [np.nan])
    with pytest.raises(PolicyError, match="elapsed_s"):
        gavel.finish_time_fairness([[1.0]], [1], [1], [1.0], [-1.0])
    with pytest.raises(PolicyError, match="weight"):
        gavel.max_min_fairness([[1.0]], [1], [1], [0.0])


TARGET = np.array([[0.6, 0.4, 0.0], [0.2, 0.6, 0.2], [0.2, 0.0, 0.8]])


def test_priorities_and_a_round():
    received = np.array([[3, 1, 0], [1, 3, 0], [0, 0, 4]])
    expected = [[0.2, 0.4, 0.0], [0.2, 0.2, np.inf], [np.inf, 0.0, 0.2]]
    assert gavel.round_priorities(TARGET, received) == pytest.approx(np.array(expected))
    assert gavel.round_selection(TARGET, received, [1, 1, 1], [1, 1, 1]).tolist() == [1, 2, 0]


def test_rounds_realise_the_allocation():
    received = np.zeros((3, 3))
    for _ in range(1000):
        chosen = gavel.round_selection(TARGET, received, [1, 1, 1], [1, 1, 1])
        running = chosen >= 0
        assert len(set(chosen[running])) == running.sum()
        received[np.flatnonzero(running), chosen[running]] += 1
    assert received / 1000 == pytest.approx(TARGET, abs=0.02)


def test_a_round_respects_scale():
    # Job 0 has the greatest priority but needs four; jobs 1 and 2 fit into two.
    chosen = gavel.round_selection([[0.9], [0.5], [0.4]], np.ones((3, 1)), [4, 1, 1], [2])
    assert chosen.tolist() == [-1, 0, 0]
    with pytest.raises(PolicyError, match="time_received"):
        gavel.round_selection([[0.9]], [[np.nan]], [1], [1])
    with pytest.raises(PolicyError, match=r"allocation\[0, 0\]"):
        gavel.round_selection([[1.1]], [[0.0]], [1], [1])
