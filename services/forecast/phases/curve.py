"""The loss curve of a run, and what of it cannot be used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Phase(IntEnum):
    """Where a training run stands, in the order in which the phases come."""

    WARM_UP = 0
    """The declared ramp of learning rate or batch size."""
    FAST = 1
    """Much is learned per step."""
    STABLE = 2
    """The loss falls at less than a tenth of its best pace."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's usable samples: ``step`` [sample] strictly increasing, ``loss`` [sample] finite.

    ``lr`` and ``gbs`` [sample] (NaN where not logged) are None where the file has no such column or no value in it;
    ``total_steps`` is the declared length, which is known from step ``declared_at`` on.
    """

    run: str
    family: str
    step: Array
    loss: Array
    lr: Array | None = None
    gbs: Array | None = None
    total_steps: float | None = None
    declared_at: float = -math.inf

    @property
    def length(self) -> float:
        """Steps of the whole run: as declared, else the last one seen."""
        last = float(self.step[-1])
        return last if self.total_steps is None else max(last, self.total_steps)

    @property
    def recorded(self) -> float:
        """Steps of the run as far as it was recorded: its length, unless the next sample is missing."""
        return min(self.length, float(self.step[-1] + np.diff(self.step).max(initial=0.0)))


def moving_slopes(step: Array, loss: Array, back: float, ahead: float, least: int) -> Array:
    """-d(loss)/d(ln(step + 1)) [sample]: least squares over [ln - back, ln + ahead] around each sample.

    ``step`` is increasing from 0 or more. NaN where the window holds fewer than ``least`` samples.
    """
    x = np.log(step + 1.0)
    first = np.searchsorted(x, x - back, "left")
    end = np.searchsorted(x, x + ahead, "right")
    centred = x - x.mean()
    level = loss - loss.mean()

    def within(amounts: Array) -> Array:
        total = np.concatenate([[0.0], np.cumsum(amounts)])
        difference: Array = total[end] - total[first]
        return difference

    count = (end - first).astype(np.float64)
    sx, sy = within(centred), within(level)
    spread = count * within(centred * centred) - sx * sx
    usable = (count >= max(2, least)) & (spread > 0)
    top = count * within(centred * level) - sx * sy
    return np.where(usable, -top / np.where(usable, spread, 1.0), np.nan)
