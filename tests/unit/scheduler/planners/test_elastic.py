"""Marginal gain against brute force, concave and not; Pollux's fitness."""

import itertools

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.elastic import marginal_gain_allocation, pollux_utility


def worth(utility, devices, idle=None):
    table = np.concatenate(
        [np.zeros((len(utility), 1)) if idle is None else np.reshape(idle, (-1, 1)), utility], axis=1
    )
    return table[np.arange(len(table)), devices].sum()


def brute_force(utility, total, idle=None):
    counts = range(np.shape(utility)[1] + 1)
    plans = (plan for plan in itertools.product(counts, repeat=len(utility)) if sum(plan) <= total)
    return max(worth(utility, list(plan), idle) for plan in plans)


def concave(random, jobs, counts):
    return np.cumsum(np.sort(random.uniform(0, 1, (jobs, counts)), axis=1)[:, ::-1], axis=1)


def test_hand_computed():
    # Gains: job 0: 5, 1, 1; job 1: 4, 3, 0. Three devices: 5 + 4 + 3.
    utility = [[5, 6, 7], [4, 7, 7]]
    assert marginal_gain_allocation(utility, 3).tolist() == [1, 2]
    # With six, the last one would give nothing and stays free.
    assert marginal_gain_allocation(utility, 6).tolist() == [3, 2]


@pytest.mark.parametrize("seed", range(20))
def test_concave_is_optimal(seed):
    random = np.random.default_rng(seed)
    utility = concave(random, 4, 4)
    total = int(random.integers(0, 12))
    devices = marginal_gain_allocation(utility, total)
    assert devices.sum() <= total
    best = brute_force(utility, total)
    assert worth(utility, devices) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_not_concave_is_feasible_and_near_the_exact_one(seed):
    random = np.random.default_rng(100 + seed)
    utility = np.sort(random.uniform(0, 5, (4, 4)), axis=1)
    total = int(random.integers(1, 12))
    devices = marginal_gain_allocation(utility, total)
    assert devices.sum() <= total
    best = brute_force(utility, total)
    # Greedy on the concave majorant loses at most one step of the best job.
    assert best - utility.max() <= worth(utility, devices) <= best + 1e-9


def test_a_job_that_gains_only_from_pairs_gets_a_pair():
    utility = [[0, 10, 10, 20], [3, 4, 5, 5.5]]
    assert marginal_gain_allocation(utility, 3).tolist() == [2, 1]
    # One device: the pair does not fit.
    assert marginal_gain_allocation(utility, 1).tolist() == [0, 1]


def test_what_does_not_fit_as_a_whole_step_is_used_in_part():
    # The majorant of job 0 has one step of four devices; only two are there, and two give something.
    assert marginal_gain_allocation([[0.0, 1.0, 1.0, 8.0]], 3).tolist() == [2]


def test_degenerate():
    assert marginal_gain_allocation(np.zeros((0, 3)), 4).tolist() == []
    assert marginal_gain_allocation([[1.0, 2.0]], 0).tolist() == [0]
    assert marginal_gain_allocation(np.zeros((2, 3)), 4).tolist() == [0, 0]
    assert marginal_gain_allocation([[-1.0, -2.0]], 4).tolist() == [0]
    assert marginal_gain_allocation(np.zeros((2, 0)), 4).tolist() == [0, 0]


def test_pollux_gives_every_job_one_device_first():
    goodput = np.array([[100.0, 200, 300, 400], [1, 1.1, 1.2, 1.3], [1, 1.1, 1.2, 1.3]])
    utility, idle = pollux_utility(goodput, 4)
    devices = marginal_gain_allocation(utility, 4, idle)
    assert devices.tolist() == [2, 1, 1]
    assert marginal_gain_allocation(utility, 2, idle).sum() == 2


@pytest.mark.parametrize("fairness", [-1.0, 0.5, 1.0])
def test_pollux_maximises_its_fitness(fairness):
    random = np.random.default_rng(3)
    goodput = concave(random, 3, 5)
    utility, idle = pollux_utility(goodput, 6, fairness=fairness)
    devices = marginal_gain_allocation(utility, 6, idle)

    def fitness(plan):
        speedup = goodput[np.arange(3), np.array(plan) - 1] / goodput[:, 1]
        return np.mean(speedup**fairness) ** (1 / fairness)

    plans = [plan for plan in itertools.product(range(1, 6), repeat=3) if sum(plan) <= 6]
    best = max(fitness(plan) for plan in plans)
    if (devices > 0).all():
        assert fitness(devices) == pytest.approx(best)
    else:
        # Only a positive power may find it worth while to leave a job out.
        assert fairness > 0


def test_pollux_serves_jobs_that_do_not_run_with_an_equal_share():
    # 8 devices, 2 jobs: the equal share is 4. The first runs with 2 or 3, the second with 5 only.
    goodput = np.zeros((2, 8))
    goodput[0, 1:3], goodput[1, 4] = (4.0, 6.0), 5.0
    utility, idle = pollux_utility(goodput, 8)
    # Speedups against 3 and 5 devices: 4/6 and 1, and 1; -1/speedup.
    assert utility[0, 1:3] == pytest.approx([-1.5, -1.0])
    assert utility[1, 4] == pytest.approx(-1.0)
    assert marginal_gain_allocation(utility, 8, idle).tolist() == [3, 5]


def test_pollux_restart_factor_keeps_a_job_where_it_is():
    goodput = np.array([[10.0, 11.0]])
    free, idle = pollux_utility(goodput, 2, fairness=1.0, current=[1], restart_factor=[1.0])
    assert marginal_gain_allocation(free, 2, idle).tolist() == [2]
    bound, idle = pollux_utility(goodput, 2, fairness=1.0, current=[1], restart_factor=[0.8])
    assert marginal_gain_allocation(bound, 2, idle).tolist() == [1]


def test_bad_input_is_named():
    with pytest.raises(PolicyError, match=r"utility\[1, 0\]: is NaN"):
        marginal_gain_allocation([[1.0], [np.nan]], 1)
    with pytest.raises(PolicyError, match="total"):
        marginal_gain_allocation([[1.0]], -1)
    with pytest.raises(PolicyError, match="idle"):
        marginal_gain_allocation([[1.0]], 1, idle=[np.nan])
    with pytest.raises(PolicyError, match="fairness"):
        pollux_utility([[1.0]], 1, fairness=0.0)
    with pytest.raises(PolicyError, match=r"goodput\[0, 0\]"):
        pollux_utility([[-1.0]], 1)
