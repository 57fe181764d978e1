"""The order "starvation": units that waited longer than a threshold come first, the oldest first.

Put it first in the order, with a discipline under which nothing that would delay the first waiting unit may pass it (strict,
easy, conservative). Then a unit that asks for no more than the cluster has starts within `start_bound_s`, whatever arrives
after it and however it is ranked otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.selection.settings import number_of
from services.scheduler.core.waiting_unit import INFINITE, OrderContext, PendingUnit

DAY_S = 86400.0


class StarvationOrder:
    """See the module. ``after_s`` is the age from which a unit is protected."""

    name = "starvation"
    per = "time"

    def __init__(self, after_s: float = DAY_S) -> None:
        self._after_s = after_s

    def configured(self, options: Mapping[str, Any]) -> StarvationOrder:
        """With ``after_s`` (seconds, above 0)."""
        refuse_unknown(self.name, options, ("after_s",))
        return StarvationOrder(number_of("options.starvation.after_s", options.get("after_s", DAY_S), above=0.0))

    def requires(self, policy: Policy) -> None:
        """PolicyError when it would protect nothing."""
        if policy.planner:
            raise PolicyError(f"order: starvation protects nobody beside a planner: {policy.planner} reads no order")
        if policy.order[:1] != (self.name,):
            raise PolicyError(
                "order: starvation must come first, else what stands before it passes the protected units"
            )
        if policy.discipline == "greedy":
            raise PolicyError(
                "discipline: starvation needs strict, easy or conservative; under greedy all pass that fit"
            )
        if policy.discipline == "easy" and policy.reservation_depth < 1:
            raise PolicyError("reservation_depth: starvation needs at least 1 under easy")

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.queued_at_s if context.now_s - unit.queued_at_s >= self._after_s else INFINITE

    def keys(self, units: Sequence[PendingUnit], context: OrderContext) -> npt.NDArray[np.float64]:
        """The keys (U,) of many units."""
        queued = np.array([unit.queued_at_s for unit in units])
        return np.where(context.now_s - queued >= self._after_s, queued, INFINITE)


def start_bound_s(older: int, after_s: float, max_duration_s: float, interval_s: float = 0.0) -> float:
    """The longest that a unit can wait, in seconds from queueing: X + (older + 1) x D + ``interval_s``.

    ``older``: units that waited already when it was queued. No unit runs longer than D = ``max_duration_s``, nor is any
    estimated longer; the cluster, when empty, has room for the unit; a cycle follows every end of a run within
    ``interval_s``.

    After X the unit and all older ones are protected and stand in order of age. The first of them has a reservation no
    later than the last expected end of what runs, which is at most D away; nothing that starts behind it delays it. So
    within each D at least the first starts. (With strict or conservative and units that fit side by side, the bound of
    multifactor.py is tighter.) InvalidArgumentError when an argument is negative or infinite.
    """
    for name, value in (("older", older), ("after_s", after_s), ("max_duration_s", max_duration_s)):
        if not 0 <= value < math.inf:
            raise InvalidArgumentError(f"{name} must be at least 0 and finite, not {value!r}")
    return after_s + (older + 1) * (max_duration_s + interval_s)
