"""Where the phases of a run were, judged with the whole curve at hand.

The rule, its constants chosen on one family (modded-nanogpt) and fixed before any other was looked at:
1. Warm-up lasts until the later of the declared ramps of learning rate and batch size has reached 99 % of its highest
   value. Without a declared ramp there is none.
2. The pace is -d(loss)/d(ln(step + 1)), the least-squares slope over a centred window of +-0.3 in ln(step + 1) with at
   least 10 samples (``HALF_WINDOW``, ``LEAST_SAMPLES``).
3. Stable begins where the pace, after its highest value after the warm-up, stays below 10 % of that value for at least
   2 % of the run (``SHARE_OF_PEAK``, ``HOLD``), and lasts to the end. A run that never does so has no stable phase.
Between them the run is fast. What cannot be judged is refused with a reason, not guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from services.forecast.phases.curve import Array, Curve, Phase, moving_slopes
from services.forecast.phases.ramps import warm_up_end

HALF_WINDOW = 0.3
LEAST_SAMPLES = 10
SHARE_OF_PEAK = 0.10
HOLD = 0.02
# A run with fewer usable samples is not judged.
LEAST_CURVE = 30
# Nor one with a hole longer than this share of it.
_LONGEST_GAP = 0.10


class UnknownPhasesError(ValueError):
    """The curve does not say where its phases are; the message says why."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Steps at which the phases of a run end and begin; ``stable_from`` is infinite where it never is stable."""

    warm_up_until: float
    stable_from: float

    def phase_at(self, step: Array) -> Array:
        """The phase (number of ``Phase``) at each step."""
        fast = np.where(step < self.warm_up_until, float(Phase.WARM_UP), float(Phase.FAST))
        return np.where(step >= self.stable_from, float(Phase.STABLE), fast)


def boundaries(curve: Curve, share_of_peak: float = SHARE_OF_PEAK) -> Boundaries:
    """The phases of ``curve`` by the rule of the module; UnknownPhasesError where it cannot be applied."""
    step, loss = curve.step, curve.loss
    if len(step) < LEAST_CURVE:
        raise UnknownPhasesError(f"{len(step)} usable samples, at least {LEAST_CURVE} are needed")
    widest = int(np.argmax(np.diff(step)))
    if step[widest + 1] - step[widest] > _LONGEST_GAP * curve.length:
        raise UnknownPhasesError(
            f"nothing between steps {step[widest]:g} and {step[widest + 1]:g}, more than 10 % of the run"
        )
    until = warm_up_end(curve) or 0.0
    after = step >= until
    if after.sum() < LEAST_CURVE:
        raise UnknownPhasesError(f"{int(after.sum())} usable samples after the warm-up, {LEAST_CURVE} are needed")
    if not _falls(loss[after]):
        raise UnknownPhasesError("the loss does not fall by more than its noise after the warm-up")
    pace = moving_slopes(step, loss, HALF_WINDOW, HALF_WINDOW, LEAST_SAMPLES)
    usable = after & np.isfinite(pace)
    if not usable.any() or float(pace[usable].max()) <= 0:
        raise UnknownPhasesError("the samples are too sparse for a slope after the warm-up")
    peak = int(np.argmax(np.where(usable, pace, -np.inf)))
    below = pace < share_of_peak * pace[peak]
    below[: peak + 1] = False
    return Boundaries(until, _first_stretch(step, below, HOLD * curve.length))


def _first_stretch(step: Array, below: Array, least: float) -> float:
    """Where the first unbroken stretch of ``below`` that covers ``least`` steps begins; infinite without one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], below.astype(np.int8), [0]])))
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        if step[end - 1] - step[first] >= least:
            return float(step[first])
    return math.inf


def _falls(loss: Array) -> bool:
    """Whether the medians of the first and the last tenth differ by more than three standard errors of their noise."""
    tenth = max(3, len(loss) // 10)
    fall = float(np.median(loss[:tenth]) - np.median(loss[-tenth:]))
    jumps = np.diff(loss)
    noise = 1.4826 * float(np.median(np.abs(jumps - np.median(jumps)))) / math.sqrt(2)
    return fall > 3 * 1.2533 * noise * math.sqrt(2 / tenth) and fall > 0
