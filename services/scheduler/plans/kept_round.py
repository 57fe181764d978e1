"""The targets of the last round of elastic jobs: how long they stay what would be planned, so that rounds can be left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.planning import Target
from services.scheduler.plans.looking_ahead import Outlook
from services.scheduler.plans.service import service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

_NAME = "elastic"
_SLACK = 1e-6


class Kept:
    """The targets of a round for as long as it stays the same (``until_s``). A copy of the cluster makes them anew.

    ``settles``: carrying them out changes nothing for the next round (`settles`). ``outlook``: how far was looked ahead."""

    def __init__(
        self,
        jobs: Jobs,
        until_s: float,
        targets: Sequence[Target],
        *,
        settles: bool = False,
        outlook: Outlook | None = None,
    ) -> None:
        self._keys, self._rates, self.until_s, self.targets = jobs.keys, jobs.rates, until_s, targets
        self._settles, self._outlook = settles, outlook

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def hold(self, jobs: Jobs) -> bool:
        """Whether they are what would be planned now: nobody came, began or ended, and nothing hangs on the time."""
        return jobs.keys is self._keys and jobs.now_s < self.until_s

    def outlook_of(self, jobs: Jobs) -> Outlook | None:
        """How far was looked ahead with these jobs."""
        return self._outlook if jobs.keys is self._keys else None

    def settled(self, cluster: Cluster) -> bool:
        """Whether the next rounds would plan the same, of the same jobs on the same devices, whichever of them run by now."""
        if not self._settles or not self._rates.hold(cluster):
            return False
        if len(cluster.running) + len(cluster.pending) != len(self._keys):
            return False
        waiting = [key for key in self._keys if key not in cluster.running]
        return all(key in cluster.pending for key in waiting)


def settles(cluster: Cluster, jobs: Jobs) -> bool:
    """Whether who begins in this round, where each job has one size at most, is free to be taken off again by the next round, as all
    are in this one: so the next has the same choice."""
    begin_s = max(float(jobs.restart_s.max(initial=0.0)), cluster.policy.restarts.least_run_s)
    round_s = cluster.policy.interval_s
    # Differences of whole seconds are exact, others may be a little less.
    exact = round_s.is_integer() and jobs.now_s.is_integer()
    return jobs.all_preemptible and (begin_s <= round_s if exact else begin_s < round_s * (1.0 - _SLACK))


def kept_targets(cluster: Cluster, jobs: Jobs) -> Sequence[Target] | None:
    """The targets of the round before, if this one is the same."""
    found: Kept | None = service_of(cluster).plan.get(_NAME)
    if found is None or not found.hold(jobs):
        return None
    more = others(cluster, jobs)
    return [*found.targets, *more] if more else found.targets


def outlook_of(cluster: Cluster, jobs: Jobs) -> Outlook | None:
    """How far was looked ahead with these jobs (`looking_ahead`)."""
    found: Kept | None = service_of(cluster).plan.get(_NAME)
    return None if found is None else found.outlook_of(jobs)


def keep(cluster: Cluster, kept: Kept, jobs: Jobs) -> Sequence[Target]:
    """Keep them; the targets, and those of units without accelerators."""
    service_of(cluster).plan[_NAME] = kept
    more = others(cluster, jobs)
    return [*kept.targets, *more] if more else kept.targets


class Lasting:
    """A planner that says how long its last round stays the same."""

    def same_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See services/scheduler/core/planning.py."""
        found: Kept | None = service_of(cluster).plan.get(_NAME)
        return found.until_s if found is not None and found.hold(jobs_of(cluster, now_s)) else -np.inf

    def settled_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See services/scheduler/core/planning.py."""
        found: Kept | None = service_of(cluster).plan.get(_NAME)
        return np.inf if found is not None and found.settled(cluster) else -np.inf
