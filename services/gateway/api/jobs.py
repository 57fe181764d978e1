"""Jobs: submit, find, look into, cancel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.encoders import jsonable_encoder
from pydantic import Field, StringConstraints
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.job.v1 import job_pb2
from meridian.errors import ConflictError, NotFoundError, UnavailableError
from meridian.outbox import Transaction
from services.gateway import cursor
from services.gateway.agents import Agent
from services.gateway.api import answers
from services.gateway.api.answers import problems
from services.gateway.api.paging import PageSize, PageToken, page, position
from services.gateway.auth import Caller
from services.gateway.context import JobReader, JobWriter, Parts
from services.gateway.jobfile import JobFile, JobKindName, Section
from services.gateway.lifecycle import JobState, UnitState
from services.gateway.store import jobs as store
from services.gateway.store import network, stream, submissions
from services.gateway.store.jobs import JobRow
from services.gateway.submission import Answer, check, once, request_hash, submit
from services.gateway.wire import time_text, to_text

router = APIRouter(prefix="/v1", tags=["jobs"])

UNITS_SHOWN = 1000
TRACE_EVENTS = 10_000

JobId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$", description="as given at submission")]
IdempotencyKey = Annotated[
    str | None,
    Header(pattern=r"^[!-~]{1,255}$", description="the same request with the same key is carried out once"),
]


class Batch(Section):
    """Jobs that are accepted together or not at all."""

    jobs: list[JobFile] = Field(min_length=1, max_length=1000)


class CancelRequest(Section):
    """Why a job is cancelled."""

    reason: Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")] = ""


_SUBMIT_PROBLEMS = problems(400, 401, 403, 409, 413, 429, 503)
_READ_PROBLEMS = problems(401, 403, 404, 429, 503)


def _json(answer: Answer) -> Response:
    headers = {"Idempotency-Replayed": "true"} if answer.replayed else {}
    return Response(answer.text, status_code=answer.status, media_type="application/json", headers=headers)


@router.post("/jobs", status_code=202, response_model=answers.Job, responses=_SUBMIT_PROBLEMS)
async def submit_job(parts: Parts, caller: JobWriter, job: JobFile, idempotency_key: IdempotencyKey = None) -> Response:
    """Submit a job. What can never run is refused at once."""
    domains = await parts.capacities.get()

    async def work(transaction: Transaction) -> Answer:
        # Not before a repeated request has its answer: what was accepted once stays so, whatever there is now.
        check([("", job)], domains)
        [new] = await submit(parts, caller, transaction, [job])
        row = store.fresh(new)
        units = store.fresh_units(row, UNITS_SHOWN)
        counts = {UnitState.SUBMITTED.value: new.units_total}
        return Answer(202, to_text(_job_body(row, units, counts, [])))

    hashed = request_hash("POST /v1/jobs", job.model_dump(mode="json"))
    answer = await once(parts, caller, idempotency_key, hashed, work)
    response = _json(answer)
    response.headers["Location"] = f"/v1/jobs/{json.loads(answer.text)['job_id']}"
    return response


@router.post(
    "/jobs:batch", status_code=202, response_model=answers.Page[answers.JobSummary], responses=_SUBMIT_PROBLEMS
)
async def submit_batch(
    parts: Parts, caller: JobWriter, batch: Batch, idempotency_key: IdempotencyKey = None
) -> Response:
    """Submit up to 1,000 jobs: all of them or none."""
    domains = await parts.capacities.get()

    async def work(transaction: Transaction) -> Answer:
        check([(f"/jobs/{index}", job) for index, job in enumerate(batch.jobs)], domains)
        items = [store.fresh(new).summary for new in await submit(parts, caller, transaction, batch.jobs)]
        return Answer(202, to_text(jsonable_encoder({"items": items, "next_page_token": None})))

    hashed = request_hash("POST /v1/jobs:batch", batch.model_dump(mode="json")) if idempotency_key else ""
    return _json(await once(parts, caller, idempotency_key, hashed, work))


@router.get("/jobs", response_model=answers.Page[answers.JobSummary], responses=problems(401, 403, 429, 503))
async def list_jobs(
    parts: Parts,
    caller: JobReader,
    state: Annotated[answers.JobStateName | None, Query()] = None,
    kind: Annotated[JobKindName | None, Query()] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """One's jobs, newest first."""
    before = position("jobs", page_token)
    async with parts.kernel.database.reading() as connection:
        found = await store.find(
            connection, tenant_id=caller.sees, state=state, kind=kind, before=before, limit=page_size + 1
        )
    return page("jobs", found, page_size)


async def _own(connection: AsyncConnection, caller: Caller, job_id: str) -> JobRow:
    row = await store.get(connection, job_id, caller.sees)
    if row is None:
        raise NotFoundError(f"there is no job {job_id!r}, or it ended so long ago that it is not kept any more")
    return row


