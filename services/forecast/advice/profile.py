"""What a domain's load is expected to be over the next day when nobody changes anything: its daily profile, from where it is now.

The profile is the mean of the same time of day over the whole days of the history (two at least; with fewer the load stays as it is,
and that is said). The present difference from it fades with a time constant of an hour. This is a view for people, over
horizons for which the service's own methods were shown to have no skill on occupancy (docs/forecasting.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DAY_S = 86_400.0
_FADES_S = 3600.0
_LEAST_DAYS = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """Accelerators [window], and how many days it rests on (0: the present level stays)."""

    load: Array
    days: int


def expected_load(
    history: Mapping[float, float], current: float, now_s: float, window_s: float, windows: int
) -> Expected:
    """The load of the ``windows`` windows from ``now_s`` on; ``history`` holds means by the time their window began."""
    days = int((now_s - min(history)) // DAY_S) if history else 0
    if days < _LEAST_DAYS:
        return Expected(np.full(windows, current), 0)
    slots = max(1, round(DAY_S / window_s))
    sums, counts = np.zeros(slots), np.zeros(slots)
    for at_s, value in history.items():
        if at_s >= now_s - days * DAY_S:
            place = int(at_s % DAY_S * slots / DAY_S)
            sums[place] += value
            counts[place] += 1
    overall = sums.sum() / max(1.0, counts.sum())
    profile = np.where(counts > 0, sums / np.maximum(counts, 1), overall)
    # By the time of day and not by counting: windows need not divide a day.
    places = ((now_s % DAY_S + np.arange(windows) * window_s) * slots / DAY_S).astype(np.intp) % slots
    ahead = profile[places]
    fading = np.exp(-(np.arange(windows) + 0.5) * window_s / _FADES_S)
    return Expected(np.maximum(0.0, ahead + (current - profile[places[0]]) * fading), days)
