"""As many jobs as there is room for: of jobs that are worth alike, each with one size on one type of device.

Sia's program is that where no job has a choice. No other choice has more jobs than the smallest first: whoever runs instead of one of them
is as large at least. Others may have as many.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.planners.checks import BoolArray, IntArray


def smallest_first(devices: IntArray, room: float) -> BoolArray:
    """Which of jobs (J) of so many ``devices`` each have theirs from ``room`` devices: the smallest first, the latest of equal ones."""
    order = np.lexsort((-np.arange(devices.size), devices))
    taken = np.zeros(devices.size, dtype=np.bool_)
    taken[order[: int(devices[order].cumsum().searchsorted(room, side="right"))]] = True
    return taken
