"""Domains, nodes, links, incidents and forecasts: written from events, read by the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway.capacity import DomainCapacity, NodeCapacity, amounts_of, kinds_of
from services.gateway.network import DomainChange, IncidentChanges, IncidentRow
from services.gateway.store.rows import as_json, as_rows, texts, upsert
from services.gateway.tables import domain, forecast, incident, job, link, node, recovery, requirement

Body = dict[str, Any]

# -- written from events -------------------------------------------------------------------------------------------------

_SET_STATES = sa.text(
    "UPDATE node SET state = given.state, state_reason = given.state_reason "
    "FROM json_populate_recordset(CAST(NULL AS node), CAST(:rows AS json)) AS given WHERE node.node_id = given.node_id"
)
# A job whose forecast is older has ended, or is not among the largest any more.
_JOB_FORECASTS = timedelta(hours=1)
_TOUCH_DOMAINS = sa.text(
    "UPDATE domain SET version = greatest(domain.version, given.version), updated_at = given.updated_at "
    "FROM json_populate_recordset(CAST(NULL AS domain), CAST(:rows AS json)) AS given "
    "WHERE domain.domain_id = given.domain_id"
)


async def save_graph(connection: AsyncConnection, changes: Sequence[DomainChange]) -> None:
    """Write what graph events changed."""
    changed = [item for item in changes if item.updated_at is not None]
    described = [
        {"domain_id": item.domain_id, "version": item.version, "body": item.body, "updated_at": item.updated_at}
        for item in changed
    ]
    await upsert(connection, domain, [row for row in described if row["body"] is not None])
    if rest := [row for row in described if row["body"] is None]:
        await connection.execute(_TOUCH_DOMAINS, {"rows": as_json(rest)})
    for item in changes:
        if item.full:
            gone = sa.delete(node).where(node.c.domain_id == item.domain_id)
            await connection.execute(gone.where(~(node.c.node_id == texts(item.nodes))))
            await connection.execute(sa.delete(link).where(link.c.domain_id == item.domain_id))
    if removed := {(item.domain_id, node_id) for item in changes for node_id in item.removed}:
        pairs = sa.tuple_(node.c.domain_id, node.c.node_id).in_(sorted(removed))
        await connection.execute(sa.delete(node).where(pairs))
    await upsert(connection, node, as_rows(row for item in changes for row in item.nodes.values()))
    await upsert(connection, link, as_rows(row for item in changes for row in item.links.values()))
    states = [
        {"node_id": node_id, "state": state, "state_reason": reason}
        for item in changes
        for node_id, (state, reason) in item.states.items()
    ]
    if states:
        await connection.execute(_SET_STATES, {"rows": as_json(states)})


async def remove_domains(connection: AsyncConnection, domain_ids: Iterable[str]) -> None:
    """Remove domains with their nodes and links."""
    gone = texts(domain_ids)
    for table in (link, node, domain):
        await connection.execute(sa.delete(table).where(table.c.domain_id == gone))


async def load_incidents(connection: AsyncConnection, incident_ids: Iterable[str]) -> list[IncidentRow]:
    """The stored incidents of these ids."""
    columns = [incident.c[item.name] for item in fields(IncidentRow)]
    query = sa.select(*columns).where(incident.c.incident_id == texts(set(incident_ids)))
    return [IncidentRow(**row) for row in (await connection.execute(query)).mappings()]


async def save_incidents(connection: AsyncConnection, changes: IncidentChanges) -> None:
    """Write what incident events changed."""
    await upsert(connection, incident, as_rows(changes.incidents.values()))
    # A run is planned again when its plan was lost: the newest counts.
    recoveries = {(row.run_id, row.incident_id): row for row in changes.recoveries}
    await upsert(connection, recovery, as_rows(recoveries[key] for key in sorted(recoveries)))


async def save_forecasts(connection: AsyncConnection, rows: Sequence[Body]) -> None:
    """Keep the newest forecast of each subject; those of jobs while they are renewed."""
    newest: dict[tuple[str, str], Body] = {}
    for row in rows:
        newest[row["subject_kind"], row["subject_id"]] = row
    await upsert(connection, forecast, [newest[key] for key in sorted(newest)], newest_by="made_at")
    if rows:
        old = max(row["made_at"] for row in rows) - _JOB_FORECASTS
        await connection.execute(sa.delete(forecast).where(forecast.c.subject_kind == "job", forecast.c.made_at < old))


async def save_requirements(connection: AsyncConnection, bodies: Sequence[Body]) -> None:
    """Keep the newest requirement of each job."""
    newest = {body["job_id"]: {"job_id": body["job_id"], "body": body} for body in bodies}
    await upsert(connection, requirement, [newest[key] for key in sorted(newest)])


# -- read by the API -----------------------------------------------------------------------------------------------------


async def domains(connection: AsyncConnection, domain_id: str | None = None) -> list[Body]:
    """Domains with totals over their nodes; reachable unless an open incident says that its agent is silent."""
    silent = sa.exists().where(incident.c.domain_id == domain.c.domain_id, incident.c.state == "unreachable")
    query = sa.select(domain, (~silent).label("reachable")).order_by(domain.c.domain_id)
    if domain_id is not None:
        query = query.where(domain.c.domain_id == domain_id)
    bodies: dict[str, Body] = {}
    for row in await connection.execute(query):
        body = dict(row.body)
        del body["agent_url"]
        body |= {
            "domain_id": row.domain_id,
            "reachable": row.reachable,
            "version": row.version,
            "updated_at": row.updated_at,
            "nodes": 0,
            "nodes_by_state": {},
            "accelerators": 0,
            "cpus": 0.0,
            "memory_bytes": 0,
        }
        bodies[row.domain_id] = body
    totals = sa.select(
        node.c.domain_id,
        node.c.state,
        sa.func.count(),
        sa.func.sum(sa.func.json_array_length(node.c.body["accelerators"])),
        sa.func.sum(node.c.body["cpus"].as_float()),
        sa.func.sum(sa.cast(node.c.body["memory_bytes"].as_string(), sa.BigInteger)),
    ).group_by(node.c.domain_id, node.c.state)
    if domain_id is not None:
        totals = totals.where(node.c.domain_id == domain_id)
    for name, state, count, accelerators, cpus, memory_bytes in await connection.execute(totals):
        if (found := bodies.get(name)) is not None:
            found["nodes"] += count
            found["nodes_by_state"][state] = count
            found["accelerators"] += int(accelerators)
            found["cpus"] += float(cpus)
            found["memory_bytes"] += int(memory_bytes)
    return list(bodies.values())


async def agent_of(connection: AsyncConnection, domain_id: str) -> tuple[str, bool] | None:
    """Where a domain's agent answers (empty: nowhere), and whether the domain is emulated."""
    row = (await connection.execute(sa.select(domain.c.body).where(domain.c.domain_id == domain_id))).one_or_none()
    return None if row is None else (str(row.body["agent_url"]), bool(row.body["emulated"]))


