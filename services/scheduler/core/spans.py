"""What is left of many run times at once, at given quantiles: scenario.py says how, this is the same on arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.table import Floats

TO_LEVEL = math.log(5.0)
"""Of an exponential distribution, in its mean: from the median of all to the quantile 0.9 (half of the upper half's 0.2)."""
HEAVIEST = 2.0
RAREST = 1e-6
LEAST_S = 1.0
LEAST_RUN_S = 60.0


def spread(ratio: float) -> float:
    """The mean of the exponential side whose level lies at ``ratio`` times the median; 0 below one."""
    return min(math.log(ratio) / TO_LEVEL, HEAVIEST) if ratio > 1.0 else 0.0


@dataclass(frozen=True, slots=True)
class Spans:
    """Run times of units (U), in seconds: ``said`` is what is left where no band is known, ``median`` the whole run, ``above``
    and ``below`` the exponents of its sides, ``elapsed`` what is over, ``longest`` the limit that ends it."""

    said: Floats
    median: Floats
    above: Floats
    below: Floats
    elapsed: Floats
    longest: Floats

    def left_s(self, parts: Floats) -> Floats:
        """What is left at quantiles (S, U) of the run times: (S, U)."""
        known, median, above, below = ~np.isnan(self.median), self.median, self.above, self.below
        elapsed = self.elapsed
        with np.errstate(divide="ignore", invalid="ignore"):
            old = elapsed >= median
            late = np.minimum(elapsed * np.maximum(1.0 - parts, RAREST) ** -above, self.longest)
            over = np.where((below > 0) & (elapsed > 0), 0.5 * np.minimum(elapsed / median, 1.0) ** (1.0 / below), 0.0)
            level = over + parts * (1.0 - over)
            tail = np.where(level < 0.5, (2.0 * level) ** below, (2.0 * np.maximum(1.0 - level, RAREST)) ** -above)
            whole = np.where(old, late, np.maximum(np.minimum(median * tail, self.longest), elapsed))
            left: Floats = np.where(known & ~(old & (above == 0)), np.maximum(whole - elapsed, LEAST_S), self.said)
        return left


def spans_of_runs(running: Iterable[RunningUnit], now_s: float) -> Spans:
    """What is left of runs at ``now_s``."""
    rows = []
    for item in running:
        unit = item.unit
        expected_s, elapsed_s = unit.expected_s, item.ran_s(now_s)
        said_s = item.end_s(now_s, "expected") - now_s
        if not 0 < expected_s < math.inf or said_s == math.inf:
            rows.append((said_s, math.nan, 0.0, 0.0, elapsed_s, math.inf))
            continue
        # What was thought about it since it began counts; a finite end only.
        median_s = max(item.expected_end_s - item.since_s + unit.attained_s, 0.0)
        rows.append(_row(unit, said_s, median_s if 0 < median_s < math.inf else expected_s, elapsed_s))
    return _spans(rows)


def spans_of_waiting(units: Iterable[PendingUnit]) -> Spans:
    """What units that wait will run from their starts."""
    rows = []
    for unit in units:
        said_s = estimated_s(unit, "expected") or LEAST_RUN_S
        median_s = unit.expected_s if 0 < unit.expected_s < math.inf and said_s < math.inf else math.nan
        rows.append(_row(unit, said_s, median_s, unit.attained_s))
    return _spans(rows)


_Row = tuple[float, float, float, float, float, float]


def _row(unit: PendingUnit, said_s: float, median_s: float, elapsed_s: float) -> _Row:
    expected_s, high_s, low_s = unit.expected_s, unit.high_s, unit.low_s
    above = spread(high_s / expected_s) if high_s < math.inf and expected_s > 0 else 0.0
    below = spread(expected_s / low_s) if low_s > 0 and expected_s < math.inf else 0.0
    longest_s = unit.limit_s if unit.limit_s > elapsed_s + LEAST_S else math.inf
    return said_s, median_s, above, below, elapsed_s, longest_s


def _spans(rows: Sequence[_Row]) -> Spans:
    return Spans(*np.array(rows, dtype=np.float64).reshape(-1, 6).T)
