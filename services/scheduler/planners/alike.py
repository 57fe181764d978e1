"""As many jobs as there is room for: of jobs that are worth alike, each with one size on one type of device.

Sia's program is that where no job has a choice. The smallest first are as many as can be; whether other sizes are as many is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.scheduler.planners.checks import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Served:
    """``taken`` (J): has its devices, the smallest first and the latest of equal ones. ``only``: in no other sizes there are as
    many. ``lacking``: how many do not have theirs of the smallest size of which not all have."""

    taken: BoolArray
    only: bool
    lacking: int


def smallest_first(devices: IntArray, room: float) -> Served:
    """Serve jobs (J) of so many ``devices`` each from ``room`` devices, the smallest first. Two of different size are exchanged
    without loss if the larger one fits as well: then the sizes are not the only choice."""
    sizes, counts = np.unique(devices, return_counts=True)
    left, before, taken = room, 0, 0
    kinds = sizes.tolist()
    for place, (size, many) in enumerate(zip(kinds, counts.tolist(), strict=True)):
        taken = min(many, int(left // size))
        left -= taken * size
        if taken < many:
            following = kinds[place + 1] if place + 1 < len(kinds) else 0
            other = bool(before and size - before <= left) or bool(taken and following and following - size <= left)
            chosen: BoolArray = devices < size
            if taken:
                chosen[np.flatnonzero(devices == size)[many - taken :]] = True
            return Served(chosen, not other, many - taken)
        before = size
    return Served(np.ones(devices.size, dtype=np.bool_), True, 0)
