"""Phases told while a run goes on, from what was seen until then.

At each sample (step, loss, and where known the learning rate and the global batch size):
1. Warm-up, with a schedule: as long as the learning rate or the batch size is still being ramped up (``ramps``), or until
   the declared ``warm_up_steps``. From telemetry alone: until the pace has fallen to ``PASSED`` of its highest value.
2. The pace is the slope of the loss over ln(step + 1) within the last 0.6 of it: the window of ``truth``, which looks as
   far ahead as back, seen when it is complete. It is therefore that of the step exp(-0.3) = 74 % of the way.
3. Stable once the pace has stayed below 10 % of its highest value after the warm-up for 2 % of the run as seen through
   the window (2.7 %); of the steps so far where the length of the run is not known. It is not taken back.
The delay this brings is about a third of the step at which the phase begins; it is reported, not hidden.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from services.forecast.phases.curve import Phase
from services.forecast.phases.ramps import RampWatch
from services.forecast.phases.truth import HALF_WINDOW, HOLD, LEAST_SAMPLES, SHARE_OF_PEAK

_WINDOW = 2 * HALF_WINDOW
# A run whose length is not known is taken to be this many times as long as it was so far.
_LENGTHS_SO_FAR = 2.0
_SEEN_AT = math.exp(HALF_WINDOW)
# Share of the highest pace at which a warm-up that nothing declares is taken to be over.
PASSED = 0.8


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
    """The phase of one run, sample by sample; holds the samples of the last 45 % of the steps.

    ``schedule_known`` says whether learning rate, batch size and total steps may be used (the schedule-aware track);
    without it only step and loss are read.
    """

    def __init__(
        self, schedule: Schedule | None = None, *, schedule_known: bool = True, share_of_peak: float = SHARE_OF_PEAK
    ) -> None:
        self._known = schedule_known
        self._share = share_of_peak
        self._schedule = (schedule or Schedule()) if schedule_known else Schedule()
        self._ramps = (RampWatch(self._schedule.total_steps), RampWatch(self._schedule.total_steps))
        self._window: deque[tuple[float, float]] = deque()
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self._dropped = 0
        self._last = -math.inf
        self._peak = 0.0
        self._fast_from = 0.0
        self._below_from: float | None = None
        self.phase: Phase | None = None
        self.ignored = 0

    def observe(self, step: float, loss: float, lr: float = math.nan, gbs: float = math.nan) -> PhaseChanged | None:
        """Take one sample; the event where it changes the phase.

        A sample that is not finite, whose step is negative or not after the last one is counted in ``ignored``.
        """
        if not (math.isfinite(step) and math.isfinite(loss)) or step < 0 or step <= self._last:
            self.ignored += 1
            return None
        self._last = step
        pace = self._pace(math.log(step + 1.0), loss)
        now = self._judge(step, pace, lr, gbs)
        if now == self.phase:
            return None
        event = PhaseChanged(step, self.phase, now)
        self.phase = now
        return event

    def _judge(self, step: float, pace: float | None, lr: float, gbs: float) -> Phase:
        if self.phase == Phase.STABLE:
            return Phase.STABLE
        if self._warming_up(step, pace, lr, gbs):
            self._fast_from, self._below_from = math.inf, None
            return Phase.WARM_UP
        if math.isinf(self._fast_from):
            self._fast_from = step
            self._peak = 0.0 if self._known else self._peak
        if pace is None or step + 1 < (self._fast_from + 1) * _SEEN_AT:
            return Phase.FAST
        self._peak = max(self._peak, pace)
        if pace >= self._share * self._peak:
            self._below_from = None
            return Phase.FAST
        if self._below_from is None:
            self._below_from = step
        length = max(step, self._schedule.total_steps or _LENGTHS_SO_FAR * step)
        held = step - self._below_from >= HOLD * _SEEN_AT * length
        return Phase.STABLE if held else Phase.FAST

    def _warming_up(self, step: float, pace: float | None, lr: float, gbs: float) -> bool:
        if self._known:
            rising = [watch.observe(step, value) for watch, value in zip(self._ramps, (lr, gbs), strict=True)]
            declared = self._schedule.warm_up_steps
            return step < declared if declared is not None else any(rising)
        if self.phase == Phase.FAST:
            return False
        if pace is None:
            return True
        self._peak = max(self._peak, pace)
        return pace > PASSED * self._peak or self._peak <= 0

    def _pace(self, x: float, loss: float) -> float | None:
        window, sums = self._window, self._sums
        window.append((x, loss))
        for place, amount in enumerate((x, loss, x * x, x * loss)):
            sums[place] += amount
        while window[0][0] < x - _WINDOW:
            old_x, old = window.popleft()
            for place, amount in enumerate((old_x, old, old_x * old_x, old_x * old)):
                sums[place] -= amount
            self._dropped += 1
        if self._dropped > len(window):
            # Anew, or the rounding of what was taken away would add up.
            self._dropped = 0
            sums[:] = (
                math.fsum(a for a, _ in window),
                math.fsum(b for _, b in window),
                math.fsum(a * a for a, _ in window),
                math.fsum(a * b for a, b in window),
            )
        count = len(window)
        spread = count * sums[2] - sums[0] * sums[0]
        if count < LEAST_SAMPLES or spread <= 1e-9 * count * sums[2]:
            return None
        return -(count * sums[3] - sums[0] * sums[1]) / spread