async def _read_body(connection: AsyncConnection, row: JobRow) -> dict[str, Any]:
    units = await store.units(connection, row, first=0, limit=UNITS_SHOWN)
    runs = await store.runs(connection, row.summary["job_id"], limit=UNITS_SHOWN)
    counts = await store.unit_counts(connection, row)
    return _job_body(row, units, counts, [run for _, run in runs])


def _job_body(
    row: JobRow, units: list[dict[str, Any]], counts: Mapping[str, int], runs: list[dict[str, Any]]
) -> dict[str, Any]:
    body: dict[str, Any] = jsonable_encoder(
        {
            **row.summary,
            "spec": row.spec,
            "unit_counts": counts,
            "units": units,
            "units_truncated": row.summary["units_total"] > len(units),
            "timeline": timeline(row.summary, runs),
        }
    )
    return body


def timeline(summary: dict[str, Any], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What happened to a job and its runs, in the order of the times."""
    entries: list[dict[str, Any]] = []

    def add(at: datetime | None, what: str, run: dict[str, Any] | None = None, detail: str = "") -> None:
        if at is not None:
            unit_index = None if run is None else run["unit_index"]
            run_id = None if run is None else run["run_id"]
            entries.append({"at": at, "what": what, "unit_index": unit_index, "run_id": run_id, "detail": detail})

    add(summary["submitted_at"], "submitted")
    add(summary["queued_at"], "queued")
    add(summary["cancel_requested_at"], "cancel_requested")
    for run in runs:
        add(run["placed_at"], "placed", run, ", ".join(run["domains"]))
        add(run["started_at"], "started", run)
        reason = run["failure"]["reason"] if run["failure"] else ""
        add(run["ended_at"], f"run_{run['state']}", run, reason)
    add(summary["finished_at"], summary["state"], detail=summary["reason"])
    return sorted(entries, key=lambda entry: entry["at"])


@router.get(
    "/jobs/{job_id}",
    response_model=answers.Job,
    responses={**_READ_PROBLEMS, 304: {"description": "unchanged since the ETag given"}},
)
async def get_job(
    parts: Parts,
    caller: JobReader,
    job_id: JobId,
    if_none_match: Annotated[str | None, Header(description="an ETag got before")] = None,
) -> Response:
    """A job with its units; ``ETag`` changes with every change of it."""
    # Job, units, counts and runs of one moment.
    async with parts.kernel.database.snapshot() as connection:
        row = await _own(connection, caller, job_id)
        etag = f'"{row.revision}"'
        if if_none_match is not None and _matches(if_none_match, etag):
            return Response(status_code=304, headers={"ETag": etag})
        body = await _read_body(connection, row)
    return Response(to_text(body), media_type="application/json", headers={"ETag": etag, "Cache-Control": "no-cache"})


def _matches(header: str, etag: str) -> bool:
    given = [item.strip().removeprefix("W/") for item in header.split(",")]
    return "*" in given or etag in given


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    response_model=answers.Job,
    responses=problems(400, 401, 403, 404, 409, 413, 429, 503),
)
async def cancel_job(parts: Parts, caller: JobWriter, job_id: JobId, request: CancelRequest | None = None) -> Response:
    """Ask for a job to be stopped. Asking again changes nothing."""
    async with parts.kernel.outbox.transaction() as transaction:
        connection = transaction.connection
        row = await _own(connection, caller, job_id)
        now = parts.kernel.clock.now()
        if await submissions.request_cancel(connection, job_id, now):
            event = job_pb2.JobCancelRequested(
                job_id=job_id, tenant_id=row.summary["tenant_id"], reason=request.reason if request else ""
            )
            event.requested_at.FromDatetime(now)
            transaction.publish(event)
        row = await _own(connection, caller, job_id)
        state = row.summary["state"]
        if state in {JobState.SUCCEEDED, JobState.FAILED}:
            raise ConflictError(f"the job has {state} already")
        body = await _read_body(connection, row)
    return Response(to_text(body), status_code=202, media_type="application/json")


@router.get("/jobs/{job_id}/units", response_model=answers.Page[answers.Unit], responses=_READ_PROBLEMS)
async def list_units(
    parts: Parts, caller: JobReader, job_id: JobId, page_size: PageSize = 100, page_token: PageToken = None
) -> dict[str, Any]:
    """The units of a job by index."""
    first = position("units", page_token) or 0
    async with parts.kernel.database.reading() as connection:
        row = await _own(connection, caller, job_id)
        items = await store.units(connection, row, first=first, limit=page_size)
    more = first + page_size < row.summary["units_total"]
    return {"items": items, "next_page_token": cursor.encode("units", first + page_size) if more else None}


@router.get("/jobs/{job_id}/runs", response_model=answers.Page[answers.Run], responses=_READ_PROBLEMS)
async def list_runs(
    parts: Parts, caller: JobReader, job_id: JobId, page_size: PageSize = 100, page_token: PageToken = None
) -> dict[str, Any]:
    """The runs of a job, newest first."""
    before = position("runs", page_token)
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
        found = await store.runs(connection, job_id, before=before, limit=page_size + 1)
    return page("runs", found, page_size)


def event_body(event: stream.StoredEvent) -> dict[str, Any]:
    """An event as the API shows it."""
    return {
        "id": event.seq,
        "type": event.type,
        "time": time_text(event.time),
        "source": event.source,
        "topic": event.topic,
        "trace_id": event.trace_id,
        "event_id": event.event_id,
        "job_id": event.job_id,
        "domain_id": event.domain_id,
        "data": json.loads(event.data),
    }


@router.get("/jobs/{job_id}/events", response_model=answers.Page[answers.Event], responses=_READ_PROBLEMS)
async def list_events(
    parts: Parts, caller: JobReader, job_id: JobId, page_size: PageSize = 100, page_token: PageToken = None
) -> dict[str, Any]:
    """The events of a job in the order in which they arrived."""
    after = position("events", page_token) or 0
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
        found = await stream.read_after(connection, after, page_size + 1, job_id=job_id)
    return page("events", [(event.seq, event_body(event)) for event in found], page_size)


@router.get("/jobs/{job_id}/trace", response_model=answers.Trace, responses=_READ_PROBLEMS)
async def get_trace(parts: Parts, caller: JobReader, job_id: JobId) -> dict[str, Any]:
    """Every event of a job through all services, in the order of the times (progress is thinned)."""
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
        found = await stream.read_after(connection, 0, TRACE_EVENTS, job_id=job_id)
    found.sort(key=lambda event: (event.time, event.seq))
    trace_ids = list(dict.fromkeys(event.trace_id for event in found if event.trace_id))
    return {"job_id": job_id, "trace_ids": trace_ids, "events": [event_body(event) for event in found]}


@router.get("/jobs/{job_id}/requirement", response_model=answers.Requirement, responses=_READ_PROBLEMS)
async def get_requirement(parts: Parts, caller: JobReader, job_id: JobId) -> dict[str, Any]:
    """What the job needs by the published formulas, if it describes its model."""
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
        body = await store.get_requirement(connection, job_id)
    if body is None:
        raise NotFoundError(f"no requirement of job {job_id!r} was estimated")
    return body


@router.get("/jobs/{job_id}/phases", response_model=dict[str, Any], responses=problems(401, 403, 404, 409, 429, 503))
async def get_phases(parts: Parts, caller: JobReader, job_id: JobId) -> Any:
    """The phase of each unit that reports a loss (warm-up, fast, stable or unknown), and what its phases ask for."""
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
    return await parts.forecast.ask("GET", f"/v1/jobs/{job_id}/phases")


@router.get(
    "/jobs/{job_id}/explanation", response_model=dict[str, Any], responses=problems(401, 403, 404, 409, 429, 503)
)
async def get_explanation(
    parts: Parts,
    caller: JobReader,
    job_id: JobId,
    unit: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    counterfactuals: Annotated[bool, Query(description="also what would have to be otherwise; takes longer")] = False,
) -> Any:
    """Why the job is where it is, or why it waits, for whom and until when: the scheduler's own account."""
    async with parts.kernel.database.reading() as connection:
        row = await _own(connection, caller, job_id)
    params: dict[str, Any] = {} if unit is None else {"unit": unit}
    if counterfactuals:
        params["counterfactuals"] = "true"
    shard = parts.scheduler.of(row.summary["tenant_id"])
    try:
        return await shard.ask("GET", f"/v1/jobs/{job_id}/explanation", params=params)
    except NotFoundError:
        if row.summary["state"] != "submitted":
            raise
        raise UnavailableError(f"the scheduler has not heard of job {job_id!r} yet; ask again") from None


@router.get("/jobs/{job_id}/logs", response_model=answers.Log, responses=problems(401, 403, 404, 409, 429, 503))
async def get_log(
    parts: Parts,
    caller: JobReader,
    job_id: JobId,
    unit: Annotated[int, Query(ge=0, le=100_000)] = 0,
    rank: Annotated[int, Query(ge=0, le=10_000)] = 0,
    offset: Annotated[int, Query(ge=0, le=(1 << 53), description="byte to begin with")] = 0,
) -> dict[str, Any]:
    """Output of a rank of the unit's newest run, from the agent that executes it."""
    async with parts.kernel.database.reading() as connection:
        await _own(connection, caller, job_id)
        run = await store.newest_run(connection, job_id, unit)
        place = next((item for item in run["placement"] if item["rank"] == rank), None) if run else None
        if run is None or place is None:
            raise NotFoundError(f"rank {rank} of unit {unit} of job {job_id!r} was not placed (yet)")
        domain = await network.agent_of(connection, place["domain_id"])
    url = domain[0] if domain is not None else ""
    log = await Agent(parts.http, parts.settings.agent_token, place["domain_id"], url).log(run["run_id"], rank, offset)
    return {
        "run_id": run["run_id"],
        "unit_index": unit,
        "rank": rank,
        "node_id": place["node_id"],
        "offset": log.get("offset", offset),
        "next_offset": log.get("next_offset", offset),
        "text": log.get("text", ""),
        "complete": bool(log.get("complete", False)),
    }
