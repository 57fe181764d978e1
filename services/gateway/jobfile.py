"""The job file: what a tenant may ask for, with the bounds of every field, and its translation into the contract.

Numbers are strict (no ``"3"``, no ``true``, no NaN), unknown fields are refused. What one field alone can show stands in
the models; what several fields show together stands in `inconsistencies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from meridian.contracts.common.v1 import types_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.errors import FieldError
from meridian.resource_model import MAX_AMOUNT, NAME

# A record on the bus holds at most 1 MiB; an assignment repeats command and environment of the job.
MAX_ENCODED_BYTES = 256 * 1024

_NO_NUL = r"^[^\x00]*$"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", max_length=128)]
Word = Annotated[str, StringConstraints(pattern=_NO_NUL, max_length=32768)]
Command = Annotated[list[Word], Field(max_length=256)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", max_length=128)]
TypeName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,128}$", min_length=1, max_length=128)]
Path = Annotated[str, StringConstraints(pattern=_NO_NUL, max_length=4096)]


def _in_utc(text: str) -> str:
    """A time as RFC 3339 in UTC, to the microsecond; ValueError without an offset."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs its offset from UTC, as in 2026-03-01T09:00:00Z")
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range") from None
    return at.isoformat().replace("+00:00", "Z")


Time = Annotated[str, StringConstraints(max_length=40), AfterValidator(_in_utc)]

JobKindName = Literal["task", "array", "gang", "workflow", "service"]
# Of the batch, as the forecast takes them.
_MOST_GROWTHS = 10_000
_SECTIONS: tuple[Literal["array", "gang", "workflow", "service"], ...] = ("array", "gang", "workflow", "service")


