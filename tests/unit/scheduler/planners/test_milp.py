"""The rolling program against all placements, and what it does with the rest of the queue."""

import itertools

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners import milp
from services.scheduler.planners.milp import by_size, free_devices, rolling_plan
from services.scheduler.planners.mixed_integer import Limits


def held(length, slot_s):
    return max(int(np.ceil(length / slot_s)), 1)


def assert_fits(plan, duration, devices, free, slot_s):
    used = np.zeros_like(np.asarray(free, dtype=float))
    for job in np.flatnonzero(plan.kind >= 0):
        end = plan.slot[job] + held(duration[job][plan.kind[job]], slot_s)
        used[plan.kind[job], plan.slot[job] : end] += devices[job]
    assert (used <= np.asarray(free) + 1e-9).all()


def brute_force(duration, devices, weight, free, slot_s):
    free = np.asarray(free, dtype=float)
    kinds, slots = free.shape
    places = [(-1, -1), *itertools.product(range(kinds), range(slots))]
    best = np.inf
    for plan in itertools.product(places, repeat=len(devices)):
        left, cost = free.copy(), 0.0
        for job, (kind, slot) in enumerate(plan):
            if kind < 0:
                cost += weight[job] * (slots * slot_s + min(duration[job]))
            elif np.isfinite(duration[job][kind]):
                left[kind, slot : slot + held(duration[job][kind], slot_s)] -= devices[job]
                cost += weight[job] * (slot * slot_s + duration[job][kind])
            else:
                cost = np.inf
        if (left >= 0).all():
            best = min(best, cost)
    return best


def test_short_jobs_first_when_they_exclude_each_other():
    # One device; 30, 10, 20 s in slots of 10: order 1, 2, 0 completes at 10, 30, 60.
    plan = rolling_plan([[30.0], [10.0], [20.0]], [1, 1, 1], [1, 1, 1], np.ones((1, 6)), 10.0)
    assert plan.slot.tolist() == [3, 0, 1]
    assert plan.cost == pytest.approx(100)
    assert plan.proven


def test_a_weight_puts_a_long_job_first():
    plan = rolling_plan([[30.0], [10.0], [20.0]], [1, 1, 1], [9, 1, 1], np.ones((1, 6)), 10.0)
    assert plan.slot.tolist() == [0, 3, 4]


def test_the_faster_type_goes_to_whom_it_helps_most():
    # Both are faster on type 0; job 1 gains 60 s, job 0 only 10 s.
    plan = rolling_plan([[10.0, 20.0], [20.0, 80.0]], [1, 1], [1, 1], np.ones((2, 8)), 10.0)
    assert plan.kind.tolist() == [1, 0]
    assert plan.slot.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_best_of_all_placements(seed):
    random = np.random.default_rng(seed)
    duration = random.uniform(5, 35, (3, 2))
    duration[0, 0] = np.inf
    devices, weight = random.integers(1, 3, 3), random.uniform(0.5, 2, 3)
    free = random.integers(0, 4, (2, 4)).astype(float)
    plan = rolling_plan(duration, devices, weight, free, 10.0, limits=Limits(gap=0.0))
    assert plan.cost == pytest.approx(brute_force(duration.tolist(), devices, weight, free, 10.0))
    assert_fits(plan, duration, devices, free, 10.0)


def test_the_rest_follows_without_delaying_the_first():
    plan = rolling_plan(
        [[20.0], [10.0], [10.0], [10.0]], [1, 1, 1, 2], [1, 1, 1, 1], np.full((1, 4), 2.0), 10.0, first=2
    )
    # Jobs 0 and 1 start at once; job 2 takes the free device in slot 1; job 3 needs both.
    assert plan.slot.tolist() == [0, 0, 1, 2]
    greedy = rolling_plan([[30.0], [10.0]], [1, 1], [1, 1], np.ones((1, 6)), 10.0, first=0)
    assert greedy.slot.tolist() == [0, 3]


@pytest.mark.parametrize("seed", range(20))
def test_who_begins_now_is_the_same_where_nothing_else_is_asked(seed):
    draw = np.random.default_rng(seed)
    duration, devices = draw.uniform(5, 80, (12, 2)), draw.integers(1, 6, 12)
    free = np.cumsum(draw.integers(0, 4, (2, 5)), axis=1).astype(float) + draw.integers(0, 5)
    whole = rolling_plan(duration, devices, np.ones(12), free, 10.0, first=2)
    part = rolling_plan(duration, devices, np.ones(12), free, 10.0, first=2, now_only=True)
    now = np.where(whole.slot == 0, whole.kind, -1)
    assert np.where(part.slot == 0, part.kind, -1).tolist() == now.tolist()
    assert_fits(part, duration, devices, free, 10.0)


