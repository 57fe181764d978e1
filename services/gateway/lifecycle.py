"""What the events about a job mean for the job as its tenant sees it. Pure: records in, changed records out.

Events of one job come from three topics with three writers; each topic keeps its order, but they overtake each other,
and some come late. So records hold FACTS that only grow (a time something happened, the greatest epoch placed, the
greatest epoch lost, the domains that finished), and states are derived from them:

1. A run is preempted, failed, finished (by all of its domains), started or assigned, the first of these that holds.
2. A unit is in the state of the run it was placed in last, unless that run is lost: then it is queued.
3. A job is final once JobFinished came, and stays so; otherwise it runs while a unit holds nodes or has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from google.protobuf.message import Message

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from services.gateway.job_spec import from_spec, units_of
from services.gateway.wire import enum_name, to_body, to_datetime


class JobState(StrEnum):
    """States of a job; the last three are final."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class UnitState(StrEnum):
    """States of a unit."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """States of a run."""

    ASSIGNED = "assigned"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
_HOLDS_NODES = frozenset({UnitState.PLACED, UnitState.RUNNING, UnitState.FAILED})
_UNIT_OF_RUN = {
    RunState.ASSIGNED: UnitState.PLACED,
    RunState.STARTED: UnitState.RUNNING,
    RunState.FINISHED: UnitState.SUCCEEDED,
    RunState.FAILED: UnitState.FAILED,
    RunState.PREEMPTED: UnitState.QUEUED,
}

UnitKey = tuple[str, int]


@dataclass(slots=True)
class JobRecord:
    """A job without its spec. ``tenant_id`` is empty until an event has told it."""

    job_id: str
    tenant_id: str = ""
    name: str = ""
    kind: str = ""
    priority: int = 0
    units_total: int = 1
    state: JobState = JobState.SUBMITTED
    reason: str = ""
    restarts: int = 0
    units_active: int = 0
    units_succeeded: int = 0
    progress: float | None = None
    submitted_at: datetime | None = None
    queued_at: datetime | None = None
    placed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None


@dataclass(slots=True)
class UnitRecord:
    """A unit, once something has happened to it."""

    job_id: str
    unit_index: int
    state: UnitState = UnitState.SUBMITTED
    reason: str = ""
    placed_epoch: int = 0
    lost_epoch: int = 0
    run_id: str = ""
    placements: int = 0
    checkpoint: dict[str, Any] | None = None
    queued_at: datetime | None = None


@dataclass(slots=True)
class RunRecord:
    """A run, from its first event on."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    state: RunState = RunState.ASSIGNED
    reason: str = ""
    domains: list[str] = field(default_factory=list)
    finished_domains: list[str] = field(default_factory=list)
    placement: list[dict[str, Any]] = field(default_factory=list)
    placed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    preempted_at: datetime | None = None
    step: int = 0
    total_steps: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    progress_at: datetime | None = None
    streamed_at: datetime | None = None
    checkpoint: dict[str, Any] | None = None
    restore_from: str = ""
    restore_step: int = 0
    failure: dict[str, Any] | None = None
    policy_version: str = ""
    decision_id: str = ""


RunEvent = run_pb2.RunStarted | run_pb2.RunProgress | run_pb2.RunCheckpointed | run_pb2.RunFinished | run_pb2.RunFailed
JOB_EVENTS: tuple[type[Message], ...] = (
    job_pb2.JobSubmitted,
    job_pb2.JobCancelRequested,
    job_pb2.JobQueued,
    job_pb2.JobPlaced,
    job_pb2.JobPreempted,
    job_pb2.JobFinished,
    run_pb2.RunStarted,
    run_pb2.RunProgress,
    run_pb2.RunCheckpointed,
    run_pb2.RunFinished,
    run_pb2.RunFailed,
)


@dataclass(frozen=True, slots=True)
class Touched:
    """Which records a set of events concerns."""

    jobs: set[str]
    units: set[UnitKey]
    runs: set[str]


