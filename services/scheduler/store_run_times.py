"""SQL of run times: what was learned about them, and the ends of units to learn from."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.core.state import Job, JobKind, UnitState
from services.scheduler.store_rows import job_of
from services.scheduler.store_tables import job, run, run_times, unit


async def save_run_times(connection: AsyncConnection, state: bytes) -> None:
    """Keep what was learned about run times."""
    statement = postgresql.insert(run_times).values(single=True, state=state)
    await connection.execute(statement.on_conflict_do_update(index_elements=["single"], set_={"state": state}))


async def load_run_times(connection: AsyncConnection) -> bytes | None:
    """What `save_run_times` kept; None when it never did."""
    return (await connection.execute(sa.select(run_times.c.state))).scalar_one_or_none()


async def succeeded_after(connection: AsyncConnection, at_s: float, limit: int) -> list[tuple[Job, int, float, float]]:
    """Units that succeeded after a time, oldest first (the newest ``limit`` of them): their jobs, unit indexes, run times
    that counted and ends, in seconds."""
    query = (
        sa.select(
            job,
            run.c.unit_index.label("of_unit"),
            run.c.started_at_s.label("begun_s"),
            run.c.assigned_at_s.label("assigned_s"),
            run.c.ended_at_s.label("end_s"),
            unit.c.attained_s.label("attained"),
        )
        .join(run, run.c.job_id == job.c.job_id)
        .join(unit, (unit.c.job_id == run.c.job_id) & (unit.c.unit_index == run.c.unit_index))
        .where(unit.c.state == str(UnitState.SUCCEEDED), unit.c.epoch == run.c.epoch, run.c.ended_at_s > at_s)
        .order_by(run.c.ended_at_s.desc(), run.c.run_id.desc())
        .limit(limit)
    )
    found = []
    for row in reversed((await connection.execute(query)).all()):
        item = job_of(row)
        if item.spec.kind is not JobKind.SERVICE:
            ran_s = row.attained + max(row.end_s - (row.begun_s or row.assigned_s), 0.0)
            found.append((item, row.of_unit, ran_s, row.end_s))
    return found
