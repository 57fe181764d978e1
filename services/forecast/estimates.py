"""HTTP: what a training job needs (`POST /v1/estimates`), and which layouts are best for it (`POST /v1/layouts`)."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from meridian.database import Database
from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model import Estimate, Machine, ModelShape, TrainingLayout, band_of, machine_of
from services.forecast.cost_model import estimate as cost_estimate
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Gradients, Recompute, precision_named
from services.forecast.cost_model.search import Work, best_layouts
from services.forecast.requirement import Layout, Model, Requirement, estimate, with_stated_names
from services.forecast.store import Store

# Accelerators of the largest pool whose layouts are searched while somebody waits.
_LARGEST_POOL = 100_000

Count = Annotated[int, Field(ge=0, le=10**9)]
# Zero is unknown, which means not divided.
Split = Annotated[int, Field(ge=0, le=10**6)]


class ModelBody(BaseModel):
    """The ``model`` section of a job file, with what else bears on time and memory. Zero means unknown."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=200, description="a well-known model, instead of its shape")] = ""
    parameters: Annotated[int, Field(ge=0, le=10**16)] = 0
    layers: Count = 0
    hidden: Count = 0
    heads: Count = 0
    kv_heads: Count = 0
    sequence: Count = 0
    vocabulary: Count = 0
    ffn_hidden: Count = 0
    gated_ffn: bool = False
    experts: Count = 0
    top_k: Count = 0
    expert_ffn_hidden: Count = 0
    global_batch: Count = 0
    micro_batch: Split = 0
    steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    precision: str = ""
    tensor_parallel: Split = 0
    pipeline_parallel: Split = 0
    # Zero: what the accelerators leave after the other groups.
    data_parallel: Split = 0
    context_parallel: Split = 0
    expert_parallel: Split = 0
    virtual_stages: Split = 0
    sequence_parallel: bool = False
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: bool | Recompute = False
    recompute_share: Annotated[float, Field(ge=0, le=1, description="of the layers; the others keep everything")] = 1.0
    fused_attention: Annotated[bool, Field(description="attention that never writes the matrix of scores")] = True
    gradient_precision: Annotated[
        Gradients | None,
        Field(description="of gradients as they are kept; unset: fp32, with fp16 bf16+fp32 (docs/cost-model.md)"),
    ] = None
    stage_layers: Annotated[
        list[Split], Field(max_length=10_000, description="layers of each pipeline stage; empty: as even as can be")
    ] = []
    # The schedule of a job file; it bears on the phases, not on what a step needs.
    warm_up_steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    batch_ramp_start: Count = 0
    batch_ramp_increment: Count = 0
    batch_ramp_samples: Annotated[int, Field(ge=0, le=10**15)] = 0
    evaluate_every_steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    evaluation_s: Annotated[float, Field(ge=0)] = 0.0
    checkpoint_s: Annotated[float, Field(ge=0)] = 0.0

    def model(self) -> Model:
        """What is stated of the model; InvalidArgumentError where the name is not known."""
        known = None
        if self.name:
            try:
                known = model_named(self.name)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(error.detail, errors=(FieldError("/name", error.detail),)) from None
        return Model(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            sequence=self.sequence,
            vocabulary=self.vocabulary,
            parameters=self.parameters,
            ffn_hidden=self.ffn_hidden,
            gated_ffn=self.gated_ffn,
            kv_heads=self.kv_heads,
            experts=self.experts,
            top_k=self.top_k,
            expert_ffn_hidden=self.expert_ffn_hidden,
            known=known,
        )

    def layout(self, accelerators: int | None) -> Layout:
        """How it is laid out over so many accelerators (None: as many as the groups make)."""
        tensor, pipeline = max(1, self.tensor_parallel), max(1, self.pipeline_parallel)
        context = max(1, self.context_parallel)
        return Layout(
            global_batch=self.global_batch,
            micro_batch=max(1, self.micro_batch),
            steps=self.steps,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=self._data_parallel(accelerators, tensor * pipeline * context),
            virtual_stages=max(1, self.virtual_stages),
            sequence_parallel=self.sequence_parallel,
            zero_stage=self.zero_stage,
            precision=self.precision or "bf16",
            recompute=self._recompute(),
            recompute_share=self.recompute_share,
            context_parallel=context,
            expert_parallel=max(1, self.expert_parallel),
            fused_attention=self.fused_attention,
            gradients=self.gradient_precision,
            stage_layers=tuple(self.stage_layers),
        )

    def _recompute(self) -> Recompute:
        if isinstance(self.recompute, Recompute):
            return self.recompute
        return Recompute.FULL if self.recompute else Recompute.NONE

    def _data_parallel(self, accelerators: int | None, shards: int) -> int:
        if accelerators is None:
            return max(1, self.data_parallel)
        if self.data_parallel:
            if accelerators not in (1, shards * self.data_parallel):
                detail = f"{accelerators} is not tensor x pipeline x context x data parallelism = {shards * self.data_parallel}"
                raise InvalidArgumentError(f"accelerators: {detail}", errors=(FieldError("/accelerators", detail),))
            return self.data_parallel
        if accelerators % shards == 0:
            return accelerators // shards
        if accelerators == 1:
            # The default of those who did not think about it.
            return 1
        detail = f"{accelerators} is not a multiple of tensor x pipeline x context parallelism = {shards}"
        raise InvalidArgumentError(f"accelerators: {detail}", errors=(FieldError("/accelerators", detail),))


