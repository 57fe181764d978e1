"""How long runs last, learned from those that ended and those that still run: hazards by age, per user and size.

1. Ages are divided at `AGES`. Of each class of runs (a user's runs of a size) it is counted how often one ended at an age
   (events) and how long runs were observed at it (exposure). Runs that still run count with their exposure, so that long
   ones are not left out (the occurrence-exposure rate, the piecewise exponential model of survival analysis).
2. Few runs say little: the rate of a class is drawn to that of all runs of its size, and this to that of all runs, which
   in turn is drawn to 1 / (age + `UNKNOWN_S`): half of the runs of which nothing is known last as long again as they did,
   and an hour. Each draws with the weight of ``Trust`` events (a gamma prior).
3. Both counts fade, so that what a user does now counts more than what it did last week.

P(lasts h longer | has lasted a) = exp(-(H(a + h) - H(a))), H the cumulative hazard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecast.past import Array

Index = NDArray[np.intp]

# Lower ends of the intervals of ages, in seconds; the last one has no end.
AGES: Array = np.concatenate([[0.0], np.geomspace(15.0, 45 * 86_400.0, 60)])
# The median of run times of which nothing is known.
UNKNOWN_S = 3600.0
_WIDTHS: Array = np.append(np.diff(AGES), np.inf)


@dataclass(frozen=True, slots=True)
class Trust:
    """Events with which the rate of all runs of a size, and that of all runs, draw at that of a class."""

    size: float = 1.0
    everyone: float = 3.0
    # Mean age of what is counted.
    memory_s: float = 2 * 86_400.0


def size_class(accelerators: float) -> int:
    """Runs of 1, 2-3, 4-7 ... accelerators are alike; those without are a class of their own."""
    return int(np.log2(accelerators)) + 1 if accelerators >= 1 else 0


def age_interval(ages_s: Array) -> Index:
    """In which interval of `AGES` an age lies."""
    found: Index = np.maximum(0, np.searchsorted(AGES, ages_s, side="right") - 1)
    return found


def exposure(from_s: Array, to_s: Array) -> Array:
    """Seconds spent in each interval of age, [run, interval], by runs observed from one age to another."""
    low, high = from_s[:, None], to_s[:, None]
    spent: Array = np.maximum(0.0, np.minimum(high, AGES + _WIDTHS) - np.maximum(low, AGES))
    return spent


class RunTimes:
    """The counts of all classes; a class is a user and a size, in the order in which they were first seen."""

    def __init__(self, trust: Trust | None = None) -> None:
        self._trust = trust or Trust()
        self._classes: dict[tuple[str, int], int] = {}
        self._sizes: list[int] = []
        self._events: Array = np.zeros((0, len(AGES)))
        self._exposure: Array = np.zeros((0, len(AGES)))

    def class_of(self, user: str, accelerators: float) -> int:
        """The number of the class of such runs."""
        key = (user, size_class(accelerators))
        if key not in self._classes:
            self._classes[key] = len(self._classes)
            self._sizes.append(key[1])
            if len(self._classes) > len(self._events):
                # In blocks, so that growing costs little.
                more = np.zeros((max(16, len(self._events)), len(AGES)))
                self._events = np.concatenate([self._events, more])
                self._exposure = np.concatenate([self._exposure, more])
        return self._classes[key]

    def observe(
        self, classes: Index, from_s: Array, to_s: Array, ended: NDArray[np.bool_], ago_s: Array | float = 0.0
    ) -> None:
        """Runs of ``classes`` were seen from one age to another, and some ended then, so long ago; all [run]."""
        weights = np.broadcast_to(np.exp(-np.asarray(ago_s) / self._trust.memory_s), to_s.shape)
        np.add.at(self._exposure, classes, exposure(from_s, to_s) * weights[:, None])
        np.add.at(self._events, (classes[ended], age_interval(to_s[ended])), weights[ended])

    def fade(self, passed_s: float) -> None:
        """So much time passed: what was counted counts less."""
        share = np.exp(-passed_s / self._trust.memory_s)
        self._events *= share
        self._exposure *= share

    def hazards(self, running: Index | None = None, ages_s: Array | None = None) -> Hazards:
        """The rates now. ``running`` are classes and ``ages_s`` ages of runs whose exposure was not observed yet."""
        count = len(self._classes)
        events, exposed = self._events[:count], self._exposure[:count]
        if running is not None and ages_s is not None and len(running):
            exposed = exposed.copy()
            np.add.at(exposed, running, exposure(np.zeros_like(ages_s), ages_s))
        sizes, place = np.unique(np.array(self._sizes, np.intp), return_inverse=True)
        by_size = [np.zeros((len(sizes), len(AGES))) for _ in range(2)]
        for total, part in zip(by_size, (events, exposed), strict=True):
            np.add.at(total, place, part)
        scale_free = 1.0 / (AGES + np.minimum(_WIDTHS, AGES + 1.0) / 2 + UNKNOWN_S)
        everyone = _drawn(events.sum(axis=0), exposed.sum(axis=0), scale_free, 1.0)
        sized = _drawn(by_size[0], by_size[1], everyone, self._trust.everyone)
        rates = _drawn(events, exposed, sized[place], self._trust.size)
        return Hazards(rates)


def _drawn(events: Array, exposed: Array, prior: Array, weight: float) -> Array:
    """Rates drawn to ``prior`` with the weight of so many events."""
    rate: Array = (events + weight) / (exposed + weight / prior)
    return rate


class Hazards:
    """Rates of ending [class, interval of age], per second, and what follows from them."""

    def __init__(self, rates: Array) -> None:
        self.rates = rates
        steps = rates[:, :-1] * _WIDTHS[:-1]
        self._cumulative: Array = np.concatenate([np.zeros((len(rates), 1)), np.cumsum(steps, axis=1)], axis=1)

    def cumulative(self, classes: Index, ages_s: Array) -> Array:
        """H(age) of runs of ``classes``; both of one shape, or such that they can be broadcast."""
        interval = age_interval(ages_s)
        found: Array = self._cumulative[classes, interval] + self.rates[classes, interval] * (ages_s - AGES[interval])
        return found

    def lasting(self, classes: Index, ages_s: Array, longer_s: Array) -> Array:
        """P(a run that has lasted ``ages_s`` lasts ``longer_s`` more)."""
        return np.exp(self.cumulative(classes, ages_s) - self.cumulative(classes, ages_s + np.maximum(0.0, longer_s)))
