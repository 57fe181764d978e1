"""Scalarisations against values computed by hand, and what bad weights say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.dominance import crowding, nondominated, ranks
from services.scheduler.core.front.objectives import (
    Combine,
    Direction,
    Objective,
    Scalarisation,
    augmented_chebyshev,
    check_weights,
    linear,
    tenant_weights,
    weights_of,
)

JCT = Objective("jct", "h")
USE = Objective("use", "share", Direction.MAXIMISE)


def test_the_distance_by_hand() -> None:
    # Normalised: (0.5, 0.2). Weights 0.25, 0.75: max(0.125, 0.15) + 0.1 * 0.7 = 0.22.
    assert augmented_chebyshev([[15.0, 2.0]], [10, 1], [20, 6], [0.25, 0.75], rho=0.1) == pytest.approx([0.22])
    # Weights are divided by their sum, so 1 : 3 is the same.
    assert augmented_chebyshev([[15.0, 2.0]], [10, 1], [20, 6], [1, 3], rho=0.1) == pytest.approx([0.22])


def test_more_is_better_where_the_ideal_is_greater() -> None:
    # Use 0.6 between ideal 1.0 and nadir 0.2: half way.
    assert augmented_chebyshev([[0.6]], [1.0], [0.2], [1], rho=0) == pytest.approx([0.5])


def test_each_row_may_have_its_own_weights() -> None:
    values = [[0.2, 0.8], [0.2, 0.8]]
    assert augmented_chebyshev(values, [0, 0], [1, 1], [[1, 0], [0, 1]], rho=0) == pytest.approx([0.2, 0.8])


def test_the_weighted_sum_by_hand() -> None:
    assert linear([[0.5, 0.2], [0.1, 0.9]], [0.25, 0.75]) == pytest.approx([0.275, 0.7])


def test_an_objective_without_a_range_counts_by_its_difference() -> None:
    assert augmented_chebyshev([[3.0, 5.0]], [3, 5], [4, 5], [1, 1], rho=0) == pytest.approx([0.0])


def test_a_zero_weight_still_breaks_ties() -> None:
    scores = augmented_chebyshev([[0.5, 0.9], [0.5, 0.1]], [0, 0], [1, 1], [1, 0])
    assert scores[1] < scores[0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"jct": -1.0, "use": 1.0}, r"weights\.jct: must not be negative"),
        ({"use": math.nan}, r"weights\.use: must be a finite number"),
        ({"jct": math.inf}, r"weights\.jct: must be a finite number"),
        ({"jct": 0.0, "use": 0.0}, "at least one of jct, use"),
        ({"speed": 1.0}, r"weights\.speed: there is no such objective; known are jct, use"),
    ],
)
def test_bad_weights_are_named(weights: dict[str, float], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        weights_of(weights, (JCT, USE))


def test_the_number_of_weights_must_fit() -> None:
    with pytest.raises(PolicyError, match="2 values"):
        check_weights([1.0], ("jct", "use"))
    with pytest.raises(PolicyError, match="rho"):
        augmented_chebyshev([[1.0]], [0], [1], [1], rho=-1)
    with pytest.raises(PolicyError, match="finite"):
        augmented_chebyshev([[1.0]], [math.nan], [1], [1])


def test_huge_weights_stay_finite() -> None:
    assert check_weights([1e308, 1e308], ("a", "b")) == pytest.approx([0.5, 0.5])


def test_tenants_without_weights_have_the_default_ones() -> None:
    table = {"default": {"jct": 1.0}, "green": {"jct": 1.0, "use": 3.0}}
    assert tenant_weights(table, ["green", "other"], (JCT, USE)).tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert tenant_weights({}, ["other"], (JCT, USE)).tolist() == [[0.5, 0.5]]
    with pytest.raises(PolicyError, match=r"weights\.bad\.jct"):
        tenant_weights({"bad": {"jct": -1.0}}, ["green"], (JCT, USE))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"ideal": 5.0, "nadir": 4.0}, r"jct\.nadir"),
        ({"scale": 0.0}, r"jct\.scale"),
        ({"ideal": math.inf}, r"jct\.ideal"),
    ],
)
def test_bounds_that_contradict_each_other(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Objective("jct", "h", combine=Combine.TOTAL, **bounds)


POINTS = arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(0, 6).map(float))


@settings(max_examples=150, deadline=None)
@given(POINTS, st.data())
def test_the_minimiser_is_pareto_optimal(costs: np.ndarray, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.integers(0, 5), min_size=costs.shape[1], max_size=costs.shape[1])), float)
    weights[data.draw(st.integers(0, costs.shape[1] - 1))] += 1
    scores = augmented_chebyshev(costs, costs.min(axis=0), costs.max(axis=0), weights)
    winner = costs[int(np.argmin(scores))]
    assert not ((costs <= winner).all(axis=1) & (costs < winner).any(axis=1)).any()
    fast = Scalarisation.of(weights, costs.min(axis=0), costs.max(axis=0))
    assert fast(costs) == pytest.approx(scores)


@settings(max_examples=100, deadline=None)
@given(POINTS)
def test_dominance_by_definition(costs: np.ndarray) -> None:
    expected = [not any((other <= row).all() and (other < row).any() for other in costs) for row in costs]
    assert nondominated(costs).tolist() == expected
    layers = ranks(costs)
    assert (layers == 0).tolist() == expected
    assert (layers >= 0).all()


def test_layers_and_crowding_by_hand() -> None:
    assert ranks(np.array([[0, 2], [1, 1], [1, 2], [2, 2.0]])).tolist() == [0, 0, 1, 2]
    # Neighbours of the middle point are (0, 4) and (4, 0), so both gaps are the whole range.
    assert crowding(np.array([[0, 4], [1, 1], [4, 0.0]])).tolist() == [math.inf, 2.0, math.inf]
