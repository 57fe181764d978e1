"""The declared ramp of the learning rate or of the batch size: where it ended, and whether it is still going on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from services.forecast.phases.curve import Array, Curve

# A ramp has ended where this share of its highest value is reached.
_REACHED = 0.99
# A value that has not risen for this many times its longest pause so far rises no more (chosen on made-up curves).
_PAUSES = 1.5
# And at least for this share of the run: rounded values stand still between two steps.
_LEAST_PATIENCE = 0.005
_RISE = 1e-6


def ramp_end(step: Array, declared: Array | None) -> float | None:
    """The first step at which ``declared`` [sample] is at 99 % of its highest value before it first falls (to less than
    99 % of it: what rises again later is a restart, no warm-up); None where it starts there."""
    if declared is None:
        return None
    # A value below 0 stands for none.
    known = np.isfinite(declared) & (declared >= 0)
    if not known.any():
        return None
    so_far = np.maximum.accumulate(np.where(known, declared, 0.0))
    fallen = np.flatnonzero(known & (declared < _REACHED * so_far))
    if len(fallen):
        known[fallen[0] :] = False
    highest = float(declared[known].max())
    reached = np.flatnonzero(known & (declared >= _REACHED * highest))
    if highest <= 0 or not np.any(known[: reached[0]]):
        return None
    return float(step[reached[0]])


def warm_up_end(curve: Curve) -> float | None:
    """The step at which the later of the ramps of learning rate and batch size ended; None without a ramp."""
    ends = [end for end in (ramp_end(curve.step, curve.lr), ramp_end(curve.step, curve.gbs)) if end is not None]
    return max(ends, default=None)


def is_told(value: float) -> bool:
    """Whether a learning rate or batch size is one: programs write -1 or NaN where there is none."""
    return math.isfinite(value) and value >= 0


class RampWatch:
    """Whether a value is still being ramped up, from its values so far.

    1. It begins with a rise by 1 % or more: of its first value nobody can say that it rises, unless it is 0. It goes on as long as
       a new highest value comes no later than half as long again as the longest pause between earlier ones, or than 0.5 % of the run
       (of the steps so far where its length is not known).
    2. It has ended once it falls below its highest value, or once the pause is over.
    3. A later rise of 1 % or more starts it again (stages of a batch ramp), unless it has fallen by 1 % before: that is a restart.
    """

    def __init__(self, total_steps: float | None) -> None:
        self._total = total_steps
        self._highest = -math.inf
        self._begun = math.nan
        self._risen_at = math.nan
        self._pause = 0.0
        self._samples_since = 0
        self._fallen = False
        self.rising = False
        self.has_risen = False

    def set_total_steps(self, total_steps: float | None) -> None:
        """The length of the run became known."""
        self._total = total_steps

    def state(self) -> dict[str, Any]:
        """What `restore` takes, fit for JSON."""
        begun = math.isfinite(self._highest)
        return {
            "highest": self._highest if begun else None,
            "begun": self._begun if begun else None,
            "risen_at": self._risen_at if begun else None,
            "pause": self._pause,
            "samples_since": self._samples_since,
            "rising": self.rising,
            "has_risen": self.has_risen,
            "fallen": self._fallen,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a kept state."""
        begun = kept["highest"] is not None
        self._highest = kept["highest"] if begun else -math.inf
        self._begun = kept["begun"] if begun else math.nan
        self._risen_at = kept["risen_at"] if begun else math.nan
        self._pause, self._samples_since = kept["pause"], kept["samples_since"]
        self.rising, self.has_risen = kept["rising"], kept["has_risen"]
        # States kept before restarts were told from stages have none.
        self._fallen = kept.get("fallen", False)

    def observe(self, step: float, value: float) -> bool:
        """Take the value at ``step`` and return whether the ramp goes on; a value that is not finite or below 0 changes nothing."""
        if not is_told(value):
            return self.rising
        if self._highest == -math.inf:
            self._highest, self._begun, self._risen_at, self.rising = value, step, step, value == 0
            return self.rising
        self._samples_since += 1
        self._fallen = self._fallen or value < _REACHED * self._highest
        if self._fallen:
            self.rising = False
        elif value > self._highest * (1 + _RISE) and (self.rising or value >= 1.01 * self._highest):
            if self._samples_since > 1:
                self._pause = max(self._pause, step - self._risen_at)
            self._highest, self._risen_at, self._samples_since, self.rising = value, step, 0, True
            self.has_risen = True
        elif value < self._highest * (1 - _RISE):
            self.rising = False
        elif self.rising and self._highest > 0:
            patience = max(_PAUSES * self._pause, _LEAST_PATIENCE * (self._total or step - self._begun))
            self.rising = step - self._risen_at <= patience
        return self.rising
