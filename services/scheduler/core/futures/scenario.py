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
   which shared one is drawn by unit (Latin hypercube; McKay, Beckman, Conover, Technometrics 1979). For one unit that may be an
   order in which both cancel out; prospect.py does not leave the band of who waits for one run to it.
5. In as many rounds as there are levels each own level meets each shared one once.

`spans.py` does 1 and 2 for many units at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.scheduler.core.futures.spans import LEAST_RUN_S, LEAST_S, RAREST, spread
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.waiting_unit import PendingUnit

FINE = (0.0, -1.2815515655, -0.5244005127, 0.5244005127, 1.2815515655)
COARSE = (0.0, -1.2815515655, 1.2815515655)
"""Levels of the scenarios of one prediction, in standard deviations: the quantiles 0.5, 0.1, 0.3, 0.7 and 0.9."""
_RHO = 0.4
_GOLDEN = 0x9E3779B97F4A7C15


def orders(units: int, levels: int, seed: int = 0, rounds: int = 1) -> Ints:
    """Which of ``levels`` (a prime number, or one) is a unit's own in a scenario: (rounds * levels, units), each once a round."""
    number = (_words(units, seed) % np.uint64(max(levels * (levels - 1), 1))).astype(np.int64)
    first, step = number % levels, 1 + number // levels
    scenario, by_round = np.arange(levels, dtype=np.int64), np.arange(rounds, dtype=np.int64)
    shift = by_round[:, None, None] + scenario[:, None] * step
    found: Ints = ((first + shift) % levels).reshape(rounds * levels, units)
    return found


def quantiles(units: int, levels: Sequence[float], seed: int = 0, rounds: int = 1) -> Floats:
    """The quantile of each unit's run time (0-1), by scenario: (rounds * levels, units)."""
    shared, own = math.sqrt(_RHO), math.sqrt(1.0 - _RHO)
    parts = np.array(
        [[0.5 * (1.0 + math.erf((shared * one + own * other) / math.sqrt(2.0))) for other in levels] for one in levels]
    )
    scenario = np.tile(np.arange(len(levels)), rounds)[:, None]
    found: Floats = parts[scenario, orders(units, len(levels), seed, rounds)]
    return found


def _words(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): so many words of 64 bits from a seed."""
    with np.errstate(over="ignore"):
        value = np.uint64(seed % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return out


class Scenario:
    """One scenario: ``parts`` are the quantiles (0-1) of the units' run times."""

    def __init__(self, parts: dict[UnitKey, float]) -> None:
        self._parts = parts

    def part(self, key: UnitKey) -> float:
        """The quantile of a unit's run time here."""
        return self._parts[key]

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
        return now_s + max(whole_s - elapsed_s, LEAST_S)

    def lasts_s(self, unit: PendingUnit) -> float:
        """How long a unit that waits will run from its start."""
        left_s = estimated_s(unit, "expected") or LEAST_RUN_S
        if left_s == math.inf or not 0 < unit.expected_s < math.inf:
            return left_s
        whole_s = self.whole_s(unit, unit.attained_s)
        return left_s if whole_s is None else max(whole_s - unit.attained_s, LEAST_S)

    def whole_s(self, unit: PendingUnit, elapsed_s: float, scale: float = 1.0) -> float | None:
        """The whole run time of a unit that ran ``elapsed_s`` already; ``scale`` multiplies its band. None when it is longer
        than a band of no width."""
        median_s = unit.expected_s * scale
        above = spread(unit.high_s / unit.expected_s) if unit.high_s < math.inf else 0.0
        below = spread(unit.expected_s / unit.low_s) if unit.low_s > 0 else 0.0
        part = self.part(unit.key)
        longest_s = unit.limit_s if unit.limit_s > elapsed_s + LEAST_S else math.inf
        if elapsed_s >= median_s:
            return float(min(elapsed_s * max(1.0 - part, RAREST) ** -above, longest_s)) if above else None
        over = float(0.5 * (elapsed_s / median_s) ** (1.0 / below)) if below and elapsed_s > 0 else 0.0
        level = over + part * (1.0 - over)
        found_s = float(
            median_s * ((2.0 * level) ** below if level < 0.5 else (2.0 * max(1.0 - level, RAREST)) ** -above)
        )
        return max(min(found_s, longest_s), elapsed_s)


def scenarios(keys: Sequence[UnitKey], levels: Sequence[float], seed: int = 0) -> list[Scenario]:
    """One scenario by level, for these units."""
    return [Scenario(dict(zip(keys, parts, strict=True))) for parts in quantiles(len(keys), levels, seed).tolist()]
