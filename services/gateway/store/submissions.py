"""Storing what tenants ask for: jobs, cancellations, quota and idempotency keys, all in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.store.rows import as_json
from services.gateway.tables import idempotency, job


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that passed every check."""

    job_id: str
    tenant_id: str
    name: str
    kind: str
    priority: int
    units_total: int
    submitted_at: datetime
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What was answered to a request with an idempotency key."""

    request_hash: str
    status: int
    answer: str


_COLUMNS = ", ".join(NewJob.__slots__)
_INSERT = sa.text(
    f"INSERT INTO job ({_COLUMNS}) SELECT {_COLUMNS} "  # noqa: S608 - the names are those of the record
    "FROM json_populate_recordset(CAST(NULL AS job), CAST(:rows AS json))"
)
_LOCK_TENANT = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('meridian.gateway.tenant.' || :tenant_id, 0))")
_TRY_KEY = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended('meridian.gateway.key.' || :key, 0))")


async def insert(connection: AsyncConnection, jobs: Sequence[NewJob]) -> None:
    """Add jobs in their order."""
    rows = [{name: getattr(item, name) for name in NewJob.__slots__} for item in jobs]
    await connection.execute(_INSERT, {"rows": as_json(rows)})


async def count_unfinished(connection: AsyncConnection, tenant_id: str) -> int:
    """How many jobs of a tenant are not finished; other submissions of that tenant wait until this transaction ends."""
    await connection.execute(_LOCK_TENANT, {"tenant_id": tenant_id})
    query = sa.select(sa.func.count()).where(job.c.tenant_id == tenant_id, job.c.finished_at.is_(None))
    return int(await connection.scalar(query) or 0)


async def take_key(connection: AsyncConnection, tenant_id: str, key: str) -> bool:
    """Whether no other request with this key is in progress; then none can begin until this transaction ends."""
    return bool(await connection.scalar(_TRY_KEY, {"key": f"{len(tenant_id)}.{tenant_id}.{key}"}))


async def stored_answer(connection: AsyncConnection, tenant_id: str, key: str) -> StoredAnswer | None:
    """The answer given to an earlier request with this key."""
    query = sa.select(idempotency.c.request_hash, idempotency.c.status, idempotency.c.answer).where(
        idempotency.c.tenant_id == tenant_id, idempotency.c.key == key
    )
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else StoredAnswer(*row)


async def store_answer(connection: AsyncConnection, tenant_id: str, key: str, answer: StoredAnswer) -> None:
    """Keep the answer to a request with a key."""
    await connection.execute(
        sa.insert(idempotency).values(
            tenant_id=tenant_id,
            key=key,
            request_hash=answer.request_hash,
            status=answer.status,
            answer=answer.answer,
        )
    )


async def request_cancel(connection: AsyncConnection, job_id: str, at: datetime) -> bool:
    """Note that a job is to be cancelled; False when that was noted before or the job is finished."""
    statement = (
        sa.update(job)
        .where(job.c.job_id == job_id, job.c.finished_at.is_(None), job.c.cancel_requested_at.is_(None))
        .values(cancel_requested_at=at, revision=job.c.revision + 1)
    )
    result: Any = await connection.execute(statement)
    return bool(result.rowcount)
