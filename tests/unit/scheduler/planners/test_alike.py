"""Jobs that are worth alike, each of one size on one type: cases computed by hand, and what the solver chooses."""

from typing import Any

import numpy as np
import pytest

from services.scheduler.planners import mixed_integer, sia
from services.scheduler.planners.alike import smallest_first
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.planners.sia import Configurations, alike_jobs, sia_allocation


def served(sizes: list[int], room: float) -> tuple[list[int], bool, int]:
    found = smallest_first(np.array(sizes), room)
    return np.flatnonzero(found.taken).tolist(), found.only, found.lacking


def test_the_smallest_first_and_the_latest_of_equal_ones() -> None:
    assert served([4, 1, 2, 2, 8], 6.0) == ([1, 2, 3], True, 1), "1 is left: a 4 instead of a 2 needs 2"
    assert served([1, 1, 1, 1], 2.0) == ([2, 3], True, 2)
    assert served([2, 2, 1], 9.0) == ([0, 1, 2], True, 0)
    assert served([3, 3], 2.0) == ([], True, 2)
    assert served([], 2.0) == ([], True, 0)


def test_other_sizes_may_be_as_many() -> None:
    assert served([4, 1, 2, 2, 8], 7.0) == ([1, 2, 3], False, 1), "2 are left"
    assert served([1, 1, 1, 2], 4.0) == ([0, 1, 2], False, 1), "a 2 instead of a 1"
    assert served([4, 5, 4], 5.0) == ([2], False, 1), "a 5 instead of a 4"
    assert served([2, 5, 5, 5, 5], 14.0) == ([0, 3, 4], True, 2), "2 are left, a 5 instead of the 2 needs 3"


def draw(seed: int) -> tuple[np.ndarray, float]:
    source = np.random.default_rng(seed)
    if seed % 2:
        sizes = source.choice([1, 2, 4, 8, 16], int(source.integers(4, 120)), p=[0.4, 0.05, 0.15, 0.25, 0.15])
    else:
        sizes = source.choice([1, 2, 3, 5, 6, 8], int(source.integers(1, 60)))
    return sizes, float(source.integers(1, sizes.sum() + 2))


def by_tables(sizes: np.ndarray, free: float) -> list[bool]:
    kinds, column = np.unique(sizes, return_inverse=True)
    offered = Configurations(np.zeros_like(kinds), np.ones_like(kinds), kinds)
    goodput = np.where(column[:, None] == np.arange(kinds.size), kinds.astype(float), 0.0)
    choice = sia_allocation(goodput, offered, [free]).choice
    return [picked >= 0 for picked in choice.tolist()]


@pytest.mark.parametrize("seed", range(60))
def test_without_tables_it_is_the_same_choice(seed: int) -> None:
    sizes, free = draw(seed)
    taken = alike_jobs(1.1 - 1.0, sizes, free)
    assert sizes[taken].sum() <= free
    assert taken.tolist() == by_tables(sizes, free)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_choice_of_the_solver_with_all_its_heuristics(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, free = draw(100 + seed)
    taken = alike_jobs(0.1, sizes, free)
    sia._numbers.cache_clear()
    monkeypatch.setattr(sia, "_within", lambda limits, lacking: limits)
    monkeypatch.setattr(sia, "_FEWEST", 10**6)
    assert taken.tolist() == alike_jobs(0.1, sizes, free).tolist()


def test_nobody_runs_who_is_worth_nothing() -> None:
    assert alike_jobs(0.0, np.array([1, 1]), 4.0).tolist() == [False, False]
    assert alike_jobs(0.1, np.zeros(0, dtype=np.int64), 4.0).tolist() == []


def test_as_many_of_each_size_in_the_same_order_of_sizes_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    sia._numbers.cache_clear()
    asked: list[Limits] = []

    def minimise(*given: Any) -> mixed_integer.Solution:
        asked.append(given[-1])
        return mixed_integer.minimise(*given)

    monkeypatch.setattr(sia, "minimise", minimise)
    first = alike_jobs(0.1, np.array([2, 1, 2, 1, 1, 2, 1]), 5.0)
    assert np.flatnonzero(first).tolist() == [1, 3, 4, 6]
    assert alike_jobs(0.1, np.array([2, 1, 1, 2, 1, 2, 1]), 5.0).tolist() == [0, 1, 1, 0, 1, 0, 1]
    assert len(asked) == 1
    alike_jobs(0.1, np.array([1, 2, 1, 1, 2, 2, 1]), 5.0)
    assert len(asked) == 2, "a 1 comes first"
    alike_jobs(0.1, np.array([2, 1, 2, 1, 1, 2, 1]), 5.0, limits=Limits(time_s=100.0))
    assert len(asked) == 3, "with a limit of time it may be another plan"
