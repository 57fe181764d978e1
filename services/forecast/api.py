"""HTTP of forecast: the newest forecasts, and what a training job needs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from meridian.database import Database
from services.forecast.ledger import Amount, SubjectKind
from services.forecast.requirement import Layout, Model, Recompute, estimate
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
Split = Annotated[int, Field(ge=1, le=10**6)]


class EstimateRequest(BaseModel):
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
    micro_batch: Split = 1
    steps: Annotated[int, Field(ge=0, le=10**12)] = 0
    precision: str = "bf16"
    tensor_parallel: Split = 1
    pipeline_parallel: Split = 1
    data_parallel: Split = 1
    virtual_stages: Split = 1
    sequence_parallel: bool = False
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: bool | Recompute = False
    memory_bytes_per_accelerator: Annotated[
        int | None, Field(gt=0, description="memory of the chip; asks for a verdict")
    ] = None


class Verdict(BaseModel):
    """Whether the job fits on the chip."""

    fits: bool
    margin_bytes: float
    reason: str


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


def _recompute(value: bool | Recompute) -> Recompute:
    if isinstance(value, Recompute):
        return value
    return Recompute.FULL if value else Recompute.NONE


def _verdict(needed: float, parts: dict[str, float], offered: int) -> Verdict:
    largest = max(parts, key=lambda name: parts[name])
    margin = offered - needed
    word = "fits" if margin >= 0 else "does not fit"
    reason = (
        f"{word}: {needed / 2**30:.1f} GiB needed, {offered / 2**30:.1f} GiB on the chip; "
        f"the largest part is {largest} with {parts[largest] / 2**30:.1f} GiB"
    )
    return Verdict(fits=margin >= 0, margin_bytes=margin, reason=reason)


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
        model = Model(
            layers=request.layers,
            hidden=request.hidden,
            heads=request.heads,
            sequence=request.sequence,
            vocabulary=request.vocabulary,
            parameters=request.parameters,
            ffn_hidden=request.ffn_hidden,
            gated_ffn=request.gated_ffn,
            kv_heads=request.kv_heads,
        )
        layout = Layout(
            global_batch=request.global_batch,
            micro_batch=request.micro_batch,
            steps=request.steps,
            tensor_parallel=request.tensor_parallel,
            pipeline_parallel=request.pipeline_parallel,
            data_parallel=request.data_parallel,
            virtual_stages=request.virtual_stages,
            sequence_parallel=request.sequence_parallel,
            zero_stage=request.zero_stage,
            precision=request.precision,
            recompute=_recompute(request.recompute),
        )
        found = estimate(model, layout)
        offered = request.memory_bytes_per_accelerator
        verdict = _verdict(found.memory_bytes_per_accelerator, found.memory_parts_bytes, offered) if offered else None
        return EstimateBody(**{**asdict(found), "notes": list(found.notes)}, verdict=verdict)

    return router