def test_never_worse_than_the_greedy_placement():
    random = np.random.default_rng(2)
    duration = random.uniform(5, 95, (12, 2))
    devices, weight = random.integers(1, 4, 12), np.ones(12)
    free = np.full((2, 20), 4.0)
    hurried = rolling_plan(duration, devices, weight, free, 10.0, limits=Limits(time_s=0.0))
    solved = rolling_plan(duration, devices, weight, free, 10.0, limits=Limits(nodes=50))
    assert_fits(hurried, duration, devices, free, 10.0)
    assert_fits(solved, duration, devices, free, 10.0)
    assert solved.cost <= hurried.cost + 1e-6


def test_running_jobs_hold_their_devices():
    free = free_devices([4, 2], [0, 0, 1], [1, 2, 2], [5.0, 25.0, 0.0], 4, 10.0)
    assert free.tolist() == [[1, 2, 2, 4], [0, 2, 2, 2]]
    with pytest.raises(PolicyError, match="running_devices: more than the capacity of type 1"):
        free_devices([4, 2], [1], [3], [5.0], 4, 10.0)


def test_degenerate():
    plan = rolling_plan(np.zeros((0, 2)), [], [], np.ones((2, 3)), 10.0)
    assert plan.kind.shape == (0,)
    assert plan.cost == 0
    plan = rolling_plan([[10.0], [np.inf]], [1, 1], [1, 1], np.zeros((1, 3)), 10.0)
    assert plan.kind.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": [[np.nan]]}, r"duration_s\[0, 0\]: is NaN"),
        ({"devices": [np.nan]}, r"devices\[0\]"),
        ({"weight": [-1.0]}, r"weight\[0\]"),
        ({"free": [[1.0, np.nan]]}, r"free\[0, 1\]"),
        ({"slot_s": 0.0}, "slot_s"),
        ({"free": np.zeros((0, 2)), "duration_s": np.zeros((1, 0))}, "free: no types"),
        ({"first": -1}, "first"),
    ],
)
def test_bad_input_is_named(changes, message):
    given = {"duration_s": [[10.0]], "devices": [1], "weight": [1], "free": [[1.0, 1.0]], "slot_s": 10.0} | changes
    with pytest.raises(PolicyError, match=message):
        rolling_plan(**given)


@pytest.mark.parametrize("seed", range(40))
def test_jobs_worth_alike_on_one_type_are_searched_and_nothing_is_better(seed, monkeypatch):
    monkeypatch.setattr(milp, "minimise", None)
    draw = np.random.default_rng(seed)
    free = np.cumsum(draw.integers(0, 3, 4)).astype(float)[None]
    duration, devices = draw.uniform(5, 45, (5, 1)), draw.integers(1, 4, 5)
    duration[draw.random((5, 1)) < 0.1] = np.inf
    lasts = np.where(np.isfinite(duration), duration, 0.0)
    plan = rolling_plan(duration, devices, np.full(5, 2.0), free, 10.0)
    assert plan.proven
    assert_fits(plan, lasts, devices, free, 10.0)
    assert (plan.kind[~np.isfinite(duration[:, 0])] == -1).all()
    runs = np.isfinite(duration[:, 0])
    least = brute_force(duration[runs].tolist(), devices[runs], np.full(runs.sum(), 2.0), free, 10.0)
    assert plan.cost == pytest.approx(least + 2.0 * 40.0 * (~runs).sum())


@pytest.mark.parametrize("seed", range(40))
def test_behind_a_window_that_is_searched_each_is_placed_where_it_has_room_first(seed):
    draw = np.random.default_rng(seed)
    free = np.cumsum(draw.integers(0, 4, (1, 6)), axis=1).astype(float) + draw.integers(0, 4)
    duration, devices = draw.uniform(5, 80, (9, 1)), draw.integers(1, 6, 9)
    plan = rolling_plan(duration, devices, np.ones(9), free, 10.0, first=3)
    left = free[0].copy()
    for job in range(9):
        lasts = held(duration[job, 0], 10.0)
        first = [slot for slot in range(6) if (left[slot : slot + lasts] >= devices[job]).all()]
        if job >= 3:
            assert plan.slot[job] == (first[0] if first else -1), job
        if plan.slot[job] >= 0:
            left[plan.slot[job] : plan.slot[job] + lasts] -= devices[job]
    now = rolling_plan(duration, devices, np.ones(9), free, 10.0, first=3, now_only=True)
    assert (now.slot == 0).tolist() == (plan.slot == 0).tolist()


def test_fewer_free_devices_later_or_parts_of_devices_are_left_to_the_solver():
    for devices, free in ([1, 1, 2], [2.0, 1.0, 2.0]), ([0.5, 0.5, 1], [1.0, 1.0, 1.0]):
        plan = rolling_plan([[10.0], [20.0], [10.0]], devices, np.ones(3), [free], 10.0, limits=Limits(gap=0.0))
        assert plan.cost == pytest.approx(brute_force([[10.0], [20.0], [10.0]], devices, np.ones(3), [free], 10.0))


