"""What the API answers about jobs, and in general, for the OpenAPI document; the shapes are explained in the README of the service."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from services.gateway.jobfile import JobFile

T = TypeVar("T")
JobStateName = Literal["submitted", "queued", "running", "succeeded", "failed", "cancelled"]
UnitStateName = Literal["submitted", "queued", "placed", "running", "succeeded", "failed", "cancelled"]
RunStateName = Literal["assigned", "started", "finished", "failed", "preempted"]


class Page(BaseModel, Generic[T]):
    """A part of a list; the token leads to the next part."""

    items: list[T]
    next_page_token: str | None = None


class JobSummary(BaseModel):
    """A job in a list."""

    job_id: str
    tenant_id: str
    name: str
    kind: str
    state: JobStateName
    reason: str
    priority: int
    restarts: int
    units_total: int
    units_succeeded: int
    progress: float | None = Field(description="0-1")
    submitted_at: datetime | None
    queued_at: datetime | None
    placed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None


class Checkpoint(BaseModel):
    """A state that a run can resume from."""

    step: int
    path: str
    size_bytes: int
    at: datetime | None


class PlacedRank(BaseModel):
    """Where one rank runs."""

    rank: int
    domain_id: str
    node_id: str
    accelerator_indices: list[int]
    accelerator_milli: int = 1000


class Unit(BaseModel):
    """A part of a job that is placed as a whole."""

    unit_index: int
    name: str
    state: UnitStateName
    reason: str
    epoch: int
    run_id: str
    domains: list[str]
    placement: list[PlacedRank]
    step: int
    total_steps: int
    metrics: dict[str, float | None]
    progress_at: datetime | None
    checkpoint: Checkpoint | None
    restarts: int


class TimelineEntry(BaseModel):
    """Something that happened to a job."""

    at: datetime
    what: str
    unit_index: int | None
    run_id: str | None
    detail: str


class Job(JobSummary):
    """A job with its units."""

    spec: JobFile
    unit_counts: dict[str, int]
    units: list[Unit]
    units_truncated: bool
    timeline: list[TimelineEntry]


class Failure(BaseModel):
    """Why a run ended without success."""

    kind: str
    reason: str
    rank: int | None
    node_id: str
    exit_code: int | None
    signal: int | None
    log_tail: str


class Run(BaseModel):
    """One attempt to execute a unit."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    state: RunStateName
    reason: str
    domains: list[str]
    placement: list[PlacedRank]
    placed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    step: int
    total_steps: int
    metrics: dict[str, float | None]
    progress_at: datetime | None
    checkpoint: Checkpoint | None
    restore_from: str
    restore_step: int
    failure: Failure | None
    policy_version: str
    decision_id: str


class Event(BaseModel):
    """Something that happened, as the bus carried it."""

    id: int
    type: str
    time: datetime
    source: str
    topic: str
    trace_id: str
    event_id: str
    job_id: str
    domain_id: str
    data: dict[str, Any]


class Trace(BaseModel):
    """All events of a job."""

    job_id: str
    trace_ids: list[str]
    events: list[Event]


class Requirement(BaseModel):
    """What a training job needs by the published formulas."""

    job_id: str
    tenant_id: str
    parameters: float | None
    flops_per_step: float | None
    total_flops: float | None
    memory_bytes_per_accelerator: float | None
    memory_parts_bytes: dict[str, float | None]
    formula: str
    estimated_at: datetime | None


class Log(BaseModel):
    """A part of a rank's output. ``complete``: nothing will follow."""

    run_id: str
    unit_index: int
    rank: int
    node_id: str
    offset: int
    next_offset: int
    text: str
    complete: bool


class Money(BaseModel):
    """Millionths of a currency's unit."""

    micro_units: int
    currency: str


class PolicyChange(BaseModel):
    """A policy came into force; ``changed_by`` is shown to operators."""

    change: int
    version: str
    name: str
    origin: Literal["api", "file"]
    changed_by: str
    changed_at: datetime | None


class Token(BaseModel):
    """RFC 6749, section 5.1."""

    access_token: str
    token_type: str
    expires_in: int
    scope: str = ""


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    correlationId: str | None = None  # noqa: N815 - the name that CAMARA gives it
    errors: list[FieldProblem] = []


_MEANINGS = {
    400: "the body cannot be read",
    401: "no token, or not a good one",
    403: "the token lacks the scope",
    404: "there is no such thing, or not for this tenant",
    409: "contradicts the present state",
    412: "The policy in force is not the one named by If-Match",
    413: "the body is too large",
    422: "a field is wrong; `errors` names it",
    429: "too many requests or unfinished jobs",
    503: "a service that is needed does not answer",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem answers of an operation, for ``responses=``."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _MEANINGS[status], "content": {"application/problem+json": {"schema": schema}}}
        for status in sorted(set(statuses) | {422})
    }
