"""The schedule of a training job, read from its job file. Reads the contract, decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from meridian.contracts.job.v1.job_pb2 import JobSpec
from meridian.errors import InvalidArgumentError
from services.forecast.job_units import layout_of, model_of
from services.forecast.phases.demand import BatchRamp, InvalidScheduleError
from services.forecast.phases.schedule import TrainingSchedule
from services.forecast.requirement import estimate

log = logging.getLogger(__name__)


def schedule_of(spec: JobSpec) -> TrainingSchedule:
    """What the job declares; all zero without a model. A ramp that leads nowhere is left out: the gateway refuses it."""
    model = spec.model
    layout = layout_of(spec)
    found = TrainingSchedule(
        steps=model.steps,
        global_batch=model.global_batch,
        flops_per_sample=_flops_per_sample(spec),
        replicas=layout.data_parallel,
        accelerators=float(max(1, spec.ranks) * spec.resources.accelerators),
        warm_up_steps=model.warm_up_steps,
        evaluate_every_steps=model.evaluate_every_steps,
        evaluation_s=model.evaluation_s,
        checkpoint_every_s=spec.checkpoint_interval_s,
        checkpoint_s=model.checkpoint_s,
    )
    if not model.batch_ramp_samples:
        return found
    ramp = BatchRamp(model.batch_ramp_start, model.batch_ramp_increment, model.batch_ramp_samples)
    try:
        ramping = replace(found, ramp=ramp)
        ramping.stages()
    except InvalidScheduleError as error:
        log.warning("a job's ramp of the batch is impossible", extra={"reason": str(error)})
        return found
    return ramping


def _flops_per_sample(spec: JobSpec) -> float:
    model = model_of(spec)
    batch = spec.model.global_batch
    if not batch or not (model.parameters or model.has_shape):
        return 0.0
    try:
        return estimate(model, layout_of(spec)).flops_per_step / batch
    except InvalidArgumentError:
        # An impossible layout; what estimates requirements has logged it.
        return 0.0


def to_body(schedule: TrainingSchedule) -> dict[str, Any]:
    """For JSON; `from_body` reads it."""
    return asdict(schedule)


def from_body(body: Mapping[str, Any]) -> TrainingSchedule:
    """What `to_body` wrote; fields that a later release added, whose replicas write beside this one's, are passed over."""
    known = {item.name: body[item.name] for item in fields(TrainingSchedule) if item.name in body}
    ramp = known.get("ramp")
    if ramp is not None:
        known["ramp"] = BatchRamp(**{item.name: ramp[item.name] for item in fields(BatchRamp)})
    return TrainingSchedule(**known)