def test_greedy_is_not_taken_for_best_where_waiting_is_better():
    # On the only type with room in time the job ends at 90, on the fast one, behind the horizon, it counts as ending at 25.
    plan = rolling_plan([[90.0, 5.0]], [1], [1.0], [[1.0, 1.0], [0.0, 0.0]], 10.0)
    assert (plan.kind.tolist(), plan.slot.tolist(), plan.cost, plan.proven) == ([-1], [-1], 25.0, True)


def test_where_each_has_the_best_that_it_could_have_alone_it_is_proven():
    plan = rolling_plan([[10.0], [20.0]], [1, 1], [1.0, 1.0], [[2.0, 2.0]], 10.0)
    assert (plan.slot.tolist(), plan.cost, plan.proven) == ([0, 0], 30.0, True)


def sized(duration, devices, free, weight=None):
    worth = np.ones(len(devices)) if weight is None else np.array(weight)
    length, room = np.array(duration, dtype=float)[:, None], np.array([free], dtype=float)
    found = by_size(length, np.array(devices, dtype=float), worth, room, 10.0)
    return None if found is None else found[1].tolist()


def test_who_lasts_to_the_horizon_is_served_by_size():
    # 2, 2, 5 and 5 free: the 1, then the first 2, then the other one; the 4 never.
    assert sized([50, 60, 40, 90], [2, 4, 1, 2], [2, 2, 5, 5]) == [2, -1, 0, 2]
    assert sized([50, np.inf, 40], [2, 1, 1], [1, 3, 3, 3]) == [1, -1, 0], "one does not run"
    # The 2 has room from the third slot on, so 20 s of it reach the horizon.
    assert sized([40, 20], [1, 2], [1, 1, 3, 3]) == [0, 2]
    assert sized([40, 10], [1, 2], [1, 1, 3, 3]) is None, "it gives its devices back"
    assert sized([40, 40], [1, 2], [1, 3, 2, 3]) is None, "less is free later"
    assert sized([40, 40], [1, 2], [1, 1, 3, 3], [1.0, 2.0]) is None, "one is worth more"


@pytest.mark.parametrize("seed", range(20))
def test_by_size_nothing_is_better(seed):
    draw = np.random.default_rng(seed)
    free = np.cumsum(draw.integers(0, 4, 4)).astype(float)[None]
    duration, devices = draw.uniform(31, 90, (4, 1)), draw.integers(1, 5, 4)
    assert by_size(duration, devices.astype(float), np.ones(4), free, 10.0) is not None
    plan = rolling_plan(duration, devices, np.ones(4), free, 10.0)
    assert plan.cost == pytest.approx(brute_force(duration.tolist(), devices, np.ones(4), free, 10.0))
    assert_fits(plan, duration, devices, free, 10.0)


@pytest.mark.parametrize("seed", range(8))
def test_jobs_alike_are_one_class_and_nothing_is_better(seed):
    draw = np.random.default_rng(50 + seed)
    kinds = draw.uniform(5, 35, (2, 2))
    duration, devices = kinds[[0, 1, 0, 1]], np.array([1, 2, 1, 2])
    free = draw.integers(0, 4, (2, 3)).astype(float)
    plan = rolling_plan(duration, devices, np.ones(4), free, 10.0, limits=Limits(gap=0.0))
    assert plan.cost == pytest.approx(brute_force(duration.tolist(), devices, np.ones(4), free, 10.0))
    assert_fits(plan, duration, devices, free, 10.0)
    for first, second in ((0, 2), (1, 3)):
        begins = [plan.slot[job] if plan.slot[job] >= 0 else 99 for job in (first, second)]
        assert begins[0] <= begins[1], "the first of the queue is not the later one"


def test_a_window_with_the_same_program_is_not_solved_again(monkeypatch):
    # Of unlike weights, so that the solver is asked.
    asked = []
    solver = milp.minimise
    monkeypatch.setattr(milp, "minimise", lambda *given, **more: asked.append(1) or solver(*given, **more))
    free = np.array([[1.0, 1.0, 2.0, 2.0, 2.0, 2.0]])
    first = rolling_plan([[31.0], [11.5], [21.0]], [1, 1, 2], [1, 1, 2], free, 10.0)
    assert len(asked) == 1
    # The same slots, another order, and one that has room nowhere.
    again = rolling_plan([[21.5], [99.0], [12.0], [39.0]], [2, 7, 1, 1], [2, 1, 1, 1], free, 10.0)
    assert len(asked) == 1
    assert again.slot.tolist() == [first.slot[2], -1, first.slot[1], first.slot[0]]
    rolling_plan([[31.0], [11.5], [21.0]], [1, 1, 2], [1, 1, 2], np.append(free[:, :5], 3.0)[None], 10.0)
    assert len(asked) == 2, "there is more room"
    rolling_plan([[31.0], [11.5], [21.0]], [1, 1, 2], [1, 1, 2], free, 10.0, limits=Limits(time_s=100.0))
    assert len(asked) == 3, "with a limit of time it may be another plan"
