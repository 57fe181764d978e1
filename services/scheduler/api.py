"""What the scheduler answers: why, where, and what if. Times are RFC 3339 UTC; tenancy is checked by the gateway."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Body, Path, Query
from google.protobuf import json_format

from meridian.contracts.job.v1 import job_pb2
from meridian.database import Database
from meridian.errors import InvalidArgumentError, NotFoundError
from services.scheduler import outlook, store, store_rows
from services.scheduler.core.explaining.explanation import sentences
from services.scheduler.core.state import Unit, UnitKey, UnitState
from services.scheduler.core.units import units_of
from services.scheduler.live import LiveScheduler
from services.scheduler.predicted_starts import PredictedStarts
from services.scheduler.times import rfc3339
from services.scheduler.wire import spec_from

Json = dict[str, Any]


def create_router(database: Database, live: LiveScheduler, starts: PredictedStarts) -> APIRouter:
    """The routes of the scheduler."""
    router = APIRouter(prefix="/v1")
    kept = outlook.CoursesInTurn()

    @router.get("/jobs/{job_id}/explanation")
    async def explanation(
        job_id: Annotated[str, Path(max_length=200)],
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        unit: Annotated[int | None, Query(ge=0, le=100_000)] = None,
        counterfactuals: bool = False,
    ) -> Json:
        """Per unit: its state, where it runs and why, or why it waits, for what and until when; the last decisions.

        ``unit`` asks for one unit only. ``counterfactuals`` adds what would have to be otherwise, which costs many decisions.
        """
        if unit is not None:
            offset, limit = unit, 1
        async with database.reading() as connection:
            job = await store.job_row(connection, job_id)
            if job is None:
                raise NotFoundError(f"there is no job {job_id!r}")
            units = await store.unit_rows(connection, job_id, offset, limit)
            if unit is not None and not units:
                raise NotFoundError(f"job {job_id!r} has no unit {unit}")
            runs = await store.newest_runs(connection, job_id, offset, limit)
            decisions = await store.decision_rows(connection, job_id)
        by_id = {row.decision_id: row for row in decisions}
        bodies = [_unit(live, row, runs.get(row.unit_index), by_id) for row in units]
        await outlook.add(live, job_id, bodies, starts.record, flips=counterfactuals)
        return {
            "job_id": job.job_id,
            "tenant_id": job.tenant_id,
            "state": job.state,
            "reason": job.reason,
            "restarts": job.restarts,
            "submitted_at": rfc3339(job.submitted_at_s),
            "finished_at": rfc3339(job.finished_at_s),
            "policy_version": live.policy.version,
            "units": bodies,
            "decisions": [_decision(row) for row in decisions],
        }

    @router.get("/queue")
    async def queue(limit: Annotated[int, Query(ge=1, le=10_000)] = 200, tenant_id: str | None = None) -> Json:
        """Waiting units in the order of the last cycle, then those that may not be placed yet."""
        items = [item for key in _queue_order(live) if (item := _queued(live, key, tenant_id)) is not None]
        return {"policy_version": live.policy.version, "units": len(items), "items": items[:limit]}

    @router.get("/nodes")
    async def nodes() -> Json:
        """Capacity as scheduled: what runs hold, and what is free."""
        return {"items": [_node(live, node_id) for node_id in sorted(live.book.fleet.nodes)]}

    @router.post("/what-if")
    async def what_if(
        body: Annotated[Json, Body()], tenant_id: Annotated[str, Query(max_length=200)] = "what-if"
    ) -> Json:
        """Whether, where and when a job would be placed, behind what waits already, and what it would displace.

        The body is a job specification, or ``{"spec": ..., "change": ...}`` with a hypothetical change of the network or the
        policy (hypothesis.py). Nothing is stored.
        """
        change = body.pop("change", {}) if "spec" in body else {}
        if not isinstance(change, dict):
            raise InvalidArgumentError("change: must be an object")
        return await outlook.what_if(live, parse_spec(body), tenant_id, change, starts.record, kept)

    return router


def parse_spec(body: Json) -> Any:
    """A job specification from JSON: the fields of JobSpec, ``kind`` also in short form ("gang").

    InvalidArgumentError names what does not read; MalformedJobError what no network could run.
    """
    given = body.get("spec", body)
    if not isinstance(given, dict):
        raise InvalidArgumentError("spec: must be an object")
    body = dict(given)
    kind = body.get("kind")
    if isinstance(kind, str) and not kind.startswith("JOB_KIND_"):
        body["kind"] = f"JOB_KIND_{kind.upper()}"
    message = job_pb2.JobSpec()
    try:
        json_format.ParseDict(body, message)
    except json_format.ParseError as error:
        raise InvalidArgumentError(f"the job specification does not read: {error}") from None
    spec = spec_from(message)
    units_of(spec)
    return spec


def _unit(live: LiveScheduler, row: sa.Row[Any], run: sa.Row[Any] | None, decisions: dict[str, sa.Row[Any]]) -> Json:
    key = UnitKey(row.job_id, row.unit_index)
    job = live.book.jobs.get(row.job_id)
    body: Json = {
        "unit_index": row.unit_index,
        "name": job.units[row.unit_index].name if job else "",
        "state": row.state,
        "reason": row.reason,
        "epoch": row.epoch,
        "program_failures": row.failures,
        "recoveries": row.recoveries,
        "checkpoint": row.checkpoint,
    }
    unit = live.book.units.get(key)
    if unit is not None and row.state in {UnitState.QUEUED, UnitState.BLOCKED, UnitState.RECOVERING}:
        body["waiting"] = _waiting(live, unit)
    if run is not None:
        chosen = decisions.get(run.decision_id)
        body["run"] = {
            "run_id": run.run_id,
            "state": run.state,
            "assigned_at": rfc3339(run.assigned_at_s),
            "started_at": rfc3339(run.started_at_s),
            "ended_at": rfc3339(run.ended_at_s),
            "decision_id": run.decision_id,
            "ranks": [
                {
                    "rank": rank.rank,
                    "domain_id": rank.domain_id,
                    "node_id": rank.node_id,
                    "accelerators": rank.devices,
                    "accelerator_milli": rank.device_milli,
                }
                for rank in store_rows.ranks_of(run.ranks)
            ],
        }
        body["placement"] = chosen.explanation if chosen is not None else None
        if chosen is not None:
            body["sentences"] = said(chosen.explanation)
    return body


def _waiting(live: LiveScheduler, unit: Unit) -> Json:
    """Why a unit is not running: what it depends on, what it waits for, or what the last cycle found."""
    now_s = live.now_s()
    job = live.book.jobs[unit.key.job_id]
    if unit.state is UnitState.BLOCKED and not job.units[unit.key.unit_index].depends_on:
        return {"reason": unit.reason}
    if unit.state is UnitState.BLOCKED:
        missing = [
            job.units[index].name
            for index in job.units[unit.key.unit_index].depends_on
            if live.book.units[UnitKey(unit.key.job_id, index)].state is not UnitState.SUCCEEDED
        ]
        return {"reason": f"depends on {', '.join(missing)}"}
    if unit.state is UnitState.RECOVERING:
        return {"reason": f"waiting for a recovery plan: {unit.reason}", "until": rfc3339(unit.recovery_due_s)}
    if unit.nomination is not None:
        left = sorted(name for name in unit.nomination.waits_for if name in live.book.runs)
        ranks = unit.nomination.ranks
        asleep = sorted({rank.node_id for rank in ranks if live.book.fleet.sleeps(rank.node_id)})
        for_whom = f"its nodes are kept for it until {', '.join(left)} has ended" if left else "its nodes are free now"
        if asleep:
            for_whom = f"it fits only where nodes sleep; {', '.join(asleep)} is being woken for it"
        return {"reason": for_whom, "until": rfc3339(unit.nomination.until_s)}
    former = sorted(live.book.runs_of.get(unit.key, ()))
    if former:
        until = rfc3339(max(live.book.runs[run_id].stop_until_s for run_id in former))
        return {"reason": f"waiting until {', '.join(former)} has ended", "until": until}
    if unit.not_before_s > now_s:
        return {"reason": f"backing off: {unit.reason}", "until": rfc3339(unit.not_before_s)}
    found = live.waiting.get(unit.key)
    if found is None:
        return {"reason": "waiting for the next cycle"}
    explanation = found.explanation.as_json()
    body: Json = {"reason": found.explanation.reason, "position": found.position, "explanation": explanation}
    body["sentences"] = said(explanation)
    if found.start_s:
        body["reserved_from"] = rfc3339(found.start_s)
    return body


def said(explanation: Json) -> list[str]:
    """A kept explanation in sentences; those of older releases say less, and get their reason alone."""
    return sentences(explanation) if "stage" in explanation else [str(explanation.get("reason", ""))]


def _decision(row: sa.Row[Any]) -> Json:
    return {
        "decision_id": row.decision_id,
        "unit_index": row.unit_index,
        "kind": row.kind,
        "at": rfc3339(row.at_s),
        "policy_version": row.policy_version,
        "explanation": row.explanation,
    }


def _queue_order(live: LiveScheduler) -> list[UnitKey]:
    judged = sorted(live.waiting.values(), key=lambda item: item.position)
    first = [item.key for item in judged if item.key in live.book.queued]
    return first + [key for key in live.book.queued if key not in live.waiting]


def _queued(live: LiveScheduler, key: UnitKey, tenant_id: str | None) -> Json | None:
    job, unit = live.book.jobs[key.job_id], live.book.units[key]
    if tenant_id is not None and job.tenant_id != tenant_id:
        return None
    waiting = _waiting(live, unit)
    waiting.pop("explanation", None)
    waiting.pop("sentences", None)
    return {
        "job_id": key.job_id,
        "unit_index": key.unit_index,
        "tenant_id": job.tenant_id,
        "priority": job.spec.priority,
        "ranks": job.units[key.unit_index].demand.ranks,
        "queued_at": rfc3339(unit.queued_at_s),
        **waiting,
    }


def _node(live: LiveScheduler, node_id: str) -> Json:
    fleet = live.book.fleet
    node = fleet.nodes[node_id]
    held = live.book.ledger.nodes.get(node_id)
    busy = held.devices if held else set()
    usable = [device for device in node.devices if fleet.usable(device)]
    down = fleet.why_down(node)
    return {
        "node_id": node_id,
        "domain_id": node.domain_id,
        "schedulable": not down,
        "reason": down,
        "ranks": held.ranks if held else 0,
        "cpus": node.cpus,
        "cpus_free": node.cpus - (held.cpus if held else 0.0),
        "memory_bytes": node.memory_bytes,
        "memory_bytes_free": node.memory_bytes - (held.memory_bytes if held else 0),
        "accelerators": len(node.devices),
        "accelerators_free": sum(device.index not in busy for device in usable),
    }
