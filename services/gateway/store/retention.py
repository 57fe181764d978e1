"""Removes what nobody needs any more, a bounded number of rows at a time; several instances may do so at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.store.rows import texts
from services.gateway.tables import event, forecast, idempotency, incident, job, recovery, requirement, run, unit


async def forget_jobs(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Remove jobs that ended before a time, with their units and runs, and so what is known of jobs that nobody submitted here:
    the oldest ``most``, fewer when they have more than ``most`` units together. Returns how many jobs."""
    stub = sa.and_(job.c.spec.is_(None), job.c.finished_at.is_(None), job.c.stored_at < before)
    gone: list[str] = []
    for condition, age in ((job.c.finished_at < before, job.c.finished_at), (stub, job.c.stored_at)):
        query = sa.select(job.c.job_id, job.c.units_total).where(condition).order_by(age).limit(most)
        rows = (await connection.execute(query.with_for_update(skip_locked=True))).all()
        gone = _first([(row.job_id, row.units_total) for row in rows], most)
        if gone:
            break
    for table in (run, unit, requirement, job):
        await connection.execute(sa.delete(table).where(table.c.job_id == texts(gone)))
    return len(gone)


def _first(jobs: Sequence[tuple[str, int]], most_units: int) -> list[str]:
    """The first jobs that have at most so many units together, at least one."""
    found: list[str] = []
    units = 0
    for job_id, count in jobs:
        units += count
        if found and units > most_units:
            break
        found.append(job_id)
    return found


async def forget_incidents(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Remove incidents that were closed before a time, with their recoveries."""
    closed = await _forget(connection, incident, incident.c.closed_at < before, most)
    # Runs that were lost without a node or domain have no incident here.
    known = sa.exists().where(incident.c.incident_id == recovery.c.incident_id)
    old = sa.or_(recovery.c.planned_at < before, recovery.c.planned_at.is_(None))
    return max(closed, await _forget(connection, recovery, sa.and_(~known, old), most))


async def forget_forecasts(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Remove forecasts that were not renewed since a time: their subject is gone."""
    return await _forget(connection, forecast, forecast.c.made_at < before, most)


async def forget_events(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Remove events of the stream that were stored before a time, the oldest first."""
    return await _forget(connection, event, event.c.stored_at < before, most, event.c.seq)


async def forget_answers(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Remove answers to requests with an idempotency key that were given before a time."""
    return await _forget(connection, idempotency, idempotency.c.created_at < before, most)


async def _forget(
    connection: AsyncConnection,
    table: sa.Table,
    condition: sa.ColumnElement[bool],
    most: int,
    order: sa.ColumnElement[Any] | None = None,
) -> int:
    keys = sa.tuple_(*table.primary_key.columns)
    some = sa.select(*table.primary_key.columns).where(condition).limit(most).with_for_update(skip_locked=True)
    result: Any = await connection.execute(
        sa.delete(table).where(keys.in_(some if order is None else some.order_by(order)))
    )
    return int(result.rowcount)
