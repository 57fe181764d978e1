"""What is left of many run times at once, at given quantiles: scenario.py says how, this is the same on arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.table import Floats
from services.scheduler.core.waiting_unit import PendingUnit

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
    runs = list(running)
    rows = _told(item.unit for item in runs)
    said = np.array([item.end_s(now_s, "expected") for item in runs]) - now_s
    ran = np.array([item.ran_s(now_s) for item in runs])
    # What was thought about it since it began counts; a finite end only.
    thought = np.array([item.expected_end_s - item.since_s for item in runs]) + rows.attained
    median = np.where((thought > 0) & (thought < np.inf), thought, rows.expected)
    return rows.spans(said, median, ran)


def spans_of_waiting(units: Iterable[PendingUnit]) -> Spans:
    """What units that wait will run from their starts."""
    rows = _told(units)
    whole = np.where(rows.expected < np.inf, rows.expected, rows.limit)
    said = np.where(whole < np.inf, np.maximum(whole - rows.attained, 0.0), np.inf)
    return rows.spans(np.where(said == 0, LEAST_RUN_S, said), rows.expected, rows.attained)


@dataclass(frozen=True, slots=True)
class _Told:
    """What is said about units (U), in seconds; see `PendingUnit`."""

    expected: Floats
    low: Floats
    high: Floats
    limit: Floats
    attained: Floats

    def spans(self, said: Floats, median: Floats, elapsed: Floats) -> Spans:
        """A band is known where what is expected and what is said are finite."""
        known = (self.expected > 0) & (self.expected < np.inf) & (said < np.inf)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            above = np.where((self.high < np.inf) & (self.expected > 0), self.high / self.expected, 1.0)
            below = np.where((self.low > 0) & (self.expected < np.inf), self.expected / self.low, 1.0)
        longest = np.where(self.limit > elapsed + LEAST_S, self.limit, np.inf)
        return Spans(said, np.where(known, median, np.nan), _spreads(above), _spreads(below), elapsed, longest)


def _told(units: Iterable[PendingUnit]) -> _Told:
    rows = [(unit.expected_s, unit.low_s, unit.high_s, unit.limit_s, unit.attained_s) for unit in units]
    values = np.fromiter(chain.from_iterable(rows), np.float64, 5 * len(rows))
    return _Told(*values.reshape(-1, 5).T)


def _spreads(ratios: Floats) -> Floats:
    """`spread` of each."""
    logarithms = np.array([math.log(ratio) if ratio > 1.0 else 0.0 for ratio in ratios.tolist()])
    found: Floats = np.minimum(logarithms / TO_LEVEL, HEAVIEST)
    return found
