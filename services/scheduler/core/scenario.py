"""Run times drawn for a course of things: what is left of runs that go on, and how long those will run that wait.

Steps:
1. The prediction of a run time gives its quantiles 0.1, 0.5 and 0.9 (`PendingUnit.low_s`, ``expected_s``, ``high_s``). Between
   and beyond them the logarithm of the run time is taken as exponential to either side of the median (an asymmetric Laplace
   distribution), so the run time itself has the power-law tails that run times are known for.
2. A run that goes on is drawn from those that are longer than what it ran: one that outlived its band is given a time in
   proportion to its age, not the little that a lighter tail would leave.
3. Errors of predictions go together (the same predictor, the same week, the same users): the quantile of a unit is that of
   sqrt(rho) Z + sqrt(1 - rho) e, normal, where Z is the scenario's and e the unit's own (one-factor copula; Vasicek, Risk 2002).
   With own errors alone those of a long queue would cancel out, and any band would be too narrow.
4. There are few scenarios, so both parts are taken at the same few levels, each once in all scenarios, and which own one meets
   which shared one is drawn by unit (Latin hypercube; McKay, Beckman, Conover, Technometrics 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import UnitKey

FINE = (0.0, -1.2815515655, -0.5244005127, 0.5244005127, 1.2815515655)
COARSE = (0.0, -1.2815515655, 1.2815515655)
"""Levels of the scenarios of one prediction, in standard deviations: the quantiles 0.5, 0.1, 0.3, 0.7 and 0.9."""
_RHO = 0.4
_TO_LEVEL = math.log(5.0)
"""Of an exponential distribution, in its mean: from the median of all to the quantile 0.9 (half of the upper half's 0.2)."""
_HEAVIEST = 2.0
_RAREST = 1e-6
_ALL = 2**64 - 1
_LEAST_S = 1.0
_LEAST_RUN_S = 60.0


class Draws(dict[UnitKey, tuple[int, int]]):
    """By unit, which own level comes first and how many further the next one is; drawn when it is first asked for."""

    def __init__(self, levels: int, seed: int = 0) -> None:
        super().__init__()
        self._levels, self._state = levels, seed

    def __missing__(self, key: UnitKey) -> tuple[int, int]:
        number = self._next() % (self._levels * (self._levels - 1)) if self._levels > 1 else 0
        value = self[key] = number % self._levels, 1 + number // self._levels
        return value

    def _next(self) -> int:
        """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): 64 bits from a seed."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _ALL
        value = self._state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL
        return value ^ (value >> 31)


class Scenario:
    """Run times with the shared part at one of ``levels`` (a prime number of them), that of ``number``."""

    def __init__(self, number: int, levels: Sequence[float], draws: Draws) -> None:
        self._number, self._draws, self._count = number, draws, len(levels)
        shared, own = math.sqrt(_RHO) * levels[number], math.sqrt(1.0 - _RHO)
        self._parts = [0.5 * (1.0 + math.erf((shared + own * level) / math.sqrt(2.0))) for level in levels]

    def part(self, key: UnitKey) -> float:
        """The quantile (0-1) of a unit's run time here."""
        first, step = self._draws[key]
        return self._parts[(first + self._number * step) % self._count]

    def end_s(self, running: RunningUnit, now_s: float) -> float:
        """When a run ends, after ``now_s``; infinite when nothing is known."""
        unit = running.unit
        said_s = running.end_s(now_s, "expected")
        if not 0 < unit.expected_s < math.inf or said_s == math.inf:
            return said_s
        elapsed_s = running.ran_s(now_s)
        median_s = max(running.expected_end_s - running.since_s + unit.attained_s, 0.0)
        # What was thought about it since it began counts; a finite end only (a run that is told to stop has none of its own).
        scale = median_s / unit.expected_s if 0 < median_s < math.inf else 1.0
        whole_s = self.whole_s(unit, elapsed_s, scale)
        if whole_s is None:
            return said_s
        return now_s + max(whole_s - elapsed_s, _LEAST_S)

    def lasts_s(self, unit: PendingUnit) -> float:
        """How long a unit that waits will run from its start."""
        left_s = estimated_s(unit, "expected") or _LEAST_RUN_S
        if left_s == math.inf or not 0 < unit.expected_s < math.inf:
            return left_s
        whole_s = self.whole_s(unit, unit.attained_s)
        return left_s if whole_s is None else max(whole_s - unit.attained_s, _LEAST_S)

    def whole_s(self, unit: PendingUnit, elapsed_s: float, scale: float = 1.0) -> float | None:
        """The whole run time of a unit that ran ``elapsed_s`` already; ``scale`` multiplies its band. None when it is longer
        than a band of no width."""
        median_s = unit.expected_s * scale
        above = _spread(unit.high_s * scale / median_s) if unit.high_s < math.inf else 0.0
        below = _spread(median_s / (unit.low_s * scale)) if unit.low_s > 0 else 0.0
        part = self.part(unit.key)
        longest_s = unit.limit_s if unit.limit_s > elapsed_s + _LEAST_S else math.inf
        if elapsed_s >= median_s:
            return float(min(elapsed_s * max(1.0 - part, _RAREST) ** -above, longest_s)) if above else None
        over = float(0.5 * (elapsed_s / median_s) ** (1.0 / below)) if below and elapsed_s > 0 else 0.0
        level = over + part * (1.0 - over)
        found_s = float(
            median_s * ((2.0 * level) ** below if level < 0.5 else (2.0 * max(1.0 - level, _RAREST)) ** -above)
        )
        return max(min(found_s, longest_s), elapsed_s)


def scenarios(levels: Sequence[float], seed: int = 0) -> list[Scenario]:
    """One scenario by level, all with the same draws."""
    draws = Draws(len(levels), seed)
    return [Scenario(number, levels, draws) for number in range(len(levels))]


def _spread(ratio: float) -> float:
    """The mean of the exponential side whose level lies at ``ratio`` times the median; 0 below one."""
    return min(math.log(ratio) / _TO_LEVEL, _HEAVIEST) if ratio > 1.0 else 0.0