def touched(messages: Iterable[Any]) -> Touched:
    """The records to load before `Fold.apply` is called with these messages."""
    result = Touched(set(), set(), set())
    for message in messages:
        result.jobs.add(message.job_id)
        fields = message.DESCRIPTOR.fields_by_name
        if "unit_index" in fields and not (fields["unit_index"].has_presence and not message.HasField("unit_index")):
            result.units.add((message.job_id, message.unit_index))
        if "run_id" in fields:
            result.runs.add(message.run_id)
    return result


class Fold:
    """Applies events to records; what changed stands in ``changed_jobs``, ``changed_units``, ``changed_runs``."""

    def __init__(
        self, jobs: Iterable[JobRecord], units: Iterable[UnitRecord] = (), runs: Iterable[RunRecord] = ()
    ) -> None:
        self.jobs = {job.job_id: job for job in jobs}
        self.units: dict[UnitKey, UnitRecord] = {(unit.job_id, unit.unit_index): unit for unit in units}
        self.runs = {run.run_id: run for run in runs}
        self.changed_jobs: set[str] = set()
        self.changed_units: set[UnitKey] = set()
        self.changed_runs: set[str] = set()
        # Specs of jobs that this database did not know yet.
        self.specs: dict[str, dict[str, Any]] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            job_pb2.JobSubmitted: self._submitted,
            job_pb2.JobCancelRequested: self._cancel_requested,
            job_pb2.JobQueued: self._queued,
            job_pb2.JobPlaced: self._placed,
            job_pb2.JobPreempted: self._preempted,
            job_pb2.JobFinished: self._finished,
            run_pb2.RunStarted: self._run_started,
            run_pb2.RunProgress: self._run_progress,
            run_pb2.RunCheckpointed: self._run_checkpointed,
            run_pb2.RunFinished: self._run_finished,
            run_pb2.RunFailed: self._run_failed,
        }

    def apply(self, message: Message) -> None:
        """Apply one event of `JOB_EVENTS`; the records it concerns must have been given, others are made."""
        self._handlers[type(message)](message)

    # -- what tenants and the scheduler say ------------------------------------------------------------------------

    def _job(self, message: Any) -> JobRecord:
        job = self.jobs.get(message.job_id)
        if job is None:
            job = self.jobs[message.job_id] = JobRecord(message.job_id)
        if not job.tenant_id and "tenant_id" in message.DESCRIPTOR.fields_by_name:
            job.tenant_id = message.tenant_id
        self.changed_jobs.add(job.job_id)
        return job

    def _submitted(self, message: job_pb2.JobSubmitted) -> None:
        known = self.jobs.get(message.job_id)
        if known is not None and known.submitted_at is not None:
            return
        job = self._job(message)
        body = from_spec(message.spec)
        job.name, job.kind, job.priority = body["name"], body["kind"], body["priority"]
        job.units_total = max(1, units_of(message.spec))
        job.submitted_at = to_datetime(message.submitted_at)
        self.specs[job.job_id] = body

    def _cancel_requested(self, message: job_pb2.JobCancelRequested) -> None:
        known = self.jobs.get(message.job_id)
        if known is not None and known.cancel_requested_at is not None:
            return
        self._job(message).cancel_requested_at = to_datetime(message.requested_at)

    def _queued(self, message: job_pb2.JobQueued) -> None:
        job = self._job(message)
        if job.queued_at is None:
            job.queued_at = to_datetime(message.queued_at)
        if message.HasField("unit_index"):
            unit = self._unit(message)
            unit.reason = message.reason
            unit.queued_at = to_datetime(message.queued_at)
            # Lifecycle events of a job are in order: what was placed before this is over.
            self._lose(unit, unit.placed_epoch)
        elif job.state not in FINAL:
            job.reason = message.reason
        self._derive_job(job)

    def _placed(self, message: job_pb2.JobPlaced) -> None:
        job = self._job(message)
        at = to_datetime(message.placed_at)
        job.placed_at = job.placed_at or at
        run = self._run(message)
        run.placed_at = at
        run.placement = [
            {**to_body(rank), "accelerator_milli": rank.accelerator_milli or 1000} for rank in message.ranks
        ]
        run.domains = sorted({rank.domain_id for rank in message.ranks} | set(run.domains))
        run.restore_from, run.restore_step = message.restore_from, message.restore_step
        run.policy_version, run.decision_id, run.reason = message.policy_version, message.decision_id, message.reason
        unit = self._unit(message)
        if message.epoch > unit.placed_epoch:
            unit.placed_epoch, unit.run_id, unit.reason = message.epoch, message.run_id, ""
            unit.placements += 1
            job.restarts += unit.placements > 1
            if job.state not in FINAL:
                job.reason = ""
        self._derive_run(run)

    def _preempted(self, message: job_pb2.JobPreempted) -> None:
        self._job(message)
        run = self._run(message)
        at = to_datetime(message.preempted_at)
        run.preempted_at = run.preempted_at or at
        run.ended_at = run.ended_at or at
        unit = self._unit(message)
        unit.reason = message.reason
        self._lose(unit, message.epoch)
        self._derive_run(run)

    def _finished(self, message: job_pb2.JobFinished) -> None:
        job = self._job(message)
        if job.state in FINAL:
            return
        outcome = enum_name(job_pb2.JobOutcome.DESCRIPTOR, message.outcome)
        known = outcome in FINAL
        # A later release may end jobs in other ways.
        job.state = JobState(outcome) if known else JobState.FAILED
        job.reason = message.reason or ("" if known else f"the outcome is not known here: {outcome}")
        job.restarts = max(job.restarts, message.restarts)
        # A job without an end would count as unfinished for ever.
        known_at = job.started_at or job.placed_at or job.queued_at or job.submitted_at
        job.finished_at = to_datetime(message.finished_at) or known_at
        if job.state == JobState.SUCCEEDED:
            job.progress = 1.0

    # -- what agents say -------------------------------------------------------------------------------------------

    def _run_started(self, message: run_pb2.RunStarted) -> None:
        run = self._run(message)
        at = to_datetime(message.at)
        run.started_at = run.started_at or at
        if message.domain_id not in run.domains:
            run.domains = sorted([*run.domains, message.domain_id])
        job = self._job(message)
        job.started_at = job.started_at or at
        self._derive_run(run)

    def _run_progress(self, message: run_pb2.RunProgress) -> None:
        run = self._run(message)
        if message.step < run.step:
            return
        run.step, run.total_steps = message.step, message.total_steps
        run.metrics = {**run.metrics, **to_body(message)["metrics"]}
        run.progress_at = to_datetime(message.at)
        self._derive_run(run)

    def _run_checkpointed(self, message: run_pb2.RunCheckpointed) -> None:
        run = self._run(message)
        body = to_body(message)
        checkpoint = {name: body[name] for name in ("step", "path", "size_bytes", "at")}
        if run.checkpoint is None or run.checkpoint["step"] <= checkpoint["step"]:
            run.checkpoint = checkpoint
        unit = self._unit(message)
        if unit.checkpoint is None or unit.checkpoint["step"] <= checkpoint["step"]:
            unit.checkpoint = checkpoint
        self._job(message)

    def _run_finished(self, message: run_pb2.RunFinished) -> None:
        run = self._run(message)
        if message.domain_id not in run.finished_domains:
            run.finished_domains = sorted([*run.finished_domains, message.domain_id])
        at = to_datetime(message.at)
        if run.ended_at is None or (at is not None and at > run.ended_at and run.failure is None):
            run.ended_at = at
        self._derive_run(run)

    def _run_failed(self, message: run_pb2.RunFailed) -> None:
        run = self._run(message)
        if run.failure is None or run.failure["kind"] == "stopped":
            body = to_body(message)
            names = ("kind", "reason", "rank", "node_id", "exit_code", "signal", "log_tail")
            run.failure = {name: body[name] for name in names}
            run.ended_at = to_datetime(message.at)
        self._derive_run(run)

    # -- records and what follows from them ------------------------------------------------------------------------

    def _run(self, message: Any) -> RunRecord:
        run = self.runs.get(message.run_id)
        if run is None:
            run = RunRecord(message.run_id, message.job_id, message.unit_index, message.epoch)
            self.runs[run.run_id] = run
        self.changed_runs.add(run.run_id)
        return run

    def _unit(self, message: Any) -> UnitRecord:
        key = (message.job_id, message.unit_index)
        unit = self.units.get(key)
        if unit is None:
            unit = self.units[key] = UnitRecord(*key)
        self.changed_units.add(key)
        return unit

    def _lose(self, unit: UnitRecord, epoch: int) -> None:
        unit.lost_epoch = max(unit.lost_epoch, epoch)
        if unit.placed_epoch <= unit.lost_epoch:
            self._set_unit(unit, UnitState.QUEUED)

    def _derive_run(self, run: RunRecord) -> None:
        run.state = _run_state(run)
        unit = self.units.get((run.job_id, run.unit_index))
        if unit is None or run.epoch != unit.placed_epoch or unit.placed_epoch <= unit.lost_epoch:
            return
        self._set_unit(unit, _UNIT_OF_RUN[run.state])
        if run.state == RunState.FAILED and run.failure is not None and not unit.reason:
            unit.reason = run.failure["reason"]
        job = self.jobs.get(run.job_id)
        if job is not None and job.units_total == 1 and run.total_steps > 0 and job.state not in FINAL:
            job.progress = min(1.0, run.step / run.total_steps)
            self.changed_jobs.add(job.job_id)

    def _set_unit(self, unit: UnitRecord, state: UnitState) -> None:
        job = self.jobs.get(unit.job_id)
        if job is None:
            job = self.jobs[unit.job_id] = JobRecord(unit.job_id)
        self.changed_jobs.add(job.job_id)
        self.changed_units.add((unit.job_id, unit.unit_index))
        job.units_active += (state in _HOLDS_NODES) - (unit.state in _HOLDS_NODES)
        job.units_succeeded += (state == UnitState.SUCCEEDED) - (unit.state == UnitState.SUCCEEDED)
        unit.state = state
        # A service is never done.
        if job.units_total > 1 and job.kind != "service" and job.state not in FINAL:
            job.progress = min(1.0, max(0, job.units_succeeded) / job.units_total)
        self._derive_job(job)

    def _derive_job(self, job: JobRecord) -> None:
        if job.state in FINAL:
            return
        if job.units_active or job.units_succeeded:
            job.state = JobState.RUNNING
        else:
            job.state = JobState.QUEUED if job.queued_at or job.placed_at else JobState.SUBMITTED


def _run_state(run: RunRecord) -> RunState:
    if run.preempted_at is not None:
        return RunState.PREEMPTED
    if run.failure is not None:
        return RunState.FAILED
    # The domains are known for certain once the placement is.
    if run.placement and set(run.finished_domains) >= {rank["domain_id"] for rank in run.placement}:
        return RunState.FINISHED
    return RunState.STARTED if run.started_at is not None else RunState.ASSIGNED


def unit_state_now(job_state: str, unit_state: str) -> str:
    """What a unit's state is in the light of its job's: in a finished job nothing is under way any more."""
    if job_state not in FINAL or unit_state in {UnitState.SUCCEEDED, UnitState.CANCELLED}:
        return unit_state
    if job_state == JobState.SUCCEEDED:
        return UnitState.SUCCEEDED
    return UnitState.FAILED if unit_state == UnitState.FAILED and job_state == JobState.FAILED else UnitState.CANCELLED


def thinned(last_at: datetime | None, at: datetime | None, interval_s: float) -> bool:
    """Whether an event at ``at`` comes too soon after the one at ``last_at`` to be worth streaming."""
    return last_at is not None and at is not None and 0 <= (at - last_at).total_seconds() < interval_s
