"""What a changed number of shards needs: each job is kept by the shard that has its tenant now.

A shard knows the jobs that it took, also long after they ended. One that comes to tenants without their jobs reads all
submissions that the log still has as new ones, and what ended long ago would run again. So `hand_over` brings jobs, before any
shard starts, to where they belong; `refuse_misplaced` holds a shard back while this was not done. Both see what stands in one database.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from meridian.database import migrate
from meridian.errors import ConfigurationError
from meridian.leadership import lock_name
from meridian.sharding import shard_of_tenant
from services.scheduler.core.state import RunState

log = logging.getLogger(__name__)

_OF_JOBS = ("unit", "run", "measured_rate", "steps_done", "decision")
"""Tables that hold a job's rows, which go when it goes."""
_LEARNED = ("run_times", "predicted_starts")
"""Tables of one row that holds for every shard alike."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is. ``misplaced``: by schema the tenants whose jobs do not belong there; ``former``: the schemas of shards
    that are no more; ``without_policy``: shards that no policy was ever in force in, while one was in another."""

    misplaced: dict[str, list[str]]
    former: list[str]
    without_policy: list[str]

    def __bool__(self) -> bool:
        return bool(self.misplaced or self.former or self.without_policy)


async def hand_over(database_url: str, names: Sequence[str], scripts: Path) -> int:
    """Bring each job, its tenant's objectives, the policy in force and what was learned to the shards ``names``, whose schemas
    exist; returns how many jobs went. One transaction; nothing is done where everything is in its place.

    ``scripts``: the migrations, also for the schemas of shards that are no more. These are named ``<shard>_before_<UTC time>``
    at the end, and keep their journals. What was promised (share contracts, service levels) is counted anew in new shards.

    :raises ConfigurationError: jobs that would go have runs that are not over, or a shard that is concerned still runs.
    """
    engine = create_async_engine(database_url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            found = await _look(connection, names)
        if not found:
            return 0
        for schema in found.former:
            await migrate(database_url, schema, scripts)
        async with engine.begin() as connection:
            return await _hand_over(connection, names)
    finally:
        await engine.dispose()


async def refuse_misplaced(connection: AsyncConnection, names: Sequence[str]) -> None:
    """ConfigurationError when shards, former ones too, have jobs of tenants who belong to another of the shards ``names``."""
    found = (await _look(connection, names)).misplaced
    if found:
        raise ConfigurationError(
            f"MERIDIAN_SCHEDULER_SHARDS: with the shards {', '.join(names)} jobs of {', '.join(sorted(found))} belong to another; "
            "run `python -m meridian.service prepare` with this number while no scheduler runs"
        )


async def _hand_over(connection: AsyncConnection, names: Sequence[str]) -> int:
    await connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('meridian.scheduler.hand_over'))"))
    found = await _look(connection, names)
    for schema in sorted({*found.misplaced, *found.former, *names}):
        lock = sa.text("SELECT pg_try_advisory_xact_lock(hashtext(:name))")
        if not (await connection.execute(lock, {"name": lock_name("leader", schema)})).scalar_one():
            raise ConfigurationError(
                f"MERIDIAN_SCHEDULER_SHARDS: the shards are {', '.join(names)} now, and {schema} still runs; "
                "stop all schedulers before their number is changed"
            )
    await _refuse_running(connection, found.misplaced)
    moved = 0
    for schema, tenants in sorted(found.misplaced.items()):
        for target in names:
            own = [tenant for tenant in tenants if _home(tenant, names) == target]
            if own:
                moved += await _move_jobs(connection, schema, target, own)
    sources = [*found.former, *(name for name in names if name not in found.without_policy)]
    for source in sources:
        for target in names:
            if source != target:
                await _bring_learned(connection, source, target)
        await _move_objectives(connection, source, names)
    for target in names:
        await _bring_policy(connection, found.former, names, target)
    for schema in found.former:
        await _move_unsent(connection, schema, names[0])
        await _set_aside(connection, schema)
    log.info("jobs were handed over", extra={"jobs": moved, "former": found.former, "shards": list(names)})
    return moved


def _home(tenant_id: str, names: Sequence[str]) -> str:
    return names[shard_of_tenant(tenant_id, len(names))]


async def _look(connection: AsyncConnection, names: Sequence[str]) -> _Found:
    query = sa.text(
        "SELECT table_schema FROM information_schema.tables "
        "WHERE table_name = 'job' AND table_schema ~ '^scheduler(_[0-9]+)?$' ORDER BY table_schema"
    )
    schemas = list((await connection.execute(query)).scalars())
    found: dict[str, list[str]] = {}
    policies: dict[str, float | None] = {}
    for schema in schemas:
        job = await _table(connection, schema, "job")
        rows = await connection.execute(sa.select(job.c.tenant_id).distinct())
        tenants = [tenant for tenant in rows.scalars() if _home(tenant, names) != schema]
        if tenants:
            found[schema] = sorted(tenants)
        policies[schema] = await _newest_policy(connection, schema)
    former = [schema for schema in schemas if schema not in names]
    lacking = [name for name in names if policies.get(name) is None]
    return _Found(found, former, lacking if any(at_s is not None for at_s in policies.values()) else [])


