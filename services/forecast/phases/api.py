"""HTTP of phases: where each unit of a training job stands, and what its phases ask for by the schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from meridian.database import Database
from meridian.errors import NotFoundError
from services.forecast.phases.curve import Phase
from services.forecast.phases.declared import from_body
from services.forecast.phases.following import UNKNOWN, name_of
from services.forecast.phases.schedule import PhaseNeed, PhaseStretch, TrainingSchedule, needs, stretches
from services.forecast.phases.store import PhaseStore, StoredChange
from services.forecast.phases.tracking import UnitPhases


class ChangeBody(BaseModel):
    """From ``step`` on the unit was in ``phase``."""

    phase: str
    step: int
    epoch: int
    reason: str
    at: datetime


class StageBody(BaseModel):
    """A stretch of constant batch size."""

    first_step: int
    end_step: int
    global_batch: int
    busy_share: float = Field(description="of the data-parallel replicas that have work in a step, 1 is all")
    flops: float | None


class NeedBody(BaseModel):
    """What a phase asks for. Times are null before two steps of it were seen; FLOPs where the model is not known."""

    phase: str
    told: bool = Field(description="false: not reached yet, by the schedule")
    first_step: int
    end_step: int
    accelerators: float
    busy_accelerators: float
    mean_busy_share: float
    flops: float | None
    training_s: float | None
    evaluations: int
    evaluation_s: float
    checkpoint_s: float | None
    stages: list[StageBody]


class UnitBody(BaseModel):
    """A unit that reports a loss."""

    unit_index: int
    phase: str
    since_step: int
    reason: str = Field(description="why the phase is unknown")
    epoch: int
    step: int | None
    total_steps: int | None
    reports: int
    reports_left_aside: int
    changes: list[ChangeBody]
    demand: list[NeedBody]


class PhasesBody(BaseModel):
    """The phases of a job; ``units`` is empty before the first report of a loss."""

    job_id: str
    schedule_known: bool = Field(description="the job declares steps and batch, so demand can be told")
    units: list[UnitBody]


def _need_body(need: PhaseNeed, flops_known: bool) -> NeedBody:
    stretch = need.stretch
    return NeedBody(
        phase=name_of(stretch.phase),
        told=stretch.told,
        first_step=stretch.first_step,
        end_step=stretch.end_step,
        accelerators=need.accelerators,
        busy_accelerators=need.busy_accelerators,
        mean_busy_share=need.mean_busy_share,
        flops=need.flops,
        training_s=need.training_s,
        evaluations=need.evaluations,
        evaluation_s=need.evaluation_s,
        checkpoint_s=need.checkpoint_s,
        stages=[
            StageBody(
                first_step=stage.first_step,
                end_step=stage.end_step,
                global_batch=stage.global_batch,
                busy_share=stage.busy_share,
                flops=stage.flops if flops_known else None,
            )
            for stage in need.stages
        ],
    )


def _phases_told(changes: list[StoredChange]) -> list[tuple[int, Phase | None]]:
    """(step, phase) in the order of the steps: a run that starts again takes back what was told of later steps."""
    told: list[tuple[int, Phase | None]] = []
    for change in changes:
        while told and told[-1][0] >= change.step:
            told.pop()
        told.append((change.step, None if change.phase == UNKNOWN else Phase[change.phase.upper()]))
    return told


def _unit_body(index: int, unit: UnitPhases, schedule: TrainingSchedule, changes: list[StoredChange]) -> UnitBody:
    demand: list[PhaseNeed] = []
    if schedule.is_known:
        warm_up = int(schedule.for_detector().warm_up_steps or 0)
        found: list[PhaseStretch] = stretches(_phases_told(changes), schedule.steps, warm_up, unit.step or 0)
        seen: dict[Phase | None, float] = {
            phase: step_s for phase in Phase if (step_s := unit.step_s(phase)) is not None
        }
        demand = needs(schedule, found, seen)
    return UnitBody(
        unit_index=index,
        phase=name_of(unit.told.phase),
        since_step=unit.told.step,
        reason=unit.told.reason,
        epoch=unit.epoch,
        step=unit.step,
        total_steps=unit.total_steps,
        reports=unit.taken,
        reports_left_aside=unit.left_aside,
        changes=[
            ChangeBody(phase=item.phase, step=item.step, epoch=item.epoch, reason=item.reason, at=item.at)
            for item in changes
        ],
        demand=[_need_body(need, schedule.flops_per_sample > 0) for need in demand],
    )


def create_phases_router(database: Database) -> APIRouter:
    """The routes below /v1/jobs."""
    router = APIRouter(prefix="/v1")

    @router.get("/jobs/{job_id}/phases")
    async def get_phases(job_id: Annotated[str, Path(max_length=200)]) -> PhasesBody:
        async with database.reading() as connection:
            store = PhaseStore(connection)
            job = await store.load_job(job_id)
            states: dict[Any, dict[str, Any]] = await store.load_units([job_id])
            changes = await store.load_changes(job_id)
        if job is None:
            raise NotFoundError(f"job {job_id!r} neither describes a model nor has reported a loss")
        schedule = TrainingSchedule(0, 0, 0.0) if job.schedule is None else from_body(job.schedule)
        return PhasesBody(
            job_id=job_id,
            schedule_known=schedule.is_known,
            units=[
                _unit_body(
                    index,
                    UnitPhases.restored(state, schedule.for_detector()),
                    schedule,
                    [change for change in changes if change.unit_index == index],
                )
                for (_, index), state in states.items()
            ],
        )

    return router
