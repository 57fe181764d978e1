"""Fronts on instances small enough to know: what is found, what is missed, and what a choice says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bench.pareto
from bench.result import read
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.assignment import NO_POOL, AssignmentProblem, enumerate_feasible
from services.scheduler.core.front.dominance import nondominated
from services.scheduler.core.front.explorer import Method, Trail, das_dennis, explore, grid_of
from services.scheduler.core.front.hypervolume import hypervolume
from services.scheduler.core.front.objectives import Combine, Direction, Objective, Scalarisation
from services.scheduler.core.front.pareto import Front, coverage, exact_front, hypervolume_ratio, knee, pick
from services.scheduler.core.front.reference import epsilon_constraint, nsga3
from services.scheduler.core.front.solvers import BranchAndBound, LocalSearch
from tests.unit.scheduler.mixed_integer_front import MixedIntegerSolver


def problem_of(contributions: Any, capacity: Any = None, demand: Any = None, **more: Any) -> AssignmentProblem:
    """Each option its own pool, unless there is no capacity."""
    values = np.asarray(contributions, dtype=np.float64)
    jobs, options, count = values.shape
    directions = more.pop("objectives", tuple(Objective(name, "u") for name in "abcd"[:count]))
    free = capacity is None
    return AssignmentProblem(
        objectives=directions,
        contributions=values,
        demand=np.ones((jobs, options)) if demand is None else np.asarray(demand, dtype=np.float64),
        pool=np.full(options, NO_POOL) if free else np.arange(options),
        capacity=np.zeros(0) if free else np.asarray(capacity, dtype=np.float64),
        allowed=more.pop("allowed", np.ones((jobs, options), dtype=np.bool_)),
        **more,
    )


def random_problem(
    seed: int, jobs: int = 5, options: int = 3, count: int = 3, *, worst: bool = False
) -> AssignmentProblem:
    chance = np.random.default_rng(seed)
    objectives = tuple(
        Objective(name, "u", combine=Combine.WORST if worst and name == "a" else Combine.TOTAL)
        for name in "abcd"[:count]
    )
    allowed = chance.random((jobs, options)) < 0.85
    allowed[:, 0] = True
    return problem_of(
        chance.integers(0, 30, (jobs, options, count)),
        capacity=[jobs, *(jobs // 2 + 1 for _ in range(options - 1))],
        demand=chance.integers(1, 3, (jobs, options)) / 2,
        objectives=objectives,
        allowed=allowed,
    )


# One job whose options lie on a concave front: (0, 10), (4, 9), (7, 7), (9, 4), (10, 0), and (8, 8) dominated by (7, 7).
CONCAVE = problem_of([[[0, 10], [4, 9], [7, 7], [9, 4], [10, 0], [8, 8]]])


def test_weighted_sums_miss_a_concave_front_and_the_distance_reaches_all_of_it() -> None:
    truth = exact_front(CONCAVE)
    assert truth.costs.tolist() == [[0, 10], [4, 9], [7, 7], [9, 4], [10, 0]]
    # For every w the sum is least at an end: w*4 + (1-w)*9 > min(10 (1-w), 10 w), and so on for the others.
    summed = explore(CONCAVE, 200, method=Method.LINEAR)
    assert summed.costs.tolist() == [[0, 10], [10, 0]]
    trail = Trail()
    ours = explore(CONCAVE, 200, trail=trail)
    assert ours.costs.tolist() == truth.costs.tolist()
    assert trail.complete
    assert ours.solves < 15
    assert coverage(truth.costs, summed.costs) == pytest.approx(0.4)


@pytest.mark.parametrize("worst", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_an_exploration_to_the_end_is_the_true_front(seed: int, count: int, worst: bool) -> None:
    problem = random_problem(seed, count=count, worst=worst)
    trail = Trail()
    front = explore(problem, 2000, trail=trail)
    assert trail.complete
    assert front.costs.tolist() == exact_front(problem).costs.tolist()
    assert (problem.evaluate(front.assignments) == front.costs).all()
    assert problem.feasible(front.assignments).all()


@pytest.mark.parametrize("method", list(Method))
def test_no_dominated_point_is_returned(method: Method) -> None:
    for seed in range(5):
        front = explore(random_problem(seed), 20, method=method, solver=LocalSearch(random_problem(seed), 1))
        assert nondominated(front.costs).all()


@pytest.mark.parametrize("chebyshev", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_branch_and_bound_agrees_with_enumeration(seed: int, chebyshev: bool) -> None:
    problem = random_problem(seed, worst=seed % 2 == 1)
    _, costs = enumerate_feasible(problem)
    weights = np.random.default_rng(seed).dirichlet(np.ones(3))
    score = Scalarisation.of(weights, costs.min(axis=0), costs.max(axis=0), chebyshev=chebyshev)
    solution = BranchAndBound(problem, block=4).solve(score)
    assert solution is not None
    assert solution.score == pytest.approx(score(costs).min())
    limits = np.quantile(costs, 0.4, axis=0)
    within = costs[(costs <= limits).all(axis=1)]
    limited = BranchAndBound(problem).solve(score, limits=limits)
    assert (limited is None) == (not len(within))
    if limited is not None:
        assert limited.score == pytest.approx(score(within).min())


@pytest.mark.parametrize("seed", range(6))
def test_local_search_is_feasible_repeatable_and_near(seed: int) -> None:
    problem = random_problem(seed, jobs=6, worst=seed % 2 == 1)
    _, costs = enumerate_feasible(problem)
    score = Scalarisation.of(np.ones(3), costs.min(axis=0), costs.max(axis=0))
    first, second = (LocalSearch(problem, 7).solve(score) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.assignment.tolist() == second.assignment.tolist()
    assert problem.feasible(first.assignment[None])[0]
    assert score(costs).min() - 1e-12 <= first.score <= score(costs).min() + 0.02


@pytest.mark.parametrize("worst", [False, True])
def test_moves_and_swaps_are_scored_as_a_new_evaluation_would(worst: bool) -> None:
    problem = random_problem(3, jobs=5, worst=worst)
    search = LocalSearch(problem, 0)
    score = Scalarisation.of(np.array([3.0, 1, 1]), np.zeros(3), np.full(3, 100.0))
    chosen = enumerate_feasible(problem)[0][5]
    used = problem.pool_demand[np.arange(5), chosen].sum(axis=0)
    costs = problem.evaluate(chosen[None])[0]
    compared = 0
    for place, value in enumerate(search._swaps(chosen, costs, used, score, None)):
        one, two = (int(pair[place]) for pair in search._pairs)
        other = chosen.copy()
        other[[one, two]] = chosen[[two, one]]
        if np.isfinite(value) and problem.feasible(other[None])[0]:
            assert value == pytest.approx(score(problem.evaluate(other[None])[0]))
            compared += 1
    for (job, option), value in np.ndenumerate(search._moves(chosen, costs, used, score, None)):
        other = chosen.copy()
        other[job] = option
        if np.isfinite(value) and problem.feasible(other[None])[0]:
            assert value == pytest.approx(score(problem.evaluate(other[None])[0]))
            compared += 1
    assert compared > 4


def test_capacities_bind() -> None:
    # Option 0 is best in both objectives but takes one job only.
    problem = problem_of([[[1, 1], [5, 2]], [[1, 1], [2, 5]]], capacity=[1, 2])
    assert exact_front(problem).costs.tolist() == [[3, 6], [6, 3]]
    with pytest.raises(PolicyError, match="no assignment"):
        explore(problem_of([[[1, 1]], [[1, 1]]], capacity=[1]), 10)
    with pytest.raises(PolicyError, match="no assignment"):
        exact_front(problem_of([[[1, 1]], [[1, 1]]], capacity=[1]))


def test_one_objective_has_one_best_point() -> None:
    problem = problem_of([[[3], [1], [2]], [[1], [5], [0]]])
    for method in Method:
        assert explore(problem, 10, method=method).points.tolist() == [[1]]


def test_values_of_what_is_maximised_come_back_in_their_unit() -> None:
    objectives = (Objective("jct", "h"), Objective("use", "share", Direction.MAXIMISE))
    problem = problem_of([[[1, 0.2], [3, 0.9], [4, 0.8]]], objectives=objectives)
    assert explore(problem, 20).points.tolist() == [[1, 0.2], [3, 0.9]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": np.array([0, 5])}, "pool must lie"),
        ({"capacity": np.array([-1.0])}, "capacity"),
        ({"demand": np.full((1, 2), np.nan)}, "demand"),
        ({"demand": np.ones((2, 2))}, "demand must have the shape"),
        ({"contributions": np.full((1, 2, 1), np.inf)}, "contributions must be finite"),
        ({"contributions": np.ones((1, 2, 3))}, "contributions must be"),
        ({"allowed": np.zeros((1, 2), dtype=np.bool_)}, "train has no option"),
    ],
)
def test_a_bad_problem_names_the_field(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "objectives": (Objective("a", "u"),), "contributions": np.ones((1, 2, 1)), "demand": np.ones((1, 2)),
        "pool": np.array([0, -1]), "capacity": np.ones(1), "allowed": np.ones((1, 2), dtype=np.bool_), "jobs": ("train",),
    }  # fmt: skip
    AssignmentProblem(**good)
    with pytest.raises(PolicyError, match=message):
        AssignmentProblem(**{**good, **change})


def test_too_large_and_too_few_are_said() -> None:
    with pytest.raises(PolicyError, match="too many to enumerate"):
        enumerate_feasible(random_problem(0), limit=10)
    with pytest.raises(PolicyError, match="too large"):
        explore(random_problem(0), 20, solver=BranchAndBound(random_problem(0), max_nodes=5))
    with pytest.raises(PolicyError, match="solves"):
        explore(random_problem(0), 2)
    with pytest.raises(PolicyError, match=r"weights\.b"):
        explore(random_problem(0), 20, weights=np.array([[1.0, -1.0, 1.0]]))


def test_the_grid_of_das_and_dennis() -> None:
    assert das_dennis(3, 2).tolist() == [[0, 0, 1], [0, 0.5, 0.5], [0, 1, 0], [0.5, 0, 0.5], [0.5, 0.5, 0], [1, 0, 0]]
    assert len(das_dennis(3, 12)) == 91  # Deb and Jain 2014, table I
    for count in (3, 6, 10, 57):
        grid = grid_of(3, count)
        assert len(np.unique(np.round(grid, 9), axis=0)) == count
        assert grid.sum(axis=1) == pytest.approx(np.ones(count))
    assert grid_of(1, 3).tolist() == [[1.0]]


def test_hypervolume_by_hand() -> None:
    assert hypervolume([[1, 2], [2, 1]], [3, 3]) == pytest.approx(3)  # 2 + 2 - 1
    assert hypervolume([[1, 2], [2, 1], [2, 2], [5, 0]], [3, 3]) == pytest.approx(3)  # dominated; outside
    # Boxes of 1*2*2, 2*1*2, 2*2*1 from (3, 3, 3): 12, each pair shares 1*1*2 = 2, all three 1: 12 - 6 + 1.
    assert hypervolume([[2, 1, 1], [1, 2, 1], [1, 1, 2]], [3, 3, 3]) == pytest.approx(7)
    # Four boxes of 2*2*2*1 = 8: pairs share 4, triples 2, all 1: 32 - 24 + 8 - 1.
    assert hypervolume(1 + np.eye(4), [3, 3, 3, 3]) == pytest.approx(15)
    assert hypervolume(np.empty((0, 2)), [1, 1]) == 0
    with pytest.raises(PolicyError, match="finite"):
        hypervolume([[np.nan, 1]], [2, 2])
    with pytest.raises(PolicyError, match="reference"):
        hypervolume([[1, 1, 1]], [2, 2])


CUBES = st.integers(1, 4).flatmap(
    lambda count: arrays(
        np.float64, st.tuples(st.integers(1, 7), st.just(count)), elements=st.integers(0, 4).map(float)
    )
)


@settings(max_examples=120, deadline=None)
@given(CUBES)
def test_hypervolume_counts_unit_cubes_and_grows_with_points(costs: np.ndarray) -> None:
    reference = np.full(costs.shape[1], 4.0)
    corners = np.stack(np.meshgrid(*[np.arange(4)] * costs.shape[1]), axis=-1).reshape(-1, costs.shape[1])
    covered = ((costs[None] - corners[:, None]).max(axis=2).min(axis=1) <= 0).sum()
    assert hypervolume(costs, reference) == pytest.approx(covered)
    assert hypervolume(costs[:-1], reference) <= hypervolume(costs, reference) + 1e-9


def test_coverage_counts_what_is_within_the_front_s_range() -> None:
    true = np.array([[0, 100.0], [50, 50], [100, 0]])
    # Off by 1 of 100 in each counts at 1 %; by 2 does not; better in one and far away only by dominance.
    found = np.array([[1, 99.0], [52, 50]])
    assert coverage(true, found) == pytest.approx(1 / 3)
    assert coverage(true, found, epsilon=0.02) == pytest.approx(2 / 3)
    assert coverage(true, np.array([[0, 50.0]])) == 0
    assert coverage(true, np.array([[0, 50.0]]), dominance=True) == pytest.approx(2 / 3)
    assert coverage(true, np.empty((0, 2))) == 0
    assert hypervolume_ratio(true, true) == pytest.approx(1)
    # Normalised, reference 1.1: ends alone 0.11 + 0.11 - 0.01 = 0.21; with the middle 0.36 + 2 * 0.05 = 0.46.
    assert hypervolume_ratio(true, true[[0, 2]]) == pytest.approx(0.21 / 0.46)


def front_of(points: Any) -> Front:
    matrix = np.asarray(points, dtype=np.float64)
    objectives = (Objective("jct", "h"), Objective("cost", "USD"))
    count = len(matrix)
    return Front(objectives, matrix, np.zeros((count, 1), dtype=np.int64), np.full((count, 2), 0.5))


def test_the_knee_is_where_more_no_longer_buys_much() -> None:
    assert knee(np.array([[0, 10.0], [2, 3], [6, 2], [10, 0]])) == 1


def test_weights_choose_and_the_choice_says_why() -> None:
    front = front_of([[0, 10], [2, 3], [6, 2], [10, 0]])
    assert [pick(front, weights).index for weights in ([1, 0], [0.5, 0.5], [0, 1])] == [0, 1, 3]
    choice = pick(front, [0.5, 0.5])
    jct, cost = choice.terms
    # Regrets 0.2 and 0.3, so cost decides: 0.5 * (0.3 + 0.01).
    assert [jct.regret, cost.regret] == pytest.approx([0.2, 0.3])
    assert (jct.binding, cost.binding) == (False, True)
    assert cost.pressure == pytest.approx(0.155)
    assert choice.score == pytest.approx(0.155 + 1e-6 * 0.52)
    faster, cheaper = choice.trades
    assert (faster.index, faster.improves, faster.changes) == (0, "jct", {"jct": -2, "cost": 7})
    # Point 2 gains 0.1 of cost for 0.4 of jct, point 3 gains 0.3 for 0.8.
    assert (cheaper.index, cheaper.changes) == (3, {"jct": 8, "cost": -3})
    assert "this decides" in choice.text()
    assert "+7 USD" in choice.text()


@pytest.mark.parametrize("seed", range(4))
def test_every_counterfactual_flips_the_choice(seed: int) -> None:
    front = exact_front(random_problem(seed))
    for index in range(len(front)):
        by_index = pick(front, index=index)
        assert by_index.index == index
        assert pick(front, front.weights[index]).index == index
        for trade in by_index.trades:
            assert trade.chosen_by is not None
            assert pick(front, list(trade.chosen_by.values())).index == trade.index != index


def test_a_pick_that_cannot_be_made() -> None:
    front = front_of([[0, 1], [1, 0]])
    for arguments, message in (
        ({}, "either weights or index"),
        ({"weights": [1, 1], "index": 0}, "either weights or index"),
        ({"index": 2}, "between 0 and 1"),
        ({"weights": [1, -1]}, r"weights\.cost"),
        ({"weights": [0, 0]}, "jct, cost"),
    ):
        with pytest.raises(PolicyError, match=message):
            pick(front, **arguments)
    with pytest.raises(PolicyError, match="no points"):
        pick(front_of(np.empty((0, 2))), [1, 1])


def test_the_front_as_json() -> None:
    front = explore(CONCAVE, 30)
    body = json.loads(json.dumps(front.as_json(CONCAVE), allow_nan=False))
    assert [point["values"] for point in body["points"]][:2] == [{"a": 0, "b": 10}, {"a": 4, "b": 9}]
    assert body["points"][1]["assignment"] == {"job-0": "option-1"}
    assert body["points"][0]["crowding"] is None
    assert body["points"][2]["crowding"] == pytest.approx(1.0)  # (9-4)/10 + (9-4)/10
    assert sum(body["points"][1]["weights"].values()) == pytest.approx(1)
    assert body["objectives"][0] == {"name": "a", "unit": "u", "direction": "minimise"}
    assert front.as_json()["points"][1]["assignment"] == [1]
    json.dumps(pick(front, [1, 1]).as_json(), allow_nan=False)


def test_the_same_seed_gives_the_same_front() -> None:
    problem = random_problem(2, jobs=14)
    first, second = (explore(problem, 15, seed=4) for _ in range(2))
    assert first.as_json() == second.as_json()


def test_epsilon_constraint_finds_only_points_of_the_true_front() -> None:
    problem = random_problem(1)
    found = epsilon_constraint(problem, BranchAndBound(problem), 8)
    truth = exact_front(problem).costs
    assert len(found.costs) > 3
    assert all((truth == row).all(axis=1).any() for row in found.costs)


def test_epsilon_constraint_reaches_a_concave_front() -> None:
    found = epsilon_constraint(CONCAVE, BranchAndBound(CONCAVE), 10)
    assert len(found.costs) == 5


def test_nsga3_comes_near_the_true_front_and_is_repeatable() -> None:
    problem = random_problem(1)
    first, second = (nsga3(problem, 3, generations=40) for _ in range(2))
    assert first.costs.tolist() == second.costs.tolist()
    assert problem.feasible(first.assignments).all()
    assert hypervolume_ratio(exact_front(problem).costs, first.costs) > 0.97


@pytest.mark.parametrize("worst", [False, True])
def test_the_mixed_integer_program_agrees_with_branch_and_bound(worst: bool) -> None:
    problem = random_problem(5, worst=worst)
    _, costs = enumerate_feasible(problem)
    limits = np.quantile(costs, 0.5, axis=0)
    for chebyshev in (True, False):
        score = Scalarisation.of(np.array([3.0, 1, 2]), costs.min(axis=0), costs.max(axis=0), chebyshev=chebyshev)
        for bound in (None, limits, costs.min(axis=0) - 1):
            ours = BranchAndBound(problem).solve(score, limits=bound)
            theirs = MixedIntegerSolver(problem).solve(score, limits=bound)
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert theirs.score == pytest.approx(ours.score)
    assert explore(problem, 500, solver=MixedIntegerSolver(problem)).costs == pytest.approx(exact_front(problem).costs)


def test_the_benchmark_writes_a_valid_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.pareto, "SMALL", ((3, 3, 2, False),))
    assert bench.pareto.main(["--instances", "2", "--large", "0", "--json", str(tmp_path / "out.json")]) == 0
    rows = read(tmp_path / "out.json")["rows"]
    by_measure = {(row["subject"], row["measure"]): row for row in rows}
    assert by_measure["chebyshev_adaptive", "coverage_ratio"]["n"] == 2
    assert by_measure["linear", "coverage_ratio"]["baseline"]
    assert (
        by_measure["linear", "coverage_ratio"]["value"] <= by_measure["chebyshev_adaptive", "coverage_ratio"]["value"]
    )


def test_solves_for_the_target_by_hand() -> None:
    true = np.array([[0, 2.0], [1, 1], [2, 0]])
    assert bench.pareto.solves_for(true, true[[0, 0, 2, 1, 1]]) == 4
    assert np.isnan(bench.pareto.solves_for(true, true[:2]))
