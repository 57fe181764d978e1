"""What planners remember about jobs between rounds. It belongs to the cluster (`Cluster.watch`); the planners stay values.

Deciding twice at the same time changes nothing more. A cluster that is built anew begins with an empty account: every job counts as
if it had not run yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.running_unit import RunningUnit, model_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.waiting_unit import PendingUnit

_NAME = "plans"
_SPARE = 64


class Service:
    """Seconds that every job received by accelerator model, its starts, and the most ranks that it had.

    ``asked`` is the demand with which a job waited first (one that runs has what a plan gave it). ``plan`` is what a planner
    keeps from one round to the next, by its own name.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.asked: dict[UnitKey, Demand] = {}
        self.plan: dict[str, Any] = {}
        self._received: dict[UnitKey, dict[str, float]] = {}
        self._device_s: dict[UnitKey, float] = {}
        self._starts: dict[UnitKey, int] = {}
        self._most: dict[UnitKey, int] = {}
        self._begun: dict[UnitKey, float] = {}
        self._marks: dict[UnitKey, tuple[str, float, float]] = {}

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        key = running.unit.key
        if self._begun.get(key) != running.since_s:
            # One whose part of a device changed holds it anew, but has not started again.
            self._starts[key] = self._starts.get(key, 0) + 1
            self._begun[key] = running.since_s
        self._most[key] = max(self._most.get(key, 0), running.unit.demand.ranks)
        self._marks[key] = model_of(self._cluster.table, running), running.since_s, running.unit.devices

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more."""
        if not math.isnan(now_s):
            self._settle(running.unit.key, now_s)
        self._marks.pop(running.unit.key, None)

    def waits(self, unit: PendingUnit) -> Demand:
        """The demand with which a unit waited first."""
        return self.asked.setdefault(unit.key, unit.demand)

    def forget_all_but(self, keys: Sequence[UnitKey]) -> None:
        """Jobs that are no more need no account. Of units that were never planned it is kept until they are as many as jobs."""
        if len(self.asked) <= len(keys) and len(self._starts) <= 2 * len(keys) + _SPARE:
            return
        known = set(keys)
        # All that is written down of a job's runs is of one that has started.
        self.forget([key for key in (*self.asked, *self._starts) if key not in known])

    def forget(self, gone: Iterable[UnitKey]) -> None:
        """These jobs are no more."""
        tables: tuple[dict[UnitKey, Any], ...] = (
            self.asked,
            self._received,
            self._device_s,
            self._starts,
            self._most,
            self._begun,
        )
        for key in gone:
            for table in tables:
                table.pop(key, None)

    def reset(self, now_s: float) -> None:
        """Time by type is counted from now on; device-seconds, starts and sizes stay."""
        for key, (model, _, devices) in list(self._marks.items()):
            self._settle(key, now_s)
            self._marks[key] = model, now_s, devices
        self._received.clear()

    def received_s(self, keys: Sequence[UnitKey], models: Sequence[str], now_s: float) -> Floats:
        """Seconds by job and type (J, T) since the last reset."""
        result = np.zeros((len(keys), len(models)))
        column = {model: place for place, model in enumerate(models)}
        received, marks = self._received, self._marks
        for row, key in enumerate(keys):
            if key in received:
                for model, seconds in received[key].items():
                    if model in column:
                        result[row, column[model]] += seconds
            mark = marks.get(key)
            if mark is not None and mark[0] in column:
                result[row, column[mark[0]]] += max(now_s - mark[1], 0.0)
        return result

    def device_s(self, keys: Sequence[UnitKey], now_s: float) -> Floats:
        """Device-seconds (J) received so far, on whatever type."""
        result = np.zeros(len(keys))
        for row, key in enumerate(keys):
            result[row] = self._device_s.get(key, 0.0)
            mark = self._marks.get(key)
            if mark is not None:
                result[row] += max(now_s - mark[1], 0.0) * mark[2]
        return result

    def starts(self, keys: Sequence[UnitKey]) -> Ints:
        """How often each job (J) was started."""
        return np.array([self._starts.get(key, 0) for key in keys], dtype=np.int64)

    def most_ranks(self, keys: Sequence[UnitKey]) -> Ints:
        """The most ranks that each job (J) ran with."""
        return np.array([self._most.get(key, 0) for key in keys], dtype=np.int64)

    def _settle(self, key: UnitKey, now_s: float) -> None:
        mark = self._marks.get(key)
        if mark is None or now_s <= mark[1]:
            return
        model, since_s, devices = mark
        by_model = self._received.setdefault(key, {})
        by_model[model] = by_model.get(model, 0.0) + now_s - since_s
        self._device_s[key] = self._device_s.get(key, 0.0) + (now_s - since_s) * devices


def service_of(cluster: Cluster) -> Service:
    """The cluster's account, kept up from the first time that it is asked for."""
    return cluster.watch(_NAME, None, lambda: Service(cluster))