async def nodes(
    connection: AsyncConnection,
    *,
    node_id: str | None = None,
    domain_id: str | None = None,
    state: str | None = None,
    skip: int = 0,
    limit: int | None = None,
) -> list[Body]:
    """Nodes by id, without the first ``skip``."""
    query = sa.select(node).order_by(node.c.node_id).offset(skip).limit(limit)
    for column, value in ((node.c.node_id, node_id), (node.c.domain_id, domain_id), (node.c.state, state)):
        if value is not None:
            query = query.where(column == value)
    return [
        {
            **row.body,
            "node_id": row.node_id,
            "domain_id": row.domain_id,
            "state": row.state,
            "state_reason": row.state_reason,
            "updated_at": row.updated_at,
        }
        for row in await connection.execute(query)
    ]


async def links(connection: AsyncConnection) -> list[Body]:
    """All links."""
    query = sa.select(link.c.body).order_by(link.c.from_domain_id, link.c.to_domain_id)
    return [row.body for row in await connection.execute(query)]


async def forecasts(connection: AsyncConnection, *, tenant_id: str | None, subject_id: str | None) -> list[Body]:
    """The newest forecasts: of domains, models of accelerators, and of that tenant and its jobs (None: of all tenants). Jobs that
    ended ask for nothing more."""
    over = sa.exists().where(
        forecast.c.subject_kind == "job", job.c.job_id == forecast.c.subject_id, job.c.finished_at.is_not(None)
    )
    query = sa.select(forecast.c.body).where(~over).order_by(forecast.c.subject_kind, forecast.c.subject_id)
    if subject_id is not None:
        query = query.where(forecast.c.subject_id == subject_id)
    if tenant_id is not None:
        of_tenant = sa.case(
            (forecast.c.subject_kind == "tenant", forecast.c.subject_id),
            (forecast.c.subject_kind == "job", forecast.c.body["tenant_id"].as_string()),
            else_=tenant_id,
        )
        query = query.where(of_tenant == tenant_id)
    return [row.body for row in await connection.execute(query)]


async def incidents(
    connection: AsyncConnection, *, is_open: bool | None, before: int | None, limit: int, tenant_id: str | None
) -> list[tuple[int, Body]]:
    """Incidents with their positions, newest first; their runs as far as they are that tenant's (None: all)."""
    query = sa.select(incident).order_by(incident.c.seq.desc()).limit(limit)
    if is_open is not None:
        query = query.where(incident.c.closed_at.is_(None) if is_open else incident.c.closed_at.is_not(None))
    if before is not None:
        query = query.where(incident.c.seq < before)
    found: list[tuple[int, Body]] = []
    for row in (await connection.execute(query)).mappings():
        body = dict(row)
        found.append((body.pop("seq"), {**body, "recoveries": 0, "runs": []}))
    by_id = {body["incident_id"]: body for _, body in found}
    if not by_id:
        return found
    runs = (
        sa.select(recovery, job.c.tenant_id)
        .outerjoin(job, job.c.job_id == recovery.c.job_id)
        .where(recovery.c.incident_id == texts(by_id))
        .order_by(recovery.c.planned_at, recovery.c.run_id)
    )
    for row in (await connection.execute(runs)).mappings():
        body = dict(row)
        owner, of = body.pop("tenant_id"), by_id[body.pop("incident_id")]
        of["recoveries"] += 1
        if tenant_id is None or owner == tenant_id:
            of["runs"].append(body)
    return found


async def capacities(connection: AsyncConnection) -> dict[str, DomainCapacity]:
    """What every domain has, loads and failures left aside."""
    levels = {row.domain_id: row.body["security_level"] for row in await connection.execute(sa.select(domain))}
    members: dict[str, list[NodeCapacity]] = {domain_id: [] for domain_id in levels}
    for row in await connection.execute(sa.select(node.c.domain_id, node.c.node_id, node.c.body)):
        kinds = kinds_of(row.body["accelerators"])
        # Rows of older releases do not have it.
        amounts = amounts_of(row.body.get("user_resources", []))
        capacity = NodeCapacity(row.node_id, row.body["cpus"] or 0.0, row.body["memory_bytes"], kinds, amounts)
        members.setdefault(row.domain_id, []).append(capacity)
    return {
        domain_id: DomainCapacity(domain_id, levels.get(domain_id, 0), tuple(found))
        for domain_id, found in members.items()
    }
