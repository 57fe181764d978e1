"""Run times drawn for a course of things: what is left of runs that go on, and how long those will run that wait.

Steps:
1. The prediction of a run time gives its quantiles 0.1, 0.5 and 0.9 (`PendingUnit.low_s`, ``expected_s``, ``high_s``). Between
   and beyond them the logarithm of the run time is taken as exponential to either side of the median (an asymmetric Laplace
   distribution), so the run time itself has the power-law tails that run times are known for.
2. A run that goes on is drawn from those that are longer than what it ran: one that outlived its band is given a time in
   proportion to its age, not the little that a lighter tail would leave.
3. There are few scenarios, so run times are taken at the same few quantiles, and each unit has each of them once (Latin
   hypercube; McKay, Beckman, Conover, Technometrics 1979): whoever waits for one run sees all of that run's band.
4. Errors of predictions go together (the same predictor, the same week, the same users). So the quantiles of sqrt(rho) of the
   units, drawn by unit, come in the order of the scenarios, those of the others each in an order of its own: the scores of
   two units then have the correlation rho. With own errors alone those of a long queue would cancel out, and any band would
   be too narrow.
5. With several rounds the orders are drawn anew in each: more scenarios, in which a unit has each quantile once a round.

`spans.py` does 1 and 2 for many units at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.spans import LEAST_RUN_S, LEAST_S, RAREST, spread
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Floats, Ints

FINE = (0.5, 0.1, 0.3, 0.7, 0.9)
COARSE = (0.5, 0.1, 0.9)
"""Quantiles of run times, by scenario."""
_RHO = 0.4
_GOLDEN = 0x9E3779B97F4A7C15


def orders(units: int, levels: int, seed: int = 0, rounds: int = 1) -> Ints:
    """Which of ``levels`` (a prime number, or one) a unit has in a scenario: (rounds * levels, units), each level of a unit
    once a round."""
    scenario = np.arange(levels, dtype=np.int64)[:, None]
    out = []
    words = _words(2 * units * rounds, seed).reshape(rounds, 2, units)
    for choice, order in words:
        alone = (choice >> np.uint64(11)).astype(np.float64) * 2.0**-53 >= math.sqrt(_RHO)
        number = (order % np.uint64(max(levels * (levels - 1), 1))).astype(np.int64)
        first, step = np.where(alone, number % levels, 0), np.where(alone, 1 + number // levels, 1)
        out.append((first + scenario * step) % levels)
    found: Ints = np.concatenate(out)
    return found


def quantiles(units: int, levels: Sequence[float], seed: int = 0, rounds: int = 1) -> Floats:
    """The quantile of each unit's run time (0-1), by scenario: (rounds * levels, units)."""
    found: Floats = np.array(levels)[orders(units, len(levels), seed, rounds)]
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
