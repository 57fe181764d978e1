"""All SQL of the scheduler. Every write is set-wise: one statement per table and transaction, rows as one JSON parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import create_mock_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.job.v1 import job_pb2
from services.scheduler import store_measured, store_promises
from services.scheduler.core.book import Draft
from services.scheduler.core.effects import DecisionRecord
from services.scheduler.core.fleet import Device, Domain, Fleet, Link, Mark, MarkKind, Node, NodeState
from services.scheduler.core.measured import News
from services.scheduler.core.promises import Saved
from services.scheduler.core.share_account import Held
from services.scheduler.core.state import (
    FINAL_JOB_STATES,
    Checkpoint,
    Job,
    JobKind,
    JobState,
    Nomination,
    PlacedRank,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitState,
)
from services.scheduler.core.units import units_of
from services.scheduler.wire import spec_from

KEPT_DECISIONS = 20
"""Decisions kept per job."""

_metadata = sa.MetaData()
_JSON = postgresql.JSONB

leadership = sa.Table(
    "leadership", _metadata, sa.Column("single", sa.Boolean, primary_key=True), sa.Column("term", sa.BigInteger)
)
job = sa.Table(
    "job",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("spec", sa.LargeBinary),
    sa.Column("state", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("succeeded_units", sa.Integer),
    sa.Column("active_runs", sa.Integer),
    sa.Column("open_runs", sa.Integer),
    sa.Column("restarts", sa.Integer),
    sa.Column("decisions", sa.Integer),
    sa.Column("submitted_at_s", sa.Double),
    sa.Column("finished_at_s", sa.Double),
    sa.Column("traceparent", sa.Text),
)
unit = sa.Table(
    "unit",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("queued_at_s", sa.Double),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("failures", sa.Integer),
    sa.Column("recoveries", sa.Integer),
    sa.Column("not_before_s", sa.Double),
    sa.Column("recovery_due_s", sa.Double),
    sa.Column("checkpoint", _JSON),
    sa.Column("excluded_nodes", _JSON),
    sa.Column("excluded_until_s", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("attained_s", sa.Double),
    sa.Column("kept_s", sa.Double),
    sa.Column("nomination", _JSON),
    sa.Column("served_s", sa.Double),
)
run = sa.Table(
    "run",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("tenant_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("ranks", _JSON),
    sa.Column("open_domains", _JSON),
    sa.Column("cpus", sa.Double),
    sa.Column("memory_bytes", sa.BigInteger),
    sa.Column("master_addr", sa.Text),
    sa.Column("master_port", sa.Integer),
    sa.Column("service_port", sa.Integer),
    sa.Column("assigned_at_s", sa.Double),
    sa.Column("started_at_s", sa.Double),
    sa.Column("stop_until_s", sa.Double),
    sa.Column("ended_at_s", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("decision_id", sa.Text),
    sa.Column("preempted_for", sa.Text),
)
decision = sa.Table(
    "decision",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("decision_id", sa.Text),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("kind", sa.Text),
    sa.Column("at_s", sa.Double),
    sa.Column("policy_version", sa.Text),
    sa.Column("explanation", _JSON),
)
domain = sa.Table(
    "domain",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("facts", _JSON),
)
node = sa.Table(
    "node",
    _metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text),
    sa.Column("facts", _JSON),
)
mark = sa.Table(
    "mark",
    _metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text),
    sa.Column("domain_id", sa.Text),
    sa.Column("node_id", sa.Text),
)
expected_demand = sa.Table(
    "expected_demand",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("accelerators", sa.Double),
)

policy_change = sa.Table(
    "policy_change",
    _metadata,
    sa.Column("change_id", sa.BigInteger, primary_key=True),
    sa.Column("version", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("origin", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("body", sa.Text),
    sa.Column("changed_by", sa.Text),
    sa.Column("changed_at_s", sa.Double),
)

journal = sa.Table(
    "journal",
    _metadata,
    sa.Column("chunk", sa.BigInteger, primary_key=True),
    sa.Column("term", sa.BigInteger),
    sa.Column("number", sa.BigInteger),
    sa.Column("begins", sa.Boolean),
    sa.Column("first_at_s", sa.Double),
    sa.Column("last_at_s", sa.Double),
    sa.Column("entries", sa.Integer),
    sa.Column("body", sa.LargeBinary),
)
run_times = sa.Table(
    "run_times",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("state", sa.LargeBinary),
)

Row = dict[str, Any]


# -- set-wise statements -----------------------------------------------------------------------------------------------


# An escaped NUL, which PostgreSQL does not take in text: after an even number of backslashes.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def compact(value: Any) -> str:
    """``value`` as JSON for PostgreSQL. Texts come from programs too: NUL characters in them are dropped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _NUL.sub(r"\1", text) if "\\u0000" in text else text


