"""The rolling program on one type of jobs worth alike that need whole devices, free ones never becoming fewer: in whole numbers, by
`window_search`. A window with as many jobs of each class and the same room is not searched again, and nothing is searched where all
hold their devices to the horizon."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from services.scheduler.planners.checks import FloatArray, IntArray
from services.scheduler.planners.window_search import Alike, best_starts


def alike_starts(
    length: FloatArray,
    need: FloatArray,
    worth: FloatArray,
    room: FloatArray,
    step: float,
    exact: int,
    *,
    now_only: bool,
) -> IntArray | None:
    """The slots (J) of `milp.rolling_plan`, -1 for none, where the first ``exact`` jobs begin at the least cost; of a class, or of as
    many devices where all last to the horizon, the first of the queue begins first. None where there are several types, parts of devices,
    unlike weights, or fewer free devices later, or where the search did not end."""
    if len(room) != 1 or not need.size or (np.diff(room[0]) < 0).any():
        return None
    if (np.rint(need) != need).any() or (worth[:exact] != worth[0]).any() or worth[0] <= 0:
        return None
    slots = room.shape[1]
    runs = np.isfinite(length[:, 0])
    held = np.clip(np.ceil(np.where(runs, length[:, 0], 0.0) / step - 1e-9), 1.0, slots)
    # Who does not run has room nowhere.
    devices = np.where(runs, need, room[0, -1] + 1.0).astype(np.int64).tolist()
    lasts = held.astype(np.int64).tolist()
    free = np.floor(room[0] + 1e-9).astype(np.int64).tolist()
    starts = [-1] * need.size
    could = [job for job in range(exact) if devices[job] <= free[-1]]
    if all(bisect_left(free, devices[job]) + lasts[job] >= slots for job in could):
        _smallest_first(starts, sorted(could, key=devices.__getitem__), devices, free)
    elif not _searched(starts, could, devices, lasts, free):
        return None
    _place_behind(starts, devices, lasts, free, exact, now_only=now_only)
    return np.array(starts, dtype=np.int64)


def _smallest_first(starts: list[int], order: Sequence[int], devices: Sequence[int], free: list[int]) -> None:
    """Nobody gives anything back: at most as many have begun by a slot as fit into what is free there, and the smallest are most."""
    begins = [bisect_left(free, taken) for taken in accumulate([devices[job] for job in order])]
    for job, slot in zip(order, begins, strict=True):
        if slot < len(free):
            starts[job] = slot
            _take(free, devices[job], len(free), slot)


def _searched(
    starts: list[int], could: Sequence[int], devices: Sequence[int], lasts: Sequence[int], free: list[int]
) -> bool:
    """Whether the search ended; then those of ``could`` that begin have their ``starts``, and what they need is taken from ``free``."""
    classes: dict[tuple[int, int], list[int]] = {}
    for job in could:
        classes.setdefault((devices[job], lasts[job]), []).append(job)
    counts = tuple([(key, len(classes[key])) for key in sorted(classes)])
    most = sum(key[0] * many for key, many in counts)
    begins = _begins(counts, tuple([min(here, most) for here in free]))
    if begins is None:
        return False
    for (key, _), of_class in zip(counts, begins, strict=True):
        for job, slot in zip(classes[key], of_class, strict=False):
            starts[job] = slot
            _take(free, *key, slot)
    return True


@lru_cache(maxsize=4096)
def _begins(counts: tuple[tuple[tuple[int, int], int], ...], room: tuple[int, ...]) -> list[list[int]] | None:
    return best_starts([Alike(need, held, many) for (need, held), many in counts], room)


def _take(free: list[int], need: int, held: int, slot: int) -> None:
    for cell in range(slot, min(slot + held, len(free))):
        free[cell] -= need


def _place_behind(
    starts: list[int], devices: Sequence[int], lasts: Sequence[int], free: list[int], first: int, *, now_only: bool
) -> None:
    """The jobs from the ``first`` on, each at the earliest slot with room; ``now_only``: as long as one could begin in slot 0."""
    behind = list(accumulate(reversed(devices[first:]), min))[::-1]
    for job, least in enumerate(behind, first):
        if now_only and least > free[0]:
            return
        slot = _earliest(free, devices[job], lasts[job])
        if slot >= 0:
            starts[job] = slot
            _take(free, devices[job], lasts[job], slot)


def _earliest(free: Sequence[int], need: int, held: int) -> int:
    """The first slot at which so many are free for so many slots, to the horizon at most; -1 for none."""
    slot, slots = 0, len(free)
    while slot < slots:
        short = next((cell for cell in range(min(slot + held, slots) - 1, slot - 1, -1) if free[cell] < need), -1)
        if short < 0:
            return slot
        slot = short + 1
    return -1
