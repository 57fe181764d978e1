"""SQL of the deciders of domains: grants and sessions; the fleet stands in tables like the scheduler's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.granted import Grant, GrantChanges, ShardSession
from services.scheduler.core.apart.messages import Holding, Request, Session
from services.scheduler.shards.wire import request_from, request_message

_metadata = sa.MetaData()
unit_grant = sa.Table(
    "unit_grant",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("shard", sa.Text),
    sa.Column("body", sa.LargeBinary),
)
shard_session = sa.Table(
    "shard_session",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("shard", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary),
)


async def save(connection: AsyncConnection, changes: Mapping[str, GrantChanges]) -> None:
    """Write what changed, by domain. ``body`` is a request of scheduler.proto that says the same."""
    gone = [
        {"b_domain": name, "b_job": key.job_id, "b_unit": key.unit_index}
        for name, change in changes.items()
        for key, grant in change.grants.items()
        if grant is None
    ]
    if gone:
        statement = sa.delete(unit_grant).where(
            unit_grant.c.domain_id == sa.bindparam("b_domain"),
            unit_grant.c.job_id == sa.bindparam("b_job"),
            unit_grant.c.unit_index == sa.bindparam("b_unit"),
        )
        await connection.execute(statement, gone)
    grants = [
        {
            "domain_id": name,
            "job_id": key.job_id,
            "unit_index": key.unit_index,
            "epoch": grant.name.epoch,
            "shard": grant.shard,
            "body": grant_message(name, grant).SerializeToString(),
        }
        for name, change in changes.items()
        for key, grant in change.grants.items()
        if grant is not None
    ]
    await _upsert(connection, unit_grant, grants, ("epoch", "shard", "body"))
    sessions = [
        {"domain_id": name, "shard": shard, "body": session_message(name, shard, session).SerializeToString()}
        for name, change in changes.items()
        for shard, session in change.sessions.items()
    ]
    await _upsert(connection, shard_session, sessions, ("body",))


async def load_grants(connection: AsyncConnection) -> dict[str, list[Grant]]:
    """All grants by domain."""
    found: dict[str, list[Grant]] = {}
    ordered = sa.select(unit_grant).order_by(unit_grant.c.domain_id, unit_grant.c.job_id, unit_grant.c.unit_index)
    for row in await connection.execute(ordered):
        found.setdefault(row.domain_id, []).append(grant_from(scheduler_pb2.PlacementRequest.FromString(row.body)))
    return found


async def load_sessions(connection: AsyncConnection) -> dict[str, dict[str, ShardSession]]:
    """All sessions by domain and shard."""
    found: dict[str, dict[str, ShardSession]] = {}
    ordered = sa.select(shard_session).order_by(shard_session.c.domain_id, shard_session.c.shard)
    for row in await connection.execute(ordered):
        shard, session = session_from(scheduler_pb2.PlacementRequest.FromString(row.body))
        found.setdefault(row.domain_id, {})[shard] = session
    return found


def grant_message(domain_id: str, grant: Grant) -> scheduler_pb2.PlacementRequest:
    """A grant as a request of scheduler.proto that says the same."""
    held = Holding(
        grant.name,
        grant.tenant_id,
        grant.demand,
        grant.ranks,
        grant.since_s,
        least_milli=grant.least_milli,
        asked_milli=grant.asked_milli,
    )
    request = Request(domain_id, grant.shard, Session(0, 0), holdings=(held,))
    return request_message(request, grant.since_s)


def grant_from(message: scheduler_pb2.PlacementRequest) -> Grant:
    """What `grant_message` said."""
    request = request_from(message)
    assert request.holdings
    item = request.holdings[0]
    return Grant(
        request.shard,
        item.name,
        item.tenant_id,
        item.demand,
        item.ranks,
        item.since_s,
        item.least_milli,
        item.asked_milli,
    )


def session_message(domain_id: str, shard: str, session: ShardSession) -> scheduler_pb2.PlacementRequest:
    """A shard's session as a request of scheduler.proto that says the same."""
    classes = tuple(session.classes.items())
    request = Request(
        domain_id,
        shard,
        session.session,
        classes=classes,
        waiting=session.waiting,
        waiting_classes=session.waiting_classes,
    )
    return request_message(request, 0.0)


def session_from(message: scheduler_pb2.PlacementRequest) -> tuple[str, ShardSession]:
    """The shard, and what `session_message` said of it."""
    request = request_from(message)
    return request.shard, ShardSession(
        request.session, dict(request.classes), request.waiting, waiting_classes=request.waiting_classes
    )


async def _upsert(
    connection: AsyncConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]], changing: Sequence[str]
) -> None:
    if not rows:
        return
    statement = postgresql.insert(table)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[column.name for column in table.primary_key],
            set_={name: statement.excluded[name] for name in changing},
        ),
        rows,
    )
