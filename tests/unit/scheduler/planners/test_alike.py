"""Jobs that are worth alike, each of one size on one type: cases computed by hand, and what the solver chooses."""

import itertools
from typing import Any

import numpy as np
import pytest

from services.scheduler.planners import mixed_integer, sia
from services.scheduler.planners.alike import smallest_first
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.planners.sia import Configurations, alike_jobs, sia_allocation


def served(sizes: list[int], room: float) -> list[int]:
    return np.flatnonzero(smallest_first(np.array(sizes, dtype=np.int64), room)).tolist()


def test_the_smallest_first_and_the_latest_of_equal_ones() -> None:
    assert served([4, 1, 2, 2, 8], 6.0) == [1, 2, 3]
    assert served([1, 1, 1, 1], 2.0) == [2, 3]
    assert served([2, 2, 1], 9.0) == [0, 1, 2]
    assert served([2, 5, 5, 5, 5], 14.0) == [0, 3, 4]
    assert served([3, 3], 2.0) == []
    assert served([], 2.0) == []


@pytest.mark.parametrize("seed", range(40))
def test_no_other_choice_has_more_jobs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, int(draw.integers(1, 10)))
    room = float(draw.integers(0, sizes.sum() + 2))
    taken = smallest_first(sizes, room)
    assert sizes[taken].sum() <= room
    choices = itertools.product([False, True], repeat=sizes.size)
    assert np.count_nonzero(taken) == max(sum(choice) for choice in choices if sizes[list(choice)].sum() <= room)


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
def test_the_solver_with_all_its_heuristics_serves_no_more(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, free = draw(100 + seed)
    taken = alike_jobs(0.1, sizes, free)
    sia._solved.cache_clear()
    monkeypatch.setattr(sia, "_FEWEST", 10**6)
    assert np.count_nonzero(taken) == np.count_nonzero(alike_jobs(0.1, sizes, free, limits=Limits(gap=0.0)))


def test_nobody_runs_who_is_worth_nothing() -> None:
    assert alike_jobs(0.0, np.array([1, 1]), 4.0).tolist() == [False, False]
    assert alike_jobs(0.1, np.zeros(0, dtype=np.int64), 4.0).tolist() == []


def test_of_few_jobs_or_one_alone_the_solver_chooses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sia._solved.cache_clear()
    asked: list[Limits] = []

    def minimise(*given: Any) -> mixed_integer.Solution:
        asked.append(given[-1])
        return mixed_integer.minimise(*given)

    monkeypatch.setattr(sia, "minimise", minimise)
    assert np.count_nonzero(alike_jobs(0.1, np.array([2, 1, 2]), 3.0)) == 2
    assert np.count_nonzero(alike_jobs(0.1, np.array([2, 2, 2, 3]), 3.0)) == 1
    assert len(asked) == 2
    alike_jobs(0.1, np.array([2, 1, 2]), 3.0)
    assert len(asked) == 2
    alike_jobs(0.1, np.array([2, 1, 2, 1, 1, 2, 1]), 5.0)
    assert len(asked) == 2, "these are sorted"
    alike_jobs(0.1, np.array([2, 1, 2]), 3.0, limits=Limits(time_s=100.0))
    assert len(asked) == 3, "with a limit of time it may be another plan"
