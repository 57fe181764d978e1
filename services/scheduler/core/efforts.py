"""Orders by what a unit has still to run, or has run already: remaining time and work, service index, effort, attained service."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of
from services.scheduler.core.waiting_unit import INFINITE, OrderContext, PendingUnit

_SLACK_S = 1e-6
_LEAST_EFFORT_S = 1.0
_MOST_LEVELS = 64


def times_left(running: Sequence[Any], now_s: float) -> list[float]:
    """Seconds from ``now_s`` until units that run are expected to end."""
    soon_s = now_s + _SLACK_S
    return [
        # What is as it was expected needs no estimate of how much longer.
        (end_s if soon_s < end_s < INFINITE else item.end_s(now_s, "expected")) - now_s
        for item in running
        for end_s in (item.expected_end_s,)
    ]


class ShortestRemainingOrder:
    """Least predicted remaining run time first."""

    name = "shortest_remaining"
    per = "unit"
    scale = "amount"
    steady = True
    by_end = "expected"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.remaining_s

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        return float(running.end_s(context.now_s, "expected")) - context.now_s

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        return times_left(running, context.now_s)


class LeastWorkOrder:
    """Least predicted remaining accelerator-seconds first (remaining time times accelerators)."""

    name = "least_work"
    per = "unit"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.remaining_s * max(unit.devices, 1.0)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        left = float(running.end_s(context.now_s, "expected")) - context.now_s
        return left * max(float(running.unit.devices), 1.0)


class ServiceIndexOrder:
    """Greatest service index first (Gittins, or whatever the predictor gives)."""

    name = "service_index"
    per = "unit"
    renews = True

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -unit.service_index

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs, as it was last asked about."""
        return -float(running.service_index)


