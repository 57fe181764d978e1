"""Loads the records that a batch of job events concerns, and writes back what changed; a few statements for any batch."""

from __future__ import annotations

from dataclasses import fields

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway import later_values
from services.gateway.lifecycle import Fold, JobRecord, RunRecord, Touched, UnitRecord
from services.gateway.store.rows import as_json, as_rows, texts, upsert
from services.gateway.tables import job, run, unit

_JOB_COLUMNS = [job.c[item.name] for item in fields(JobRecord)]
_UNIT_COLUMNS = [unit.c[item.name] for item in fields(UnitRecord)]
_RUN_COLUMNS = [run.c[item.name] for item in fields(RunRecord)]


async def load(connection: AsyncConnection, touched: Touched) -> Fold:
    """The records, their jobs locked until the transaction ends so that two handlers never fold one job at once."""
    jobs = await _lock_jobs(connection, touched.jobs)
    if missing := touched.jobs - jobs.keys():
        stubs = postgresql.insert(job).on_conflict_do_nothing()
        await connection.execute(stubs, [{"job_id": job_id} for job_id in sorted(missing)])
        jobs |= await _lock_jobs(connection, missing)
    units: list[UnitRecord] = []
    if touched.units:
        pairs = sorted(touched.units)
        wanted = (
            sa.func.unnest(
                sa.literal([job_id for job_id, _ in pairs], sa.ARRAY(sa.Text)),
                sa.literal([index for _, index in pairs], sa.ARRAY(sa.Integer)),
            )
            .table_valued(sa.column("job_id", sa.Text), sa.column("unit_index", sa.Integer), name="wanted")
            .render_derived()
        )
        query = sa.select(*_UNIT_COLUMNS).join(
            wanted, (unit.c.job_id == wanted.c.job_id) & (unit.c.unit_index == wanted.c.unit_index)
        )
        units = [_unit(row) for row in (await connection.execute(query)).mappings()]
    runs: list[RunRecord] = []
    if touched.runs:
        query = sa.select(*_RUN_COLUMNS).where(run.c.run_id == texts(touched.runs))
        runs = [_run(row) for row in (await connection.execute(query)).mappings()]
    return Fold(jobs.values(), units, runs)


async def _lock_jobs(connection: AsyncConnection, job_ids: set[str]) -> dict[str, JobRecord]:
    query = sa.select(*_JOB_COLUMNS).where(job.c.job_id == texts(job_ids)).order_by(job.c.job_id).with_for_update()
    records = {}
    for row in (await connection.execute(query)).mappings():
        record = JobRecord(**row)
        record.state = later_values.job_state(
            record.state, finished_at=record.finished_at, placed_at=record.placed_at, queued_at=record.queued_at
        )
        records[record.job_id] = record
    return records


def _unit(row: sa.RowMapping) -> UnitRecord:
    record = UnitRecord(**row)
    record.state = later_values.unit_state(record.state, placed_epoch=record.placed_epoch, lost_epoch=record.lost_epoch)
    return record


def _run(row: sa.RowMapping) -> RunRecord:
    record = RunRecord(**row)
    record.state = later_values.run_state(record.state, ended_at=record.ended_at, started_at=record.started_at)
    return record


_CHANGED = [item.name for item in fields(JobRecord) if item.name != "job_id"]
_UPDATE_JOBS = sa.text(
    "UPDATE job SET "  # noqa: S608 - the names are those of the record
    + ", ".join(f"{name} = changed.{name}" for name in _CHANGED)
    + ", revision = job.revision + 1 "
    + "FROM json_populate_recordset(CAST(NULL AS job), CAST(:rows AS json)) AS changed "
    + "WHERE job.job_id = changed.job_id"
)
_SET_SPECS = sa.text(
    "UPDATE job SET spec = given.spec "
    "FROM json_populate_recordset(CAST(NULL AS job), CAST(:rows AS json)) AS given "
    "WHERE job.job_id = given.job_id AND job.spec IS NULL"
)


async def save(connection: AsyncConnection, fold: Fold) -> None:
    """Write what changed; each changed job gets a new revision."""
    if fold.changed_jobs:
        rows = as_rows(fold.jobs[job_id] for job_id in fold.changed_jobs)
        await connection.execute(_UPDATE_JOBS, {"rows": as_json(rows)})
    if fold.specs:
        specs = [{"job_id": job_id, "spec": spec} for job_id, spec in fold.specs.items()]
        await connection.execute(_SET_SPECS, {"rows": as_json(specs)})
    await upsert(connection, unit, as_rows(fold.units[key] for key in sorted(fold.changed_units)))
    await upsert(connection, run, as_rows(fold.runs[run_id] for run_id in sorted(fold.changed_runs)))


async def tenants_of(connection: AsyncConnection, job_ids: set[str]) -> dict[str, str]:
    """The tenant of each known job."""
    if not job_ids:
        return {}
    query = sa.select(job.c.job_id, job.c.tenant_id).where(job.c.job_id == texts(job_ids))
    return {row.job_id: row.tenant_id for row in await connection.execute(query)}