_DIALECT = create_mock_engine("postgresql+asyncpg://", lambda *_: None).dialect


def _record_type(table: sa.Table, columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}" {table.c[name].type.compile(_DIALECT)}' for name in columns)


@cache
def _upsert_statement(table: sa.Table, columns: tuple[str, ...]) -> sa.TextClause:
    types = _record_type(table, columns)
    names = ", ".join(f'"{name}"' for name in columns)
    keys = [column.name for column in table.primary_key if column.name in columns]
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in keys)
    conflict = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}" if keys else ""
    return sa.text(
        f"INSERT INTO {table.name} ({names}) SELECT {names} "  # noqa: S608 - names of our own columns
        f"FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS rows({types}){conflict}"
    )


async def _upsert(connection: AsyncConnection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        await connection.execute(_upsert_statement(table, tuple(rows[0])), {"rows": compact(rows)})


async def _update(connection: AsyncConnection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Update rows that exist by their primary key."""
    if not rows:
        return
    columns = tuple(rows[0])
    keys = [column.name for column in table.primary_key]
    types = _record_type(table, columns)
    changes = ", ".join(f'"{name}" = rows."{name}"' for name in columns if name not in keys)
    where = " AND ".join(f'{table.name}."{name}" = rows."{name}"' for name in keys)
    statement = sa.text(
        f"UPDATE {table.name} SET {changes} "  # noqa: S608 - names of our own columns
        f"FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS rows({types}) WHERE {where}"
    )
    await connection.execute(statement, {"rows": compact(rows)})


# -- leadership --------------------------------------------------------------------------------------------------------


async def begin_term(connection: AsyncConnection) -> int:
    """Begin a new term of leadership; waits for open transactions of the former leader."""
    statement = sa.update(leadership).values(term=leadership.c.term + 1).returning(leadership.c.term)
    return int((await connection.execute(statement)).scalar_one())


async def current_term(connection: AsyncConnection) -> int:
    """The term; no new one begins before this transaction ends."""
    statement = sa.select(leadership.c.term).with_for_update(read=True)
    return int((await connection.execute(statement)).scalar_one())


# -- writing -----------------------------------------------------------------------------------------------------------


async def save(connection: AsyncConnection, draft: Draft, new_specs: Mapping[str, bytes]) -> None:
    """Write what a draft changed. ``new_specs``: serialised specifications of the jobs that are new."""
    new, known = [], []
    for item in draft.jobs.values():
        row = _job_row(item)
        if item.job_id in new_specs:
            new.append({**row, "spec": "\\x" + new_specs[item.job_id].hex()})
        else:
            known.append(row)
    await _upsert(connection, job, new)
    await _update(connection, job, known)
    await _upsert(connection, unit, [_unit_row(item) for item in draft.units.values()])
    await _upsert(connection, run, [_run_row(item) for item in draft.runs.values()])
    await _save_decisions(connection, draft)
    await save_fleet(connection, draft.fleet_before, draft.fleet)


async def _save_decisions(connection: AsyncConnection, draft: Draft) -> None:
    newest: dict[str, list[DecisionRecord]] = {}
    for record in draft.records:
        newest.setdefault(record.key.job_id, []).append(record)
    rows = [
        {
            "decision_id": record.decision_id,
            "job_id": record.key.job_id,
            "unit_index": record.key.unit_index,
            "kind": record.kind,
            "at_s": record.at_s,
            "policy_version": record.policy_version,
            "explanation": record.explanation,
        }
        for records in newest.values()
        for record in records[-KEPT_DECISIONS:]
    ]
    await _upsert(connection, decision, rows)
    full = [job_id for job_id in newest if (item := draft.job(job_id)) and item.decisions > KEPT_DECISIONS]
    if full:
        statement = sa.text(
            "DELETE FROM decision WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER "
            "(PARTITION BY job_id ORDER BY seq DESC) AS place FROM decision WHERE job_id = ANY(:jobs)) AS ranked "
            "WHERE place > :kept)"
        ).bindparams(sa.bindparam("jobs", type_=postgresql.ARRAY(sa.Text)))
        await connection.execute(statement, {"jobs": full, "kept": KEPT_DECISIONS})


async def save_fleet(connection: AsyncConnection, before: Fleet, after: Fleet) -> None:
    """Write what differs between two fleets."""
    if before is after:
        return
    changed_nodes = [item for node_id, item in after.nodes.items() if before.nodes.get(node_id) is not item]
    await _upsert(connection, node, [_node_row(item) for item in changed_nodes])
    changed_domains = [item for name, item in after.domains.items() if before.domains.get(name) is not item]
    rows = [{"domain_id": item.domain_id, "facts": asdict(item)} for item in changed_domains]
    await _upsert(connection, domain, rows)
    changed_marks = [item for key, item in after.marks.items() if before.marks.get(key) is not item]
    await _upsert(connection, mark, [{**asdict(item), "kind": str(item.kind)} for item in changed_marks])
    demand = after.expected_demand.items() - before.expected_demand.items()
    await _upsert(
        connection, expected_demand, [{"domain_id": name, "accelerators": value} for name, value in sorted(demand)]
    )
    gone_nodes = sorted(before.nodes.keys() - after.nodes.keys())
    if gone_nodes:
        await connection.execute(sa.delete(node).where(node.c.node_id.in_(gone_nodes)))
    for kind, subject in sorted(before.marks.keys() - after.marks.keys()):
        await connection.execute(sa.delete(mark).where(mark.c.kind == str(kind), mark.c.subject == subject))


async def known_jobs(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    """Those of the jobs that were taken before, finished or not."""
    if not job_ids:
        return set()
    names = sa.any_(sa.literal(sorted(job_ids), postgresql.ARRAY(sa.Text)))
    rows = await connection.execute(sa.select(job.c.job_id).where(job.c.job_id == names))
    return set(rows.scalars())


async def forget_finished_before(connection: AsyncConnection, at_s: float) -> int:
    """Remove jobs that finished before a time, with all that belongs to them; returns how many."""
    result = await connection.execute(sa.delete(job).where(job.c.finished_at_s > 0, job.c.finished_at_s < at_s))
    return result.rowcount


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state as it was committed last. ``specs``: the jobs' specifications as they were submitted; ``saved``: the accounts
    of what was promised (None: older releases kept none); ``measured``: what programs reported."""

    fleet: Fleet
    jobs: tuple[Job, ...]
    units: tuple[Unit, ...]
    runs: tuple[Run, ...]
    specs: Mapping[str, bytes]
    saved: Saved | None = None
    measured: News = field(default_factory=News)

    def as_json(self) -> Row:
        """All of it as JSON types."""
        fleet = self.fleet
        return {
            "jobs": [{**_job_row(item), "spec": self.specs[item.job_id].hex()} for item in self.jobs],
            "units": [_unit_row(item) for item in self.units],
            "runs": [_run_row(item) for item in self.runs],
            "domains": [asdict(item) for item in fleet.domains.values()],
            "nodes": [asdict(item) for item in fleet.nodes.values()],
            "marks": [asdict(item) for item in fleet.marks.values()],
            "expected_demand": dict(fleet.expected_demand),
            "asks_domains": fleet.asks_domains,
            "saved": None if self.saved is None else self.saved.as_json(),
            "measured": self.measured.as_json(),
        }

    @classmethod
    def from_json(cls, body: Row) -> Loaded:
        """What `as_json` gave."""
        jobs = [SimpleNamespace(**{**row, "spec": bytes.fromhex(row["spec"])}) for row in body["jobs"]]
        marks = [Mark(**{**row, "kind": MarkKind(row["kind"])}) for row in body["marks"]]
        domains, nodes = map(_domain_of, body["domains"]), map(_node_of, body["nodes"])
        fleet = Fleet(
            {item.domain_id: item for item in domains},
            {item.node_id: item for item in nodes},
            {(item.kind, item.subject): item for item in marks},
            body["expected_demand"],
            bool(body.get("asks_domains")),
        )
        return cls(
            fleet,
            tuple(_job_of(row) for row in jobs),
            tuple(_unit_of(SimpleNamespace(**row)) for row in body["units"]),
            tuple(_run_of(SimpleNamespace(**row)) for row in body["runs"]),
            {row.job_id: row.spec for row in jobs},
            Saved.from_json(body["saved"]) if body.get("saved") else None,
            News.from_json(body["measured"]) if "measured" in body else News(),
        )


async def load(connection: AsyncConnection) -> Loaded:
    """Every unfinished job with its units and open runs, and the fleet."""
    unfinished = job.c.state.not_in([str(state) for state in FINAL_JOB_STATES])
    rows = (
        await connection.execute(sa.select(job).where(unfinished).order_by(job.c.submitted_at_s, job.c.job_id))
    ).all()
    jobs = [_job_of(row) for row in rows]
    of_unfinished = sa.select(job.c.job_id).where(unfinished)
    queued_first = (
        sa.select(unit)
        .where(unit.c.job_id.in_(of_unfinished))
        .order_by(unit.c.queued_at_s, unit.c.job_id, unit.c.unit_index)
    )
    units = [_unit_of(row) for row in await connection.execute(queued_first)]
    open_runs = sa.select(run).where(run.c.state != str(RunState.ENDED))
    runs = [_run_of(row) for row in await connection.execute(open_runs)]
    specs = {row.job_id: row.spec for row in rows}
    saved = await _load_promises(connection)
    measured = await store_measured.load(connection, [item.job_id for item in jobs])
    return Loaded(await load_fleet(connection), tuple(jobs), tuple(units), tuple(runs), specs, saved, measured)


async def _load_promises(connection: AsyncConnection) -> Saved:
    state = await store_promises.load_state(connection)
    observations, number = await store_promises.observations_after(connection, state.get("number", 0))
    ended = await _ended_after(connection, state["shares"]["now_s"]) if "shares" in state else []
    return Saved(state, number, observations, ended)


async def _ended_after(connection: AsyncConnection, at_s: float) -> list[Held]:
    """What runs held that ended after a time: accelerators by domain, shares of them counted."""
    query = (
        sa.select(job, run.c.unit_index.label("of_unit"), run.c.ranks, run.c.assigned_at_s, run.c.ended_at_s)
        .join(run, run.c.job_id == job.c.job_id)
        .where(run.c.ended_at_s > at_s)
        .order_by(run.c.assigned_at_s, run.c.run_id)
    )
    found = []
    for row in await connection.execute(query):
        demand, amounts = _job_of(row).units[row.of_unit].demand, dict[str, float]()
        for rank in ranks_of(row.ranks):
            size = len(rank.devices) * rank.device_milli / 1000.0
            amounts[rank.domain_id] = amounts.get(rank.domain_id, 0.0) + size
        pieces = demand.ranks if demand.cross_domain else 1
        parts = tuple((name, size) for name, size in amounts.items() if size)
        found.append(Held(row.assigned_at_s, row.ended_at_s, parts, pieces))
    return found


async def load_fleet(connection: AsyncConnection) -> Fleet:
    """The fleet as it was written."""
    domains = (_domain_of(row.facts) for row in await connection.execute(sa.select(domain)))
    nodes = (_node_of(row.facts) for row in await connection.execute(sa.select(node)))
    marks = (
        Mark(MarkKind(row.kind), row.subject, row.reason, row.domain_id, row.node_id)
        for row in await connection.execute(sa.select(mark))
    )
    demand = {row.domain_id: row.accelerators for row in await connection.execute(sa.select(expected_demand))}
    return Fleet(
        {item.domain_id: item for item in domains},
        {item.node_id: item for item in nodes},
        {(item.kind, item.subject): item for item in marks},
        demand,
    )


async def job_row(connection: AsyncConnection, job_id: str) -> sa.Row[Any] | None:
    """A job, finished or not."""
    return (await connection.execute(sa.select(job).where(job.c.job_id == job_id))).one_or_none()


async def unit_rows(connection: AsyncConnection, job_id: str, offset: int, limit: int) -> Iterable[sa.Row[Any]]:
    """Units of a job by index."""
    query = sa.select(unit).where(unit.c.job_id == job_id, unit.c.unit_index >= offset)
    return (await connection.execute(query.order_by(unit.c.unit_index).limit(limit))).all()


async def newest_runs(connection: AsyncConnection, job_id: str, offset: int, limit: int) -> dict[int, sa.Row[Any]]:
    """The newest run of each unit of a job."""
    query = (
        sa.select(run)
        .ext(postgresql.distinct_on(run.c.unit_index))
        .where(run.c.job_id == job_id, run.c.unit_index >= offset, run.c.unit_index < offset + limit)
        .order_by(run.c.unit_index, run.c.epoch.desc())
    )
    return {row.unit_index: row for row in await connection.execute(query)}


async def decision_rows(connection: AsyncConnection, job_id: str) -> Sequence[sa.Row[Any]]:
    """The kept decisions about a job, newest first."""
    query = sa.select(decision).where(decision.c.job_id == job_id).order_by(decision.c.seq.desc())
    return (await connection.execute(query.limit(KEPT_DECISIONS))).all()


# -- policies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A policy came into force. ``origin``: "api" (it outlives restarts) or "file" (the policy file is read at each start);
    ``body`` is the policy as JSON, ``source`` the document as it was given, if there was one."""

    version: str
    name: str
    origin: str
    source: str
    body: str
    changed_by: str
    changed_at_s: float
    change_id: int = 0


async def add_policy_change(connection: AsyncConnection, change: PolicyChange) -> None:
    """Note that a policy is in force from now on."""
    row = asdict(change)
    del row["change_id"]
    await connection.execute(sa.insert(policy_change).values(row))


async def policy_changes(
    connection: AsyncConnection, *, version: str | None = None, before: int | None = None, limit: int = 1
) -> list[PolicyChange]:
    """Changes, newest first: all, or those to one version; with ``before`` those with smaller numbers."""
    query = sa.select(policy_change).order_by(policy_change.c.change_id.desc()).limit(limit)
    if version is not None:
        query = query.where(policy_change.c.version == version)
    if before is not None:
        query = query.where(policy_change.c.change_id < before)
    return [PolicyChange(**row) for row in (await connection.execute(query)).mappings()]


# -- journal and run times -----------------------------------------------------------------------------------------------


async def add_journal_chunk(connection: AsyncConnection, row: Row) -> None:
    """Append a chunk of the journal; one whose ``number`` its term has already changes nothing."""
    await connection.execute(
        postgresql.insert(journal).values(row).on_conflict_do_nothing(index_elements=["term", "number"])
    )


async def journal_chunks(connection: AsyncConnection) -> list[bytes]:
    """The bodies of all chunks from the first one with which a book begins, in order: one term after another, as an instance
    that was replaced may write its last chunk late."""
    place = sa.tuple_(journal.c.term, journal.c.chunk)
    begins = sa.select(journal.c.term, journal.c.chunk).where(journal.c.begins)
    first = begins.order_by(journal.c.term, journal.c.chunk).limit(1).scalar_subquery()
    query = sa.select(journal.c.body).where(place >= first).order_by(journal.c.term, journal.c.chunk)
    return list((await connection.execute(query)).scalars())


async def forget_journal_before(connection: AsyncConnection, at_s: float) -> None:
    """Remove chunks older than a time; a book that began before it cannot be replayed any more."""
    await connection.execute(sa.delete(journal).where(journal.c.last_at_s < at_s))


async def save_run_times(connection: AsyncConnection, state: bytes) -> None:
    """Keep what was learned about run times."""
    statement = postgresql.insert(run_times).values(single=True, state=state)
    await connection.execute(statement.on_conflict_do_update(index_elements=["single"], set_={"state": state}))


async def load_run_times(connection: AsyncConnection) -> bytes | None:
    """What `save_run_times` kept; None when it never did."""
    return (await connection.execute(sa.select(run_times.c.state))).scalar_one_or_none()


async def succeeded_after(connection: AsyncConnection, at_s: float, limit: int) -> list[tuple[Job, int, float, float]]:
    """Units that succeeded after a time, oldest first (the newest ``limit`` of them): their jobs, unit indexes, run times
    that counted and ends, in seconds."""
    query = (
        sa.select(
            job,
            run.c.unit_index.label("of_unit"),
            run.c.started_at_s.label("begun_s"),
            run.c.assigned_at_s.label("assigned_s"),
            run.c.ended_at_s.label("end_s"),
            unit.c.attained_s.label("attained"),
        )
        .join(run, run.c.job_id == job.c.job_id)
        .join(unit, (unit.c.job_id == run.c.job_id) & (unit.c.unit_index == run.c.unit_index))
        .where(unit.c.state == str(UnitState.SUCCEEDED), unit.c.epoch == run.c.epoch, run.c.ended_at_s > at_s)
        .order_by(run.c.ended_at_s.desc(), run.c.run_id.desc())
        .limit(limit)
    )
    found = []
    for row in reversed((await connection.execute(query)).all()):
        item = _job_of(row)
        if item.spec.kind is not JobKind.SERVICE:
            ran_s = row.attained + max(row.end_s - (row.begun_s or row.assigned_s), 0.0)
            found.append((item, row.of_unit, ran_s, row.end_s))
    return found


# -- rows and values ---------------------------------------------------------------------------------------------------


def _job_row(item: Job) -> Row:
    return {
        "job_id": item.job_id,
        "tenant_id": item.tenant_id,
        "state": str(item.state),
        "outcome": str(item.outcome) if item.outcome else None,
        "reason": item.reason,
        "succeeded_units": item.succeeded_units,
        "active_runs": item.active_runs,
        "open_runs": item.open_runs,
        "restarts": item.restarts,
        "decisions": item.decisions,
        "submitted_at_s": item.submitted_at_s,
        "finished_at_s": item.finished_at_s,
        "traceparent": item.traceparent,
    }


def _job_of(row: Any) -> Job:
    spec = spec_from(job_pb2.JobSpec.FromString(row.spec))
    return Job(
        row.job_id,
        row.tenant_id,
        spec,
        units_of(spec),
        row.submitted_at_s,
        JobState(row.state),
        JobState(row.outcome) if row.outcome else None,
        row.reason,
        row.succeeded_units,
        row.active_runs,
        row.open_runs,
        row.restarts,
        row.decisions,
        row.finished_at_s,
        row.traceparent,
    )


def _unit_row(item: Unit) -> Row:
    return {
        "job_id": item.key.job_id,
        "unit_index": item.key.unit_index,
        "state": str(item.state),
        "queued_at_s": item.queued_at_s,
        "epoch": item.epoch,
        "failures": item.failures,
        "recoveries": item.recoveries,
        "not_before_s": item.not_before_s,
        "recovery_due_s": item.recovery_due_s,
        "checkpoint": asdict(item.checkpoint) if item.checkpoint else None,
        "excluded_nodes": sorted(item.excluded_nodes),
        "excluded_until_s": item.excluded_until_s,
        "reason": item.reason,
        "attained_s": item.attained_s,
        "kept_s": item.kept_s,
        "nomination": _nomination_row(item.nomination) if item.nomination else None,
        "served_s": item.served_s,
    }


def _nomination_row(item: Nomination) -> Row:
    return {**asdict(item), "ranks": _rank_rows(item.ranks), "waits_for": sorted(item.waits_for)}


def _nomination_of(row: Mapping[str, Any]) -> Nomination:
    return Nomination(**{**row, "ranks": ranks_of(row["ranks"]), "waits_for": frozenset(row["waits_for"])})


def _unit_of(row: Any) -> Unit:
    return Unit(
        UnitKey(row.job_id, row.unit_index),
        UnitState(row.state),
        row.queued_at_s,
        row.epoch,
        row.failures,
        row.recoveries,
        row.not_before_s,
        row.recovery_due_s,
        Checkpoint(**row.checkpoint) if row.checkpoint else None,
        frozenset(row.excluded_nodes),
        row.excluded_until_s,
        row.reason,
        row.attained_s,
        row.kept_s,
        _nomination_of(row.nomination) if row.nomination else None,
        getattr(row, "served_s", 0.0),
    )


def _run_row(item: Run) -> Row:
    return {
        "run_id": item.run_id,
        "job_id": item.key.job_id,
        "unit_index": item.key.unit_index,
        "epoch": item.epoch,
        "tenant_id": item.tenant_id,
        "state": str(item.state),
        "ranks": _rank_rows(item.ranks),
        "open_domains": sorted(item.open_domains),
        "cpus": item.cpus,
        "memory_bytes": item.memory_bytes,
        "master_addr": item.master_addr,
        "master_port": item.master_port,
        "service_port": item.service_port,
        "assigned_at_s": item.assigned_at_s,
        "started_at_s": item.started_at_s,
        "stop_until_s": item.stop_until_s,
        "ended_at_s": item.ended_at_s,
        "reason": item.reason,
        "decision_id": item.decision_id,
        "preempted_for": item.preempted_for,
    }


def _rank_rows(ranks: Iterable[PlacedRank]) -> list[list[Any]]:
    return [
        [rank.rank, rank.domain_id, rank.node_id, rank.local_rank, list(rank.devices)]
        + ([rank.device_milli] if rank.device_milli != 1000 else [])
        for rank in ranks
    ]


def ranks_of(rows: Iterable[Sequence[Any]]) -> tuple[PlacedRank, ...]:
    """Ranks as the column ``run.ranks`` has them."""
    return tuple(
        PlacedRank(rank, domain_id, node_id, local, tuple(devices), *share)
        for rank, domain_id, node_id, local, devices, *share in rows
    )


def _run_of(row: Any) -> Run:
    return Run(
        run_id=row.run_id,
        key=UnitKey(row.job_id, row.unit_index),
        epoch=row.epoch,
        tenant_id=row.tenant_id,
        ranks=ranks_of(row.ranks),
        open_domains=frozenset(row.open_domains),
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        assigned_at_s=row.assigned_at_s,
        state=RunState(row.state),
        master_addr=row.master_addr,
        master_port=row.master_port,
        service_port=row.service_port,
        started_at_s=row.started_at_s,
        stop_until_s=row.stop_until_s,
        ended_at_s=row.ended_at_s,
        reason=row.reason,
        decision_id=row.decision_id,
        preempted_for=row.preempted_for,
    )


def _node_row(item: Node) -> Row:
    return {"node_id": item.node_id, "domain_id": item.domain_id, "facts": asdict(item)}


def _node_of(facts: Mapping[str, Any]) -> Node:
    devices = tuple(Device(**device) for device in facts["devices"])
    return Node(**{**facts, "devices": devices, "state": NodeState(facts["state"])})


def _domain_of(facts: Mapping[str, Any]) -> Domain:
    return Domain(**{**facts, "links": tuple(Link(**link) for link in facts["links"])})
