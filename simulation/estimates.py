"""What a simulated scheduler knows about run times: everything, what users declared, what can be learned, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.prediction import Bursts, Features, RunTimePredictor
from simulation.model import TraceJob

KNOWLEDGE = ("exact", "declared", "predicted", "none")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a whole undisturbed run on the reference chip; infinite where nothing is known."""

    expected_s: float = math.inf
    limit_s: float = math.inf
    low_s: float = 0.0
    high_s: float = math.inf
    service_index: float = 0.0


class Estimates(Protocol):
    """Told of every submission and every end, asked for every unit that begins to wait."""

    def of(self, job: TraceJob, attained_s: float, now_s: float) -> Estimate:
        """What is known of a job that has run ``attained_s`` so far."""
        ...

    def ended(self, job: TraceJob, run_s: float, now_s: float) -> None:
        """A job ended after ``run_s`` seconds of run."""
        ...


class Exact:
    """An oracle: the true run time."""

    def of(self, job: TraceJob, attained_s: float, now_s: float) -> Estimate:
        """The truth."""
        limit_s = job.duration_s if math.isnan(job.estimate_s) else job.estimate_s
        index = 1.0 / max(job.duration_s - attained_s, 1.0)
        return Estimate(job.duration_s, limit_s, job.duration_s, job.duration_s, index)

    def ended(self, job: TraceJob, run_s: float, now_s: float) -> None:
        """Nothing to learn."""


class Declared:
    """What users declared; infinite where they declared nothing."""

    def of(self, job: TraceJob, attained_s: float, now_s: float) -> Estimate:
        """The declared limit."""
        limit_s = math.inf if math.isnan(job.estimate_s) else job.estimate_s
        return Estimate(limit_s, limit_s, 0.0, limit_s)

    def ended(self, job: TraceJob, run_s: float, now_s: float) -> None:
        """Nothing to learn."""


class Nothing:
    """No knowledge at all."""

    def of(self, job: TraceJob, attained_s: float, now_s: float) -> Estimate:
        """Unknown."""
        return Estimate()

    def ended(self, job: TraceJob, run_s: float, now_s: float) -> None:
        """Nothing to learn."""


class Predicted:
    """What `RunTimePredictor` learned from jobs that ended before now."""

    def __init__(self) -> None:
        self._predictor = RunTimePredictor()
        self._bursts = Bursts()
        self._features: dict[str, Features] = {}
        self._made: dict[str, object] = {}

    def of(self, job: TraceJob, attained_s: float, now_s: float) -> Estimate:
        """The predicted run time: at submission, or given that it has run ``attained_s``."""
        features = self._features_of(job)
        limit_s = math.inf if math.isnan(job.estimate_s) else job.estimate_s
        index = self._predictor.service_index(features, attained_s)
        if attained_s <= 0:
            found = self._predictor.predict(features, now_s)
            self._made[job.job_id] = found
        else:
            found = self._predictor.remaining(features, attained_s)
        return Estimate(
            attained_s + found.median_s, limit_s, attained_s + found.low_s, attained_s + found.high_s, index
        )

    def ended(self, job: TraceJob, run_s: float, now_s: float) -> None:
        """Learn."""
        features, found = self._features_of(job), self._made.pop(job.job_id, None)
        del self._features[job.job_id]
        self._predictor.observe(features, max(run_s, 0.0), now_s, found)  # type: ignore[arg-type]

    def _features_of(self, job: TraceJob) -> Features:
        """Those at submission, which is when a job is first asked for."""
        known = self._features.get(job.job_id)
        if known is None:
            known = self._features[job.job_id] = self._bursts.placed(_features(job))
        return known


def _features(job: TraceJob) -> Features:
    return Features(job.tenant, job.user, job.name, job.ranks, job.accelerators, job.cpus, job.estimate_s, job.submit_s)


def estimates(knowledge: str) -> Estimates:
    """The source of estimates by name: "exact", "declared", "predicted" or "none"."""
    if knowledge == "exact":
        return Exact()
    if knowledge == "declared":
        return Declared()
    if knowledge == "predicted":
        return Predicted()
    return Nothing()
