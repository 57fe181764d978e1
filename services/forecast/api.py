"""HTTP of forecast: the newest forecasts; what a training job needs is in `estimates.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from meridian.database import Database
from services.forecast.estimates import create_router as estimates_router
from services.forecast.ledger import Amount, SubjectKind
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
    structure_share: float = Field(
        0.0, description="how much of it is what the jobs let expect; the rest is what the history says"
    )


class ForecastBody(BaseModel):
    """The demand forecast of a domain, a tenant, a model of accelerators or a job, in accelerators held or asked for."""

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

    router.include_router(estimates_router(database))
    return router