class Section(BaseModel):
    """Base of all parts of the job file."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


ResourceName = Annotated[str, StringConstraints(pattern=NAME)]
ResourceAmount = Annotated[float, Field(gt=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class ResourcesSection(Section):
    """What each rank needs; ``accelerator_milli`` thousandths of its accelerator, which it shares with others."""

    cpus: float = Field(default=1.0, gt=0, le=4096)
    memory_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 50)
    accelerators: int = Field(default=0, ge=0, le=1024)
    accelerator_types: list[TypeName] = Field(default=[], max_length=32)
    accelerator_milli: int = Field(default=1000, ge=1, le=1000)
    # Bounds of the part while it runs; none: it stays as it is.
    min_accelerator_milli: int | None = Field(default=None, ge=1, le=999)
    max_accelerator_milli: int | None = Field(default=None, ge=1, le=1000)
    # Amounts of resources that users define.
    user_resources: dict[ResourceName, ResourceAmount] = Field(default={}, max_length=32)


class GangSection(Section):
    """Ranks that start together or not at all; with ``min_ranks`` or ``max_ranks`` a policy may run it smaller or larger."""

    ranks: int = Field(ge=1, le=10_000)
    allow_cross_domain: bool = False
    min_ranks: int | None = Field(default=None, ge=1, le=10_000)
    max_ranks: int | None = Field(default=None, ge=1, le=10_000)


class ArraySection(Section):
    """Many tasks that differ in their index."""

    size: int = Field(ge=1, le=100_000)


class ScalingSection(Section):
    """Between which numbers of replicas a service runs, by the load that each reports as ``metric`` of its progress."""

    min_replicas: int = Field(default=1, ge=1, le=10_000)
    max_replicas: int = Field(ge=1, le=10_000)
    target: float = Field(gt=0, description="the load that a replica should have")
    metric: str = Field(default="load", min_length=1, max_length=128)
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    down_after_s: float = Field(default=300.0, ge=0)
    cooldown_s: float = Field(default=15.0, ge=0)


class ServiceSection(Section):
    """Replicas that run until the job is cancelled; port 0 is none. With ``scaling`` they follow their load."""

    replicas: int = Field(default=1, ge=1, le=10_000)
    port: int = Field(default=0, ge=0, le=65_535)
    scaling: ScalingSection | None = None


class WorkflowTaskSection(Section):
    """One step of a workflow; without resources it needs what the job names."""

    name: Name
    command: Command = Field(min_length=1)
    depends_on: list[Name] = Field(default=[], max_length=1000)
    ranks: int = Field(default=1, ge=1, le=10_000)
    resources: ResourcesSection | None = None


class WorkflowSection(Section):
    """Steps that wait for one another."""

    tasks: list[WorkflowTaskSection] = Field(min_length=1, max_length=1000)


class CheckpointSection(Section):
    """How often the program is asked to write a checkpoint; 0 leaves it to the program."""

    interval_s: float = Field(default=0.0, ge=0, le=7 * 86400)


class ModelSection(Section):
    """The model a training job trains, for the forecast; 0 is unknown."""

    parameters: int = Field(default=0, ge=0, le=10**16)
    layers: int = Field(default=0, ge=0, le=100_000)
    hidden: int = Field(default=0, ge=0, le=10_000_000)
    heads: int = Field(default=0, ge=0, le=1_000_000)
    sequence: int = Field(default=0, ge=0, le=100_000_000)
    vocabulary: int = Field(default=0, ge=0, le=100_000_000)
    global_batch: int = Field(default=0, ge=0, le=100_000_000)
    precision: Literal["", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"] = ""
    steps: int = Field(default=0, ge=0, le=10**12)
    tensor_parallel: int = Field(default=0, ge=0, le=10_000)
    pipeline_parallel: int = Field(default=0, ge=0, le=10_000)
    recompute: bool = False
    # The schedule, from which follows what each phase of the run asks for.
    warm_up_steps: int = Field(default=0, ge=0, le=10**12)
    batch_ramp_start: int = Field(default=0, ge=0, le=100_000_000)
    batch_ramp_increment: int = Field(default=0, ge=0, le=100_000_000)
    batch_ramp_samples: int = Field(default=0, ge=0, le=10**15)
    evaluate_every_steps: int = Field(default=0, ge=0, le=10**12)
    evaluation_s: float = Field(default=0.0, ge=0, le=7 * 86400)
    checkpoint_s: float = Field(default=0.0, ge=0, le=7 * 86400)


class RateSection(Section):
    """Steps per second of the whole job with so many ranks on an accelerator type; 0: it does not run there."""

    accelerator_type: TypeName
    ranks: int = Field(default=1, ge=1, le=10_000)
    rate: float = Field(ge=0, le=1e15)


class PlacementSection(Section):
    """Where the job may run; no domains means any."""

    domains: list[Identifier] = Field(default=[], max_length=1000)
    exclude_domains: list[Identifier] = Field(default=[], max_length=1000)
    min_security_level: int = Field(default=0, ge=0, le=100)
    require_real_accelerators: bool = False


class JobFile(Section):
    """A job as a tenant asks for it."""

    name: Name
    kind: JobKindName
    command: Command = []
    working_dir: Path = ""
    env: dict[EnvName, Word] = Field(default={}, max_length=512)
    resources: ResourcesSection = ResourcesSection()
    gang: GangSection | None = None
    array: ArraySection | None = None
    service: ServiceSection | None = None
    workflow: WorkflowSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    max_restarts: int = Field(default=3, ge=0, le=1000)
    priority: int = Field(default=0, ge=-1000, le=1000)
    max_run_time_s: float = Field(default=0.0, ge=0, le=10 * 366 * 86400)
    model: ModelSection | None = None
    placement: PlacementSection = PlacementSection()
    rates: list[RateSection] = Field(default=[], max_length=256)
    deadline: Time | None = None

    @property
    def units(self) -> int:
        """How many units the job consists of."""
        if self.array is not None:
            return self.array.size
        if self.workflow is not None:
            return len(self.workflow.tasks)
        return self.service.replicas if self.service is not None else 1


def inconsistencies(job: JobFile) -> list[FieldError]:
    """What the fields of a job file contradict, by JSON pointer; empty for a sound one."""
    found = list(_section_errors(job))
    found += _resource_errors("/resources", job.resources)
    found += _part_errors(job)
    if job.workflow is not None:
        found += _workflow_errors(job.workflow)
    if job.gang is not None:
        found += _gang_errors(job.gang)
    if job.service is not None:
        found += _service_errors(job.service)
    found += _rate_errors(job.rates)
    if job.model is not None:
        found += _schedule_errors(job.model)
    for index, domain in enumerate(job.placement.exclude_domains):
        if domain in job.placement.domains:
            found.append(
                FieldError(f"/placement/exclude_domains/{index}", f"domain {domain!r} is both required and excluded")
            )
    if not found and to_spec(job).ByteSize() > MAX_ENCODED_BYTES:
        found.append(FieldError("", f"the job is larger than {MAX_ENCODED_BYTES} bytes"))
    return found


def _section_errors(job: JobFile) -> Iterator[FieldError]:
    for section in _SECTIONS:
        given = getattr(job, section) is not None
        if given and job.kind != section:
            yield FieldError(
                f"/{section}", f"only a job of kind {section!r} has this section, the kind is {job.kind!r}"
            )
        if not given and job.kind == section:
            yield FieldError(f"/{section}", f"a job of kind {section!r} needs this section")
    if job.kind == "workflow":
        if job.command:
            yield FieldError("/command", "a workflow has no command of its own, its tasks have")
    elif not job.command:
        yield FieldError("/command", "a command of at least one word is needed")
    elif not job.command[0]:
        yield FieldError("/command/0", "the first word names the program and must not be empty")


def _resource_errors(pointer: str, resources: ResourcesSection) -> Iterator[FieldError]:
    if resources.accelerator_types and not resources.accelerators:
        yield FieldError(f"{pointer}/accelerator_types", "types are named but no accelerators are asked for")

    if resources.accelerator_milli < 1000 and resources.accelerators != 1:
        yield FieldError(
            f"{pointer}/accelerator_milli", f"a rank that shares asks for one accelerator, not {resources.accelerators}"
        )


def _part_errors(job: JobFile) -> Iterator[FieldError]:
    for index, task in enumerate(job.workflow.tasks if job.workflow is not None else ()):
        for name in ("min_accelerator_milli", "max_accelerator_milli"):
            if task.resources is not None and getattr(task.resources, name) is not None:
                pointer = f"/workflow/tasks/{index}/resources/{name}"
                yield FieldError(pointer, "the part of a workflow's task does not change")
    part = job.resources
    low, high = part.min_accelerator_milli, part.max_accelerator_milli
    if low is None and high is None:
        return
    name = "max_accelerator_milli" if low is None else "min_accelerator_milli"
    if job.workflow is not None or (job.gang is not None and job.gang.ranks != 1):
        yield FieldError(f"/resources/{name}", "only a unit of one rank has a part that changes")
    elif part.accelerator_milli >= 1000:
        yield FieldError(f"/resources/{name}", "only a rank that shares its accelerator has a part that changes")
    elif low is not None and low > part.accelerator_milli:
        yield FieldError(
            "/resources/min_accelerator_milli", f"must be at most accelerator_milli, which is {part.accelerator_milli}"
        )
    elif high is not None and high < part.accelerator_milli:
        yield FieldError(
            "/resources/max_accelerator_milli", f"must be at least accelerator_milli, which is {part.accelerator_milli}"
        )


def _gang_errors(gang: GangSection) -> Iterator[FieldError]:
    if gang.min_ranks is not None and gang.min_ranks > gang.ranks:
        yield FieldError("/gang/min_ranks", f"must be at most ranks, which is {gang.ranks}")
    if gang.max_ranks is not None and gang.max_ranks < gang.ranks:
        yield FieldError("/gang/max_ranks", f"must be at least ranks, which is {gang.ranks}")


def _service_errors(service: ServiceSection) -> Iterator[FieldError]:
    scaling = service.scaling
    if scaling is not None and scaling.min_replicas > service.replicas:
        yield FieldError("/service/scaling/min_replicas", f"must be at most replicas, which is {service.replicas}")
    if scaling is not None and scaling.max_replicas < service.replicas:
        yield FieldError("/service/scaling/max_replicas", f"must be at least replicas, which is {service.replicas}")


def _schedule_errors(model: ModelSection) -> Iterator[FieldError]:
    if model.steps and model.warm_up_steps > model.steps:
        yield FieldError("/model/warm_up_steps", f"must be at most steps, which is {model.steps}")
    ramp = {name: getattr(model, name) for name in ("batch_ramp_start", "batch_ramp_increment", "batch_ramp_samples")}
    if not any(ramp.values()):
        return
    missing = [name for name, value in ramp.items() if not value]
    if missing:
        yield FieldError(f"/model/{missing[0]}", "a ramp of the batch has a start, an increment and samples")
    elif not model.global_batch:
        yield FieldError("/model/global_batch", "a ramp of the batch needs the batch that it leads to")
    elif (
        model.batch_ramp_start > model.global_batch
        or (model.global_batch - model.batch_ramp_start) % model.batch_ramp_increment
    ):
        yield FieldError(
            "/model/batch_ramp_increment",
            f"{model.batch_ramp_start} does not grow to {model.global_batch} in steps of {model.batch_ramp_increment}",
        )
    elif (model.global_batch - model.batch_ramp_start) // model.batch_ramp_increment > _MOST_GROWTHS:
        yield FieldError("/model/batch_ramp_increment", f"the batch grows more than {_MOST_GROWTHS} times")


def _rate_errors(rates: Sequence[RateSection]) -> Iterator[FieldError]:
    known: set[tuple[str, int]] = set()
    for index, item in enumerate(rates):
        place = item.accelerator_type, item.ranks
        if place in known:
            yield FieldError(
                f"/rates/{index}", f"the rate of {item.ranks} ranks on {item.accelerator_type!r} is given already"
            )
        known.add(place)


def _workflow_errors(workflow: WorkflowSection) -> Iterator[FieldError]:
    position: dict[str, int] = {}
    for index, task in enumerate(workflow.tasks):
        pointer = f"/workflow/tasks/{index}"
        if task.name in position:
            yield FieldError(f"{pointer}/name", f"the name {task.name!r} is used twice")
        position.setdefault(task.name, index)
        if not task.command[0]:
            yield FieldError(f"{pointer}/command/0", "the first word names the program and must not be empty")
        if task.resources is not None:
            yield from _resource_errors(f"{pointer}/resources", task.resources)
    known = True
    for index, task in enumerate(workflow.tasks):
        for place, name in enumerate(task.depends_on):
            if name not in position:
                known = False
                yield FieldError(f"/workflow/tasks/{index}/depends_on/{place}", f"there is no task {name!r}")
    if known:
        stuck = _in_cycle(workflow.tasks)
        if stuck is not None:
            name = workflow.tasks[stuck].name
            yield FieldError(f"/workflow/tasks/{stuck}/depends_on", f"task {name!r} waits for itself through others")


def _in_cycle(tasks: Sequence[WorkflowTaskSection]) -> int | None:
    """Index of a task that can never start, found by removing the tasks that can (Kahn 1962)."""
    waiting = {task.name: set(task.depends_on) for task in tasks}
    dependents: dict[str, list[str]] = {}
    for name, needs in waiting.items():
        for need in needs:
            dependents.setdefault(need, []).append(name)
    ready = [name for name, needs in waiting.items() if not needs]
    while ready:
        done = ready.pop()
        del waiting[done]
        for name in dependents.get(done, []):
            waiting[name].discard(done)
            if not waiting[name]:
                ready.append(name)
    return next((index for index, task in enumerate(tasks) if task.name in waiting), None)


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
        "deadline": _in_utc(_text(spec.deadline)) if spec.HasField("deadline") else None,
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
    """How many units a contract's spec has."""
    return {
        job_pb2.JOB_KIND_ARRAY: spec.array_size,
        job_pb2.JOB_KIND_WORKFLOW: len(spec.tasks),
        job_pb2.JOB_KIND_SERVICE: spec.replicas,
    }.get(spec.kind, 1)
