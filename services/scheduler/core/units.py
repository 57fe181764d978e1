"""From what a tenant asks for to the units that are placed."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitSpec, WorkflowTask

MAX_UNITS = 100_000
"""A job with more units is refused: the book of one scheduler is held in memory."""

MOST_AMOUNT = 1e15
"""Of cpus and resources that users define, for a rank: as in job files. Quotas count thousandths."""


def units_of(spec: JobSpec) -> tuple[UnitSpec, ...]:
    """The units of a job, by index. MalformedJobError when no network could ever run it."""
    check_demand(spec.demand)
    _check_parts(spec)
    if spec.kind is JobKind.WORKFLOW:
        return _workflow(spec)
    if spec.kind is JobKind.GANG:
        if spec.ranks < 1:
            raise MalformedJobError(f"a gang needs at least one rank, not {spec.ranks}")
        _check_elastic(spec)
        return (UnitSpec(0, replace(spec.demand, ranks=spec.ranks), command=spec.command),)
    demand = replace(spec.demand, ranks=1, cross_domain=False)
    if spec.kind is JobKind.ARRAY:
        count = _count("array_size", spec.array_size)
        return tuple(UnitSpec(index, demand, command=spec.command, array_index=index) for index in range(count))
    if spec.kind is JobKind.SERVICE:
        count = _count("replicas", spec.replicas)
        if spec.scaling is not None:
            spec.scaling.check(count)
            count = _count("scaling.max_replicas", spec.scaling.most)
        demand = replace(demand, service_port=spec.service_port)
        return tuple(UnitSpec(index, demand, command=spec.command) for index in range(count))
    return (UnitSpec(0, demand, command=spec.command),)


def check_demand(demand: Demand) -> None:
    """MalformedJobError when an amount is negative, or more than any node may have."""
    for name in ("cpus", "memory_bytes", "accelerators"):
        # Written so that NaN fails too.
        if not getattr(demand, name) >= 0:
            raise MalformedJobError(f"resources.{name} must not be negative")
    for name, amount in (("cpus", demand.cpus), *((f"user_resources.{name}", most) for name, most in demand.resources)):
        if not 0 <= amount <= MOST_AMOUNT:
            raise MalformedJobError(f"resources.{name} must be 0-{MOST_AMOUNT:g}, not {amount:g}")
    if not 1 <= demand.device_milli <= 1000:
        raise MalformedJobError(f"resources.accelerator_milli must be 1-1000, not {demand.device_milli}")
    if demand.device_milli < 1000 and demand.accelerators != 1:
        raise MalformedJobError("resources.accelerator_milli: a rank that shares asks for one accelerator")


def _check_parts(spec: JobSpec) -> None:
    asked = spec.demand.device_milli
    if not (spec.least_milli or spec.most_milli):
        return
    if spec.kind is JobKind.WORKFLOW or (spec.kind is JobKind.GANG and spec.ranks != 1):
        raise MalformedJobError("resources.min_accelerator_milli and max_accelerator_milli are for units of one rank")
    if asked >= 1000 or not (spec.least_milli or 1) <= asked <= (spec.most_milli or 1000):
        raise MalformedJobError(
            "resources: 1 <= min_accelerator_milli <= accelerator_milli <= max_accelerator_milli is wanted, with "
            f"accelerator_milli below 1000, not {spec.least_milli}, {asked}, {spec.most_milli}"
        )
    if max(spec.least_milli, spec.most_milli) > 1000 or min(spec.least_milli, spec.most_milli) < 0:
        raise MalformedJobError("resources.min_accelerator_milli and max_accelerator_milli must be 0-1000")


def _check_elastic(spec: JobSpec) -> None:
    if (spec.min_ranks or spec.max_ranks) and not 1 <= spec.min_ranks <= spec.ranks <= spec.max_ranks:
        raise MalformedJobError(
            f"1 <= min_ranks <= ranks <= max_ranks is wanted, not {spec.min_ranks}, {spec.ranks}, {spec.max_ranks}"
        )


def _count(name: str, value: int) -> int:
    if value < 1:
        raise MalformedJobError(f"{name} must be at least 1, not {value}")
    if value > MAX_UNITS:
        raise MalformedJobError(f"{name} must be at most {MAX_UNITS}, not {value}")
    return value


def _workflow(spec: JobSpec) -> tuple[UnitSpec, ...]:
    _count("tasks", len(spec.tasks))
    index_of = {task.name: index for index, task in enumerate(spec.tasks)}
    if len(index_of) != len(spec.tasks):
        raise MalformedJobError("two tasks of the workflow have the same name")
    units = []
    for index, task in enumerate(spec.tasks):
        unknown = [name for name in task.depends_on if name not in index_of]
        if unknown:
            raise MalformedJobError(f"task {task.name!r} depends on {unknown[0]!r}, which does not exist")
        needs = tuple(sorted({index_of[name] for name in task.depends_on}))
        units.append(UnitSpec(index, _task_demand(spec, task), task.name, task.command or spec.command, needs))
    _refuse_cycle(units)
    return tuple(units)


def _task_demand(spec: JobSpec, task: WorkflowTask) -> Demand:
    demand = task.demand or spec.demand
    check_demand(demand)
    if task.ranks < 0:
        raise MalformedJobError(f"task {task.name!r} has {task.ranks} ranks")
    ranks = max(1, task.ranks)
    return replace(demand, ranks=ranks, cross_domain=demand.cross_domain and ranks > 1)


def _refuse_cycle(units: list[UnitSpec]) -> None:
    waiting = {unit.index: set(unit.depends_on) for unit in units}
    while waiting:
        free = [index for index, needs in waiting.items() if not needs]
        if not free:
            names = ", ".join(units[index].name for index in sorted(waiting))
            raise MalformedJobError(f"the workflow has a cycle among {names}")
        for index in free:
            del waiting[index]
        for needs in waiting.values():
            needs.difference_update(free)
