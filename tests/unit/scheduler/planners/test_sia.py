"""Sia's integer program on cases computed by hand and against all possible plans."""

import itertools

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners import sia
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.planners.sia import (
    Configurations,
    best_of_all,
    configurations,
    greatest_scale_up,
    greedy_allocation,
    most_jobs,
    restart_factor,
    sia_allocation,
)


def brute_force(goodput, offered, capacity, power, penalty):
    goodput = np.asarray(goodput, dtype=float)
    relative = goodput / np.where(goodput > 0, goodput, np.inf).min(axis=1, keepdims=True)
    best = np.inf
    choices = [[-1, *np.flatnonzero(row > 0)] for row in goodput]
    for plan in itertools.product(*choices):
        used = np.zeros(len(capacity))
        cost = 0.0
        for job, picked in enumerate(plan):
            if picked >= 0:
                used[offered.kind[picked]] += offered.devices[picked]
                cost += relative[job, picked] ** power if power < 0 else -(relative[job, picked] ** power)
            else:
                cost += penalty
        if (used <= capacity).all():
            best = min(best, cost)
    return best if power < 0 else -best


def devices(plan, offered):
    return np.where(plan.choice >= 0, offered.devices[plan.choice], 0)


def test_configurations_are_powers_of_two_then_whole_nodes():
    # Six nodes of four, two of eight, one of six.
    offered = configurations([6, 2, 1, 0], [4, 8, 6, 4])
    assert offered.devices[offered.kind == 0].tolist() == [1, 2, 4, 8, 12, 16, 20, 24]
    assert offered.nodes[offered.kind == 0].tolist() == [1, 1, 1, 2, 3, 4, 5, 6]
    assert offered.devices[offered.kind == 1].tolist() == [1, 2, 4, 8, 16]
    assert offered.devices[offered.kind == 2].tolist() == [1, 2, 4, 6]
    assert (offered.kind != 3).all()


def test_hand_computed():
    # Costs at p = -1/2: job 0: 1, 0.7255, 0.5345; job 1: 1, 0.9535, 0.9129. With lambda 1.1 all four for job 0 cost
    # 0.5345 + 1.1; with lambda 2 two each cost 0.7255 + 0.9535.
    goodput, offered = [[1, 1.9, 3.5], [1, 1.1, 1.2]], configurations([1], [4])
    plan = sia_allocation(goodput, offered, [4])
    assert plan.choice.tolist() == [2, -1]
    assert plan.objective == pytest.approx(3.5**-0.5 + 1.1)
    plan = sia_allocation(goodput, offered, [4], queue_penalty=2.0)
    assert plan.choice.tolist() == [1, 1]
    assert plan.objective == pytest.approx(1.9**-0.5 + 1.1**-0.5)
    assert plan.proven


