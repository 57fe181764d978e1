"""The best configuration of each job over pools of several types at once, by dynamic programming: exact, no solver, no scipy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import IntArray, numbers, whole_numbers

_MOST_STATES = 2_000_000


def exact_choice(value: ArrayLike, kind: ArrayLike, devices: ArrayLike, free: ArrayLike) -> IntArray:
    """The choice (J) of configurations (-1: none) of greatest total value within the free devices.

    ``value`` (J, C), not positive: not offered; ``kind`` and ``devices`` (C); ``free`` (T). The state is what is used of
    each type: with 24, 16 and 24 devices 25 x 17 x 25 of them, times J configurations of one job each.

    1. For each job, over all states at once: the best of waiting and of each configuration added to the state without it.
    2. Back from the best state: what each job took. Ties: waiting, then the lower configuration.
    Raises `PolicyError` where there are too many states (J x product of free + 1 above 2e6 x 64).
    """
    room = whole_numbers("free", np.floor(numbers("free", free, (None,), low=0.0)), (None,), low=0, high=10**6)
    column = whole_numbers("kind", kind, (None,), low=0, high=max(room.size - 1, 0))
    size = whole_numbers("devices", devices, (column.size,), low=1, high=2**30)
    worth = numbers("value", value, (None, column.size))
    shape = tuple((room + 1).tolist())
    if math.prod(shape) > _MOST_STATES:
        raise PolicyError(f"free: {math.prod(shape)} states are more than {_MOST_STATES}; take an integer program")
    jobs = len(worth)
    best = np.zeros(shape)
    taken = np.full((jobs, *shape), -1, dtype=np.int16)
    for job in range(jobs):
        before = best
        best = before.copy()
        for place in np.flatnonzero((worth[job] > 0) & (size <= room[column])).tolist():
            axis, step = int(column[place]), int(size[place])
            target = _slice(len(shape), axis, slice(step, None))
            source = _slice(len(shape), axis, slice(None, shape[axis] - step))
            reached = before[source] + worth[job, place]
            better = reached > best[target]
            best[target] = np.where(better, reached, best[target])
            taken[job][target][better] = place
    choice = np.full(jobs, -1, dtype=np.int64)
    state = [length - 1 for length in shape]
    for job in reversed(range(jobs)):
        place = int(taken[(job, *state)])
        choice[job] = place
        if place >= 0:
            state[int(column[place])] -= int(size[place])
    return choice


def _slice(axes: int, axis: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if place == axis else slice(None) for place in range(axes))
