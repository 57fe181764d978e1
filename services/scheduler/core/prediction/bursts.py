"""Places of jobs in bursts: what tells jobs apart of which nothing but the size is known."""

from __future__ import annotations

import math
from dataclasses import replace

from services.scheduler.core.prediction.features import Features

GAP_S = 900.0
"""A job that comes later than this after the one before it begins a new burst."""
Key = tuple[str, int, int, float]


class Bursts:
    """Counts the jobs of one tenant and size that follow each other within `GAP_S`, in the order of submission.

    Sweeps hand in the same series of jobs again and again. Where jobs name their user or what they run, that says more:
    those get no place. The order of submission is that of the calls.
    """

    def __init__(self) -> None:
        self._last: dict[Key, tuple[float, int]] = {}

    def placed(self, job: Features) -> Features:
        """The job with its place (0 for the first of a burst), or as it is when it names its user or what it runs."""
        if job.user or job.name:
            return job
        key = job.tenant, job.ranks, job.accelerators, job.cpus
        before_s, place = self._last.get(key, (-math.inf, -1))
        place = place + 1 if job.submit_s - before_s <= GAP_S else 0
        self._last[key] = job.submit_s, place
        return replace(job, place=place)
