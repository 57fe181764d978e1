"""Since when a run is stable, from the slopes of its loss so far.

Two slopes are looked at after each sample: that over the whole window of `truth` (0.6 of ln(step + 1), so it is the pace at
74 % of the way) and that over its newer half, which is earlier but noisier.

1. The border is a share of the peak, the highest whole slope after the warm-up. Nothing is stable before a whole slope has
   stood out of its noise that is at least half of the peak: a peak that is noise says nothing about what lies below it.
2. *Soon*: the newer half lies below the border by its standard error, which is small enough to see the border at all, for
   0.5 % of the run. It is taken back when the newer half rises above the border by its standard error.
3. *Sure*: the whole slope has stayed below the border for 2 % of the run as seen through the window (2.7 %): what the truth
   asks for. A loss that rises, by more than its standard error and the border, does not stand still. It is
   taken back only where a whole slope rises above the peak, for then the peak was not the peak, and in a run whose
   length is not known where it rises clearly above the border (`_CLEARLY`) and the run has become so long that the
   stretch below was not 2 % of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.forecast.phases.window import Slope

# The peak stands out by this quantile of Student's t distribution, given as a normal score.
_STANDS_OUT = 3.0
_STANDING_SHARE = 0.5
# Largest standard error of the newer half, in borders, and the share of the run for which it stays below the border.
_SEES = 0.8
_SOON = 0.005
# A loss rises where its slope, less its standard error, is below this many borders downwards.
_RISES = 1.0
# A pace this many borders high, less as many standard errors, is above the border for sure.
_CLEARLY = 2.0


def student_quantile(z: float, freedom: float) -> float:
    """The quantile of Student's t with ``freedom`` degrees whose level a normal variable has at ``z``.

    Abramowitz and Stegun 26.7.5, two terms: 2 % off at 8 degrees and z = 3, less above.
    """
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def stands_out(slope: Slope) -> bool:
    """Whether the loss falls by more than noise does."""
    return slope.fall > student_quantile(_STANDS_OUT, max(1, slope.samples - 2)) * slope.error


class StableWatch:
    """See the module. Steps only grow."""

    def __init__(self, share_of_peak: float, hold: float) -> None:
        self._share, self._hold = share_of_peak, hold
        self.peak = 0.0
        self._standing = 0.0
        self._below_from: float | None = None
        self._soon_from: float | None = None
        # Where the stretch that made it sure ended so far, and whether it goes on.
        self._below_until: float | None = None
        self._still_below = False
        self.stable = False
        self.sure = False

    @property
    def border(self) -> float:
        """The pace below which a run is stable; 0 while no peak stands out of its noise."""
        return self._share * self.peak if self._standing >= _STANDING_SHARE * self.peak else 0.0

    def begin(self, *, keep_peak: bool) -> None:
        """A warm-up has ended, or goes on: what follows is watched anew."""
        self._below_from, self._soon_from, self.stable, self.sure = None, None, False, False
        self._below_until, self._still_below = None, False
        if not keep_peak:
            self.peak = self._standing = 0.0

    def raise_peak(self, slope: Slope) -> None:
        """Take in a slope over the whole window."""
        self.peak = max(self.peak, slope.fall)
        if stands_out(slope):
            self._standing = max(self._standing, slope.fall)

    def observe(
        self, step: float, whole: Slope, newer: Slope | None, length: float, least: float | None = None
    ) -> bool:
        """Whether the run is stable at ``step`` of ``length``, by the slopes over the window and over its newer half.

        ``least`` is what of the length is certain; None: all of it.
        """
        if self.sure and (
            whole.fall > self.peak or self._was_too_short(step, whole, length if least is None else least)
        ):
            self.begin(keep_peak=True)
        self.raise_peak(whole)
        if self.sure:
            return True
        border = self.border
        self._below_from = _since(self._below_from, step, below=border > 0 and self._stands_still(whole))
        if self._below_from is not None and step - self._below_from >= self._hold * length:
            self.stable = self.sure = self._still_below = True
            self._below_until = step
            return True
        if newer is None or newer.error > _SEES * border:
            self._soon_from = None
        elif self.stable:
            self.stable = newer.fall - newer.error <= border
            self._soon_from = None
        else:
            self._soon_from = _since(self._soon_from, step, below=newer.fall + newer.error < border)
            self.stable = self._soon_from is not None and step - self._soon_from >= _SOON * length
        return self.stable

    def _stands_still(self, slope: Slope) -> bool:
        return -_RISES * self.border - slope.error <= slope.fall < self.border

    def _was_too_short(self, step: float, whole: Slope, least: float) -> bool:
        """Whether the stretch that made it sure is over and was less than the share to hold of a run of ``least`` steps."""
        if self._below_from is None or self._below_until is None:
            return False
        self._still_below = self._still_below and whole.fall < self.border
        if self._still_below:
            self._below_until = step
            return False
        clearly = whole.fall - _CLEARLY * whole.error > _CLEARLY * self.border
        # Rounding must not decide of a stretch that was just long enough.
        return clearly and self._below_until - self._below_from < self._hold * least * (1 - 1e-9)

    def state(self) -> dict[str, Any]:
        """What `restore` takes, fit for JSON."""
        return {
            "peak": self.peak,
            "standing": self._standing,
            "below_from": self._below_from,
            "soon_from": self._soon_from,
            "below_until": self._below_until,
            "still_below": self._still_below,
            "stable": self.stable,
            "sure": self.sure,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a kept state."""
        self.peak, self._standing = kept["peak"], kept["standing"]
        self._below_from, self._soon_from = kept["below_from"], kept["soon_from"]
        self.stable, self.sure = kept["stable"], kept["sure"]
        # States kept before a stretch could be too short have neither; what was sure then stays.
        self._below_until, self._still_below = kept.get("below_until"), kept.get("still_below", False)


def _since(before: float | None, step: float, *, below: bool) -> float | None:
    if not below:
        return None
    return step if before is None else before
