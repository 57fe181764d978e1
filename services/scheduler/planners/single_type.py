"""Programs of `shares_program` where all accelerators are of one type: shares x (J) in [0, 1], sum scale x <= capacity.

They are solved by sorting, in O(J log J), with the same value as the linear program. Where several x are equally good the program's
solver (HiGHS 1.12) ends in one of them: jobs of equal worth per device are served from the last to the first, but from the first to the
last where what is left is less than one of them would take. `greatest_sum` takes the same, but for corners such as a capacity that
one job fills exactly; `greatest_sum_above` leaves those to the solver.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.planners.checks import FloatArray

_CORNER = 1e-4
"""Part of an amount by which another must differ from it to be surely less or more, whatever the solver's tolerances."""


def greatest_sum(worth: FloatArray, scale: FloatArray, capacity: float) -> FloatArray:
    """x (J) of the greatest sum of ``worth`` (J) x: by worth per device, the last job first among equals.

    The first job among the best comes first instead if ``capacity`` is not enough for one of them.
    """
    each = worth / scale
    places = np.arange(each.size)
    order = np.lexsort((-places, -each))
    if capacity < scale[order[0]]:
        order = np.lexsort((places, -each))
    need = scale[order]
    before = np.concatenate([[0.0], np.cumsum(need)[:-1]])
    shares = np.zeros(each.size)
    shares[order] = np.clip((capacity - before) / need, 0.0, 1.0)
    return shares


def greatest_least(gain: FloatArray, scale: FloatArray, capacity: float) -> float:
    """The greatest least ``gain`` (J) x: each job needs the share least / gain, which is at most 1, and all have to fit."""
    return min(float(gain.min()), capacity / float((scale / gain).sum()))


def greatest_sum_above(worth: FloatArray, scale: FloatArray, capacity: float, floor: FloatArray) -> FloatArray | None:
    """x (J) of the greatest sum of ``worth`` (J) x, with x at least ``floor`` (J; below 1, and all of them fit); None in a corner.

    1. What the floors leave goes to the jobs by worth per device until it is used up: the one at which it ends gets a part.
    2. Those of equal worth per device as that one: see the module. It is a corner where some of them would take more than what
       the floors leave and some less, or as much.
    """
    left = capacity - float((scale * floor).sum())
    each, need = worth / scale, scale * (1.0 - floor)
    places = np.arange(each.size)
    order = np.lexsort((-places, -each))
    before = np.cumsum(need[order])
    end = int(before.searchsorted(left))
    if end < each.size:
        alike = np.flatnonzero(each == each[order[end]])
        most, least = float(need[alike].max()), float(need[alike].min())
        if least > left * (1.0 + _CORNER):
            first = int((each > each[order[end]]).sum())
            order[first : first + alike.size] = alike
            before = np.cumsum(need[order])
        elif most >= left * (1.0 - _CORNER):
            return None
    shares = floor.copy()
    taken = need[order]
    part = np.clip((left - (before - taken)) / np.where(taken > 0.0, taken, 1.0), 0.0, 1.0)
    shares[order] = np.where(part >= 1.0, 1.0, floor[order] + part * (1.0 - floor[order]))
    return shares
