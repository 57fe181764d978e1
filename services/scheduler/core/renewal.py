"""Estimates about units that run, asked for anew at the policy's interval.

What is predicted about a unit when it starts gets old: a job that has outlived most of its kind is expected to run on for
longer, and its Gittins index falls. Orders that rest on predictions (their ``renews`` is True: `service_index`,
`shortest_effort`) therefore see both as of the last renewal. Orders by attained service (`least_attained`) need none: that
is counted from the time at which they ask.

A program that reports its steps says more than others of its kind: where steps left and steps per second are known, they give the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.measured import Cell
from services.scheduler.core.records import Records
from services.scheduler.core.running_unit import RunningUnit, model_of
from services.scheduler.core.state import JobKind, UnitKey

_LEAST_LEFT_S = 1.0
_LEAST_CHANGE = 0.1


class Renewal:
    """When estimates were renewed last; a new book has never done so, so a new leader's first cycle begins with it.

    Steps, at a cycle with units that wait, when the policy's ``interval_s`` is over since the last time:
    1. Of each unit whose run goes on, the rest of its run (by its steps, else the median given that it has run so long) and
       its service index are asked for with all that was learned until now.
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

    def renewed(self, cluster: Cluster, book: Records, now_s: float) -> list[RunningUnit]:
        """Running units with estimates as of now; the caller puts them in the place of the old ones. Empty: not due."""
        if now_s < self.next_s(cluster):
            return []
        self._last_s = now_s
        return list(_renewed(cluster, book, now_s))


def _renewed(cluster: Cluster, book: Records, now_s: float) -> Iterable[RunningUnit]:
    for key, running in cluster.running.items():
        job = book.jobs.get(key.job_id)
        if job is None or not running.unit.preemptible or job.spec.kind is JobKind.SERVICE:
            # Runs that are ending and nodes kept for units go nowhere in the order.
            continue
        yield renewed_unit(running, cluster, book, now_s)


def renewed_unit(running: RunningUnit, cluster: Cluster, book: Records, now_s: float) -> RunningUnit:
    """One running unit with its end and service index as they are thought to be now (s since 1970; per s)."""
    key = running.unit.key
    job = book.jobs[key.job_id]
    ran_s = running.ran_s(now_s)
    known = book.run_times.estimate(job, job.units[key.unit_index], ran_s)
    left_s = steps_left_s(running, cluster, book, now_s)
    if left_s is None:
        left_s = known.expected_s - ran_s
    return replace(running, expected_end_s=now_s + max(left_s, _LEAST_LEFT_S), service_index=known.service_index)


def steps_left_s(running: RunningUnit, cluster: Cluster, book: Records, now_s: float) -> float | None:
    """Seconds that a running unit has to run by the steps that its program reported; None where they do not say."""
    key = running.unit.key
    if key not in book.measured.done:
        return None
    return book.measured.left_s(
        key, cell_of(cluster, running), book.jobs[key.job_id].spec.steps, running.since_s, now_s
    )


def cell_of(cluster: Cluster, running: RunningUnit) -> Cell:
    """How a unit runs: accelerator model and ranks."""
    return Cell(model_of(cluster.table, running), len(running.ranks))


def by_steps(cluster: Cluster, book: Records, keys: Iterable[UnitKey], now_s: float) -> Iterable[RunningUnit]:
    """Those of the units whose reported steps say another end than was thought (by more than a tenth of what is left), where
    decisions rest on ends of running units: by the policy, or on two levels, where a shard chooses domains under share contracts and
    foresees starts by them."""
    policy = cluster.policy
    rests = bool(policy.preemptions) or policy.discipline in ("easy", "conservative") or book.fleet.asks_domains
    if not rests:
        return
    for key in keys:
        running = cluster.running.get(key)
        left_s = (
            steps_left_s(running, cluster, book, now_s) if running is not None and key.job_id in book.jobs else None
        )
        if running is None or left_s is None:
            continue
        end_s = now_s + max(left_s, _LEAST_LEFT_S)
        if not abs(end_s - running.expected_end_s) <= max(_LEAST_CHANGE * left_s, _LEAST_LEFT_S):
            yield replace(running, expected_end_s=end_s)
