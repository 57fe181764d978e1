"""All SQL of failover.

Two writers meet here: the watch (one active instance, from heartbeats) and the bus handlers (any instance, from job and
run events). What they must not miss of each other is ordered by row locks on ``nodes`` and ``domains``: a declaration
updates the row before it reads the runs, a placement locks the row before it looks whether the node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.failover.beliefs import DomainState, NodeState
from services.failover.recovery import Cause, Checkpoint, LostRun, Plan, Unit

_metadata = sa.MetaData()
_TIME = sa.DateTime(timezone=True)

leadership = sa.Table(
    "leadership",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("term", sa.BigInteger),
    sa.Column("carried_out", sa.BigInteger),
)
domains = sa.Table(
    "domains",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("lease_s", sa.Double),
    sa.Column("lease_ran_out", sa.Boolean),
    sa.Column("changed_at", _TIME),
    sa.Column("incident_id", sa.Text),
)
nodes = sa.Table(
    "nodes",
    _metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text),
    sa.Column("incarnation", sa.BigInteger),
    sa.Column("state", sa.Text),
    sa.Column("quarantined", sa.Boolean),
    sa.Column("failures", postgresql.ARRAY(_TIME)),
    sa.Column("changed_at", _TIME),
    sa.Column("incident_id", sa.Text),
)
incidents = sa.Table(
    "incidents",
    _metadata,
    sa.Column("incident_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text),
    sa.Column("domain_id", sa.Text),
    sa.Column("node_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("last_seen_at", _TIME),
    sa.Column("opened_at", _TIME),
    sa.Column("detected_at", _TIME),
    sa.Column("closed_at", _TIME),
    sa.Column("timeline", postgresql.JSONB),
)
runs = sa.Table(
    "runs",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("restore_from", sa.Text),
    sa.Column("restore_step", sa.BigInteger),
    sa.Column("placed_at", _TIME),
    sa.Column("ended_at", _TIME),
    sa.Column("end_reason", sa.Text),
)
run_domains = sa.Table(
    "run_domains",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("node_ids", postgresql.ARRAY(sa.Text)),
    sa.Column("finished_at", _TIME),
)
checkpoints = sa.Table(
    "checkpoints",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("step", sa.BigInteger),
    sa.Column("path", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("written_at", _TIME),
)
recoveries = sa.Table(
    "recoveries",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("incident_id", sa.Text),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("cause", sa.Text),
    sa.Column("restore_from", sa.Text),
    sa.Column("restore_step", sa.BigInteger),
    sa.Column("last_seen_at", _TIME),
    sa.Column("detected_at", _TIME),
    sa.Column("planned_at", _TIME),
    sa.Column("replaced_at", _TIME),
    sa.Column("replaced_by", sa.Text),
    sa.Column("resumed_at", _TIME),
)

# How a run ended where that matters later; any other text is for people.
ENDED_BY_PROGRAM = "program"
ENDED_BY_JOB = "job finished"
ENDED_BY_NEWER = "superseded"
OPEN, CLOSED = "open", "closed"
# An agent sees a machine die at once, the detector a moment later: within this time it is the same failure.
_REPORT_CONFIRMED_WITHIN = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Placement:
    """A run as it was placed."""

    run_id: str
    unit: Unit
    epoch: int
    restore_from: str
    restore_step: int
    placed_at: datetime
    nodes_by_domain: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run."""

    run_id: str
    unit: Unit
    epoch: int
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that a run wrote."""

    unit: Unit
    run_id: str
    checkpoint: Checkpoint
    at: datetime


def _strings(values: Iterable[str]) -> sa.ColumnElement[Any]:
    return sa.literal(sorted(set(values)), postgresql.ARRAY(sa.Text))


def _any(column: sa.Column[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    return column == sa.any_(_strings(values))


class Store:
    """The tables, seen from one transaction."""

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
        query = sa.select(nodes).where(_any(nodes.c.node_id, wanted))
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
            .where(_any(domains.c.domain_id, domain_ids))
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
            .where(_any(nodes.c.node_id, node_ids))
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
        """Add to an incident's timeline; optionally change its kind and reason, mark its detection, close or reopen it."""
        values: dict[str, Any] = {
            "timeline": incidents.c.timeline + sa.cast([_entry(at, event, detail)], postgresql.JSONB)
        }
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
            sa.select(recoveries).where(_any(recoveries.c.incident_id, incident_ids)).order_by(recoveries.c.run_id)
        )
        found: dict[str, list[sa.Row[Any]]] = {}
        for row in (await self._connection.execute(statement)).all():
            found.setdefault(row.incident_id, []).append(row)
        return found

    # -- runs ----------------------------------------------------------------------------------------------------

    async def note_placements(self, placements: Sequence[Placement]) -> None:
        """Keep placed runs; every older run of the same unit has ended by that."""
        if not placements:
            return
        statement = insert(runs)
        statement = statement.on_conflict_do_update(
            index_elements=[runs.c.run_id],
            set_={name: statement.excluded[name] for name in ("placed_at", "restore_from", "restore_step")},
        )
        newest = {placement.run_id: placement for placement in placements}
        rows = [
            {
                **_run_key(item.run_id, item.unit, item.epoch),
                "restore_from": item.restore_from,
                "restore_step": item.restore_step,
                "placed_at": item.placed_at,
            }
            for item in newest.values()
        ]
        await self._connection.execute(statement, rows)
        places = insert(run_domains)
        places = places.on_conflict_do_update(
            index_elements=[run_domains.c.run_id, run_domains.c.domain_id],
            set_={"node_ids": places.excluded.node_ids},
        )
        await self._connection.execute(
            places,
            [
                {"run_id": item.run_id, "domain_id": domain_id, "node_ids": list(node_ids)}
                for item in newest.values()
                for domain_id, node_ids in item.nodes_by_domain.items()
            ],
        )
        superseded = sa.text(
            "UPDATE runs SET ended_at = newer.placed_at, end_reason = :reason FROM runs AS newer "
            "WHERE newer.run_id = ANY(:run_ids) AND runs.job_id = newer.job_id "
            "AND runs.unit_index = newer.unit_index AND runs.epoch < newer.epoch AND runs.ended_at IS NULL"
        ).bindparams(
            sa.bindparam("run_ids", sorted(newest), postgresql.ARRAY(sa.Text)),
            sa.bindparam("reason", ENDED_BY_NEWER, sa.Text),
        )
        await self._connection.execute(superseded)
        replaced = sa.text(
            "UPDATE recoveries SET replaced_at = newer.placed_at, replaced_by = newer.run_id FROM runs AS newer "
            "WHERE newer.run_id = ANY(:run_ids) AND recoveries.job_id = newer.job_id "
            "AND recoveries.unit_index = newer.unit_index AND recoveries.epoch < newer.epoch "
            "AND recoveries.replaced_at IS NULL"
        ).bindparams(sa.bindparam("run_ids", sorted(newest), postgresql.ARRAY(sa.Text)))
        await self._connection.execute(replaced)

    async def note_endings(self, endings: Sequence[Ending]) -> None:
        """Keep the ends of runs, also of runs whose placement has not been heard of yet; the first end counts."""
        first: dict[str, Ending] = {}
        for ending in endings:
            first.setdefault(ending.run_id, ending)
        if not first:
            return
        statement = insert(runs)
        statement = statement.on_conflict_do_update(
            index_elements=[runs.c.run_id],
            set_={"ended_at": statement.excluded.ended_at, "end_reason": statement.excluded.end_reason},
            where=runs.c.ended_at.is_(None),
        )
        rows = [
            {**_run_key(item.run_id, item.unit, item.epoch), "ended_at": item.at, "end_reason": item.reason}
            for item in first.values()
        ]
        await self._connection.execute(statement, rows)

    async def note_finished(self, finished: Sequence[tuple[str, str, datetime]]) -> None:
        """Keep that runs finished in domains (run, domain, time): there a later loss takes nothing from them."""
        if not finished:
            return
        statement = insert(run_domains)
        statement = statement.on_conflict_do_update(
            index_elements=[run_domains.c.run_id, run_domains.c.domain_id],
            set_={"finished_at": statement.excluded.finished_at},
        )
        rows = {(run_id, domain_id): at for run_id, domain_id, at in finished}
        await self._connection.execute(
            statement,
            [{"run_id": run_id, "domain_id": domain_id, "finished_at": at} for (run_id, domain_id), at in rows.items()],
        )

    async def note_jobs_finished(self, job_ids: Iterable[str], at: datetime) -> None:
        """End all runs of jobs that reached their final state, and what still waited to resume."""
        await self._connection.execute(
            sa.update(runs)
            .where(_any(runs.c.job_id, job_ids), runs.c.ended_at.is_(None))
            .values(ended_at=at, end_reason=ENDED_BY_JOB)
        )

    async def note_checkpoints(self, written: Sequence[Written]) -> None:
        """Keep the newest checkpoint, by step, of each unit; of equal steps the one written last."""
        newest: dict[Unit, Written] = {}
        for item in written:
            kept = newest.get(item.unit)
            if kept is None or (item.checkpoint.step, item.at) >= (kept.checkpoint.step, kept.at):
                newest[item.unit] = item
        if not newest:
            return
        statement = insert(checkpoints)
        statement = statement.on_conflict_do_update(
            index_elements=[checkpoints.c.job_id, checkpoints.c.unit_index],
            set_={name: statement.excluded[name] for name in ("step", "path", "run_id", "written_at")},
            where=sa.tuple_(checkpoints.c.step, checkpoints.c.written_at)
            <= sa.tuple_(statement.excluded.step, statement.excluded.written_at),
        )
        rows = [
            {
                **asdict(item.unit),
                "step": item.checkpoint.step,
                "path": item.checkpoint.path,
                "run_id": item.run_id,
                "written_at": item.at,
            }
            for item in newest.values()
        ]
        await self._connection.execute(statement, rows)

    async def note_resumed(self, started: Sequence[tuple[Unit, int, datetime]]) -> list[sa.Row[Any]]:
        """Runs of units started (unit, epoch, time): returns the recoveries that are complete by that."""
        if not started:
            return []
        statement = sa.text(
            "UPDATE recoveries SET resumed_at = started.at "
            "FROM unnest(:jobs, :units, :epochs, :times) AS started(job_id, unit_index, epoch, at) "
            "WHERE recoveries.job_id = started.job_id AND recoveries.unit_index = started.unit_index "
            "AND recoveries.epoch < started.epoch AND recoveries.resumed_at IS NULL "
            "RETURNING recoveries.run_id, recoveries.incident_id, recoveries.detected_at, recoveries.last_seen_at, "
            "recoveries.resumed_at, started.epoch AS new_epoch"
        ).bindparams(
            sa.bindparam("jobs", [unit.job_id for unit, _, _ in started], postgresql.ARRAY(sa.Text)),
            sa.bindparam("units", [unit.unit_index for unit, _, _ in started], postgresql.ARRAY(sa.Integer)),
            sa.bindparam("epochs", [epoch for _, epoch, _ in started], postgresql.ARRAY(sa.BigInteger)),
            sa.bindparam("times", [at for _, _, at in started], postgresql.ARRAY(_TIME)),
        )
        return list((await self._connection.execute(statement)).all())

    async def close_run_incidents(self, incident_ids: Iterable[str], job_ids: Iterable[str], at: datetime) -> None:
        """Close incidents of the kind ``run_lost`` in which nothing waits any more, among these or of these jobs."""
        statement = sa.text(
            "UPDATE incidents SET state = 'closed', closed_at = :at, "
            "timeline = timeline || jsonb_build_array(jsonb_build_object('at', :text, 'event', 'closed', 'detail', '')) "
            "WHERE state = 'open' AND kind = 'run_lost' AND (incident_id = ANY(:incident_ids) OR incident_id IN "
            "(SELECT incident_id FROM recoveries WHERE job_id = ANY(:job_ids))) AND NOT EXISTS "
            "(SELECT 1 FROM recoveries WHERE recoveries.incident_id = incidents.incident_id "
            "AND recoveries.resumed_at IS NULL AND NOT recoveries.job_id = ANY(:job_ids))"
        ).bindparams(
            sa.bindparam("at", at, _TIME),
            sa.bindparam("text", at.isoformat(), sa.Text),
            sa.bindparam("incident_ids", sorted(set(incident_ids)), postgresql.ARRAY(sa.Text)),
            sa.bindparam("job_ids", sorted(set(job_ids)), postgresql.ARRAY(sa.Text)),
        )
        await self._connection.execute(statement)

    # -- losses and plans ----------------------------------------------------------------------------------------

    async def runs_on_node(self, domain_id: str, node_id: str, *, collateral_since: datetime) -> list[LostRun]:
        """Runs that execute on the node now, and those whose program failed there since ``collateral_since``.

        A rank on another node often fails first, with a broken connection to the one that died: that failure is the
        node's, not the program's.
        """
        query = _LOST.where(run_domains.c.node_ids.contains([node_id]), run_domains.c.domain_id == domain_id).where(
            sa.or_(
                runs.c.ended_at.is_(None),
                sa.and_(runs.c.end_reason == ENDED_BY_PROGRAM, runs.c.ended_at >= collateral_since, _IS_NEWEST),
            )
        )
        return [_lost_run(row) for row in (await self._connection.execute(query)).all()]

    async def runs_in_domain(self, domain_id: str) -> list[LostRun]:
        """Runs that execute in the domain now."""
        query = _LOST.where(run_domains.c.domain_id == domain_id, runs.c.ended_at.is_(None))
        return [_lost_run(row) for row in (await self._connection.execute(query)).all()]

    async def restore_points(self, run_ids: Iterable[str]) -> dict[str, tuple[str, int, tuple[str, ...]]]:
        """What runs were started from, and the nodes they were placed on."""
        query = (
            sa.select(
                runs.c.run_id,
                runs.c.restore_from,
                runs.c.restore_step,
                sa.func.array_agg(sa.func.array_to_string(run_domains.c.node_ids, "\n")).label("nodes"),
            )
            .join(run_domains, run_domains.c.run_id == runs.c.run_id)
            .where(_any(runs.c.run_id, run_ids))
            .group_by(runs.c.run_id, runs.c.restore_from, runs.c.restore_step)
        )
        return {
            row.run_id: (
                row.restore_from,
                row.restore_step,
                tuple(node for text in row.nodes for node in text.split("\n") if node),
            )
            for row in (await self._connection.execute(query)).all()
        }

    async def ended_otherwise(self, run_ids: Iterable[str]) -> set[str]:
        """Those of the runs that need no plan: their job finished, or a newer run took their place."""
        query = sa.select(runs.c.run_id).where(
            _any(runs.c.run_id, run_ids), runs.c.end_reason.in_([ENDED_BY_JOB, ENDED_BY_NEWER])
        )
        return set((await self._connection.execute(query)).scalars())

    async def newest_checkpoints(self, units: Iterable[Unit]) -> dict[Unit, Checkpoint]:
        """The newest checkpoint of each unit that has one."""
        wanted = set(units)
        query = sa.select(checkpoints).where(_any(checkpoints.c.job_id, {unit.job_id for unit in wanted}))
        found = {
            Unit(row.job_id, row.unit_index): Checkpoint(row.path, row.step)
            for row in (await self._connection.execute(query)).all()
        }
        return {unit: found[unit] for unit in wanted if unit in found}

    async def claim_plans(
        self, plans: Sequence[Plan], incident_id: str, cause: Cause, at: datetime, last_seen_at: datetime | None
    ) -> list[Plan]:
        """Keep plans; returns those that are new. A run is planned once, whoever comes first."""
        if not plans:
            return []
        rows = [
            {
                "run_id": plan.run.run_id,
                "incident_id": incident_id,
                **asdict(plan.run.unit),
                "epoch": plan.run.epoch,
                "cause": cause,
                "restore_from": plan.restore_from,
                "restore_step": plan.restore_step,
                "last_seen_at": last_seen_at,
                "detected_at": at,
                "planned_at": at,
            }
            for plan in plans
        ]
        statement = insert(recoveries).values(rows).on_conflict_do_nothing().returning(recoveries.c.run_id)
        new = set((await self._connection.execute(statement)).scalars())
        return [plan for plan in plans if plan.run.run_id in new]

    async def planned(self, run_ids: Iterable[str]) -> set[str]:
        """Those of the runs that have a plan."""
        query = sa.select(recoveries.c.run_id).where(_any(recoveries.c.run_id, run_ids))
        return set((await self._connection.execute(query)).scalars())

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


def _run_key(run_id: str, unit: Unit, epoch: int) -> dict[str, Any]:
    return {"run_id": run_id, **asdict(unit), "epoch": epoch}


_LOST = (
    sa.select(runs, run_domains.c.domain_id, run_domains.c.node_ids)
    .join(run_domains, run_domains.c.run_id == runs.c.run_id)
    .where(runs.c.placed_at.is_not(None), run_domains.c.finished_at.is_(None))
)
_newer = runs.alias("newer")
_IS_NEWEST = ~sa.exists().where(
    _newer.c.job_id == runs.c.job_id, _newer.c.unit_index == runs.c.unit_index, _newer.c.epoch > runs.c.epoch
)


def _lost_run(row: sa.Row[Any]) -> LostRun:
    return LostRun(
        row.run_id,
        Unit(row.job_id, row.unit_index),
        row.epoch,
        row.domain_id,
        tuple(row.node_ids),
        row.restore_from,
        row.restore_step,
    )
