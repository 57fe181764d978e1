"""Reading jobs, their units and their runs, in the shapes the API answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.gateway import later_values
from services.gateway.lifecycle import FINAL, JobState, RunState, UnitState, unit_state_now
from services.gateway.store.submissions import NewJob
from services.gateway.tables import job, requirement, run, unit

_SUMMARY_NAMES = (
    "job_id", "tenant_id", "name", "kind", "state", "reason", "priority", "restarts", "units_total", "units_succeeded",
    "progress", "submitted_at", "queued_at", "placed_at", "started_at", "finished_at", "cancel_requested_at",
)  # fmt: skip
_SUMMARY = [job.c[name] for name in _SUMMARY_NAMES]

Body = dict[str, Any]
_WAITS = frozenset({UnitState.SUBMITTED, UnitState.QUEUED})
"""What waits is nowhere, wherever it was before."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as stored."""

    summary: Body
    spec: Body
    revision: int


async def get(connection: AsyncConnection, job_id: str, tenant_id: str | None) -> JobRow | None:
    """A job of that tenant, or of any when ``tenant_id`` is None."""
    query = sa.select(*_SUMMARY, job.c.spec, job.c.revision).where(job.c.job_id == job_id, job.c.spec.is_not(None))
    if tenant_id is not None:
        query = query.where(job.c.tenant_id == tenant_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    body = _known(dict(row))
    spec, revision = body.pop("spec"), body.pop("revision")
    return JobRow(body, spec, revision)


def _known(summary: Body) -> Body:
    """A job's row with a state that this release knows."""
    times = {name: summary[name] for name in ("finished_at", "placed_at", "queued_at")}
    return summary | {"state": later_values.job_state(summary["state"], **times)}


async def find(
    connection: AsyncConnection,
    *,
    tenant_id: str | None,
    state: str | None,
    kind: str | None,
    before: int | None,
    limit: int,
) -> list[tuple[int, Body]]:
    """Jobs with their positions, newest first, older than position ``before``."""
    query = sa.select(job.c.seq, *_SUMMARY).where(job.c.spec.is_not(None)).order_by(job.c.seq.desc()).limit(limit)
    for column, value in ((job.c.tenant_id, tenant_id), (job.c.state, state), (job.c.kind, kind)):
        if value is not None:
            query = query.where(column == value)
    if before is not None:
        query = query.where(job.c.seq < before)
    found = []
    for row in (await connection.execute(query)).mappings():
        body = _known(dict(row))
        found.append((body.pop("seq"), body))
    return found


def fresh(new: NewJob) -> JobRow:
    """A job as it is stored at submission, without reading it back."""
    summary: Body = dict.fromkeys(_SUMMARY_NAMES)
    summary |= {name: getattr(new, name) for name in NewJob.__slots__ if name != "spec"}
    summary |= {"state": JobState.SUBMITTED, "reason": "", "restarts": 0, "units_succeeded": 0}
    return JobRow(summary, new.spec, 1)


def fresh_units(row: JobRow, limit: int) -> list[Body]:
    """The first units of a job to which nothing happened yet."""
    return [_unit_body(index, row, None) for index in range(min(limit, row.summary["units_total"]))]


async def units(connection: AsyncConnection, row: JobRow, *, first: int, limit: int) -> list[Body]:
    """Units ``first`` .. ``first + limit - 1``; those to which nothing happened yet are as their job is."""
    summary = row.summary
    job_id, total = summary["job_id"], summary["units_total"]
    last = min(first + limit, total)
    current = unit.outerjoin(run, run.c.run_id == unit.c.run_id)
    query = (
        sa.select(
            unit,
            *(
                run.c[name].label(f"run_{name}")
                for name in ("domains", "placement", "step", "total_steps", "metrics", "progress_at")
            ),
        )
        .select_from(current)
        .where(unit.c.job_id == job_id, unit.c.unit_index >= first, unit.c.unit_index < last)
    )
    stored = {found["unit_index"]: dict(found) for found in (await connection.execute(query)).mappings()}
    return [_unit_body(index, row, stored.get(index)) for index in range(first, last)]


def _name(row: JobRow, index: int) -> str:
    tasks = (row.spec.get("workflow") or {}).get("tasks") or []
    return str(tasks[index]["name"]) if index < len(tasks) else ""


def _is_spare(row: JobRow, index: int) -> bool:
    """Whether it is a replica that a service has only when its load asks for it."""
    service = row.spec.get("service") or {}
    return row.summary["state"] not in FINAL and index >= service.get("replicas", index + 1)


def _unit_body(index: int, row: JobRow, stored: Mapping[str, Any] | None) -> Body:
    summary = row.summary
    state = _untouched(summary)
    if stored is not None and stored["state"] != UnitState.SUBMITTED:
        epochs = {name: stored[name] for name in ("placed_epoch", "lost_epoch")}
        state = later_values.unit_state(stored["state"], **epochs)
    body: Body = {
        "unit_index": index,
        "name": _name(row, index),
        "state": unit_state_now(summary["state"], state),
        "reason": "so many replicas are not asked for yet" if stored is None and _is_spare(row, index) else "",
        "epoch": 0,
        "run_id": "",
        "domains": [],
        "placement": [],
        "step": 0,
        "total_steps": 0,
        "metrics": {},
        "progress_at": None,
        "checkpoint": None,
        "restarts": 0,
    }
    if stored is not None:
        body |= {
            "reason": stored["reason"],
            "epoch": stored["placed_epoch"],
            "run_id": stored["run_id"],
            "domains": stored["run_domains"] or [] if state not in _WAITS else [],
            "placement": stored["run_placement"] or [] if state not in _WAITS else [],
            "step": stored["run_step"] or 0,
            "total_steps": stored["run_total_steps"] or 0,
            "metrics": stored["run_metrics"] or {},
            "progress_at": stored["run_progress_at"],
            "checkpoint": stored["checkpoint"],
            "restarts": max(0, stored["placements"] - 1),
        }
    return body


def _untouched(summary: Mapping[str, Any]) -> str:
    return UnitState.QUEUED if summary["queued_at"] is not None else UnitState.SUBMITTED


async def unit_counts(connection: AsyncConnection, row: JobRow) -> dict[str, int]:
    """How many units of a job are in each state."""
    summary = row.summary
    query = sa.select(unit.c.state, sa.func.count()).where(unit.c.job_id == summary["job_id"]).group_by(unit.c.state)
    counts: dict[str, int] = {}
    stored = 0
    for state, count in await connection.execute(query):
        known = _untouched(summary) if state == UnitState.SUBMITTED else state
        now = str(unit_state_now(summary["state"], known))
        counts[now] = counts.get(now, 0) + count
        stored += count
    rest = summary["units_total"] - stored
    if rest > 0:
        state = str(unit_state_now(summary["state"], _untouched(summary)))
        counts[state] = counts.get(state, 0) + rest
    return counts


_RUN_NAMES = (
    "run_id", "job_id", "unit_index", "epoch", "state", "reason", "domains", "placement", "placed_at", "started_at",
    "ended_at", "step", "total_steps", "metrics", "progress_at", "checkpoint", "restore_from", "restore_step", "failure",
    "policy_version", "decision_id",
)  # fmt: skip
_RUN = [run.c[name] for name in _RUN_NAMES]


async def runs(
    connection: AsyncConnection, job_id: str, *, before: int | None = None, limit: int
) -> list[tuple[int, Body]]:
    """Runs of a job with their positions, newest first."""
    query = sa.select(run.c.seq, *_RUN).where(run.c.job_id == job_id).order_by(run.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(run.c.seq < before)
    found = []
    for row in (await connection.execute(query)).mappings():
        body = dict(row)
        state = later_values.run_state(body["state"], ended_at=body["ended_at"], started_at=body["started_at"])
        found.append((body.pop("seq"), body | {"state": state}))
    return found


async def newest_run(connection: AsyncConnection, job_id: str, unit_index: int) -> Body | None:
    """The run that a unit was placed in last."""
    query = (
        sa.select(*_RUN)
        .where(run.c.job_id == job_id, run.c.unit_index == unit_index)
        .order_by(run.c.epoch.desc())
        .limit(1)
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else dict(row)


async def get_requirement(connection: AsyncConnection, job_id: str) -> Body | None:
    """What the forecast service estimated for a job."""
    body: Body | None = await connection.scalar(sa.select(requirement.c.body).where(requirement.c.job_id == job_id))
    return body


async def devices_held(connection: AsyncConnection) -> set[tuple[str, int]]:
    """The accelerators, by node and index, that runs hold which have not ended, wholly or in part."""
    running = run.c.state.in_([RunState.ASSIGNED, RunState.STARTED])
    query = (
        sa.select(run.c.placement).join(job, job.c.job_id == run.c.job_id).where(job.c.finished_at.is_(None), running)
    )
    return {
        (rank["node_id"], index)
        for placement in (await connection.execute(query)).scalars()
        for rank in placement
        for index in rank["accelerator_indices"]
    }
