"""Where nothing need be solved, the program says the same; and its layout gives what the textbook form gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from services.scheduler.planners.shares_program import SharesProgram, alone_on_fastest

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
