"""What running and waiting work lets expect of demand: pure.

Each run asks for its accelerators until it ends. When that will be follows
1. from its steps, where it says how many it has done and has to do (`progress`), or where its number of steps and the time
   of a step were predicted: the time left is log-normal about the prediction; such a run may still stop early, at the rate
   at which runs with steps were seen to stop early;
2. else from how long runs of that user and size have lasted (`run_times`), given how long it has lasted already;
3. and not after its time limit.
Waiting work asks as long as it waits and then as long as it runs. When it starts follows from the queue: when what is
released by then is enough for all before it (`starts`).
Work that is not submitted yet comes at the rate at which it came lately, per user and size (`arrivals`).

The demand of a subject is a sum of independent parts: its mean, variance and third moment are sums; quantiles follow by
Cornish and Fisher's expansion, which is exact for none but good for many; for a subject with one run they are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.forecast.past import Array
from services.forecast.run_times import Hazards, Index

# Where within the window of the target the demand is looked at, to take its mean.
_WITHIN = (0.125, 0.375, 0.625, 0.875)
_SQRT2 = 2**0.5


@dataclass(frozen=True, slots=True)
class Work:
    """Runs and waiting units, all [item].

    ``classes`` of `RunTimes`; ``ages_s`` since the start; ``waits_s`` until the expected start, 0 when running;
    ``remaining_s`` once it runs, by its steps, NaN where that is unknown, with the relative ``spread``; ``limits_s`` is
    the whole time that it may run, infinite without.
    """

    classes: Index
    ages_s: Array
    waits_s: Array
    remaining_s: Array
    spread: Array
    limits_s: Array


@dataclass(frozen=True, slots=True)
class Shares:
    """Which item counts for which subject with how many accelerators, all [share]; an item may count for several."""

    items: Index
    subjects: Index
    accelerators: Array


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean, variance and third central moment of demand, each [horizon, subject]."""

    mean: Array
    variance: Array
    third: Array

    def quantile(self, z: float) -> Array:
        """The quantile at which a standard normal variable is ``z``, by the first term of Cornish and Fisher."""
        deviation = np.sqrt(self.variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            skew = np.where(self.variance > 0, self.third / self.variance**1.5, 0.0)
        # Beyond this the expansion is no longer monotonous.
        skew = np.clip(skew, -1.5, 1.5)
        return np.maximum(0.0, self.mean + deviation * (z + (z * z - 1) * skew / 6))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.mean + other.mean, self.variance + other.variance, self.third + other.third)


@dataclass(frozen=True, slots=True)
class Coming:
    """Work that is expected to come: for each kind of it its class, size and rate per second, all [kind]."""

    classes: Index
    accelerators: Array
    rates: Array
    # Seconds that such work is expected to wait before it starts.
    waits_s: Array = field(default_factory=lambda: np.zeros(0))


def asking(work: Work, hazards: Hazards, after_s: float, early_rate: float = 0.0) -> Array:
    """P(an item still asks for its accelerators ``after_s`` from now), [item]. ``early_rate`` is per second."""
    running_s = np.maximum(0.0, after_s - work.waits_s)
    by_age = hazards.lasting(work.classes, work.ages_s, running_s)
    known = ~np.isnan(work.remaining_s)
    if known.any():
        left, ran = work.remaining_s[known], np.maximum(running_s[known], 1e-9)
        z = np.log(ran / np.maximum(left, 1e-9)) / np.maximum(work.spread[known], 1e-3)
        by_age = by_age.copy()
        by_age[known] = (1 - _normal(z)) * np.exp(-early_rate * running_s[known])
    result: Array = np.where(work.ages_s + running_s > work.limits_s, 0.0, by_age)
    result[running_s <= 0] = 1.0
    return result


def demand_of_work(
    work: Work,
    shares: Shares,
    subjects: int,
    hazards: Hazards,
    horizons_s: Sequence[float],
    window_s: float,
    early_rate: float = 0.0,
) -> Moments:
    """The demand of ``subjects`` subjects in the windows that end ``horizons_s`` from now."""
    sums = np.zeros((3, len(horizons_s), subjects))
    for place, horizon_s in enumerate(horizons_s):
        looks = [asking(work, hazards, horizon_s - (1 - within) * window_s, early_rate) for within in _WITHIN]
        p = np.mean(looks, axis=0)[shares.items]
        for moment, part in enumerate(_moments(shares.accelerators, p)):
            sums[moment, place] = np.bincount(shares.subjects, part, subjects)
    return Moments(*sums)


def demand_of_coming(
    coming: Coming, owners: Index, subjects: int, hazards: Hazards, horizons_s: Sequence[float], window_s: float
) -> Moments:
    """The demand of work that comes from now on; ``owners`` [kind] is the subject that each kind counts for.

    Arrivals are Poisson, so what is there of a kind is Poisson with mean rate x integral of P(lasts at least u) over the
    times u since it may have come.
    """
    sums = np.zeros((3, len(horizons_s), subjects))
    waits = coming.waits_s if len(coming.waits_s) else np.zeros(len(coming.rates))
    for place, horizon_s in enumerate(horizons_s):
        middle_s = max(horizon_s - window_s / 2, 0.0)
        steps = 12
        since = (np.arange(steps) + 0.5) / steps * middle_s
        ran = np.maximum(0.0, since[None] - waits[:, None])
        there = hazards.lasting(coming.classes[:, None], np.zeros_like(ran), ran).mean(axis=1) * middle_s
        count = coming.rates * there
        for moment in range(3):
            sums[moment, place] = np.bincount(owners, count * coming.accelerators ** (moment + 1), subjects)
    return Moments(*sums)


def starts(
    free: float, releases: Sequence[tuple[float, float]], asked: Sequence[float], longest_s: float
) -> list[float]:
    """When each unit of a queue is expected to start, in order, in seconds from now, ``longest_s`` when not before.

    ``releases`` are (seconds from now, accelerators that are expected to be free then); ``asked`` are the queue's units.
    Each starts when what is free is enough for it and all before it.
    """
    result = []
    upcoming = sorted(releases)
    place, at_s = 0, 0.0
    for amount in asked:
        while free < amount and place < len(upcoming):
            at_s = max(at_s, upcoming[place][0])
            free += upcoming[place][1]
            place += 1
        if free < amount:
            at_s = longest_s
        free -= amount
        result.append(min(at_s, longest_s))
    return result


def middle_of_one(accelerators: Array, p: Array) -> Array:
    """The median of the demand of a single item: all or nothing."""
    return np.where(p >= 0.5, accelerators, 0.0)


def _moments(amount: Array, p: Array) -> tuple[Array, Array, Array]:
    variance = amount * amount * p * (1 - p)
    return amount * p, variance, amount * variance * (1 - 2 * p)


def _normal(z: Array) -> Array:
    """The distribution function of the standard normal distribution; Abramowitz & Stegun 7.1.26, within 1.5e-7."""
    x = np.abs(z) / _SQRT2
    t = 1 / (1 + 0.3275911 * x)
    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    value = np.zeros_like(x)
    for coefficient in coefficients:
        value = (value + coefficient) * t
    tail = value * np.exp(-x * x) / 2
    return np.where(z >= 0, 1 - tail, tail)
