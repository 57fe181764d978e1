"""Estimates about units that run, asked for anew at the policy's interval.

What is predicted about a unit when it starts gets old: a job that has outlived most of its kind is expected to run on for
longer, and its Gittins index falls. Orders that rest on predictions (their ``renews`` is True: `service_index`,
`shortest_effort`) therefore see both as of the last renewal. Orders by attained service (`least_attained`) need none: that
is counted from the time at which they ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from services.scheduler.core.cluster import Cluster, RunningUnit
from services.scheduler.core.state import Job, JobKind, UnitKey

if TYPE_CHECKING:
    from services.scheduler.core.book import Book
    from services.scheduler.core.run_times import RunTimes

_LEAST_LEFT_S = 1.0


class Renewal:
    """When estimates were renewed last; a new book has never done so, so a new leader's first cycle begins with it.

    Steps, at a cycle with units that wait, when the policy's ``interval_s`` is over since the last time:
    1. Of each unit whose run goes on, the rest of its run (median, given that it has run so long) and its service index are
       asked for with all that was learned until now.
    2. What the last cycle found is forgotten: units may stand otherwise in the order now.

    Everything depends on the book and the times of cycles alone, so that a replay renews at the same cycles.
    """

    def __init__(self) -> None:
        self._last_s = -math.inf

    def next_s(self, cluster: Cluster) -> float:
        """When a cycle renews next: an interval after the last time. Infinite when the policy's orders rest on no estimates
        about running units, nobody waits who could take one off, or the policy has no interval."""
        policy = cluster.policy
        if not policy.interval_s or not policy.preemptions or not len(cluster.pending):
            return math.inf
        if not any(getattr(plugin, "renews", False) for plugin in cluster.pending.order):
            return math.inf
        return self._last_s + policy.interval_s

    def renewed(self, book: Book, now_s: float) -> list[RunningUnit]:
        """Running units with estimates as of now; the caller puts them in the place of the old ones. Empty: not due."""
        cluster = book.cluster
        if now_s < self.next_s(cluster):
            return []
        self._last_s = now_s
        return list(_renewed(cluster, book.jobs, book.run_times, now_s))


def _renewed(cluster: Cluster, jobs: dict[str, Job], run_times: RunTimes, now_s: float) -> Iterable[RunningUnit]:
    for key, running in cluster.running.items():
        job = jobs.get(key.job_id)
        if job is None or not running.unit.preemptible or job.spec.kind is JobKind.SERVICE:
            # Runs that are ending and nodes kept for units go nowhere in the order.
            continue
        yield renewed_unit(running, job, key, run_times, now_s)


def renewed_unit(running: RunningUnit, job: Job, key: UnitKey, run_times: RunTimes, now_s: float) -> RunningUnit:
    """One running unit with its end and service index as they are thought to be now (s since 1970; per s)."""
    ran_s = running.ran_s(now_s)
    known = run_times.estimate(job, job.units[key.unit_index], ran_s)
    end_s = now_s + max(known.expected_s - ran_s, _LEAST_LEFT_S)
    return replace(running, expected_end_s=end_s, service_index=known.service_index)
