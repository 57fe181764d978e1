"""HTTP of failover: incidents with their timelines and recoveries, and what the detector sees at present."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query
from pydantic import BaseModel

from meridian.clock import Clock
from meridian.database import Database
from meridian.errors import NotFoundError
from services.failover.beliefs import DomainState, DomainView, NodeState, NodeView
from services.failover.store import Store
from services.failover.watch import Watch


class TimelineEntry(BaseModel):
    """Something that happened in an incident."""

    at: datetime
    event: str
    detail: str


class RecoveryBody(BaseModel):
    """What became of one run. Durations in seconds; null as long as the step is not done."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    cause: str
    restore_from: str
    restore_step: int
    detected_at: datetime
    planned_at: datetime
    replaced_at: datetime | None
    replaced_by: str | None
    resumed_at: datetime | None
    detection_s: float | None
    time_to_recover_s: float | None


class IncidentBody(BaseModel):
    """An incident. ``time_to_recover_s`` is that of the slowest of its runs, null while one waits; ``suspicions`` is how often its node
    was suspected in it."""

    incident_id: str
    kind: str
    domain_id: str
    node_id: str | None
    state: Literal["open", "closed"]
    reason: str
    last_seen_at: datetime | None
    opened_at: datetime
    detected_at: datetime | None
    closed_at: datetime | None
    time_to_recover_s: float | None
    suspicions: int
    timeline: list[TimelineEntry]
    recoveries: list[RecoveryBody]


class IncidentPage(BaseModel):
    """Incidents, newest first; ``next_before`` asks for the following page."""

    incidents: list[IncidentBody]
    next_before: str | None


class NodeBody(BaseModel):
    """The detector's view of a node."""

    node_id: str
    domain_id: str
    state: NodeState
    incarnation: int
    silence_s: float
    quarantined: bool
    recent_failures: int
    run_ids: list[str]


class NodePage(BaseModel):
    """All nodes; ``active`` says whether this instance declares, ``held`` why it does not at present."""

    active: bool
    held: str
    nodes: list[NodeBody]


class DomainBody(BaseModel):
    """The detector's view of a domain."""

    domain_id: str
    state: DomainState
    agent_incarnation: int
    silence_s: float
    lease_s: float
    lease_ran_out: bool
    nodes: int


class DomainPage(BaseModel):
    """All domains."""

    active: bool
    held: str
    domains: list[DomainBody]


def _recovery(row: sa.Row[Any]) -> RecoveryBody:
    since = row.last_seen_at
    return RecoveryBody(
        **{name: getattr(row, name) for name in RecoveryBody.model_fields if hasattr(row, name)},
        detection_s=(row.detected_at - since).total_seconds() if since else None,
        time_to_recover_s=(row.resumed_at - (since or row.detected_at)).total_seconds() if row.resumed_at else None,
    )


def _incident(row: sa.Row[Any], recoveries: list[sa.Row[Any]]) -> IncidentBody:
    bodies = [_recovery(item) for item in recoveries]
    times_s = [body.time_to_recover_s for body in bodies]
    known_s = [time_s for time_s in times_s if time_s is not None]
    return IncidentBody(
        **{name: getattr(row, name) for name in IncidentBody.model_fields if hasattr(row, name)},
        time_to_recover_s=max(known_s) if known_s and len(known_s) == len(times_s) else None,
        recoveries=bodies,
    )


def _node(node: NodeView, now_s: float) -> NodeBody:
    return NodeBody(
        node_id=node.node_id,
        domain_id=node.domain_id,
        state=node.state,
        incarnation=node.incarnation,
        silence_s=round(node.silence_s(now_s), 3),
        quarantined=node.quarantined,
        recent_failures=len(node.failures_s),
        run_ids=list(node.run_ids),
    )


def _domain(domain: DomainView, now_s: float) -> DomainBody:
    return DomainBody(
        domain_id=domain.domain_id,
        state=domain.state,
        agent_incarnation=domain.incarnation,
        silence_s=round(max(0.0, now_s - domain.heard_at_s), 3),
        lease_s=domain.lease_s,
        lease_ran_out=domain.lease_ran_out,
        nodes=len(domain.nodes),
    )


def create_router(database: Database, watch: Watch, clock: Clock) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(prefix="/v1")

    @router.get("/incidents")
    async def list_incidents(
        state: Annotated[Literal["open", "closed"] | None, Query()] = None,
        domain_id: Annotated[str | None, Query()] = None,
        before: Annotated[str | None, Query(description="only incidents older than this one")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> IncidentPage:
        async with database.reading() as connection:
            store = Store(connection)
            rows = await store.list_incidents(state=state, domain_id=domain_id, before=before, limit=limit)
            recoveries = await store.recoveries_of([row.incident_id for row in rows])
        return IncidentPage(
            incidents=[_incident(row, recoveries.get(row.incident_id, [])) for row in rows],
            next_before=rows[-1].incident_id if len(rows) == limit else None,
        )

    @router.get("/incidents/{incident_id}")
    async def get_incident(incident_id: str) -> IncidentBody:
        async with database.reading() as connection:
            store = Store(connection)
            row = await store.find_incident(incident_id)
            recoveries = await store.recoveries_of([incident_id])
        if row is None:
            raise NotFoundError(f"there is no incident {incident_id}")
        return _incident(row, recoveries.get(incident_id, []))

    @router.get("/nodes")
    async def list_nodes(domain_id: Annotated[str | None, Query()] = None) -> NodePage:
        now_s = clock.monotonic_s()
        found = sorted(watch.detector.nodes().values(), key=lambda node: (node.domain_id, node.node_id))
        return NodePage(
            active=watch.active,
            held=watch.detector.held(now_s),
            nodes=[_node(node, now_s) for node in found if domain_id in {None, node.domain_id}],
        )

    @router.get("/domains")
    async def list_domains() -> DomainPage:
        now_s = clock.monotonic_s()
        found = sorted(watch.detector.domains.values(), key=lambda domain: domain.domain_id)
        return DomainPage(
            active=watch.active,
            held=watch.detector.held(now_s),
            domains=[_domain(domain, now_s) for domain in found],
        )

    return router
