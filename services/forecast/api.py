"""HTTP of forecast: the newest forecasts, and what a training job needs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from meridian.database import Database
from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, machine_of
from services.forecast.cost_model import estimate as cost_estimate
from services.forecast.cost_model.layout import Recompute as FullRecompute
from services.forecast.cost_model.layout import precision_named
from services.forecast.cost_model.shapes import shape_of
from services.forecast.ledger import Amount, SubjectKind
from services.forecast.requirement import Layout, Model, Recompute, Requirement, estimate
from services.forecast.store import Store


class PointBody(BaseModel):
    """A forecast at one horizon. ``low`` and ``high`` bound the 80 % band; null while too few errors are known."""

    horizon_s: float
    method: str
    expected: float
    low: float | None
    high: float | None
    skill: float | None = Field(description="1 - error / error of 'the last value stays', as it served in the past")
    wape: float | None
    past_errors: int


class ForecastBody(BaseModel):
    """The demand forecast of a domain or a tenant, in accelerators held or asked for."""

    subject_kind: SubjectKind
    subject_id: str
    made_at: datetime
    current: float
    current_cpus: float
    capacity_accelerators: float | None
    capacity_cpus: float | None
    window_s: float
    history_windows: int
    points: list[PointBody]


class ForecastList(BaseModel):
    """All forecasts."""

    forecasts: list[ForecastBody]


Count = Annotated[int, Field(ge=0, le=10**9)]
# Zero is unknown, which means not divided.
Split = Annotated[int, Field(ge=0, le=10**6)]


class ModelBody(BaseModel):
    """The ``model`` section of a job file, with what else bears on memory. Zero means unknown."""

    model_config = ConfigDict(extra="forbid")

    parameters: Annotated[int, Field(ge=0, le=10**16)] = 0
    layers: Count = 0
    hidden: Count = 0
    heads: Count = 0
    kv_heads: Count = 0
    sequence: Count = 0
    vocabulary: Count = 0
    ffn_hidden: Count = 0
    gated_ffn: bool = False
    global_batch: Count = 0
    micro_batch: Split = 0
    steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    precision: str = ""
    tensor_parallel: Split = 0
    pipeline_parallel: Split = 0
    # Zero: what the accelerators leave after tensor and pipeline parallelism.
    data_parallel: Split = 0
    virtual_stages: Split = 0
    sequence_parallel: bool = False
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: bool | Recompute = False
    # The schedule of a job file; it bears on the phases, not on what a step needs.
    warm_up_steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    batch_ramp_start: Count = 0
    batch_ramp_increment: Count = 0
    batch_ramp_samples: Annotated[int, Field(ge=0, le=10**15)] = 0
    evaluate_every_steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    evaluation_s: Annotated[float, Field(ge=0)] = 0.0
    checkpoint_s: Annotated[float, Field(ge=0)] = 0.0


class EstimateRequest(BaseModel):
    """A model, the accelerators it is trained on, and what they are, for a verdict."""

    model_config = ConfigDict(extra="forbid")

    model: ModelBody
    # In total; unset: as many as the layout says.
    accelerators: Annotated[int | None, Field(ge=1, le=10**6)] = None
    # A model that the network has; its memory is known from the resource graph.
    accelerator_type: Annotated[str | None, Field(max_length=200)] = None
    memory_bytes_per_accelerator: Annotated[int | None, Field(gt=0)] = None


class Verdict(BaseModel):
    """Whether the job fits on the chip."""

    fits: bool
    margin_bytes: float
    reason: str


class StepTimeBody(BaseModel):
    """The time of one step by the cost model, on chips of the catalogue in the nodes that are usual for them."""

    step_s: float
    compute_s: float
    recompute_s: float
    exposed_s: dict[str, float] = Field(description="transfers that computation does not hide, by kind of parallelism")
    bubble_s: float
    optimiser_s: float
    data_s: float
    straggling_s: float
    utilisation: float = Field(description="model FLOPs over the peak of all accelerators")
    chip: str
    assumptions: list[str]


class EstimateBody(BaseModel):
    """What the job needs. FLOPs are those the hardware carries out; zero where ``notes`` says what is unknown."""

    parameters: float
    parameters_per_accelerator: float
    accelerators: int
    model_flops_per_token: float
    flops_per_token: float
    flops_per_step: float
    total_flops: float
    memory_bytes_per_accelerator: float
    memory_parts_bytes: dict[str, float]
    traffic_bytes_per_step: dict[str, float]
    formula: str
    notes: list[str]
    verdict: Verdict | None
    # With an accelerator_type of the catalogue, layers, hidden, sequence and global_batch.
    step_time: StepTimeBody | None = None


def _recompute(value: bool | Recompute) -> Recompute:
    if isinstance(value, Recompute):
        return value
    return Recompute.FULL if value else Recompute.NONE


def _data_parallel(request: EstimateRequest, shards: int) -> int:
    if request.model.data_parallel or request.accelerators is None:
        return max(1, request.model.data_parallel)
    if request.accelerators % shards == 0:
        return request.accelerators // shards
    if request.accelerators == 1:
        # The default of those who did not think about it.
        return 1
    detail = f"{request.accelerators} is not a multiple of tensor_parallel x pipeline_parallel = {shards}"
    raise InvalidArgumentError(f"accelerators: {detail}", errors=(FieldError("/accelerators", detail),))


def _estimate(request: EstimateRequest) -> Requirement:
    body = request.model
    tensor, pipeline = max(1, body.tensor_parallel), max(1, body.pipeline_parallel)
    model = Model(
        layers=body.layers,
        hidden=body.hidden,
        heads=body.heads,
        sequence=body.sequence,
        vocabulary=body.vocabulary,
        parameters=body.parameters,
        ffn_hidden=body.ffn_hidden,
        gated_ffn=body.gated_ffn,
        kv_heads=body.kv_heads,
    )
    layout = Layout(
        global_batch=body.global_batch,
        micro_batch=max(1, body.micro_batch),
        steps=body.steps,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=_data_parallel(request, tensor * pipeline),
        virtual_stages=max(1, body.virtual_stages),
        sequence_parallel=body.sequence_parallel,
        zero_stage=body.zero_stage,
        precision=body.precision or "bf16",
        recompute=_recompute(body.recompute),
    )
    try:
        return estimate(model, layout)
    except InvalidArgumentError as error:
        # The fields stand in the section "model" of the request.
        fields = tuple(FieldError(f"/model{item.pointer}", item.detail) for item in error.errors)
        raise InvalidArgumentError(error.detail, errors=fields) from None


def _verdict(needed: float, parts: dict[str, float], offered: int) -> Verdict:
    largest = max(parts, key=lambda name: parts[name])
    margin = offered - needed
    word = "fits" if margin >= 0 else "does not fit"
    reason = (
        f"{word}: {needed / 2**30:.1f} GiB needed, {offered / 2**30:.1f} GiB on the chip; "
        f"the largest part is {largest} with {parts[largest] / 2**30:.1f} GiB"
    )
    return Verdict(fits=margin >= 0, margin_bytes=margin, reason=reason)


def step_time_of(request: EstimateRequest, accelerators: int) -> tuple[StepTimeBody | None, str]:
    """The step time of a request, or a note that says why there is none; neither where nobody asked for it."""
    body = request.model
    if not request.accelerator_type or not (body.layers and body.hidden and body.sequence and body.global_batch):
        return None, ""
    tensor, pipeline = max(1, body.tensor_parallel), max(1, body.pipeline_parallel)
    try:
        machine = machine_of(request.accelerator_type)
        shape = shape_of(
            layers=body.layers,
            hidden=body.hidden,
            heads=body.heads,
            kv_heads=body.kv_heads,
            ffn=body.ffn_hidden,
            gated=body.gated_ffn,
            vocabulary=body.vocabulary,
        )
        layout = TrainingLayout(
            sequence=body.sequence,
            global_batch=body.global_batch,
            micro_batch=max(1, body.micro_batch),
            tp=tensor,
            pp=pipeline,
            vpp=max(1, body.virtual_stages),
            dp=max(1, accelerators // (tensor * pipeline)),
            sequence_parallel=body.sequence_parallel,
            zero=body.zero_stage,
            precision=precision_named(body.precision or "bf16"),
            recompute=FullRecompute(_recompute(body.recompute).value),
        )
        found = cost_estimate(shape, layout, machine)
    except InvalidArgumentError as error:
        return None, f"no step time: {error.detail}"
    step = StepTimeBody(
        step_s=found.step.total_s,
        **asdict(found.step),
        utilisation=found.utilisation,
        chip=machine.chip,
        assumptions=list(found.assumptions),
    )
    return step, ""


def create_router(database: Database) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(prefix="/v1")

    @router.get("/forecasts")
    async def list_forecasts(
        subject_kind: Annotated[SubjectKind | None, Query()] = None,
        subject_id: Annotated[str | None, Query()] = None,
    ) -> ForecastList:
        async with database.reading() as connection:
            store = Store(connection)
            rows = await store.load_forecasts(subject_kind, subject_id)
            offered = await store.capacity_of_domains()
        bodies = []
        for subject, row in rows.items():
            capacity: Amount | None = offered.get(subject.id) if subject.kind is SubjectKind.DOMAIN else None
            bodies.append(
                ForecastBody(
                    subject_kind=subject.kind,
                    subject_id=subject.id,
                    made_at=row.made_at,
                    capacity_accelerators=capacity.accelerators if capacity else None,
                    capacity_cpus=capacity.cpus if capacity else None,
                    **row.body,
                )
            )
        return ForecastList(forecasts=bodies)

    @router.post("/estimates")
    async def make_estimate(request: EstimateRequest) -> EstimateBody:
        found = _estimate(request)
        notes, offered = list(found.notes), request.memory_bytes_per_accelerator
        if offered is None and request.accelerator_type is not None:
            async with database.reading() as connection:
                offered = await Store(connection).memory_of_chip(request.accelerator_type)
            if offered is None:
                notes.append(f"the network has no {request.accelerator_type}: no verdict")
        verdict = None
        if offered is not None:
            verdict = _verdict(found.memory_bytes_per_accelerator, found.memory_parts_bytes, offered)
        step, note = step_time_of(request, found.accelerators)
        if note:
            notes.append(note)
        return EstimateBody(**{**asdict(found), "notes": notes}, verdict=verdict, step_time=step)

    return router