class MachineBody(BaseModel):
    """What stands instead of the usual node of a chip."""

    model_config = ConfigDict(extra="forbid")

    fabric_gbps: Annotated[float | None, Field(gt=0, le=1e6, description="GB/s per chip between nodes")] = None
    node_size: Annotated[int | None, Field(ge=1, le=10**6, description="chips that share the fast link")] = None

    def machine(self, accelerator_type: str) -> Machine:
        """The machine of chips of the catalogue; UnknownChipError names the chip."""
        machine = machine_of(accelerator_type)
        if self.fabric_gbps is not None:
            machine = machine.with_fabric(self.fabric_gbps * 1e9)
        return replace(machine, node_size=self.node_size) if self.node_size else machine


class EstimateRequest(MachineBody):
    """A model, the accelerators it is trained on, and what they are, for a verdict."""

    model: ModelBody
    # In total; unset: as many as the layout says.
    accelerators: Annotated[int | None, Field(ge=1, le=10**6)] = None
    # A model that the network has (its memory is known from the resource graph) or that the catalogue knows.
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
    low_s: float = Field(description="of the band that holds a first measurement with a probability of 0.8")
    high_s: float = Field(description="of the same band, which narrows only by runs that are measured")
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
    memory_reserve_bytes: float = Field(
        description="of the buffers: what an allocator takes where there is room, and gives back"
    )
    traffic_bytes_per_step: dict[str, float]
    formula: str
    notes: list[str]
    verdict: Verdict | None
    # With an accelerator_type of the catalogue, the shape of the model, sequence and global_batch.
    step_time: StepTimeBody | None = None


class LayoutsRequest(MachineBody):
    """A model and a pool of equal chips, all of which are used; what is stated of a layout is not looked at."""

    model: ModelBody
    accelerators: Annotated[int, Field(ge=1, le=_LARGEST_POOL)]
    accelerator_type: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=1, le=100)] = 5


class LayoutBody(BaseModel):
    """One layout and what it takes."""

    tensor_parallel: int
    pipeline_parallel: int
    virtual_stages: int
    data_parallel: int
    context_parallel: int
    expert_parallel: int
    micro_batch: int
    zero_stage: int
    sequence_parallel: bool
    recompute: Recompute
    recompute_share: float
    step_time: StepTimeBody
    memory_bytes_per_accelerator: float
    memory_parts_bytes: dict[str, float]
    fits_with_confidence: float


class LayoutsBody(BaseModel):
    """The fastest layouts that fit, best first; how many were possible, and how many of those fit."""

    chip: str
    possible: int
    fitting: int
    layouts: list[LayoutBody]


def _verdict(found: Requirement, offered: float) -> Verdict:
    parts, reserve = found.memory_parts_bytes, found.memory_reserve_bytes
    largest = max(parts, key=lambda name: parts[name])
    needed = found.memory_bytes_per_accelerator - reserve
    margin = offered - needed
    word = "fits" if margin >= 0 else "does not fit"
    reason = (
        f"{word}: {needed / 2**30:.1f} GiB needed, {offered / 2**30:.1f} GiB on the chip; "
        f"the largest part is {largest} with {parts[largest] / 2**30:.1f} GiB"
    )
    if reserve > 0:
        reason += f"; an allocator takes {reserve / 2**30:.1f} GiB more where there is room"
    return Verdict(fits=margin >= 0, margin_bytes=margin, reason=reason)


def _step(shape: ModelShape, layout: TrainingLayout, found: Estimate, machine: Machine) -> StepTimeBody:
    step, band = found.step, band_of(shape, layout, machine)
    return StepTimeBody(
        step_s=step.total_s,
        **asdict(band),
        **asdict(step),
        utilisation=found.utilisation,
        chip=machine.chip,
        assumptions=list(found.assumptions),
    )


