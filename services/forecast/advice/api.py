"""HTTP of advice: what the operator of a domain is advised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from meridian.clock import Clock
from meridian.database import Database
from meridian.errors import NotFoundError
from services.forecast.advice.advising import Advice, Work, advise, money
from services.forecast.advice.planned import chip_of, deadline_s, planned_work
from services.forecast.advice.shifting import Stretch
from services.forecast.advice.terms import TermsStore, Waiting
from services.forecast.store import Store
from services.forecast.waveform.api import BandBody, WishBody, wishes_of
from services.forecast.waveform.durations import RunTime, Unknown, run_time


class AdviceRequest(BaseModel):
    """What is asked: for how long ahead, in windows of what length, for which accelerator and price, with which planned jobs."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[float, Field(gt=0, le=24 * 14)] = 24.0
    window_s: Annotated[float, Field(ge=60, le=86_400)] = 900.0
    accelerator_type: str = ""
    price_micro_units: Annotated[int | None, Field(ge=0)] = None
    currency: str = ""
    planned: Annotated[list[WishBody], Field(max_length=500)] = []


class StretchBody(BaseModel):
    """A time in which the load is high or low."""

    start: datetime
    end: datetime
    accelerators: float


class WorkBody(BaseModel):
    """A waiting or planned job."""

    job_id: str
    tenant_id: str
    planned: bool
    accelerators: float
    run_time_s: BandBody | None
    rests_on: str
    start: datetime
    deadline: datetime | None


class MoveBody(WorkBody):
    """A job that should start later."""

    advised_start: datetime
    delay_s: float


class FixedBody(WorkBody):
    """A job that cannot shift."""

    reason: str


class LoadBody(BaseModel):
    """The load with or without the advice."""

    peak_accelerators: float
    above_capacity_accelerator_hours: float
    load: list[float]


class SavedBody(BaseModel):
    """What following the advice saves. Money: the price of the work above the capacity that finds room."""

    peak_accelerators: float
    above_capacity_accelerator_hours: float
    micro_units: int | None
    currency: str


class AdviceBody(BaseModel):
    """The advice; loads are mean accelerators per window from ``at`` on."""

    domain_id: str
    at: datetime
    window_s: float
    capacity_accelerators: float
    history_days: int = Field(description="days that the daily profile rests on; 0: the present level is taken to stay")
    expected: list[float] = Field(description="without waiting and planned jobs")
    peaks: list[StretchBody]
    valleys: list[StretchBody]
    as_submitted: LoadBody
    as_advised: LoadBody
    moves: list[MoveBody]
    fixed: list[FixedBody]
    saves: SavedBody


def _of_waiting(item: Waiting, types: Iterable[str], now: datetime) -> Work:
    if item.spec is None:
        return Work(item.job_id, item.tenant_id, item.accelerators, Unknown("its submission is not known"))
    return Work(
        item.job_id,
        item.tenant_id,
        item.accelerators,
        run_time(item.spec, chip_of(item.spec, types)),
        deadline_s=deadline_s(item.spec, now),
    )


def _body(work: Work, now: datetime) -> WorkBody:
    time = work.run_time
    known = isinstance(time, RunTime)
    return WorkBody(
        job_id=work.job_id,
        tenant_id=work.tenant_id,
        planned=work.planned,
        accelerators=work.accelerators,
        run_time_s=BandBody(expected=time.expected_s, low=time.low_s, high=time.high_s)
        if isinstance(time, RunTime)
        else None,
        rests_on=time.source.value if known and isinstance(time, RunTime) else "",
        start=now + timedelta(seconds=work.start_s),
        deadline=None if work.deadline_s == math.inf else now + timedelta(seconds=work.deadline_s),
    )


def _stretches(found: tuple[Stretch, ...], now: datetime, window_s: float) -> list[StretchBody]:
    return [
        StretchBody(
            start=now + timedelta(seconds=item.first * window_s),
            end=now + timedelta(seconds=item.end * window_s),
            accelerators=item.load,
        )
        for item in found
    ]


def answer_of(domain_id: str, request: AdviceRequest, advice: Advice, now: datetime) -> AdviceBody:
    """The advice as JSON."""
    before, after = advice.shifted.before, advice.shifted.after
    found_room = advice.above_before - advice.above_after
    return AdviceBody(
        domain_id=domain_id,
        at=now,
        window_s=advice.window_s,
        capacity_accelerators=advice.capacity,
        history_days=advice.expected.days,
        expected=advice.expected.load.tolist(),
        peaks=_stretches(advice.peaks, now, advice.window_s),
        valleys=_stretches(advice.valleys, now, advice.window_s),
        as_submitted=LoadBody(
            peak_accelerators=float(before.max()),
            above_capacity_accelerator_hours=advice.above_before,
            load=before.tolist(),
        ),
        as_advised=LoadBody(
            peak_accelerators=float(after.max()),
            above_capacity_accelerator_hours=advice.above_after,
            load=after.tolist(),
        ),
        moves=[
            MoveBody(
                **_body(move.work, now).model_dump(),
                advised_start=now + timedelta(seconds=move.start_s),
                delay_s=move.start_s - move.work.start_s,
            )
            for move in advice.moves
        ],
        fixed=[FixedBody(**_body(work, now).model_dump(), reason=reason) for work, reason in advice.fixed],
        saves=SavedBody(
            peak_accelerators=float(before.max() - after.max()),
            above_capacity_accelerator_hours=found_room,
            micro_units=money(found_room, request.price_micro_units),
            currency=request.currency,
        ),
    )


def create_advice_router(database: Database, clock: Clock) -> APIRouter:
    """The routes below /v1/domains."""
    router = APIRouter(prefix="/v1")

    @router.post("/domains/{domain_id}/advice")
    async def make_advice(domain_id: Annotated[str, Path(max_length=256)], request: AdviceRequest) -> AdviceBody:
        now = clock.now()
        wishes = wishes_of(request.planned, now, "/planned")
        async with database.reading() as connection:
            terms, store = TermsStore(connection), Store(connection)
            capacity = (await store.capacity_of_domains()).get(domain_id)
            waiting = await terms.waiting_in(domain_id)
            history = await terms.history_of(domain_id, request.window_s)
            held = await terms.held_in(domain_id)
            accelerators = await store.accelerators_of(domain_id)
        if capacity is None:
            raise NotFoundError(f"nothing is known of a domain {domain_id!r}")
        first = request.accelerator_type
        work = [_of_waiting(item, [first, *accelerators], now) for item in waiting]
        work += planned_work(wishes, domain_id, accelerators, now, first)
        advice = advise(
            history,
            held,
            capacity.accelerators,
            work,
            now_s=now.timestamp(),
            window_s=request.window_s,
            windows=max(1, math.ceil(request.hours * 3600 / request.window_s)),
        )
        return answer_of(domain_id, request, advice, now)

    @router.get("/domains/{domain_id}/advice")
    async def get_advice(
        domain_id: Annotated[str, Path(max_length=256)],
        hours: Annotated[float, Query(gt=0, le=24 * 14)] = 24.0,
        accelerator_type: str = "",
    ) -> AdviceBody:
        return await make_advice(domain_id, AdviceRequest(hours=hours, accelerator_type=accelerator_type))

    return router
