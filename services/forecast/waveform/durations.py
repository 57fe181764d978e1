"""How long a job will run on a kind of accelerator, as far as its job file tells: the first of these that applies.

1. Declared rates and steps: steps / rate. The user measured them; the next run is taken to differ by 10 %.
2. The model, its steps and batch: steps x the step time of the cost model, and the declared pauses. The cost model's errors on
   families that it was not fitted on are 1-12 %, over outside runs 14 % (docs/cost-model.md); the spread is 20 %.
3. The time limit alone: runs end anywhere before it, evenly (the f-model of Mu'alem and Feitelson, TPDS 2001).
Spreads are standard deviations of the logarithm; errors of the same model on the same chip are one error, not many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobSpec
from meridian.errors import InvalidArgumentError
from services.forecast.accelerator_names import means
from services.forecast.cost_model import TrainingLayout, machine_of
from services.forecast.cost_model import estimate as cost_estimate
from services.forecast.cost_model.layout import Recompute, precision_named
from services.forecast.cost_model.shapes import shape_of
from services.forecast.phases.declared import schedule_of

Array = NDArray[np.float64]

RATE_SPREAD = 0.10
MODEL_SPREAD = 0.20
_NORMAL_90 = 1.2815515655446004


class Source(StrEnum):
    """What a run time rests on."""

    RATES = "declared rates"
    COST_MODEL = "cost model"
    LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class RunTime:
    """A run time: ``expected_s`` is its median (mean for a limit), ``limit_s`` cuts it off. ``error_group`` names
    jobs whose errors are one."""

    expected_s: float
    source: Source
    spread: float
    limit_s: float
    error_group: str

    def quantiles(self, shares: Array) -> Array:
        """Seconds at each of ``shares`` (0-1, exclusive) of the distribution."""
        if self.source is Source.LIMIT:
            return shares * self.limit_s
        from statistics import NormalDist

        normal = NormalDist()
        z = np.array([normal.inv_cdf(float(share)) for share in shares])
        return np.minimum(self.expected_s * np.exp(self.spread * z), self.limit_s)

    @property
    def low_s(self) -> float:
        """The lower end of the 80 % band."""
        if self.source is Source.LIMIT:
            return 0.1 * self.limit_s
        return min(self.expected_s * math.exp(-self.spread * _NORMAL_90), self.limit_s)

    @property
    def high_s(self) -> float:
        """The upper end of the 80 % band."""
        if self.source is Source.LIMIT:
            return 0.9 * self.limit_s
        return min(self.expected_s * math.exp(self.spread * _NORMAL_90), self.limit_s)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why nothing is known of the run time."""

    reason: str


def run_time(spec: JobSpec, accelerator_type: str) -> RunTime | Unknown:
    """How long the job runs on accelerators of this type."""
    limit = spec.max_run_time_s if spec.max_run_time_s > 0 else math.inf
    if spec.kind == job_pb2.JOB_KIND_SERVICE:
        return Unknown("a service runs until it is cancelled")
    if spec.kind == job_pb2.JOB_KIND_WORKFLOW:
        return Unknown("the tasks of a workflow say nothing of their run times")
    why = []
    rate = _rate(spec, accelerator_type)
    if rate is not None and spec.model.steps:
        group = f"rate:{accelerator_type}:{spec.name}"
        seconds = min(spec.model.steps / rate, limit)
        if math.isfinite(seconds):
            return RunTime(seconds, Source.RATES, RATE_SPREAD, limit, group)
        why.append(f"{spec.model.steps} steps at the declared rate of {rate:g} per second never end")
    if spec.HasField("model"):
        found = _by_cost_model(spec, accelerator_type)
        if isinstance(found, float) and min(found, limit) == math.inf:
            found = "its steps and pauses never end"
        if isinstance(found, float):
            model = spec.model
            group = f"model:{accelerator_type}:{model.layers}:{model.hidden}:{model.parameters}"
            return RunTime(min(found, limit), Source.COST_MODEL, MODEL_SPREAD, limit, group)
        why.append(found)
    if limit < math.inf:
        return RunTime(limit / 2, Source.LIMIT, math.inf, limit, f"limit:{spec.name}")
    return Unknown("; ".join([*why, "neither rates with steps nor a time limit are declared"]))


def _rate(spec: JobSpec, accelerator_type: str) -> float | None:
    ranks = max(1, spec.ranks)
    # Of several types that mean the model the fastest, as planners take it.
    return max(
        (
            item.rate
            for item in spec.rates
            if item.ranks == ranks and item.rate > 0 and means([item.accelerator_type], accelerator_type)
        ),
        default=None,
    )


def _by_cost_model(spec: JobSpec, accelerator_type: str) -> float | str:
    model = spec.model
    missing = [name for name in ("layers", "hidden", "sequence", "global_batch", "steps") if not getattr(model, name)]
    if missing:
        return f"model.{missing[0]} is not declared"
    schedule = schedule_of(spec)
    try:
        shape = shape_of(layers=model.layers, hidden=model.hidden, heads=model.heads, vocabulary=model.vocabulary)
        tensor, pipeline = max(1, model.tensor_parallel), max(1, model.pipeline_parallel)
        layout = TrainingLayout(
            sequence=model.sequence,
            global_batch=model.global_batch,
            tp=tensor,
            pp=pipeline,
            dp=max(1, int(schedule.accelerators) // (tensor * pipeline)),
            precision=precision_named(model.precision or "bf16"),
            recompute=Recompute.FULL if model.recompute else Recompute.NONE,
        )
        step_s = cost_estimate(shape, layout, machine_of(accelerator_type)).step.total_s
    except InvalidArgumentError as error:
        return error.detail
    # A step of a ramp with a share of the batch takes about that share of the time.
    full_steps = sum(
        (stage.end_step - stage.first_step) * max(stage.global_batch / model.global_batch, 1 / schedule.replicas)
        for stage in schedule.stages()
    )
    training_s = full_steps * step_s
    pauses_s = model.evaluation_s * (model.steps // model.evaluate_every_steps if model.evaluate_every_steps else 0)
    if schedule.checkpoint_every_s and schedule.checkpoint_s:
        pauses_s += training_s / schedule.checkpoint_every_s * schedule.checkpoint_s
    return training_s + pauses_s
