"""The best configuration of each job over pools of several types at once, by dynamic programming: exact, no solver, no scipy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import FloatArray, IntArray, numbers, whole_numbers

_MOST_STATES = 2_000_000
_MOST_ENTRIES = 10_000_000
"""States times jobs: two bytes each."""
_MOST_STEPS = 10_000_000
"""States times configurations of all jobs: about 0.1 s."""


def is_small(value: FloatArray, free: FloatArray) -> bool:
    """Whether `exact_choice` has room and time for jobs with these values (J, C) over the free devices (T): an integer program has for
    more. Five types of eight devices are 59,049 states, three of 24, 16 and 24 are 10,625."""
    states = math.prod(int(length) + 1 for length in free)
    small = states <= _MOST_STATES and states * len(value) <= _MOST_ENTRIES
    return small and states * int(np.count_nonzero(value > 0)) <= _MOST_STEPS


def exact_choice(value: ArrayLike, kind: ArrayLike, devices: ArrayLike, free: ArrayLike) -> IntArray:
    """The choice (J) of configurations (-1: none) of greatest total value within the free devices.

    ``value`` (J, C), not positive: not offered; ``kind`` and ``devices`` (C); ``free`` (T). The state is what is used of
    each type: with 24, 16 and 24 devices 25 x 17 x 25 of them, times J configurations of one job each.

    1. Where every job's best configuration fits at once, that.
    2. For each job, over all states at once: the best of waiting and of each configuration added to the state without it.
       Configurations that another of the same type beats with no more devices are left out.
    3. Back from the best state: what each job took. Ties: waiting, then fewer devices, then the lower configuration.
    Raises `PolicyError` where there are too many states (the product of free + 1 above 2e6).
    """
    room = whole_numbers("free", np.floor(numbers("free", free, (None,), low=0.0)), (None,), low=0, high=10**6)
    column = whole_numbers("kind", kind, (None,), low=0, high=max(room.size - 1, 0))
    size = whole_numbers("devices", devices, (column.size,), low=1, high=2**30)
    worth = numbers("value", value, (None, column.size))
    shape = tuple((room + 1).tolist())
    if math.prod(shape) > _MOST_STATES:
        raise PolicyError(f"free: {math.prod(shape)} states are more than {_MOST_STATES}; take an integer program")
    jobs = len(worth)
    worth = np.where(size <= room[column], worth, 0.0)
    favourite = (
        np.where(worth.max(axis=1, initial=0.0) > 0, worth.argmax(axis=1), -1) if column.size else np.full(jobs, -1)
    )
    picked = favourite[favourite >= 0]
    if (np.bincount(column[picked], size[picked], room.size) <= room).all():
        return np.asarray(favourite, dtype=np.int64)
    best = np.zeros(shape)
    taken = np.full((jobs, *shape), -1, dtype=np.int16)
    for job in range(jobs):
        before = best
        best = before.copy()
        for place in _worthwhile(worth[job], column, size):
            axis, step = int(column[place]), int(size[place])
            target = _slice(len(shape), axis, slice(step, None))
            source = _slice(len(shape), axis, slice(None, shape[axis] - step))
            reached = before[source] + worth[job, place]
            better = reached > best[target]
            np.copyto(best[target], reached, where=better)
            np.copyto(taken[job][target], np.int16(place), where=better)
    choice = np.full(jobs, -1, dtype=np.int64)
    state = [length - 1 for length in shape]
    for job in reversed(range(jobs)):
        place = int(taken[(job, *state)])
        choice[job] = place
        if place >= 0:
            state[int(column[place])] -= int(size[place])
    return choice


def _worthwhile(worth: FloatArray, kind: IntArray, devices: IntArray) -> list[int]:
    """Configurations of positive worth that no other of their type beats with no more devices, smallest first."""
    kept: list[int] = []
    most: dict[int, float] = {}
    for place in np.lexsort((-worth, devices)).tolist():
        if worth[place] > most.get(int(kind[place]), 0.0):
            most[int(kind[place])] = float(worth[place])
            kept.append(place)
    return kept


def _slice(axes: int, axis: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if place == axis else slice(None) for place in range(axes))
