"""The search finds plans of the same sum as the integer program, and says when it did not end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from services.scheduler.planners.window_search import Alike, best_starts


def _by_solver(classes: list[Alike], room: list[int]) -> int:
    """The least sum of start slots by HiGHS, one variable for each job and slot."""
    jobs = [(item.need, item.held) for item in classes for _ in range(item.many)]
    slots = len(room)
    columns = [(job, slot) for job in range(len(jobs)) for slot in range(slots)]
    rows = np.zeros((len(jobs) + slots, len(columns)))
    for column, (job, slot) in enumerate(columns):
        need, held = jobs[job]
        rows[job, column] = 1
        rows[len(jobs) + slot : len(jobs) + min(slot + held, slots), column] = need
    gain = np.array([slots - slot for _, slot in columns], dtype=float)
    most = np.array([1] * len(jobs) + room)
    answer = milp(
        -gain,
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, -np.inf, most),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.success
    return len(jobs) * slots - round(float(gain @ np.round(answer.x)))


def _cost(classes: list[Alike], room: list[int], starts: list[list[int]]) -> int:
    """The sum of start slots of a plan, after a check that it fits."""
    left, slots, total = np.array(room), len(room), 0
    for item, begins in zip(classes, starts, strict=True):
        assert len(begins) <= item.many
        assert begins == sorted(begins)
        for slot in begins:
            left[slot : slot + item.held] -= item.need
        total += sum(begins) + (item.many - len(begins)) * slots
    assert (left >= 0).all()
    return total


def _drawn(seed: int) -> tuple[list[Alike], list[int]]:
    draw = np.random.default_rng(seed)
    slots = int(draw.integers(1, 9))
    room = np.cumsum(draw.integers(0, 4, slots)).tolist()
    kinds = {(int(draw.integers(1, 6)), int(draw.integers(1, slots + 1))) for _ in range(draw.integers(1, 6))}
    classes = [Alike(need, held, int(draw.integers(1, 4))) for need, held in sorted(kinds)]
    draw.shuffle(classes)
    return classes, room


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_no_plan_has_a_smaller_sum(first: int) -> None:
    for seed in range(first, first + 50):
        classes, room = _drawn(seed)
        starts = best_starts(classes, room)
        assert starts is not None, seed
        assert _cost(classes, room, starts) == _by_solver(classes, room), seed


def test_a_short_job_lets_a_large_one_begin_behind_it() -> None:
    # Four devices for three slots: the two short jobs of two devices go first, then the one of four.
    assert best_starts([Alike(2, 1, 2), Alike(4, 2, 1)], [4, 4, 4]) == [[0, 0], [1]]


def test_what_never_has_room_does_not_begin() -> None:
    assert best_starts([Alike(5, 1, 1), Alike(1, 1, 1)], [4, 4]) == [[], [0]]


def test_jobs_that_hold_to_the_horizon_begin_the_smallest_first() -> None:
    assert best_starts([Alike(1, 3, 2), Alike(3, 3, 1)], [1, 2, 5]) == [[0, 1], [2]]


def test_a_search_that_does_not_end_has_no_plan() -> None:
    classes = [Alike(need, held, 2) for need in (2, 3, 5, 7) for held in (1, 2, 3)]
    assert best_starts(classes, [7, 7, 8, 9, 9, 10], nodes=1) is None
    assert best_starts(classes, [7, 7, 8, 9, 9, 10]) is not None


def test_where_fewer_are_free_later_there_is_no_plan() -> None:
    assert best_starts([Alike(1, 1, 1)], [2, 1]) is None


def test_nobody_and_no_slots() -> None:
    assert best_starts([], [1, 1]) == []
    assert best_starts([Alike(1, 1, 1)], []) == [[]]
