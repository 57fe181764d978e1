"""Rounds in which no job has a choice: each has one size, on one type of accelerator. They need no table of configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.planning import Target
from services.scheduler.core.table import Bools, Ints
from services.scheduler.plans.state import Jobs

Choice = Callable[[Ints, float], Bools]
"""Which of jobs (J) of so many devices each run on so many free ones."""


@dataclass(frozen=True, slots=True)
class RigidRound:
    """``jobs`` with ``devices`` (J) each: those that may run at all (``open``, J), and those that keep their devices in any case as
    they are starting or may not be taken off (``held``, J)."""

    jobs: Jobs
    devices: Ints
    open: Bools
    held: Bools

    def targets(self, choice: Choice, reason: str) -> list[Target]:
        """Those that stay first, then the large before the small."""
        jobs, devices = self.jobs, self.devices
        used = float(devices[self.held].sum())
        asked = np.flatnonzero(self.open)
        runs = self.held.copy()
        runs[asked[choice(devices[asked], max(float(jobs.capacity[0]) - used, 0.0))]] = True
        chosen = np.flatnonzero(runs)
        order = chosen[np.lexsort((-devices[chosen], jobs.kind[chosen] < 0))].tolist()
        rows, ranks = jobs.rows, jobs.least_ranks.tolist()
        known = [rows[job].targets.get((0, ranks[job], reason)) for job in order]
        return [
            jobs.target(job, 0, ranks[job], reason) if made is None else made
            for job, made in zip(order, known, strict=True)
        ]


def rigid_round(cluster: Cluster, jobs: Jobs) -> RigidRound | None:
    """The round, or None where there are several types, rates that change as jobs go on, or a job with a choice."""
    if len(jobs.models) != 1 or hasattr(cluster.view.facts.get("throughputs"), "rate_in"):
        return None
    least, runs = jobs.least_ranks, jobs.kind >= 0
    if (least != jobs.most_ranks).any() or (least != np.where(runs, jobs.held, least)).any():
        return None
    devices = least * jobs.each
    fits = devices <= jobs.capacity[0]
    if (runs & ~fits).any():
        return None
    held = (jobs.now_s - jobs.since_s < jobs.restart_s) & runs | jobs.fixed
    return RigidRound(jobs, devices, (jobs.throughput[:, 0] > 0) & fits & ~held, held)
