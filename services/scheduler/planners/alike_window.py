"""The rolling program on one type of jobs worth alike that need whole devices, free ones never becoming fewer: in whole numbers, by
`window_search`. A window with as many jobs of each class and room for the same sums of them is not searched again, and nothing is
searched where all hold their devices to the horizon."""

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
    starts = window_starts(devices[:exact], lasts[:exact], free)
    if starts is None:
        return None
    least = min(devices[exact:], default=0) if now_only else 0
    starts += place_behind(devices[exact:], lasts[exact:], free, least)
    return np.array(starts, dtype=np.int64)


def window_starts(devices: Sequence[int], lasts: Sequence[int], free: list[int]) -> list[int] | None:
    """The same for all of some jobs (at least one slot each, at most to the horizon); what they need is taken from ``free`` (S). Where
    the search did not end it stays as it was."""
    slots, starts = len(free), [-1] * len(devices)
    could = [job for job, need in enumerate(devices) if need <= free[-1]]
    if all(bisect_left(free, devices[job]) + lasts[job] >= slots for job in could):
        _smallest_first(starts, sorted(could, key=devices.__getitem__), devices, free)
    elif not _searched(starts, could, devices, lasts, free):
        return None
    return starts


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
    slots, sums = len(free), 1
    for job in sorted(could, key=lasts.__getitem__):
        # Wherever it begins it holds them to the horizon: such jobs are one class, the shorter first.
        held = lasts[job] if bisect_left(free, devices[job]) + lasts[job] < slots else slots
        classes.setdefault((devices[job], held), []).append(job)
        sums |= sums << devices[job]
    counts = tuple([(key, len(classes[key])) for key in sorted(classes)])
    # Room for what no jobs need together is room for the next smaller sum.
    begins = _begins(counts, tuple([(sums & ((2 << here) - 1)).bit_length() - 1 for here in free]))
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


def place_behind(devices: Sequence[int], lasts: Sequence[int], free: list[int], least: int = 0) -> list[int]:
    """The slots of jobs, -1 for none, each the earliest with room, which is taken from ``free``, as long as ``least`` are free in slot 0."""
    starts, most = [-1] * len(devices), max(free)
    for job, (need, held) in enumerate(zip(devices, lasts, strict=True)):
        if free[0] < least:
            break
        slot = _earliest(free, need, held) if need <= most else -1
        if slot >= 0:
            starts[job] = slot
            _take(free, need, held, slot)
            most = max(free)
    return starts


def _earliest(free: Sequence[int], need: int, held: int) -> int:
    """The first slot at which so many are free for so many slots, to the horizon at most; -1 for none."""
    slot, slots = 0, len(free)
    while slot < slots:
        end = min(slot + held, slots)
        if min(free[slot:end]) >= need:
            return slot
        slot = max([cell for cell in range(slot, end) if free[cell] < need]) + 1
    return -1