class ShortestEffortOrder:
    """Least effort until an end first: between the predicted remaining time and 1 / the Gittins index, the service that is
    spent per job of this kind that ends when each gets the share that suits best.

    The median says nothing about the few that end early or run on for days, the index nothing about a job's own
    predictions. The key is their geometric mean, remaining^(1 - weight) x index^-weight: as run times are spread over
    orders of magnitude, errors of both are of their logarithms. With exact run times both are the remaining time (SRPT).
    Without an index the remaining time decides.

    Efforts from ``ceiling_s`` on count alike, so what follows in the order, in the end age, decides between them. A job that
    has run long looks ever longer: without a ceiling the longest jobs share the time and all end late, while first come,
    first served is best for the tail where sizes are bounded (Wierman and Zwart, "Is Tail-Optimal Scheduling Possible?",
    Operations Research 60(5), 2012), and Tiresias serves its last queue so.

    With ``patience_s`` an effort below the ceiling counts as less, the longer ago the unit was queued: a factor of e for each
    ``patience_s``. Who waits is passed by shorter ones for a while, not for ever. That is the order by boosted arrivals, queued -
    patience x ln(1 / effort), whose tail is best where sizes are light-tailed (Yu and Scully, "Strongly Tail-Optimal Scheduling
    in the Light-Tailed M/G/1", Proc. ACM Meas. Anal. Comput. Syst. 8(2), 2024, there with another boost for long jobs). What
    has the ceiling comes last at any age: a few jobs of weeks would else get ahead of all others. Keys are logarithms then, so
    that they do not change with time while a unit waits.
    """

    name = "shortest_effort"
    per = "unit"
    renews = True

    def __init__(self, weight: float = 0.5, ceiling_s: float = INFINITE, patience_s: float = INFINITE) -> None:
        self.weight, self.ceiling_s, self.patience_s = weight, ceiling_s, patience_s
        self.scale = "amount" if patience_s == INFINITE else "logarithm"

    def configured(self, options: Mapping[str, Any]) -> ShortestEffortOrder:
        """With ``weight`` of the index (0-1; 0: the remaining time alone, 1: the index alone), ``ceiling_s`` and ``patience_s``
        (seconds, at least 1; without it there is none, and efforts keep what they are)."""
        made = ShortestEffortOrder(**numbers_of(self.name, options, weight=0.0, ceiling_s=1.0, patience_s=1.0))
        if made.weight > 1.0:
            raise PolicyError(f"options.{self.name}.weight: must be at most 1, not {made.weight:g}")
        return made

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return self._rank(self._effort_s(unit.remaining_s, unit.service_index), unit.queued_at_s)

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs, with the index as it was last asked about."""
        left_s = float(running.end_s(context.now_s, "expected")) - context.now_s
        return self._rank(self._effort_s(left_s, float(running.service_index)), float(running.unit.queued_at_s))

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        left = times_left(running, context.now_s)
        return [
            self._rank(self._effort_s(left_s, item.service_index), item.unit.queued_at_s)
            for item, left_s in zip(running, left, strict=True)
        ]

    def _rank(self, effort_s: float, queued_at_s: float) -> float:
        if self.patience_s == INFINITE:
            return min(effort_s, self.ceiling_s)
        if effort_s >= self.ceiling_s:
            return INFINITE
        return math.log(max(effort_s, _LEAST_EFFORT_S)) + queued_at_s / self.patience_s

    def _effort_s(self, remaining_s: float, index: float) -> float:
        if index <= 0 or not self.weight:
            return remaining_s
        if self.weight == 1.0:
            return 1.0 / index
        return float(remaining_s ** (1.0 - self.weight) * index**-self.weight)


class LeastAttainedOrder:
    """Two-dimensional least attained service (Tiresias, Gu et al., NSDI 2019): accelerators times time so far, in queues;
    what follows in the order decides inside a queue (first in, first out: age).

    ``threshold_s`` are the accelerator-seconds after which a unit falls into the second queue; with ``levels`` L > 2 there
    are L queues, each ``growth`` times as long as the one before (multi-level feedback).
    """

    name = "least_attained"
    per = "unit"
    steady = True
    lasting = True

    def __init__(self, threshold_s: float = 3600.0, levels: float = 2, growth: float = 2.0) -> None:
        self._thresholds = [threshold_s * growth**level for level in range(int(levels) - 1)]

    def configured(self, options: Mapping[str, Any]) -> LeastAttainedOrder:
        """With ``threshold_s``, ``levels`` (2-64) and ``growth`` (at least 1)."""
        numbers = numbers_of(self.name, options, threshold_s=0.0, levels=2.0, growth=1.0)
        if numbers.get("levels", 0.0) > _MOST_LEVELS:
            raise PolicyError(f"options.{self.name}.levels: must be at most {_MOST_LEVELS}, not {numbers['levels']:g}")
        try:
            return LeastAttainedOrder(**numbers)
        except OverflowError:
            raise PolicyError(f"options.{self.name}.growth: is too great for so many levels") from None

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return float(bisect_right(self._thresholds, unit.service_s * max(unit.devices, 1.0) + _SLACK_S))

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs."""
        served = float(running.service_s(context.now_s)) * max(float(running.unit.devices), 1.0)
        return float(bisect_right(self._thresholds, served + _SLACK_S))

    def running_keys(self, running: Sequence[Any], context: OrderContext) -> list[float]:
        """The same of many."""
        now_s, thresholds = context.now_s, self._thresholds
        width: dict[int, float] = {}
        keys = []
        alone = thresholds[0] if len(thresholds) == 1 else None
        for item in running:
            unit = item.unit
            devices = width.get(id(unit.demand))
            if devices is None:
                devices = width[id(unit.demand)] = max(unit.devices, 1.0)
            served_s = max(unit.attained_s, unit.served_s)
            if now_s > item.since_s:
                served_s += now_s - item.since_s
            served = served_s * devices + _SLACK_S
            level = served >= alone if alone is not None else bisect_right(thresholds, served)
            keys.append(float(level))
        return keys

    def changes_at_s(self, running: Any, now_s: float) -> float:
        """When a running unit falls into the next queue: a cycle is wanted then. Infinite when it is in the last one."""
        devices = max(float(running.unit.devices), 1.0)
        level = bisect_right(self._thresholds, float(running.service_s(now_s)) * devices + _SLACK_S)
        if level >= len(self._thresholds):
            return INFINITE
        return float(running.since_s + self._thresholds[level] / devices - running.unit.service_s)
