"""Deadlines: EDF by hand, admission, and the lease program against all subsets."""

import itertools

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.chronus import chronus_plan, edf_admission, edf_schedule, leases_needed
from services.scheduler.planners.mixed_integer import Limits


def assert_kept(plan, leases, devices, deadline, free):
    runs = plan.runs
    assert (np.asarray(devices) @ runs <= np.asarray(free) + 1e-9).all()
    for job in np.flatnonzero(plan.accepted):
        assert runs[job].sum() == leases[job]
        assert not runs[job, deadline[job] :].any()


def feasible(chosen, leases, devices, deadline, free):
    """Depth-first over leases: can every chosen job be on time?"""
    left = tuple(leases[job] if job in chosen else 0 for job in range(len(leases)))

    def search(slot, left):
        if not any(left):
            return True
        if slot == len(free) or any(count > max(deadline[job] - slot, 0) for job, count in enumerate(left)):
            return False
        waiting = [job for job, count in enumerate(left) if count]
        for size in range(len(waiting), -1, -1):
            for running in itertools.combinations(waiting, size):
                if sum(devices[job] for job in running) <= free[slot]:
                    after = tuple(count - (job in running) for job, count in enumerate(left))
                    if search(slot + 1, after):
                        return True
        return False

    return search(0, left)


def test_leases_are_rounded_against_the_job():
    leases, deadline = leases_needed([25.0, 20.0, 0.0, 5.0], [35.0, 30.0, -5.0, np.inf], 10.0)
    assert leases.tolist() == [3, 2, 1, 1]
    assert deadline[:3].tolist() == [3, 3, 0]
    assert deadline[3] >= 10**6


def test_edf_by_hand():
    # One device. Deadlines 4, 2, 9 and work 2, 1, 1: job 1, then 0, 0, then 2.
    plan = edf_schedule([2, 1, 1], [1, 1, 1], [4, 2, 9], np.ones(5))
    assert plan.runs.argmax(axis=1).tolist() == [1, 0, 3]
    assert plan.accepted.all()


def test_admission_refuses_what_would_break_a_promise():
    # Two jobs of 2 leases by lease 3 do not fit on one device; the first in the queue is promised.
    plan = edf_admission([2, 2, 1], [1, 1, 1], [3, 3, 3], np.ones(4))
    assert plan.accepted.tolist() == [True, False, True]
    assert_kept(plan, [2, 2, 1], [1, 1, 1], [3, 3, 3], np.ones(4))
    # A promise made earlier comes before the queue.
    plan = edf_admission([2, 2, 1], [1, 1, 1], [3, 3, 3], np.ones(4), promised=[False, True, False])
    assert plan.accepted.tolist() == [False, True, True]


def test_a_promise_already_lost_does_not_close_the_door():
    # The promised job needs 3 leases by lease 2. It runs on; a job due later is accepted beside it.
    plan = edf_admission([3, 1, 1], [1, 1, 1], [2, 4, 3], np.ones(5), promised=[True, False, False])
    assert plan.accepted.tolist() == [False, True, False]
    assert plan.runs[0].tolist() == [True, True, True, False, False]


def test_without_admission_all_miss_a_little():
    # EDF runs the job of 3 leases due at 3 behind the one due at 2: without admission it is late.
    plan = edf_schedule([2, 3], [1, 1], [2, 3], np.ones(6))
    assert plan.accepted.tolist() == [True, False]


def test_the_program_drops_one_large_job_for_two_small():
    leases, devices, deadline = [4, 2, 2], [1, 1, 1], [4, 4, 4]
    assert edf_admission(leases, devices, deadline, np.ones(4)).accepted.tolist() == [True, False, False]
    plan = chronus_plan(leases, devices, deadline, np.ones(4))
    assert plan.accepted.tolist() == [False, True, True]
    assert_kept(plan, leases, devices, deadline, np.ones(4))
    worth = chronus_plan(leases, devices, deadline, np.ones(4), value=[3, 1, 1])
    assert worth.accepted.tolist() == [True, False, False]
    assert worth.value == pytest.approx(3)


def test_leases_are_as_early_as_possible():
    plan = chronus_plan([2], [1], [6], np.ones(8))
    assert plan.runs[0].tolist() == [True, True, *[False] * 6]


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_best_subset(seed):
    random = np.random.default_rng(seed)
    leases, devices = random.integers(1, 4, 5).tolist(), random.integers(1, 4, 5).tolist()
    deadline, free = random.integers(1, 6, 5).tolist(), random.integers(1, 5, 5).tolist()
    value = random.integers(1, 6, 5).tolist()
    best = max(
        sum(value[job] for job in chosen)
        for size in range(6)
        for chosen in itertools.combinations(range(5), size)
        if feasible(chosen, leases, devices, deadline, free)
    )
    plan = chronus_plan(leases, devices, deadline, free, value=value)
    assert plan.value == pytest.approx(best)
    assert_kept(plan, leases, devices, deadline, free)
    edf = edf_admission(leases, devices, deadline, free)
    assert_kept(edf, leases, devices, deadline, free)
    assert sum(np.array(value)[edf.accepted]) <= best


def test_no_time_falls_back_to_edf():
    random = np.random.default_rng(9)
    leases, devices = random.integers(1, 6, 40), random.integers(1, 5, 40)
    deadline, free = random.integers(5, 30, 40), np.full(30, 8.0)
    plan = chronus_plan(leases, devices, deadline, free, limits=Limits(time_s=0.0))
    assert_kept(plan, leases, devices, deadline, free)


def test_promises_that_cannot_be_kept_are_an_error():
    with pytest.raises(PolicyError, match="no plan"):
        chronus_plan([2, 2], [1, 1], [2, 2], np.ones(4), promised=[True, True])


def test_degenerate():
    assert chronus_plan([], [], [], np.ones(3)).accepted.shape == (0,)
    assert chronus_plan([1], [1], [3], np.zeros(3)).accepted.tolist() == [False]
    assert chronus_plan([1], [1], [0], np.ones(3)).accepted.tolist() == [False]
    assert edf_admission([1], [1], [3], []).accepted.tolist() == [False]


@pytest.mark.parametrize("plan", [edf_schedule, edf_admission, chronus_plan])
def test_bad_input_is_named(plan):
    for given, message in (
        (([np.nan], [1], [1], [1]), r"leases\[0\]: is NaN"),
        (([0], [1], [1], [1]), r"leases\[0\]"),
        (([1], [0], [1], [1]), r"devices\[0\]"),
        (([1], [1], [1.5], [1]), r"deadline\[0\]: 1.5 is not a whole number"),
        (([1], [1], [1], [np.nan]), r"free\[0\]"),
    ):
        with pytest.raises(PolicyError, match=message):
            plan(*given)
