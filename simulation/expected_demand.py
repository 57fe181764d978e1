"""What a simulated scheduler is told of tenants' demand to come: by the forecast service's own methods, by the truth, or that all stays.

Each is the fact "outlooks" of `services.scheduler.core.preallocation`: asked in every scheduling cycle, it looks at the cluster at
each window that has passed since (what a tenant holds and asks for then), so it needs no place in the engine. A policy with
``interval_s`` of a window makes sure that cycles happen.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from services.forecast.backtest import standard_methods
from services.forecast.rolling import Rolling
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.preallocation import Outlook
from simulation.model import Trace

WINDOW_S = 600.0
_SEASONS_S = (86_400.0,)
# Windows that a series is taken to have, so that a daily season may be tried.
_HISTORY = 4320


def demand_now(cluster: Cluster) -> dict[str, float]:
    """Accelerators that each tenant holds or asks for."""
    found: dict[str, float] = {}
    for running in cluster.running.values():
        found[running.unit.tenant_id] = found.get(running.unit.tenant_id, 0.0) + running.unit.devices
    for unit in cluster.pending:
        found[unit.tenant_id] = found.get(unit.tenant_id, 0.0) + unit.devices
    return found


@dataclass(slots=True)
class Persistence:
    """All stays as it is: the forecast is the present demand."""

    cluster: Cluster
    tenants: Sequence[str]
    window_s: float = WINDOW_S
    _window: int = -1
    _known: dict[str, Outlook] = field(default_factory=dict)

    def at(self, now_s: float) -> Mapping[str, Outlook]:
        """See `services.scheduler.core.preallocation.Outlooks`."""
        window = int(now_s // self.window_s)
        if window != self._window:
            self._window = window
            demand = demand_now(self.cluster)
            self._known = {
                name: Outlook(now_s, ((0.0, demand.get(name, 0.0), demand.get(name, 0.0)),)) for name in self.tenants
            }
        return self._known


class Forecast:
    """The forecast service's methods, choice and bands (`services.forecast.rolling`) on the demand of each tenant."""

    def __init__(
        self, cluster: Cluster, tenants: Sequence[str], horizons_s: Sequence[float], window_s: float = WINDOW_S
    ) -> None:
        self._cluster, self._tenants, self._window_s = cluster, tuple(tenants), window_s
        self._horizons_s = tuple(horizons_s)
        steps = [max(1, round(horizon / window_s)) for horizon in horizons_s]
        self._rolling = Rolling(standard_methods(window_s, _SEASONS_S, _HISTORY), steps, series=len(self._tenants))
        self._window: int | None = None
        self._known: dict[str, Outlook] = {}

    def at(self, now_s: float) -> Mapping[str, Outlook]:
        """See `services.scheduler.core.preallocation.Outlooks`."""
        window = int(now_s // self._window_s)
        if self._window is not None and window == self._window:
            return self._known
        demand = demand_now(self._cluster)
        values = np.array([demand.get(name, 0.0) for name in self._tenants])
        # Nothing happened in windows without a cycle: the demand was the same.
        for _ in range(1 if self._window is None else min(window - self._window, _HISTORY)):
            self._rolling.advance(values)
        self._window = window
        current = self._rolling.current()
        self._known = {
            name: Outlook(
                now_s,
                tuple(
                    (horizon_s, float(current.expected[place, row]), float(current.high[place, row]))
                    for place, horizon_s in enumerate(self._horizons_s)
                ),
            )
            for row, name in enumerate(self._tenants)
        }
        return self._known


class Oracle:
    """Knows which jobs will be submitted: the present demand and all that comes within the horizon (ends are not foreseen)."""

    def __init__(self, cluster: Cluster, trace: Trace, tenants: Sequence[str], horizon_s: float) -> None:
        self._cluster, self._tenants, self._horizon_s = cluster, tuple(tenants), horizon_s
        self._arrivals: dict[str, tuple[list[float], list[float]]] = {}
        for name in self._tenants:
            jobs = [job for job in trace.jobs if job.tenant == name]
            self._arrivals[name] = [job.submit_s for job in jobs], [0.0, *accumulate(job.devices for job in jobs)]

    def at(self, now_s: float) -> Mapping[str, Outlook]:
        """See `services.scheduler.core.preallocation.Outlooks`."""
        demand = demand_now(self._cluster)
        found: dict[str, Outlook] = {}
        for name, (times, sums) in self._arrivals.items():
            comes = sums[bisect_right(times, now_s + self._horizon_s)] - sums[bisect_right(times, now_s)]
            total = demand.get(name, 0.0) + comes
            found[name] = Outlook(now_s, ((self._horizon_s, total, math.nan),))
        return found
