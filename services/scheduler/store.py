"""SQL of the scheduler's state: leadership, what a draft changed, and all that is read when an instance begins or is asked.

Every write is set-wise (`store_statements`). The other tables are those of the modules ``store_*``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.scheduler import store_measured, store_promises
from services.scheduler.core.book import Draft
from services.scheduler.core.contracts.account import Held
from services.scheduler.core.contracts.promises import Saved
from services.scheduler.core.effects import DecisionRecord
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.measured import News
from services.scheduler.core.state import FINAL_JOB_STATES, Job, Run, RunState, Unit, UnitKey
from services.scheduler.later_values import marks_of
from services.scheduler.store_rows import (
    Row,
    domain_of,
    job_of,
    node_of,
    ranks_of,
    row_of_job,
    row_of_node,
    row_of_run,
    row_of_unit,
    run_of,
    unit_of,
)
from services.scheduler.store_statements import update, upsert
from services.scheduler.store_tables import (
    decision,
    domain,
    expected_demand,
    job,
    leadership,
    mark,
    node,
    run,
    unit,
)

KEPT_DECISIONS = 20
"""Decisions kept per job."""
_MARK = ("kind", "subject", "reason", "domain_id", "node_id")


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
        row = row_of_job(item)
        if item.job_id in new_specs:
            new.append({**row, "spec": "\\x" + new_specs[item.job_id].hex()})
        else:
            known.append(row)
    await upsert(connection, job, new)
    await update(connection, job, known)
    await upsert(connection, unit, [row_of_unit(item) for item in draft.units.values()])
    await upsert(connection, run, [row_of_run(item) for item in draft.runs.values()])
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
    await upsert(connection, decision, rows)
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
    await upsert(connection, node, [row_of_node(item) for item in changed_nodes])
    changed_domains = [item for name, item in after.domains.items() if before.domains.get(name) is not item]
    rows = [{"domain_id": item.domain_id, "facts": asdict(item)} for item in changed_domains]
    await upsert(connection, domain, rows)
    changed_marks = [item for key, item in after.marks.items() if before.marks.get(key) is not item]
    await upsert(connection, mark, [{**asdict(item), "kind": str(item.kind)} for item in changed_marks])
    demand = after.expected_demand.items() - before.expected_demand.items()
    await upsert(
        connection, expected_demand, [{"domain_id": name, "accelerators": value} for name, value in sorted(demand)]
    )
    gone = sorted(before.expected_demand.keys() - after.expected_demand.keys())
    if gone:
        await connection.execute(sa.delete(expected_demand).where(expected_demand.c.domain_id.in_(gone)))
    gone_domains = sorted(before.domains.keys() - after.domains.keys())
    if gone_domains:
        await connection.execute(sa.delete(domain).where(domain.c.domain_id.in_(gone_domains)))
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
            "jobs": [{**row_of_job(item), "spec": self.specs[item.job_id].hex()} for item in self.jobs],
            "units": [row_of_unit(item) for item in self.units],
            "runs": [row_of_run(item) for item in self.runs],
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
        marks = [tuple(row[name] for name in _MARK) for row in body["marks"]]
        runs = tuple(run_of(SimpleNamespace(**row)) for row in body["runs"])
        domains, nodes = map(domain_of, body["domains"]), map(node_of, body["nodes"])
        fleet = Fleet(
            {item.domain_id: item for item in domains},
            {item.node_id: item for item in nodes},
            marks_of(marks),
            body["expected_demand"],
            bool(body.get("asks_domains")),
        )
        return cls(
            fleet,
            tuple(job_of(row) for row in jobs),
            _units((SimpleNamespace(**row) for row in body["units"]), runs),
            runs,
            {row.job_id: row.spec for row in jobs},
            Saved.from_json(body["saved"]) if body.get("saved") else None,
            News.from_json(body["measured"]) if "measured" in body else News(),
        )


async def load(connection: AsyncConnection) -> Loaded:
    """Every unfinished job with its units and open runs, and the fleet."""
    # A later release may have ended jobs and runs in other ways.
    unfinished = job.c.state.not_in([str(state) for state in FINAL_JOB_STATES]) & (job.c.finished_at_s == 0.0)
    rows = (
        await connection.execute(sa.select(job).where(unfinished).order_by(job.c.submitted_at_s, job.c.job_id))
    ).all()
    jobs = [job_of(row) for row in rows]
    of_unfinished = sa.select(job.c.job_id).where(unfinished)
    queued_first = (
        sa.select(unit)
        .where(unit.c.job_id.in_(of_unfinished))
        .order_by(unit.c.queued_at_s, unit.c.job_id, unit.c.unit_index)
    )
    open_runs = sa.select(run).where(run.c.state != str(RunState.ENDED), run.c.ended_at_s == 0.0)
    runs = [run_of(row) for row in await connection.execute(open_runs)]
    units = _units(await connection.execute(queued_first), runs)
    specs = {row.job_id: row.spec for row in rows}
    saved = await _load_promises(connection)
    measured = await store_measured.load(connection, [item.job_id for item in jobs])
    return Loaded(await load_fleet(connection), tuple(jobs), units, tuple(runs), specs, saved, measured)


def _units(rows: Iterable[Any], runs: Iterable[Run]) -> tuple[Unit, ...]:
    active = {(item.key, item.epoch) for item in runs if item.state is RunState.ACTIVE}
    return tuple(unit_of(row, active=(UnitKey(row.job_id, row.unit_index), row.epoch) in active) for row in rows)


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
        demand, amounts = job_of(row).units[row.of_unit].demand, dict[str, float]()
        for rank in ranks_of(row.ranks):
            size = len(rank.devices) * rank.device_milli / 1000.0
            amounts[rank.domain_id] = amounts.get(rank.domain_id, 0.0) + size
        pieces = demand.ranks if demand.cross_domain else 1
        parts = tuple((name, size) for name, size in amounts.items() if size)
        found.append(Held(row.assigned_at_s, row.ended_at_s, parts, pieces))
    return found


async def load_fleet(connection: AsyncConnection) -> Fleet:
    """The fleet as it was written."""
    domains = (domain_of(row.facts) for row in await connection.execute(sa.select(domain)))
    nodes = (node_of(row.facts) for row in await connection.execute(sa.select(node)))
    marks = await connection.execute(sa.select(*(mark.c[name] for name in _MARK)))
    demand = {row.domain_id: row.accelerators for row in await connection.execute(sa.select(expected_demand))}
    return Fleet(
        {item.domain_id: item for item in domains},
        {item.node_id: item for item in nodes},
        marks_of(marks),
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
