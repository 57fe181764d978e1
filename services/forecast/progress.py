"""When a run will have done its steps, from what it reports: pure.

The rate is that of the reports of the last while (an exponentially weighted least-squares slope of steps over time), so
evaluations and checkpoints that have been seen are in it. What is left is uncertain by the scatter of the reports about
that slope, and by at least `LEAST_SPREAD`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Relative standard deviation of the time that is left, at least; and before the rate is known from two reports.
LEAST_SPREAD = 0.03
UNKNOWN_SPREAD = 0.5
# Weight of a report when the next one comes.
_FADE = 0.9


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports of one run so far: the newest, and the rate in steps per second with its relative spread."""

    at_s: float
    step: float
    total: float
    rate: float = 0.0
    spread: float = UNKNOWN_SPREAD
    reports: int = 1
    # Fading sums of time between reports, steps in it, and squared relative error of the rate.
    time_s: float = 0.0
    steps: float = 0.0
    scatter: float = 0.0
    weight: float = 0.0

    def reported(self, at_s: float, step: float, total: float) -> Progress:
        """After another report. One that goes back in time is passed over; a step that goes back begins anew."""
        if at_s <= self.at_s or not (math.isfinite(step) and math.isfinite(total)):
            return self
        if step < self.step:
            return Progress(at_s, step, total)
        passed, done = at_s - self.at_s, step - self.step
        time_s, steps = _FADE * self.time_s + passed, _FADE * self.steps + done
        rate = steps / time_s
        off = (done / passed / rate - 1) if rate > 0 else 0.0
        scatter, weight = _FADE * self.scatter + off * off, _FADE * self.weight + 1
        spread = math.sqrt(scatter / weight) if self.reports >= 2 else UNKNOWN_SPREAD
        return replace(
            self,
            at_s=at_s,
            step=step,
            total=total,
            rate=rate,
            spread=max(LEAST_SPREAD, spread),
            reports=self.reports + 1,
            time_s=time_s,
            steps=steps,
            scatter=scatter,
            weight=weight,
        )

    def remaining_s(self, now_s: float, expected_rate: float = 0.0) -> float:
        """Seconds from ``now_s`` to the last step; NaN where no total or no rate is known. Not below 1."""
        rate = self.rate or expected_rate
        if self.total <= 0 or rate <= 0:
            return math.nan
        return max(1.0, (self.total - self.step) / rate - (now_s - self.at_s))
