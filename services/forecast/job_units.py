"""What a submitted job asks for: its units with their amounts, and the model it trains. Reads the contract, decides nothing."""

from __future__ import annotations

from collections.abc import Collection

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobSpec
from services.forecast.accelerator_names import means
from services.forecast.cost_model.layout import Recompute
from services.forecast.ledger import Amount, Unit
from services.forecast.requirement import Layout, Model


def _only_chip(resources: Resources, models: Collection[str]) -> str:
    types = list(dict.fromkeys(resources.accelerator_types))
    if not types or not resources.accelerators:
        return ""
    meant = {model for model in models if means(types, model)} or set(types)
    return meant.pop() if len(meant) == 1 else ""


def accelerators_of_rank(resources: Resources) -> float:
    """Accelerators that one rank holds, of those that it shares with others its part."""
    return resources.accelerators * (resources.accelerator_milli or 1000) / 1000


def units_of(spec: JobSpec, models: Collection[str] = ()) -> list[Unit]:
    """The units of a job as job.proto defines them. ``models``: those of the network, which the job's types may mean."""

    def _unit(
        index: int, ranks: int, resources: Resources, only: str, limit_s: float, depends_on: tuple[int, ...] = ()
    ) -> Unit:
        asked = Amount(ranks * accelerators_of_rank(resources), ranks * resources.cpus)
        return Unit(index, asked, resources.cpus, depends_on, only, _only_chip(resources, models), limit_s)

    excluded = set(spec.placement.exclude_domains)
    allowed = [domain for domain in spec.placement.domains if domain not in excluded]
    only = allowed[0] if len(allowed) == 1 else ""
    limit_s = max(0.0, spec.max_run_time_s)
    match spec.kind:
        case job_pb2.JOB_KIND_ARRAY:
            return [_unit(index, 1, spec.resources, only, limit_s) for index in range(spec.array_size)]
        case job_pb2.JOB_KIND_SERVICE:
            return [_unit(index, 1, spec.resources, only, limit_s) for index in range(spec.replicas)]
        case job_pb2.JOB_KIND_WORKFLOW:
            places = {task.name: index for index, task in enumerate(spec.tasks)}
            return [
                _unit(
                    index,
                    max(1, task.ranks),
                    task.resources if task.HasField("resources") else spec.resources,
                    only,
                    limit_s,
                    tuple(sorted(places[name] for name in task.depends_on if name in places)),
                )
                for index, task in enumerate(spec.tasks)
            ]
        case job_pb2.JOB_KIND_GANG:
            return [_unit(0, max(1, spec.ranks), spec.resources, only, limit_s)]
        case _:
            return [_unit(0, 1, spec.resources, only, limit_s)]


def model_of(spec: JobSpec) -> Model:
    """The shape of the model that the job trains."""
    model = spec.model
    return Model(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        sequence=model.sequence,
        vocabulary=model.vocabulary,
        parameters=model.parameters,
    )


def layout_of(spec: JobSpec) -> Layout:
    """How the job is laid out: what its accelerators leave after tensor and pipeline parallelism is data-parallel."""
    model = spec.model
    tensor, pipeline = max(1, model.tensor_parallel), max(1, model.pipeline_parallel)
    accelerators = max(1, spec.ranks) * max(1, spec.resources.accelerators)
    replicas = max(1, accelerators // (tensor * pipeline))
    if model.global_batch % replicas:
        # Some ranks do not take part in data parallelism; the memory of those that do is the same.
        replicas = 1
    return Layout(
        global_batch=model.global_batch,
        steps=model.steps,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=replicas,
        precision=model.precision or "bf16",
        recompute=Recompute.FULL if model.recompute else Recompute.NONE,
    )
