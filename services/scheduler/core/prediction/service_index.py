"""Which job to serve next when only attained service is known: with heavy tails it says more than any prediction.

The Gittins index minimises mean completion time on one server when sizes are known in distribution only (Gittins,
"Bandit Processes and Dynamic Allocation Indices", J. R. Stat. Soc. B 41(2), 1979); for clusters: Gu et al., "Tiresias",
NSDI 2019.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.prediction.features import Features

Array = NDArray[np.float64]

RATIO = 1.25
EDGES_S: Array = np.concatenate(([0.0], RATIO ** np.arange(73)))
"""Attained service at which an index is tabulated, s: 0, 1, 1.25, ... 1.25^72 (110 days)."""
_EDGES: list[float] = EDGES_S.tolist()
Key = tuple[str | int | float, ...]


def gittins_indices(counts: Array) -> Array:
    """Gittins index at each of `EDGES_S`, 1/s, of jobs of which ``counts[i]`` ended in the i-th interval between edges.

    At age a: max over b > a of P(X <= b | X > a) / E[min(X, b) - a | X > a], b an edge; within an interval ends are
    spread evenly. Beyond the last job that ended the hazard is Pareto's with exponent 1, 1 / a.
    ``counts``: shape (len(EDGES_S) - 1,), >= 0. Result: shape (len(EDGES_S),).
    """
    alive = np.concatenate((np.cumsum(counts[::-1])[::-1], [0.0]))
    served = np.concatenate(([0.0], np.cumsum(0.5 * (alive[1:] + alive[:-1]) * np.diff(EDGES_S))))
    ended = alive[:, None] - alive[None, :]
    cost = served[None, :] - served[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where((cost > 0) & (ended > 0), ended / cost, 0.0)
    index: Array = np.triu(rate, 1).max(axis=1)
    beyond = alive <= 0
    index[beyond] = 1.0 / np.maximum(EDGES_S[beyond], 1.0)
    return index


class ServiceIndex:
    """Gittins indices by group, from the jobs that have ended; a table per group, refreshed as its number of jobs grows.

    1. A job that ends is counted in its groups: the user's jobs of that name, the tenant's of that size, all.
    2. A group's table is computed anew after `FIRST` jobs, then whenever the count has grown by an eighth (at least 8, at most
       `MOST_BETWEEN` jobs), from its counts and `PRIOR_SHARE` as many more jobs spread evenly over the intervals, which
       keeps gaps between few jobs from looking like certainty; counts above `FORGET_AT` are halved, so that old jobs fade.
    3. `index` takes the table of the narrowest group that has one, interpolated between edges: O(log of the edges).
    """

    FIRST = 32
    MOST_BETWEEN = 256
    FORGET_AT = 4096.0
    MAX_GROUPS = 20_000
    PRIOR_SHARE = 0.2

    def __init__(self) -> None:
        self._counts: dict[Key, list[float]] = {}
        self._due: dict[Key, list[int]] = {}
        self._tables: dict[Key, list[float]] = {}

    @staticmethod
    def groups(job: Features) -> tuple[Key, ...]:
        """The groups of a job, narrowest first."""
        size = (2, job.tenant, job.ranks, job.accelerators, job.cpus)
        if job.user or job.name:
            return ((1, job.tenant, job.user, job.name), size, (3,))
        return (size, (3,))

    def observe(self, job: Features, run_time_s: float) -> None:
        """Count a job that ended after ``run_time_s`` > 0."""
        interval = min(bisect_right(_EDGES, run_time_s), len(_EDGES) - 1) - 1
        if _EDGES[interval] == run_time_s and interval:
            interval -= 1
        for key in self.groups(job):
            counts = self._counts.pop(key, None)
            if counts is None:
                counts = [0.0] * (len(_EDGES) - 1)
                self._due[key] = [self.FIRST, 0]
                if len(self._counts) >= self.MAX_GROUPS:
                    oldest = next(iter(self._counts))
                    del self._counts[oldest], self._due[oldest]
                    self._tables.pop(oldest, None)
            self._counts[key] = counts
            counts[interval] += 1.0
            due = self._due[key]
            due[1] += 1
            if due[1] >= due[0]:
                self._refresh(key, due)

    def index(self, job: Features, attained_s: float) -> float:
        """Probability of ending per second of further service, at its best over all amounts of service; 1/s."""
        for key in self.groups(job):
            table = self._tables.get(key)
            if table is not None:
                break
        else:
            return 1.0 / max(attained_s, 1.0)
        last = len(_EDGES) - 1
        lower = bisect_right(_EDGES, attained_s) - 1
        if lower >= last:
            return table[last] * _EDGES[last] / attained_s
        share = (attained_s - _EDGES[lower]) / (_EDGES[lower + 1] - _EDGES[lower])
        return table[lower] + share * (table[lower + 1] - table[lower])

    def _refresh(self, key: Key, due: list[int]) -> None:
        counts = np.array(self._counts[key])
        if counts.sum() > self.FORGET_AT:
            counts *= 0.5
            self._counts[key] = counts.tolist()
        self._tables[key] = gittins_indices(counts + self.PRIOR_SHARE * counts.mean()).tolist()
        due[0] = due[1] + min(max(due[1] // 8, 8), self.MOST_BETWEEN)

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON types."""
        return {
            "groups": [
                [list(key), list(counts), list(self._due[key]), self._tables.get(key)]
                for key, counts in self._counts.items()
            ]
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ServiceIndex:
        """The index that `state` was taken from; raises `PolicyError` when a histogram has other edges."""
        made = cls()
        for key, counts, due, table in state["groups"]:
            if len(counts) != len(_EDGES) - 1:
                raise PolicyError(f"index: a histogram of {len(counts)} intervals instead of {len(_EDGES) - 1}")
            made._counts[tuple(key)] = list(counts)
            made._due[tuple(key)] = list(due)
            if table is not None:
                made._tables[tuple(key)] = list(table)
        return made
