"""SQL of what programs reported of their steps: rates by job, model and ranks, and steps done by unit."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler.core.measured import Cell, Done, News
from services.scheduler.core.state import UnitKey

_metadata = sa.MetaData()
measured_rate = sa.Table(
    "measured_rate",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("ranks", sa.Integer, primary_key=True),
    sa.Column("steps_per_s", sa.Double),
)
steps_done = sa.Table(
    "steps_done",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("step", sa.BigInteger),
    sa.Column("total", sa.BigInteger),
    sa.Column("at_s", sa.Double),
)


async def save(connection: AsyncConnection, news: News) -> None:
    """Keep what was measured, one statement per table."""
    rates = [(job_id, *cell, rate) for job_id, cell, rate in news.rates]
    await _put(connection, measured_rate, rates)
    await _put(connection, steps_done, [(*key, *done) for key, done in news.done])


async def _put(connection: AsyncConnection, table: sa.Table, rows: Sequence[tuple[object, ...]]) -> None:
    if not rows:
        return
    columns = list(table.c)
    arrays = [
        sa.literal(list(values), postgresql.ARRAY(column.type))
        for column, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    found = sa.func.unnest(*arrays).table_valued(*[column.name for column in columns]).render_derived()
    statement = postgresql.insert(table).from_select(
        [column.name for column in columns], sa.select(*[found.c[column.name] for column in columns])
    )
    changes = {column.name: statement.excluded[column.name] for column in columns if not column.primary_key}
    keys = [column.name for column in columns if column.primary_key]
    await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))


async def load(connection: AsyncConnection, job_ids: list[str]) -> News:
    """What is known of these jobs."""
    names = sa.any_(sa.literal(job_ids, postgresql.ARRAY(sa.Text)))
    rates = await connection.execute(
        sa.select(measured_rate)
        .where(measured_rate.c.job_id == names)
        .order_by(measured_rate.c.job_id, measured_rate.c.model, measured_rate.c.ranks)
    )
    done = await connection.execute(
        sa.select(steps_done).where(steps_done.c.job_id == names).order_by(steps_done.c.job_id, steps_done.c.unit_index)
    )
    return News(
        tuple((row.job_id, Cell(row.model, row.ranks), row.steps_per_s) for row in rates),
        tuple((UnitKey(row.job_id, row.unit_index), Done(row.step, row.total, row.at_s)) for row in done),
    )
