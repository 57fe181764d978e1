"""What the fields of a job file contradict, which no field shows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from meridian.errors import FieldError
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import (
    GangSection,
    JobFile,
    ModelSection,
    RateSection,
    ResourcesSection,
    ServiceSection,
    WorkflowSection,
    WorkflowTaskSection,
)

# A record on the bus holds at most 1 MiB; an assignment repeats command and environment of the job.
MAX_ENCODED_BYTES = 256 * 1024
# Of the batch, as the forecast takes them.
_MOST_GROWTHS = 10_000
_SECTIONS: tuple[Literal["array", "gang", "workflow", "service"], ...] = ("array", "gang", "workflow", "service")


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