async def _refuse_running(connection: AsyncConnection, found: dict[str, list[str]]) -> None:
    for schema, tenants in sorted(found.items()):
        job, run = [await _table(connection, schema, name) for name in ("job", "run")]
        query = (
            sa.select(sa.func.count(job.c.job_id.distinct()), sa.func.min(job.c.job_id))
            .join_from(run, job, run.c.job_id == job.c.job_id)
            .where(run.c.state != str(RunState.ENDED), _one_of(job.c.tenant_id, tenants))
        )
        jobs, example = (await connection.execute(query)).one()
        if jobs:
            raise ConfigurationError(
                f"MERIDIAN_SCHEDULER_SHARDS: {jobs} jobs of {schema} that would go to another shard run, {example} for one; "
                "let them end, or cancel them, with the number of shards that there was"
            )


async def _move_jobs(connection: AsyncConnection, source: str, target: str, tenants: Sequence[str]) -> int:
    here, there = [await _table(connection, schema, "job") for schema in (source, target)]
    wanted = sa.select(here).where(_one_of(here.c.tenant_id, tenants))
    # One that both know ran under both; the one that is there stays.
    insert = postgresql.insert(there).from_select(list(here.c.keys()), wanted).on_conflict_do_nothing()
    jobs = list((await connection.execute(insert.returning(there.c.job_id))).scalars())
    for name in _OF_JOBS:
        await _copy(connection, name, source, target, jobs)
    await connection.execute(sa.delete(here).where(_one_of(here.c.tenant_id, tenants)))
    return len(jobs)


async def _copy(connection: AsyncConnection, name: str, source: str, target: str, jobs: Sequence[str]) -> None:
    here, there = [await _table(connection, schema, name) for schema in (source, target)]
    wanted = sa.select(here).where(_one_of(here.c.job_id, jobs))
    if name == "decision":
        wanted = wanted.order_by(sa.column("seq"))
    await connection.execute(sa.insert(there).from_select(list(here.c.keys()), wanted))


async def _move_objectives(connection: AsyncConnection, source: str, names: Sequence[str]) -> None:
    here = await _table(connection, source, "tenant_objectives")
    for tenant in (await connection.execute(sa.select(here.c.tenant_id))).scalars().all():
        target = _home(tenant, names)
        if target == source:
            continue
        there = await _table(connection, target, "tenant_objectives")
        columns, own = [column.name for column in here.c], here.c.tenant_id == tenant
        insert = postgresql.insert(there).from_select(columns, sa.select(here).where(own))
        changes = {name: insert.excluded[name] for name in columns if name != "tenant_id"}
        newer = there.c.changed_at_s < insert.excluded.changed_at_s
        await connection.execute(insert.on_conflict_do_update(index_elements=["tenant_id"], set_=changes, where=newer))
        await connection.execute(sa.delete(here).where(own))


async def _move_unsent(connection: AsyncConnection, source: str, target: str) -> None:
    """What a shard that is no more had not sent yet is sent by another."""
    here, there = [await _table(connection, schema, "outbox") for schema in (source, target)]
    unsent = sa.select(here).order_by(sa.column("seq"))
    await connection.execute(sa.insert(there).from_select(list(here.c.keys()), unsent))
    await connection.execute(sa.delete(here))


async def _bring_policy(connection: AsyncConnection, former: Sequence[str], names: Sequence[str], target: str) -> None:
    """The newest policy: of shards that are no more; where the target has none, of any."""
    own = await _newest_policy(connection, target)
    offers = []
    for name in (*former, *(() if own is not None else names)):
        at_s = await _newest_policy(connection, name)
        if at_s is not None and (own is None or at_s > own):
            offers.append((at_s, name))
    if offers:
        here, there = [await _table(connection, schema, "policy_change") for schema in (max(offers)[1], target)]
        newest = sa.select(here).order_by(sa.column("change_id").desc()).limit(1)
        await connection.execute(sa.insert(there).from_select(list(here.c.keys()), newest))


async def _newest_policy(connection: AsyncConnection, schema: str) -> float | None:
    changes = await _table(connection, schema, "policy_change")
    query = sa.select(changes.c.changed_at_s).order_by(sa.column("change_id").desc()).limit(1)
    at_s: float | None = (await connection.execute(query)).scalar_one_or_none()
    return at_s


async def _bring_learned(connection: AsyncConnection, source: str, target: str) -> None:
    for name in _LEARNED:
        here, there = [await _table(connection, schema, name) for schema in (source, target)]
        insert = postgresql.insert(there).from_select(list(here.c.keys()), sa.select(here))
        await connection.execute(insert.on_conflict_do_nothing())


async def _set_aside(connection: AsyncConnection, schema: str) -> None:
    stamp = (
        await connection.execute(sa.text("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD_HH24MISS')"))
    ).scalar_one()
    await connection.execute(sa.text(f'ALTER SCHEMA "{schema}" RENAME TO "{schema}_before_{stamp}"'))


async def _table(connection: AsyncConnection, schema: str, name: str) -> sa.TableClause:
    """A table as it is, without the column that numbers its rows."""
    query = sa.text(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = :schema AND table_name = :name AND is_identity = 'NO' ORDER BY ordinal_position"
    )
    columns = (await connection.execute(query, {"schema": schema, "name": name})).scalars()
    return sa.table(name, *[sa.column(column) for column in columns], schema=schema)


def _one_of(column: sa.ColumnElement[str], values: Sequence[str]) -> sa.ColumnElement[bool]:
    return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(sa.Text)))
