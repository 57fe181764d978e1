"""The job file as the contract says it, and back."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.job.v1 import job_pb2
from services.gateway.jobfile import JobFile, ResourcesSection, in_utc


def _resources(section: ResourcesSection) -> types_pb2.Resources:
    return types_pb2.Resources(
        cpus=section.cpus,
        memory_bytes=section.memory_bytes,
        accelerators=section.accelerators,
        accelerator_types=section.accelerator_types,
        accelerator_milli=section.accelerator_milli if section.accelerator_milli < 1000 else 0,
        min_accelerator_milli=section.min_accelerator_milli or 0,
        max_accelerator_milli=section.max_accelerator_milli or 0,
        user_resources=section.user_resources,
    )


def to_spec(job: JobFile) -> job_pb2.JobSpec:
    """The job file as the contract has it."""
    spec = job_pb2.JobSpec(
        name=job.name,
        kind=f"JOB_KIND_{job.kind.upper()}",
        command=job.command,
        working_dir=job.working_dir,
        env=job.env,
        resources=_resources(job.resources),
        ranks=job.gang.ranks if job.gang else 1,
        allow_cross_domain=job.gang.allow_cross_domain if job.gang else False,
        array_size=job.array.size if job.array else 0,
        replicas=job.service.replicas if job.service else 0,
        service_port=job.service.port if job.service else 0,
        checkpoint_interval_s=job.checkpoint.interval_s,
        max_restarts=job.max_restarts,
        priority=job.priority,
        max_run_time_s=job.max_run_time_s,
        placement=job_pb2.PlacementConstraints(**job.placement.model_dump()),
        min_ranks=(job.gang.min_ranks or 0) if job.gang else 0,
        max_ranks=(job.gang.max_ranks or 0) if job.gang else 0,
        rates=[job_pb2.DeclaredRate(**item.model_dump()) for item in job.rates],
    )
    if job.service is not None and job.service.scaling is not None:
        spec.scaling.CopyFrom(job_pb2.ReplicaScaling(**job.service.scaling.model_dump()))
    if job.deadline is not None:
        spec.deadline.FromJsonString(job.deadline)
    for task in job.workflow.tasks if job.workflow else ():
        spec.tasks.add(
            name=task.name,
            command=task.command,
            depends_on=task.depends_on,
            ranks=task.ranks,
            resources=_resources(task.resources) if task.resources else None,
        )
    if job.model is not None:
        spec.model.CopyFrom(job_pb2.ModelDescription(**job.model.model_dump()))
    return spec


def from_spec(spec: job_pb2.JobSpec) -> dict[str, Any]:
    """A contract's spec in the shape of the job file, for jobs that did not come through this gateway's tables."""
    kind = job_pb2.JobKind.Name(spec.kind).removeprefix("JOB_KIND_").lower()
    body: dict[str, Any] = {
        "name": spec.name,
        "kind": kind,
        "command": list(spec.command),
        "working_dir": spec.working_dir,
        "env": dict(spec.env),
        "resources": _resources_body(spec.resources),
        "gang": _gang_body(spec) if kind == "gang" else None,
        "array": {"size": spec.array_size} if kind == "array" else None,
        "service": _service_body(spec) if kind == "service" else None,
        "workflow": {"tasks": [_task_body(task) for task in spec.tasks]} if kind == "workflow" else None,
        "checkpoint": {"interval_s": spec.checkpoint_interval_s},
        "max_restarts": spec.max_restarts,
        "priority": spec.priority,
        "max_run_time_s": spec.max_run_time_s,
        "model": {field.name: getattr(spec.model, field.name) for field in spec.model.DESCRIPTOR.fields}
        if spec.HasField("model")
        else None,
        "placement": {
            "domains": list(spec.placement.domains),
            "exclude_domains": list(spec.placement.exclude_domains),
            "min_security_level": spec.placement.min_security_level,
            "require_real_accelerators": spec.placement.require_real_accelerators,
        },
        "rates": [
            {"accelerator_type": item.accelerator_type, "ranks": item.ranks, "rate": item.rate} for item in spec.rates
        ],
        "deadline": in_utc(_text(spec.deadline)) if spec.HasField("deadline") else None,
    }
    return body


def _text(stamp: Timestamp) -> str:
    return stamp.ToDatetime(UTC).isoformat()


def _gang_body(spec: job_pb2.JobSpec) -> dict[str, Any]:
    return {
        "ranks": spec.ranks,
        "allow_cross_domain": spec.allow_cross_domain,
        "min_ranks": spec.min_ranks or None,
        "max_ranks": spec.max_ranks or None,
    }


def _service_body(spec: job_pb2.JobSpec) -> dict[str, Any]:
    body: dict[str, Any] = {"replicas": spec.replicas, "port": spec.service_port, "scaling": None}
    if spec.HasField("scaling"):
        # What the contract leaves out has the job file's default.
        body["scaling"] = {field.name: value for field, value in spec.scaling.ListFields()}
    return body


def _resources_body(resources: types_pb2.Resources) -> dict[str, Any]:
    return {
        "cpus": resources.cpus,
        "memory_bytes": resources.memory_bytes,
        "accelerators": resources.accelerators,
        "accelerator_types": list(resources.accelerator_types),
        "accelerator_milli": resources.accelerator_milli or 1000,
        "min_accelerator_milli": resources.min_accelerator_milli or None,
        "max_accelerator_milli": resources.max_accelerator_milli or None,
        "user_resources": dict(resources.user_resources),
    }


def _task_body(task: job_pb2.WorkflowTask) -> dict[str, Any]:
    return {
        "name": task.name,
        "command": list(task.command),
        "depends_on": list(task.depends_on),
        "ranks": task.ranks or 1,
        "resources": _resources_body(task.resources) if task.HasField("resources") else None,
    }


def units_of(spec: job_pb2.JobSpec) -> int:
    """How many units a contract's spec has; a service that follows its load has one for each replica that it may have."""
    return {
        job_pb2.JOB_KIND_ARRAY: spec.array_size,
        job_pb2.JOB_KIND_WORKFLOW: len(spec.tasks),
        job_pb2.JOB_KIND_SERVICE: max(spec.replicas, spec.scaling.max_replicas),
    }.get(spec.kind, 1)
