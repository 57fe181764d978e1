"""Programs of `shares_program` where all accelerators are of one type: shares x (J) in [0, 1], sum scale x <= capacity.

They are solved by sorting, in O(J log J), with the same value as the linear program. Where several x are equally good the program's
solver (HiGHS, dual simplex) ends in one of them; `greatest_sum` takes the same, but for corners such as a capacity that one job
fills exactly. With floors under the shares it would not always, so those stay with the solver.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.planners.checks import FloatArray


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
