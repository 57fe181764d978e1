"""Phases told while a run goes on, from what was seen until then.

At each sample (step, loss, and where known the learning rate and the global batch size):
1. Warm-up, with a schedule: as long as the learning rate or the batch size is still being ramped up (``ramps``), or until
   the declared ``warm_up_steps``. From telemetry alone: until the pace has fallen to ``PASSED`` of its highest value.
2. The pace is the slope of the loss over ln(step + 1) within the last 0.6 of it: the window of ``truth``, which looks as
   far ahead as back, seen when it is complete. It is therefore that of the step exp(-0.3) = 74 % of the way.
3. Stable (``onset``) once that pace has stayed below 10 % of its highest value after the warm-up for 2 % of the run as seen
   through the window (2.7 %; a run whose length is not known is taken to be twice as long as it was so far), or, until that
   is seen, as long as the newer half of the window lies below by more than its noise. The first is taken back only where a
   new highest pace shows that the peak had not come yet, or a run of unknown length outgrows it, the second where the newer half rises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.forecast.phases.curve import Phase
from services.forecast.phases.onset import StableWatch
from services.forecast.phases.ramps import RampWatch
from services.forecast.phases.truth import HALF_WINDOW, HOLD, LEAST_SAMPLES, SHARE_OF_PEAK
from services.forecast.phases.window import Slope, SlopeWindow

_WINDOW = 2 * HALF_WINDOW
# A run whose length is not known is taken to be this many times as long as it was so far.
_LENGTHS_SO_FAR = 2.0
_SEEN_AT = math.exp(HALF_WINDOW)
# Share of the highest pace at which a warm-up that nothing declares is taken to be over.
PASSED = 0.8
# Squares of larger losses could no longer be summed.
LARGEST_LOSS = 1e100
# Standard errors, and samples, by which a slope stands out of its noise: of 60 runs of 1,500 steps of noise alone 27 once
# pass 3 standard errors with 10 samples, none these.
_STANDS_OUT = 5.0
_STANDING_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is declared of a run before it starts; None where it is not."""

    total_steps: float | None = None
    warm_up_steps: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The event: from ``step`` on the run is in ``phase``."""

    step: float
    before: Phase | None
    phase: Phase


class PhaseDetector:
    """The phase of one run, sample by sample; its state is small and can be kept (`state`, `restore`).

    ``schedule_known`` says whether learning rate, batch size and total steps may be used (the schedule-aware track);
    without it only step and loss are read.
    """

    def __init__(
        self, schedule: Schedule | None = None, *, schedule_known: bool = True, share_of_peak: float = SHARE_OF_PEAK
    ) -> None:
        self._known = schedule_known
        self._schedule = (schedule or Schedule()) if schedule_known else Schedule()
        self._ramps = (RampWatch(self._schedule.total_steps), RampWatch(self._schedule.total_steps))
        self._window = SlopeWindow(_WINDOW)
        self._onset = StableWatch(share_of_peak, HOLD * _SEEN_AT)
        self._last = -math.inf
        self._fast_from = 0.0
        self.phase: Phase | None = None
        self.ignored = 0
        self.slope: Slope | None = None
        """Of the newest sample; None with too few samples in the window."""
        self.highest_fall = 0.0
        """Of all slopes that stood out of their noise (five standard errors, 30 samples); 0 until there was one."""

    @property
    def ramp_was_seen(self) -> bool:
        """Whether the learning rate or the batch size has risen at least once, or a warm-up is declared."""
        return self._schedule.warm_up_steps is not None or any(watch.has_risen for watch in self._ramps)

    def set_total_steps(self, total_steps: float | None) -> None:
        """The length of the run became known, or another one was declared."""
        if self._known and total_steps != self._schedule.total_steps:
            self._schedule = replace(self._schedule, total_steps=total_steps)
            for watch in self._ramps:
                watch.set_total_steps(total_steps)

    def observe(self, step: float, loss: float, lr: float = math.nan, gbs: float = math.nan) -> PhaseChanged | None:
        """Take one sample; the event where it changes the phase.

        A sample that is not finite (or beyond `LARGEST_LOSS`), whose step is negative or not after the last one is counted in ``ignored``.
        """
        if not (math.isfinite(step) and abs(loss) <= LARGEST_LOSS) or step < 0 or step <= self._last:
            self.ignored += 1
            return None
        self._last = step
        self._window.add(math.log(step + 1.0), loss)
        self.slope = self._window.slope(LEAST_SAMPLES)
        slope = self.slope
        if slope is not None and slope.samples >= _STANDING_SAMPLES and slope.fall > _STANDS_OUT * slope.error:
            self.highest_fall = max(self.highest_fall, slope.fall)
        now = self._judge(step, self.slope, lr, gbs)
        if now == self.phase:
            return None
        event = PhaseChanged(step, self.phase, now)
        self.phase = now
        return event

    def state(self) -> dict[str, Any]:
        """What `restore` takes, fit for JSON."""
        return {
            "window": self._window.state(),
            "ramps": [watch.state() for watch in self._ramps],
            "last": _finite(self._last),
            "fast_from": _finite(self._fast_from),
            "onset": self._onset.state(),
            "phase": None if self.phase is None else int(self.phase),
            "ignored": self.ignored,
            "highest_fall": self.highest_fall,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a state of a detector with the same schedule: what it tells is what that one would have told."""
        self._window.restore(kept["window"]["origin"], kept["window"]["cells"])
        for watch, state in zip(self._ramps, kept["ramps"], strict=True):
            watch.restore(state)
        self._last = -math.inf if kept["last"] is None else kept["last"]
        self._onset.restore(kept["onset"] if "onset" in kept else _older(kept))
        self._fast_from = math.inf if kept["fast_from"] is None else kept["fast_from"]
        self.phase = None if kept["phase"] is None else Phase(kept["phase"])
        self.ignored, self.highest_fall = kept["ignored"], kept["highest_fall"]
        self.slope = self._window.slope(LEAST_SAMPLES)

    def _judge(self, step: float, slope: Slope | None, lr: float, gbs: float) -> Phase:
        if self._warming_up(step, slope, lr, gbs) and not self._onset.sure:
            self._fast_from = math.inf
            self._onset.begin(keep_peak=True)
            return Phase.WARM_UP
        if math.isinf(self._fast_from):
            self._fast_from = step
            self._onset.begin(keep_peak=not self._known)
        if slope is None or step + 1 < (self._fast_from + 1) * _SEEN_AT:
            return Phase.STABLE if self._onset.stable else Phase.FAST
        newer = self._window.slope(LEAST_SAMPLES, HALF_WINDOW) if self._onset.border > 0 else None
        length = max(step, self._schedule.total_steps or _LENGTHS_SO_FAR * step)
        certain = max(step, self._schedule.total_steps or step)
        return Phase.STABLE if self._onset.observe(step, slope, newer, length, certain) else Phase.FAST

    def _warming_up(self, step: float, slope: Slope | None, lr: float, gbs: float) -> bool:
        if self._known:
            rising = [watch.observe(step, value) for watch, value in zip(self._ramps, (lr, gbs), strict=True)]
            declared = self._schedule.warm_up_steps
            return step < declared if declared is not None else any(rising)
        if self.phase in {Phase.FAST, Phase.STABLE}:
            return False
        if slope is None:
            return True
        self._onset.raise_peak(slope)
        return slope.fall > PASSED * self._onset.peak or self._onset.peak <= 0


def _older(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the onset as it was kept before it had one of its own; what was stable then is."""
    stable = kept["phase"] == int(Phase.STABLE)
    peak = {"peak": kept["peak"], "standing": kept["peak"]}
    return peak | {"below_from": kept["below_from"], "soon_from": None, "stable": stable, "sure": stable}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
