"""All SQL of phases: the schedules of jobs, the state of each unit that trains, and what was told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

_metadata = sa.MetaData()
_TIME = sa.DateTime(timezone=True)

training_jobs = sa.Table(
    "training_jobs",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("schedule", postgresql.JSONB),
    sa.Column("changed_at", _TIME),
)
training_units = sa.Table(
    "training_units",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("state", postgresql.JSONB),
)
phase_changes = sa.Table(
    "phase_changes",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("step", sa.BigInteger),
    sa.Column("phase", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("at", _TIME),
)

UnitKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is known of a job: ``schedule`` as JSON, None before its submission was heard."""

    tenant_id: str
    schedule: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A phase as it was told."""

    job_id: str
    unit_index: int
    epoch: int
    step: int
    phase: str
    reason: str
    at: datetime


def _any(column: sa.Column[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    return column == sa.any_(sa.literal(sorted(set(values)), postgresql.ARRAY(sa.Text)))


class PhaseStore:
    """The tables, seen from one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def take_jobs(self, job_ids: Iterable[str], now: datetime) -> dict[str, TrainingJob]:
        """Lock and read jobs; unknown ones are created empty, so that they can be locked too."""
        wanted = sorted(set(job_ids))
        rows = [{"job_id": job_id, "tenant_id": "", "schedule": None, "changed_at": now} for job_id in wanted]
        if not rows:
            return {}
        await self._connection.execute(insert(training_jobs).values(rows).on_conflict_do_nothing())
        query = sa.select(training_jobs).where(_any(training_jobs.c.job_id, wanted))
        found = await self._connection.execute(query.order_by(training_jobs.c.job_id).with_for_update())
        return {row.job_id: TrainingJob(row.tenant_id, row.schedule) for row in found}

    async def keep_jobs(self, jobs: Mapping[str, TrainingJob], now: datetime) -> None:
        """Write what submissions said."""
        rows = [
            {"job_id": job_id, "tenant_id": job.tenant_id, "schedule": job.schedule, "changed_at": now}
            for job_id, job in jobs.items()
        ]
        if rows:
            statement = insert(training_jobs)
            statement = statement.on_conflict_do_update(
                index_elements=[training_jobs.c.job_id],
                set_={name: statement.excluded[name] for name in ("tenant_id", "schedule", "changed_at")},
            )
            await self._connection.execute(statement, rows)

    async def load_units(self, job_ids: Iterable[str]) -> dict[UnitKey, dict[str, Any]]:
        """The state of every unit of these jobs that reports a loss."""
        query = sa.select(training_units).where(_any(training_units.c.job_id, job_ids))
        query = query.order_by(training_units.c.job_id, training_units.c.unit_index)
        return {(row.job_id, row.unit_index): row.state for row in await self._connection.execute(query)}

    async def keep_units(self, states: Mapping[UnitKey, dict[str, Any]]) -> None:
        """Write the states of units."""
        rows = [
            {"job_id": job_id, "unit_index": index, "state": state} for (job_id, index), state in sorted(states.items())
        ]
        if rows:
            statement = insert(training_units)
            statement = statement.on_conflict_do_update(
                index_elements=list(training_units.primary_key), set_={"state": statement.excluded.state}
            )
            await self._connection.execute(statement, rows)

    async def add_changes(self, changes: Sequence[StoredChange]) -> None:
        """Note what was told."""
        if changes:
            rows = [{name: getattr(item, name) for name in StoredChange.__dataclass_fields__} for item in changes]
            await self._connection.execute(sa.insert(phase_changes), rows)

    async def load_job(self, job_id: str) -> TrainingJob | None:
        """What is known of a job."""
        query = sa.select(training_jobs).where(training_jobs.c.job_id == job_id)
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else TrainingJob(row.tenant_id, row.schedule)

    async def load_changes(self, job_id: str) -> list[StoredChange]:
        """What was told of the units of a job, in the order in which it was told."""
        query = sa.select(phase_changes).where(phase_changes.c.job_id == job_id).order_by(phase_changes.c.seq)
        rows = await self._connection.execute(query)
        return [
            StoredChange(row.job_id, row.unit_index, row.epoch, row.step, row.phase, row.reason, row.at) for row in rows
        ]

    async def forget(self, before: datetime) -> None:
        """Remove jobs that nothing was heard of since."""
        old = sa.select(training_jobs.c.job_id).where(training_jobs.c.changed_at < before)
        for table in (training_units, phase_changes):
            await self._connection.execute(sa.delete(table).where(table.c.job_id.in_(old)))
        await self._connection.execute(sa.delete(training_jobs).where(training_jobs.c.changed_at < before))

    async def touch(self, job_ids: Iterable[str], now: datetime) -> None:
        """Something was heard of these jobs."""
        await self._connection.execute(
            sa.update(training_jobs).where(_any(training_jobs.c.job_id, job_ids)).values(changed_at=now)
        )
