"""SQL of leadership, domains, nodes and incidents.

Two writers meet here: the watch (one active instance, from heartbeats) and the bus handlers (any instance, from job and
run events). What they must not miss of each other is ordered by row locks on ``nodes`` and ``domains``: a declaration
updates the row before it reads the runs, a placement locks the row before it looks whether the node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.failover.beliefs import DomainState, NodeState
from services.failover.tables import (
    any_of,
    checkpoints,
    domains,
    incidents,
    leadership,
    nodes,
    recoveries,
    run_domains,
    runs,
)

OPEN, CLOSED = "open", "closed"
# An agent sees a machine die at once, the detector a moment later: within this time it is the same failure.
_REPORT_CONFIRMED_WITHIN = timedelta(seconds=30)
_OF_SUSPICIONS = frozenset({"suspected", "recovered"})
MOST_OF_SUSPICIONS = 100
"""Entries of the timeline of an incident that is nothing but suspicions."""


class Store:
    """Leadership, domains, nodes and incidents, seen from one transaction. Runs: `run_store.RunStore`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    # -- leadership ----------------------------------------------------------------------------------------------

    async def begin_term(self) -> tuple[int, int]:
        """Start a new term of leadership; all earlier ones are over. Returns it, and how many transitions were carried out."""
        statement = (
            sa.update(leadership)
            .values(term=leadership.c.term + 1)
            .returning(leadership.c.term, leadership.c.carried_out)
        )
        term, carried_out = (await self._connection.execute(statement)).one()
        return term, carried_out

    async def note_carried_out(self, term: int, count: int) -> bool:
        """Note how many transitions were carried out once this transaction is committed; False when ``term`` is over."""
        statement = sa.update(leadership).where(leadership.c.term == term).values(carried_out=count)
        return bool((await self._connection.execute(statement)).rowcount)

    # -- domains and nodes ---------------------------------------------------------------------------------------

    async def load_domains(self) -> Sequence[sa.Row[Any]]:
        """All domains."""
        return (await self._connection.execute(sa.select(domains))).all()

    async def load_nodes(self) -> Sequence[sa.Row[Any]]:
        """All nodes."""
        return (await self._connection.execute(sa.select(nodes))).all()

    async def add_domains(self, appeared: Mapping[str, float], at: datetime) -> None:
        """Note domains with their lease in seconds; known ones stay as they are."""
        rows = [
            {"domain_id": name, "state": DomainState.REACHABLE, "lease_s": lease_s, "changed_at": at}
            for name, lease_s in appeared.items()
        ]
        if rows:
            await self._connection.execute(insert(domains).on_conflict_do_nothing(), rows)

    async def add_nodes(self, appeared: Sequence[tuple[str, str, int]], at: datetime) -> None:
        """Note nodes (node, domain, incarnation); a known one that moved is taken over by its new domain, whose agent counts
        incarnations by itself."""
        rows = [
            {
                "node_id": node_id,
                "domain_id": domain_id,
                "incarnation": incarnation,
                "state": NodeState.ALIVE,
                "changed_at": at,
            }
            for node_id, domain_id, incarnation in appeared
        ]
        if rows:
            statement = insert(nodes)
            statement = statement.on_conflict_do_update(
                index_elements=[nodes.c.node_id],
                set_={name: statement.excluded[name] for name in ("domain_id", "incarnation")},
            )
            await self._connection.execute(statement, rows)

    async def set_node(
        self,
        node_id: str,
        state: NodeState,
        at: datetime,
        *,
        incarnation: int | None = None,
        incident_id: str | None = None,
        quarantined: bool | None = None,
        failures: Sequence[datetime] | None = None,
    ) -> None:
        """Change a node's state and lock its row; what is None stays, but the incident, which is set."""
        values: dict[str, Any] = {"state": state, "changed_at": at, "incident_id": incident_id}
        if incarnation is not None:
            values["incarnation"] = incarnation
        if quarantined is not None:
            values["quarantined"] = quarantined
        if failures is not None:
            values["failures"] = list(failures)
        await self._connection.execute(sa.update(nodes).where(nodes.c.node_id == node_id).values(values))

    async def remove_node(self, node_id: str, domain_id: str) -> None:
        """Remove a node, unless it is another domain's by now."""
        await self._connection.execute(
            sa.delete(nodes).where(nodes.c.node_id == node_id, nodes.c.domain_id == domain_id)
        )

    async def set_lease(self, domain_id: str, lease_s: float) -> None:
        """Note the lease in seconds that a domain's agent names now."""
        await self._connection.execute(
            sa.update(domains).where(domains.c.domain_id == domain_id).values(lease_s=lease_s)
        )

    async def remove_domain(self, domain_id: str) -> list[tuple[str, int, str]]:
        """Remove a domain with its nodes; returns those of them that have an open incident: node, incarnation, incident."""
        gone = sa.delete(nodes).where(nodes.c.domain_id == domain_id)
        rows = await self._connection.execute(gone.returning(nodes.c.node_id, nodes.c.incarnation, nodes.c.incident_id))
        found = sorted((row.node_id, row.incarnation, row.incident_id) for row in rows if row.incident_id is not None)
        await self._connection.execute(sa.delete(domains).where(domains.c.domain_id == domain_id))
        return found

    async def set_domain(
        self, domain_id: str, state: DomainState, at: datetime, *, incident_id: str | None, lease_ran_out: bool = False
    ) -> None:
        """Change a domain's state and lock its row."""
        values = {"state": state, "changed_at": at, "incident_id": incident_id, "lease_ran_out": lease_ran_out}
        await self._connection.execute(sa.update(domains).where(domains.c.domain_id == domain_id).values(values))

    async def nodes_known(self, node_ids: Iterable[str]) -> dict[str, sa.Row[Any]]:
        """Those of the nodes that are known, as they are."""
        wanted = set(node_ids)
        if not wanted:
            return {}
        query = sa.select(nodes).where(any_of(nodes.c.node_id, wanted))
        return {row.node_id: row for row in await self._connection.execute(query)}

    async def incident_of_node(self, node_id: str) -> str | None:
        """The open incident of a node."""
        statement = sa.select(nodes.c.incident_id).where(nodes.c.node_id == node_id)
        return (await self._connection.execute(statement)).scalar_one_or_none()

    async def report_about_node(self, node_id: str, at: datetime) -> str | None:
        """The incident opened by an agent's report of runs lost with this node, which the detector may confirm later."""
        statement = (
            sa.select(incidents.c.incident_id)
            .where(
                incidents.c.node_id == node_id,
                incidents.c.kind == "run_lost",
                sa.or_(incidents.c.state == OPEN, incidents.c.opened_at > at - _REPORT_CONFIRMED_WITHIN),
            )
            .order_by(incidents.c.opened_at.desc())
            .limit(1)
        )
        return (await self._connection.execute(statement)).scalar_one_or_none()

    async def last_suspicion(self, node_id: str, domain_id: str, since: datetime) -> tuple[str, int] | None:
        """The incident of the node's last suspicion that was not confirmed, if it was closed after ``since``, and its suspicions."""
        statement = (
            sa.select(incidents.c.incident_id, incidents.c.suspicions)
            .where(
                incidents.c.node_id == node_id,
                incidents.c.kind == "node_suspected",
                incidents.c.domain_id == domain_id,
                incidents.c.closed_at > since,
            )
            .order_by(incidents.c.closed_at.desc())
            .limit(1)
        )
        row = (await self._connection.execute(statement)).one_or_none()
        return None if row is None else (row.incident_id, row.suspicions)

    async def suspicions_of(self, incident_id: str) -> int:
        """How often the node of an incident was suspected in it."""
        statement = sa.select(incidents.c.suspicions).where(incidents.c.incident_id == incident_id)
        return (await self._connection.execute(statement)).scalar_one_or_none() or 0

    async def incident_of_domain(self, domain_id: str) -> str | None:
        """The open incident of a domain."""
        statement = sa.select(domains.c.incident_id).where(domains.c.domain_id == domain_id)
        return (await self._connection.execute(statement)).scalar_one_or_none()

    async def lock_places(
        self, domain_ids: Iterable[str], node_ids: Iterable[str]
    ) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """Lock domains and nodes against declarations; returns those that are gone, each with its open incident."""
        lost_domains = (
            sa.select(domains.c.domain_id, domains.c.lease_ran_out, domains.c.incident_id)
            .where(any_of(domains.c.domain_id, domain_ids))
            .order_by(domains.c.domain_id)
            .with_for_update(read=True)
        )
        gone_domains = {
            row.domain_id: row.incident_id
            for row in (await self._connection.execute(lost_domains)).all()
            if row.lease_ran_out
        }
        lost_nodes = (
            sa.select(nodes.c.node_id, nodes.c.state, nodes.c.incident_id)
            .where(any_of(nodes.c.node_id, node_ids))
            .order_by(nodes.c.node_id)
            .with_for_update(read=True)
        )
        gone_nodes = {
            row.node_id: row.incident_id
            for row in (await self._connection.execute(lost_nodes)).all()
            if row.state == NodeState.FAILED
        }
        return gone_domains, gone_nodes

    async def unusable_nodes(self) -> set[str]:
        """Nodes that are suspected or failed."""
        statement = sa.select(nodes.c.node_id).where(nodes.c.state != NodeState.ALIVE)
        return set((await self._connection.execute(statement)).scalars())

    # -- incidents -----------------------------------------------------------------------------------------------

    async def open_incident(
        self,
        incident_id: str,
        kind: str,
        domain_id: str,
        node_id: str | None,
        reason: str,
        at: datetime,
        last_seen_at: datetime | None,
        *,
        detected: bool,
        event: str,
    ) -> None:
        """Open an incident with the first entry of its timeline."""
        row = {
            "incident_id": incident_id,
            "kind": kind,
            "domain_id": domain_id,
            "node_id": node_id,
            "state": OPEN,
            "reason": reason,
            "last_seen_at": last_seen_at,
            "opened_at": at,
            "detected_at": at if detected else None,
            "timeline": [_entry(at, event, reason)],
            "suspicions": int(event == "suspected"),
        }
        await self._connection.execute(insert(incidents).on_conflict_do_nothing(), [row])

    async def advance_incident(
        self,
        incident_id: str,
        at: datetime,
        event: str,
        detail: str = "",
        *,
        kind: str | None = None,
        reason: str | None = None,
        detected: bool = False,
        close: bool = False,
        reopen: bool = False,
    ) -> None:
        """Add to an incident's timeline; optionally change its kind and reason, mark its detection, close or reopen it.

        Of a node that flaps for long the first suspicion and the last ones stay in the timeline; all are counted."""
        timeline: sa.ColumnElement[Any] = incidents.c.timeline
        if event in _OF_SUSPICIONS:
            long = sa.and_(
                incidents.c.kind == "node_suspected", sa.func.jsonb_array_length(timeline) >= MOST_OF_SUSPICIONS
            )
            timeline = sa.case((long, timeline.op("-")(sa.literal_column("2"))), else_=timeline)
        values: dict[str, Any] = {"timeline": timeline + sa.cast([_entry(at, event, detail)], postgresql.JSONB)}
        if event == "suspected":
            values["suspicions"] = incidents.c.suspicions + 1
        if kind is not None:
            values["kind"] = kind
        if reason is not None:
            values["reason"] = reason
        if detected:
            values["detected_at"] = sa.func.coalesce(incidents.c.detected_at, at)
        if close:
            values.update(state=CLOSED, closed_at=at)
        if reopen:
            values.update(state=OPEN, closed_at=None)
        await self._connection.execute(
            sa.update(incidents).where(incidents.c.incident_id == incident_id).values(values)
        )

    async def list_incidents(
        self, *, state: str | None, domain_id: str | None, before: str | None, limit: int
    ) -> Sequence[sa.Row[Any]]:
        """Incidents, newest first; ids are in the order of time."""
        statement = sa.select(incidents).order_by(incidents.c.incident_id.desc()).limit(limit)
        if state is not None:
            statement = statement.where(incidents.c.state == state)
        if domain_id is not None:
            statement = statement.where(incidents.c.domain_id == domain_id)
        if before is not None:
            statement = statement.where(incidents.c.incident_id < before)
        return (await self._connection.execute(statement)).all()

    async def find_incident(self, incident_id: str) -> sa.Row[Any] | None:
        """One incident."""
        statement = sa.select(incidents).where(incidents.c.incident_id == incident_id)
        return (await self._connection.execute(statement)).one_or_none()

    async def count_open_incidents(self) -> dict[str, int]:
        """Open incidents by kind."""
        statement = (
            sa.select(incidents.c.kind, sa.func.count()).where(incidents.c.state == OPEN).group_by(incidents.c.kind)
        )
        return {row[0]: row[1] for row in (await self._connection.execute(statement)).all()}

    async def recoveries_of(self, incident_ids: Iterable[str]) -> dict[str, list[sa.Row[Any]]]:
        """The recoveries of incidents, in the order of their runs."""
        statement = (
            sa.select(recoveries).where(any_of(recoveries.c.incident_id, incident_ids)).order_by(recoveries.c.run_id)
        )
        found: dict[str, list[sa.Row[Any]]] = {}
        for row in (await self._connection.execute(statement)).all():
            found.setdefault(row.incident_id, []).append(row)
        return found

    # -- upkeep --------------------------------------------------------------------------------------------------

    async def forget_older_than(self, now: datetime, keep: timedelta) -> None:
        """Remove ended runs with what belongs to them, checkpoints of units that do not run, and closed incidents."""
        limit = now - keep
        old_runs = sa.select(runs.c.run_id).where(runs.c.ended_at < limit)
        await self._connection.execute(sa.delete(run_domains).where(run_domains.c.run_id.in_(old_runs)))
        await self._connection.execute(sa.delete(runs).where(runs.c.ended_at < limit))
        runs_still = sa.exists().where(
            runs.c.job_id == checkpoints.c.job_id,
            runs.c.unit_index == checkpoints.c.unit_index,
            runs.c.ended_at.is_(None),
        )
        await self._connection.execute(sa.delete(checkpoints).where(checkpoints.c.written_at < limit, ~runs_still))
        old_incidents = sa.select(incidents.c.incident_id).where(incidents.c.closed_at < limit)
        await self._connection.execute(sa.delete(recoveries).where(recoveries.c.incident_id.in_(old_incidents)))
        await self._connection.execute(sa.delete(incidents).where(incidents.c.closed_at < limit))


def _entry(at: datetime, event: str, detail: str) -> dict[str, str]:
    return {"at": at.isoformat(), "event": event, "detail": detail}