@pytest.mark.parametrize("power", [-0.5, -1.0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_best_of_all_plans(seed, power):
    random = np.random.default_rng(seed)
    offered = configurations([1, 2], [4, 2])
    goodput = (
        random.uniform(0.5, 3, (3, 1)) * np.sqrt(offered.devices) * random.uniform(0.7, 1.3, (3, offered.kind.size))
    )
    goodput[random.random(goodput.shape) < 0.15] = 0
    goodput[:, 0] = np.maximum(goodput[:, 0], 0.1)
    capacity = [3, 4]
    usable = np.where(offered.devices <= np.array(capacity)[offered.kind], goodput, 0)
    plan = sia_allocation(goodput, offered, capacity, power=power, limits=Limits(gap=0.0))
    assert plan.objective == pytest.approx(brute_force(usable, offered, capacity, power, 1.1))
    used = np.bincount(offered.kind[plan.choice[plan.choice >= 0]], devices(plan, offered)[plan.choice >= 0], 2)
    assert (used <= capacity).all()


def dynamic_programming(goodput, offered, capacity, power, penalty):
    """The least cost by another method than the solver's: over jobs, for every number of devices left of two types."""
    best = np.zeros(np.array(capacity) + 1)
    for row in goodput:
        cost = (row / row.min()) ** power
        after = best + penalty
        for kind, count, price in zip(offered.kind, offered.devices, cost, strict=True):
            if count > capacity[kind]:
                continue
            # With k devices for the jobs up to this one, `count` of them taken: what k - count cost before.
            moved = np.full(best.shape, np.inf)
            if kind == 0:
                moved[count:] = best[: best.shape[0] - count] + price
            else:
                moved[:, count:] = best[:, : best.shape[1] - count] + price
            after = np.minimum(after, moved)
        best = after
    return best[-1, -1]


@pytest.mark.parametrize("seed", range(3))
def test_fifteen_jobs_cost_what_dynamic_programming_finds(seed):
    random = np.random.default_rng(20 + seed)
    offered, capacity = configurations([3, 2], [4, 8]), [12, 16]
    goodput = offered.devices ** random.uniform(0.5, 1, (15, 1)) * random.uniform(1, 4, (15, 2))[:, offered.kind]
    plan = sia_allocation(goodput, offered, capacity, limits=Limits(gap=0.0))
    assert plan.objective == pytest.approx(dynamic_programming(goodput, offered, capacity, -0.5, 1.1))
    greedy = sia_allocation(goodput, offered, capacity, limits=Limits(time_s=0.0))
    assert greedy.objective >= plan.objective - 1e-9


def test_a_restart_must_be_worth_it():
    goodput, offered = [[1.0, 1.5]], configurations([1], [2])
    assert sia_allocation(goodput, offered, [2], current=[0], factor=[0.9]).choice.tolist() == [1]
    assert sia_allocation(goodput, offered, [2], current=[0], factor=[0.6]).choice.tolist() == [0]
    # A waiting job restarts nothing.
    assert sia_allocation(goodput, offered, [2], current=[-1], factor=[0.6]).choice.tolist() == [1]


def test_restart_factor():
    # (600 - 2 x 30) / 630; younger than one restart: 1; more restarts than age: 0.
    assert restart_factor([600, 10, 100], [2, 0, 9], [30, 30, 30]) == pytest.approx([540 / 630, 1.0, 0.0])
    assert restart_factor([0.0], [0], [0.0]).tolist() == [1.0]


def test_scale_up_at_most_twice():
    assert greatest_scale_up([0, 1, 4]).tolist() == [1, 2, 8]
    goodput, offered = [[1.0, 2.0, 4.0]], configurations([1], [4])
    plan = sia_allocation(goodput, offered, [4], most_devices=greatest_scale_up([1]))
    assert devices(plan, offered).tolist() == [2]
    plan = sia_allocation(goodput, offered, [4], least_devices=[4], most_devices=[8])
    assert devices(plan, offered).tolist() == [4]


def test_fixed_jobs_stay():
    goodput, offered = [[1.0, 1.1, 1.2], [1.0, 2.0, 4.0]], configurations([1], [4])
    plan = sia_allocation(goodput, offered, [4], current=[1, -1], fixed=[True, False])
    assert plan.choice.tolist() == [1, 1]
    assert plan.objective == pytest.approx(1.1**-0.5 + 2.0**-0.5)
    # Even where it would make no progress.
    plan = sia_allocation([[0.0, 0.0, 0.0]], offered, [4], current=[1], fixed=[True])
    assert plan.choice.tolist() == [1]


def test_degenerate():
    offered = configurations([1], [2])
    assert sia_allocation(np.zeros((0, 2)), offered, [2]).choice.shape == (0,)
    assert sia_allocation(np.zeros((2, 2)), offered, [2]).choice.tolist() == [-1, -1]
    plan = sia_allocation(np.ones((2, 2)), offered, [0])
    assert plan.choice.tolist() == [-1, -1]
    assert plan.objective == pytest.approx(2.2)
    nothing = configurations([], [])
    assert sia_allocation(np.zeros((2, 0)), nothing, []).choice.tolist() == [-1, -1]


def test_greedy_is_feasible_and_not_above_the_optimum():
    random = np.random.default_rng(5)
    offered = configurations([2, 1], [4, 8])
    goodput = np.sqrt(offered.devices) * random.uniform(0.5, 2, (20, 1))
    choice = greedy_allocation(goodput, offered, [8, 8])
    taken = choice[choice >= 0]
    assert (np.bincount(offered.kind[taken], offered.devices[taken], 2) <= [8, 8]).all()
    assert greedy_allocation(np.zeros((0, offered.kind.size)), offered, [8, 8]).shape == (0,)


def test_no_time_gives_a_plan_all_the_same():
    random = np.random.default_rng(6)
    offered = configurations([4, 2], [4, 8])
    goodput = np.sqrt(offered.devices) * random.uniform(0.5, 2, (40, offered.kind.size))
    plan = sia_allocation(goodput, offered, [16, 16], limits=Limits(time_s=0.0))
    taken = plan.choice[plan.choice >= 0]
    assert taken.size
    assert (np.bincount(offered.kind[taken], offered.devices[taken], 2) <= [16, 16]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goodput": [[1.0, np.nan]]}, r"goodput\[0, 1\]: is NaN"),
        ({"goodput": [[1.0, -1.0]]}, r"goodput\[0, 1\]"),
        ({"goodput": [[1.0]]}, "goodput: shape"),
        ({"capacity": [np.nan]}, r"capacity\[0\]"),
        ({"current": [2]}, r"current\[0\]"),
        ({"factor": [1.5]}, r"factor\[0\]"),
        ({"power": 0.0}, "power"),
        ({"queue_penalty": np.nan}, "queue_penalty"),
        ({"fixed": [True]}, r"fixed\[0\]: the job has no current"),
        ({"fixed": [True], "current": [1], "capacity": [1]}, "fixed: type 0 has 1 devices"),
        ({"limits": Limits(gap=-1.0)}, "gap"),
    ],
)
def test_bad_input_is_named(changes, message):
    given = {"goodput": [[1.0, 2.0]], "offered": configurations([1], [2]), "capacity": [2]} | changes
    with pytest.raises(PolicyError, match=message):
        sia_allocation(**given)


@pytest.mark.parametrize("seed", range(20))
def test_where_all_have_their_best_nothing_is_solved_and_nothing_else_is_as_good(seed):
    draw = np.random.default_rng(seed)
    offered = configurations([2, 1], [4, 8])
    goodput = draw.uniform(1.0, 3.0, (3, offered.kind.size)) * offered.devices**0.5
    value = 1.1 - (goodput / goodput.min(axis=1, keepdims=True)) ** -0.5
    best = best_of_all(value, offered.kind, offered.devices, np.array([24.0, 24.0]))
    assert best.tolist() == value.argmax(axis=1).tolist()
    plan = sia_allocation(goodput, offered, [24.0, 24.0])
    assert plan.choice.tolist() == best.tolist()
    assert plan.objective == pytest.approx(brute_force(goodput, offered, np.array([24.0, 24.0]), -0.5, 1.1))


def test_no_best_of_all_without_room_or_with_a_choice():
    offered = configurations([1], [2])
    value = np.array([[0.1, 0.5], [0.2, 0.6]])
    assert best_of_all(value, offered.kind, offered.devices, np.array([4.0])).tolist() == [1, 1]
    assert best_of_all(value, offered.kind, offered.devices, np.array([3.0])) is None
    assert best_of_all(np.array([[0.5, 0.5]]), offered.kind, offered.devices, np.array([4.0])) is None
    assert best_of_all(np.zeros((2, 2)), offered.kind, offered.devices, np.array([0.0])).tolist() == [-1, -1]


def alike(sizes):
    """A value of 1 for each job (J) with one configuration, its size in devices; and the configurations."""
    devices = np.unique(sizes)
    offered = Configurations(np.zeros_like(devices), np.ones_like(devices), devices)
    return (np.asarray(sizes)[:, None] == devices).astype(float), offered


def chosen(sizes, free):
    value, offered = alike(sizes)
    choice = most_jobs(value, offered.kind, offered.devices, np.array([float(free)]))
    return None if choice is None else np.flatnonzero(choice >= 0).tolist()


def test_of_jobs_alike_as_many_as_fit_the_smallest_first_and_of_equals_the_latest():
    assert chosen([1, 1, 1, 1, 1], 3) == [2, 3, 4]
    assert chosen([2, 1, 2, 1, 2], 6) == [1, 2, 3, 4]
    assert chosen([4, 1, 1, 1], 3) == [1, 2, 3]
    assert chosen([1, 1, 4, 4, 4], 7) == [0, 1, 4], "one is left, and no size is one above another"
    assert chosen([1, 1, 1, 2], 4) == [0, 1, 2], "a 2 instead of a 1 are as many"
    assert chosen([1, 1, 1, 1], 1) is None, "one alone is the solver's choice"
    value, offered = alike([1, 1, 2, 2])
    more = np.maximum(value, [[1.0, 1.0]] + [[0.0, 0.0]] * 3)
    assert most_jobs(more, offered.kind, offered.devices, np.array([3.0])) is None, "the first has a choice"
    value[0] *= 2.0
    assert most_jobs(value, offered.kind, offered.devices, np.array([3.0])) is None, "the first is worth more"


@pytest.mark.parametrize("seed", range(40))
def test_of_jobs_alike_the_solver_serves_no_more(seed, monkeypatch):
    draw = np.random.default_rng(seed)
    sizes = draw.choice([1, 2, 4, 8] if seed % 2 else [1, 2, 3, 5, 6, 8], int(draw.integers(4, 60)))
    free = int(draw.integers(1, sizes.sum() + 1))
    value, offered = alike(sizes)
    found = sia_allocation(value, offered, [free])
    assert offered.devices[found.choice[found.choice >= 0]].sum() <= free
    asked = []
    solver = sia.minimise
    monkeypatch.setattr(sia, "minimise", lambda *given: asked.append(1) or solver(*given))
    monkeypatch.setattr(sia, "most_jobs", lambda *given: None)
    sia._solved.cache_clear()
    solved = sia_allocation(value, offered, [free])
    assert asked or sizes.sum() <= free
    assert found.objective == pytest.approx(solved.objective)


def test_a_program_that_comes_back_is_not_solved_again(monkeypatch):
    asked = []
    solver = sia.minimise
    monkeypatch.setattr(sia, "minimise", lambda *given: asked.append(1) or solver(*given))
    offered = configurations([1], [4])
    goodput = [[1.0, 1.9375, 3.5], [1.0, 1.1875, 1.25]]
    first = sia_allocation(goodput, offered, [4])
    # A third job that can run nowhere changes nothing.
    again = sia_allocation([*goodput[:1], [0.0] * 3, *goodput[1:]], offered, [4])
    assert again.choice.tolist() == [first.choice[0], -1, first.choice[1]]
    assert len(asked) == 1
    assert sia_allocation(goodput, offered, [3]).choice.tolist() != first.choice.tolist()
    assert len(asked) == 2
    sia_allocation(goodput, offered, [4], limits=Limits(time_s=100.0))
    assert len(asked) == 3, "with a limit of time it may be another plan"


def test_large_programs_are_not_kept(monkeypatch):
    asked = []
    solver = sia.minimise
    monkeypatch.setattr(sia, "minimise", lambda *given: asked.append(1) or solver(*given))
    monkeypatch.setattr(sia, "_KEPT_PAIRS", 5)
    offered = configurations([1], [4])
    goodput = [[1.0, 1.875, 3.25], [1.0, 1.25, 1.5]]
    plans = [sia_allocation(goodput, offered, [4]).choice.tolist() for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]
    assert len(asked) == 3
