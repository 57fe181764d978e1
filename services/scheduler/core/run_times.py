"""What the book knows of run times: limits that users declared, and predictions learned from its own finished units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.prediction import Features, Prediction, RunTimePredictor
from services.scheduler.core.state import Job, JobKind, UnitSpec


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a whole run; infinite where nothing is known. ``service_index`` is the predictor's (greater goes first)."""

    limit_s: float = math.inf
    expected_s: float = math.inf
    low_s: float = 0.0
    high_s: float = math.inf
    service_index: float = 0.0


class RunTimes:
    """Wraps a predictor. Services run until they are stopped: nothing is learned from them or said about them.

    1. `estimate` answers for a unit by the limit of its job and the predictor's median and band; with former run time that
       its checkpoint keeps, by what is left then.
    2. `observe` learns from a unit that succeeded. A unit that failed or was cancelled says nothing about its run time.
    3. `state` and `restored` carry everything over a restart; ``until_s`` is the end of the last run that was learned.
    """

    def __init__(self, predictor: RunTimePredictor | None = None) -> None:
        self.predictor = predictor or RunTimePredictor()
        self.observed = 0
        self.until_s = 0.0
        self._answers: dict[Features, Prediction] = {}

    def estimate(self, job: Job, unit: UnitSpec, attained_s: float) -> Estimate:
        """What is known of a unit whose former runs count for ``attained_s`` seconds."""
        if job.spec.kind is JobKind.SERVICE:
            return Estimate()
        features = features_of(job, unit)
        limit_s = job.spec.max_run_time_s if job.spec.max_run_time_s > 0 else math.inf
        if attained_s > 0:
            found = self.predictor.remaining(features, attained_s)
        else:
            attained_s = 0.0
            known = self._answers.get(features)
            found = self._answers[features] = known or self.predictor.predict(features)
        return Estimate(
            limit_s,
            attained_s + found.median_s,
            attained_s + found.low_s,
            attained_s + found.high_s,
            self.predictor.service_index(features, attained_s),
        )

    def left_s(self, job: Job, unit: UnitSpec, ran_s: float) -> float:
        """How much longer a unit is thought to run that has run ``ran_s``; infinite for services."""
        if job.spec.kind is JobKind.SERVICE:
            return math.inf
        return self.predictor.remaining(features_of(job, unit), max(ran_s, 0.0)).median_s

    def observe(self, job: Job, unit: UnitSpec, run_s: float, end_s: float) -> None:
        """Learn that a unit succeeded at ``end_s`` after ``run_s`` seconds of run that counted."""
        if job.spec.kind is JobKind.SERVICE or not math.isfinite(run_s):
            return
        self.predictor.observe(features_of(job, unit), max(run_s, 0.0), end_s)
        self.observed += 1
        self.until_s = max(self.until_s, end_s)
        self._answers.clear()

    def state(self) -> dict[str, Any]:
        """Everything learned, as JSON types."""
        return {"observed": self.observed, "until_s": self.until_s, "predictor": self.predictor.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> RunTimes:
        """Goes on where `state` was taken; PolicyError when it does not read."""
        try:
            made = cls(RunTimePredictor.from_state(state["predictor"]))
            made.observed, made.until_s = int(state["observed"]), float(state["until_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the state of the run times does not read: {error!r}") from error
        return made


def features_of(job: Job, unit: UnitSpec) -> Features:
    """What the predictor may know of a unit."""
    demand, limit_s = unit.demand, job.spec.max_run_time_s
    return Features(
        tenant=job.tenant_id,
        name=unit.name or job.spec.name,
        ranks=demand.ranks,
        accelerators=demand.accelerators,
        cpus=demand.cpus,
        estimate_s=limit_s if limit_s > 0 else 0.0,
    )
