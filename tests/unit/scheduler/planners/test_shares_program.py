"""Where nothing need be solved, the program says the same; and its layout gives what the textbook form gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from services.scheduler.planners.shares_program import SharesProgram, alone_on_fastest
from services.scheduler.planners.single_type import greatest_sum_above

CLUSTERS = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**31 - 1))


def drawn(case):
    jobs, types, seed = case
    draw = np.random.default_rng(seed)
    gain = draw.uniform(0.5, 4.0, (jobs, types))
    scale = draw.integers(1, 4, jobs).astype(float)
    return gain, scale, draw.integers(3, 8, types).astype(float)


def feasible(scale, types):
    jobs = scale.size
    rows = np.zeros((jobs + types, jobs * types))
    for job in range(jobs):
        rows[job, job * types : (job + 1) * types] = 1.0
        for kind in range(types):
            rows[jobs + kind, job * types + kind] = scale[job]
    return rows


@given(CLUSTERS)
@settings(max_examples=40, deadline=None)
def test_the_greatest_sum_is_that_of_the_dense_program(case):
    gain, scale, capacity = drawn(case)
    found = SharesProgram(scale, capacity).greatest_sum(gain)
    limits = np.concatenate([np.ones(scale.size), capacity])
    dense = linprog(-gain.ravel(), A_ub=feasible(scale, capacity.size), b_ub=limits, method="highs")
    assert (gain * found).sum() == pytest.approx(-dense.fun, rel=1e-9)
    assert (found.sum(axis=1) <= 1 + 1e-9).all()
    assert (scale @ found <= capacity + 1e-9).all()


@given(CLUSTERS)
@settings(max_examples=40, deadline=None)
def test_the_greatest_least_is_that_of_the_dense_program(case):
    gain, scale, capacity = drawn(case)
    shares, least = SharesProgram(scale, capacity).greatest_least(gain)
    jobs, types = gain.shape
    each = np.zeros((jobs, gain.size))
    for job in range(jobs):
        each[job, job * types : (job + 1) * types] = -gain[job]
    rows = np.vstack([feasible(scale, types), each])
    theta = np.concatenate([np.zeros(jobs + types), np.ones(jobs)])[:, None]
    cost = np.append(np.zeros(gain.size), -1.0)
    limits = np.concatenate([np.ones(jobs), capacity, np.zeros(jobs)])
    dense = linprog(cost, A_ub=np.hstack([rows, theta]), b_ub=limits, method="highs")
    assert least == pytest.approx(-dense.fun, rel=1e-9)
    assert (gain * shares).sum(axis=1).min() == pytest.approx(least, rel=1e-9)
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (scale @ shares <= capacity + 1e-9).all()


def test_shares_on_one_type_by_hand():
    # Two devices each would need 4 together, there are 3: terms 2 x and 1 y, x = t / 2, y = t, so 2 t / 2 + 2 t <= 3.
    shares, least = SharesProgram(np.array([2.0, 2.0]), np.array([3.0])).greatest_least(np.array([[2.0], [1.0]]))
    assert least == pytest.approx(1.0)
    assert shares.ravel() == pytest.approx([0.5, 1.0])


def test_everybody_on_the_fastest_type_where_there_is_room():
    rates = np.array([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]])
    assert alone_on_fastest(rates, np.ones(3), np.array([1.0, 2.0])) is not None
    assert alone_on_fastest(rates, np.ones(3), np.array([1.0, 1.0])) is None, "two want the second type"
    assert alone_on_fastest(np.array([[1.0, 1.0]]), np.ones(1), np.ones(2)) is None, (
        "either will do: the solver's choice"
    )


@given(CLUSTERS)
@settings(max_examples=40, deadline=None)
def test_who_is_alone_on_the_fastest_type_gets_the_same_from_the_program(case):
    gain, scale, capacity = drawn(case)
    fastest = alone_on_fastest(gain, scale, capacity)
    if fastest is not None:
        solved = SharesProgram(scale, capacity).greatest_sum(gain / gain.max(axis=1, keepdims=True))
        assert solved == pytest.approx(np.eye(capacity.size)[fastest], abs=1e-9)


@given(CLUSTERS.map(lambda case: (case[0], 1, case[2])))
@settings(max_examples=40, deadline=None)
def test_single_type_is_the_program_with_a_type_that_nobody_uses(case):
    # A second type without devices makes the same program one for the solver.
    gain, scale, capacity = drawn(case)
    worth = np.random.default_rng(case[2]).choice([1.0, 2.0], gain.shape)
    alone, solved = SharesProgram(scale, capacity), SharesProgram(scale, np.append(capacity, 0.0))
    wide_gain, wide_worth = (np.hstack([values, np.zeros_like(values)]) for values in (gain, worth))
    shares, least = alone.greatest_least(gain)
    assert least == pytest.approx(solved.greatest_least(wide_gain)[1], rel=1e-9)
    assert (shares * gain).min() == pytest.approx(least)
    found = alone.greatest_sum(worth)
    assert (worth * found).sum() == pytest.approx((wide_worth * solved.greatest_sum(wide_worth)).sum(), rel=1e-9)
    assert ((found >= 0.0) & (found <= 1.0)).all()
    assert scale @ found[:, 0] <= capacity[0] + 1e-9


def test_shares_go_by_worth_per_device_the_last_first():
    program = SharesProgram(np.array([1.0, 2.0, 1.0, 1.0]), np.array([2.5]))
    assert program.greatest_sum(np.ones((4, 1))).ravel().tolist() == [0.5, 0.0, 1.0, 1.0]
    assert program.greatest_sum(np.array([[1.0], [6.0], [1.0], [1.0]])).ravel().tolist() == [0.0, 1.0, 0.0, 0.5]
    # Not enough for one of the best: the first.
    program = SharesProgram(np.full(3, 2.0), np.array([1.5]))
    assert program.greatest_sum(np.ones((3, 1))).ravel().tolist() == [0.75, 0.0, 0.0]


@given(CLUSTERS.map(lambda case: (case[0] * 3, 1, case[2])), st.booleans())
@settings(max_examples=60, deadline=None)
def test_shares_above_floors_are_those_of_the_program_with_a_type_that_nobody_uses(case, equal):
    gain, scale, capacity = drawn(case)
    if equal:
        gain = scale[:, None].copy()
    alone, solved = SharesProgram(scale, capacity), SharesProgram(scale, np.append(capacity, 0.0))
    least = alone.greatest_least(gain)[1] * (1.0 - 1e-6)
    worth = gain / gain.max(axis=1, keepdims=True)
    wide_gain, wide_worth = (np.hstack([values, np.zeros_like(values)]) for values in (gain, worth))
    found, wanted = alone.greatest_sum(worth, gain, least), solved.greatest_sum(wide_worth, wide_gain, least)
    assert found[:, 0] == pytest.approx(wanted[:, 0], abs=1e-9), "also among equals"


def test_what_floors_leave_goes_to_the_last_of_equals_but_to_the_first_if_it_is_less_than_one_takes():
    # Floors of a half on three jobs of 2 devices are 3; each could have 1 more.
    ones, scale, half = np.ones(3), np.full(3, 2.0), np.full(3, 0.5)
    assert greatest_sum_above(ones, scale, 4.5, half).tolist() == [0.5, 0.75, 1.0]
    assert greatest_sum_above(ones, scale, 3.5, half).tolist() == [0.75, 0.5, 0.5]
    assert greatest_sum_above(ones, scale, 6.0, half).tolist() == [1.0, 1.0, 1.0]
    assert greatest_sum_above(ones, scale, 4.0, half) is None, "it is what one takes: the solver's tolerances decide"
    # A small job first takes 0.4 of the 1.2 that are left; the 0.8 are less than one takes, but 1.2 were not.
    ones, scale, floor = np.ones(4), np.array([2.0, 2.0, 1.0, 2.0]), np.array([0.5, 0.5, 0.6, 0.5])
    assert greatest_sum_above(ones, scale, 4.8, floor) == pytest.approx([0.5, 0.5, 1.0, 0.9])
    assert greatest_sum_above(ones, scale, 4.5, floor) == pytest.approx([0.75, 0.5, 1.0, 0.5])