def _machine(request: EstimateRequest, notes: list[str]) -> Machine | None:
    """The machine that is asked about; None, with a note, where the catalogue does not know it."""
    if request.accelerator_type is None:
        return None
    try:
        return request.machine(request.accelerator_type)
    except InvalidArgumentError as error:
        notes.append(f"no step time: {error.detail}")
        return None


def _below_model(error: InvalidArgumentError) -> InvalidArgumentError:
    """The fields stand in the section "model" of the request, but those of the pool."""
    fields = tuple(
        item if item.pointer == "/accelerators" else FieldError(f"/model{item.pointer}", item.detail)
        for item in error.errors
    )
    return InvalidArgumentError(error.detail, errors=fields)


def _step_time(shape: ModelShape, layout: TrainingLayout, machine: Machine, notes: list[str]) -> StepTimeBody | None:
    try:
        found = cost_estimate(shape, layout, machine)
    except InvalidArgumentError as error:
        notes.append(f"no step time: {error.detail}")
        return None
    return _step(shape, layout, found, machine)


def estimate_of(request: EstimateRequest, offered: float | None) -> EstimateBody:
    """The answer to a request; ``offered``: bytes of memory that the network knows such a chip to have."""
    machine_notes: list[str] = []
    machine = _machine(request, machine_notes)
    try:
        model, layout = request.model.model(), request.model.layout(request.accelerators)
        # As the search has it, and the command line.
        layout = replace(layout, fused_loss=machine is not None and machine.compiled)
        found = estimate(model, layout)
    except InvalidArgumentError as error:
        raise _below_model(error) from None
    notes = [*found.notes, *machine_notes]
    offered = request.memory_bytes_per_accelerator or offered or (machine.memory_bytes if machine else None)
    if offered is None and request.accelerator_type is not None:
        notes.append(f"neither the network nor the catalogue has {request.accelerator_type}: no verdict")
    step = None
    if machine is not None and model.has_shape and model.sequence and layout.global_batch:
        step = _step_time(model.shape(), layout.training(model.sequence), machine, notes)
    verdict = _verdict(found, offered) if offered else None
    return EstimateBody(**{**asdict(found), "notes": notes}, verdict=verdict, step_time=step)


def layouts_of(request: LayoutsRequest) -> LayoutsBody:
    """The answer to a search; InvalidArgumentError names what is missing or impossible."""
    try:
        model = request.model.model()
        for name in ("sequence", "global_batch"):
            if not getattr(request.model, name):
                raise InvalidArgumentError(f"{name}: must be given", errors=(FieldError(f"/{name}", "must be given"),))
        shape = model.shape()
        work = Work(model.sequence, request.model.global_batch, precision_named(request.model.precision or "bf16"))
    except InvalidArgumentError as error:
        raise _below_model(error) from None
    try:
        machine = request.machine(request.accelerator_type)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(error.detail, errors=(FieldError("/accelerator_type", error.detail),)) from None
    try:
        found = best_layouts(shape, work, machine, request.accelerators, count=request.count)
    except InvalidArgumentError as error:
        raise _below_model(with_stated_names(error)) from None
    bodies = [
        LayoutBody(
            tensor_parallel=layout.tp,
            pipeline_parallel=layout.pp,
            virtual_stages=layout.vpp,
            data_parallel=layout.dp,
            context_parallel=layout.cp,
            expert_parallel=layout.ep,
            micro_batch=layout.micro_batch,
            zero_stage=layout.zero,
            sequence_parallel=layout.sequence_parallel,
            recompute=layout.recompute,
            recompute_share=layout.recompute_share,
            step_time=_step(shape, layout, each, machine),
            memory_bytes_per_accelerator=each.memory.total,
            memory_parts_bytes=each.memory.parts(),
            fits_with_confidence=each.verdict.confidence,
        )
        for layout, each in found.best
    ]
    return LayoutsBody(chip=machine.chip, possible=found.possible, fitting=found.fitting, layouts=bodies)


def create_router(database: Database) -> APIRouter:
    """Routes to be put below /v1."""
    router = APIRouter()

    @router.post("/estimates")
    async def make_estimate(request: EstimateRequest) -> EstimateBody:
        offered = None
        if request.memory_bytes_per_accelerator is None and request.accelerator_type is not None:
            async with database.reading() as connection:
                offered = await Store(connection).memory_of_chip(request.accelerator_type)
        return estimate_of(request, offered)

    @router.post("/layouts")
    async def search_layouts(request: LayoutsRequest) -> LayoutsBody:
        # A search of a large pool takes seconds of arithmetic.
        return await asyncio.to_thread(layouts_of, request)

    return router
