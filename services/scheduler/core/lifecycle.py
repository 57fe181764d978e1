"""The life of jobs: what each event does to the book. Every function writes to a draft and is pure otherwise.
What decisions do stands in binding.py and nominations.py; the rules hold there too.

Rules that hold whatever comes, in any order, twice or late:
1. A unit has at most one active run; a new one is placed only when the former has ended everywhere (or its time to
   confirm is over, or its domain is out of contact past its lease). Its epoch is greater than all before.
2. An event about a run that is not open changes nothing; about one that is stopping, it only gives capacity back. But a
   run that was preempted or taken for lost and finished before the order to stop came has finished: its unit is not run
   again.
3. A unit that is preempted waits again with its age and its newest checkpoint, also one that is written while it is told to
   stop. That counts neither as a failure nor as a recovery. Who gets its nodes is nominated: they are kept for it, and it
   starts there when the former runs have ended; when they do not end in time, it waits again.
4. A job ends once: when all units succeeded, when one failed for good, or when it is cancelled. Before `Finished`,
   every open run was told to stop and has confirmed, or its time to confirm is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.scheduler.core.book import Deadline, Draft
from services.scheduler.core.effects import Queued
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Fleet, Mark, MarkKind
from services.scheduler.core.nominations import drop_nomination, is_open
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.state import (
    FINAL_JOB_STATES,
    FINAL_UNIT_STATES,
    Checkpoint,
    Demand,
    FailureKind,
    Job,
    JobKind,
    JobSpec,
    JobState,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitState,
    run_id_of,
)
from services.scheduler.core.transitions import (
    close_run,
    end_job,
    fail_unit,
    finish_job,
    in_book,
    lose_run,
    put_run,
    queue_lost,
    release_dependents,
    restart_unit,
    stop_run,
)
from services.scheduler.core.units import units_of

LOST = frozenset({FailureKind.NODE_LOST, FailureKind.AGENT_RESTARTED, FailureKind.LEASE_EXPIRED})
"""Failover plans the recovery of runs that failed so."""

FENCED = frozenset({FailureKind.STOPPED, FailureKind.REFUSED})
"""Nobody plans a recovery of these: the scheduler queues the unit again by itself."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What an agent says about its part of a run."""

    run_id: str
    domain_id: str


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run ended without success."""

    kind: FailureKind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Failover's order to place a lost run again."""

    key: UnitKey
    epoch: int
    checkpoint: Checkpoint | None = None
    excluded_nodes: frozenset[str] = frozenset()
    reason: str = ""


# -- jobs ----------------------------------------------------------------------------------------------------------------


def submit(draft: Draft, job_id: str, tenant_id: str, spec: JobSpec, now_s: float, *, traceparent: str = "") -> None:
    """Take a job into the queue, or finish it as failed when it is malformed. A job already in the book stays as it is."""
    if draft.job(job_id) is not None:
        return
    try:
        units = units_of(spec)
    except MalformedJobError as error:
        refuse(draft, job_id, tenant_id, error.detail, now_s, traceparent=traceparent)
        return
    job = Job(job_id, tenant_id, spec, units, now_s, traceparent=traceparent)
    draft.jobs[job_id] = job
    for unit in units:
        key = UnitKey(job_id, unit.index)
        parked = spec.scaling is not None and unit.index >= spec.replicas
        state = UnitState.BLOCKED if unit.depends_on or parked else UnitState.QUEUED
        reason = "so many replicas are not asked for yet" if parked else ""
        draft.units[key] = Unit(key, state, queued_at_s=now_s, reason=reason)
    draft.effects.append(Queued(job, "accepted"))


def refuse(draft: Draft, job_id: str, tenant_id: str, reason: str, now_s: float, *, traceparent: str = "") -> None:
    """Finish a job as failed that no network could ever run."""
    if draft.job(job_id) is None:
        job = Job(job_id, tenant_id, JobSpec(JobKind.TASK, Demand(1)), (), now_s, traceparent=traceparent)
        finish_job(draft, replace(job, outcome=JobState.FAILED, reason=reason), now_s)


def cancel(draft: Draft, job_id: str, reason: str, now_s: float, rules: RestartRules) -> None:
    """End a job by its tenant's wish. Unknown and finished jobs change nothing."""
    job = draft.job(job_id)
    if job is None or job.state in FINAL_JOB_STATES or job.state is JobState.ENDING:
        return
    end_job(draft, job, JobState.CANCELLED, reason or "cancelled by the tenant", now_s, rules)


# -- runs ----------------------------------------------------------------------------------------------------------------


def started(draft: Draft, report: RunReport, now_s: float) -> None:
    """The ranks of a domain are running."""
    run = draft.run(report.run_id)
    if run is None or run.state is not RunState.ACTIVE or run.started_at_s:
        return
    put_run(draft, replace(run, started_at_s=now_s))


def checkpointed(draft: Draft, report: RunReport, checkpoint: Checkpoint, at_s: float = 0.0) -> None:
    """The unit can resume from a newer checkpoint, written at ``at_s`` (0: unknown). One that is preempted may still write."""
    run = draft.run(report.run_id)
    if run is None or not (run.state is RunState.ACTIVE or (run.state is RunState.STOPPING and run.preempted_for)):
        return
    _, unit = in_book(draft, run.key)
    if unit.state in FINAL_UNIT_STATES or unit.epoch != run.epoch:
        return
    if unit.checkpoint is None or checkpoint.step >= unit.checkpoint.step:
        begun_s = run.started_at_s or run.assigned_at_s
        kept_s = max(at_s - begun_s, unit.kept_s) if at_s > 0 else unit.kept_s
        draft.units[unit.key] = replace(unit, checkpoint=checkpoint, kept_s=kept_s)


def finished(draft: Draft, report: RunReport, now_s: float, rules: RestartRules) -> None:
    """A domain's part of the run ended well; the run is finished when every domain said so."""
    run = draft.run(report.run_id)
    if run is None or report.domain_id not in run.open_domains:
        return
    open_domains = run.open_domains - {report.domain_id}
    if open_domains or (run.state is RunState.STOPPING and not _ended_before_its_stop(draft, run)):
        close_run(draft, run, {report.domain_id}, now_s)
        return
    job, unit = in_book(draft, run.key)
    job = put_run(draft, replace(run, state=RunState.ENDED, open_domains=frozenset(), ended_at_s=now_s))
    if job.spec.kind is JobKind.SERVICE:
        restart_unit(draft, unit, run, "the replica ended and is started again", now_s, rules)
        return
    draft.units[unit.key] = replace(
        unit, state=UnitState.SUCCEEDED, recovery_due_s=0.0, not_before_s=0.0, reason="finished", nomination=None
    )
    job = replace(job, succeeded_units=job.succeeded_units + 1)
    draft.jobs[job.job_id] = job
    if job.succeeded_units == len(job.units):
        end_job(draft, job, JobState.SUCCEEDED, "every unit finished", now_s, rules)
    elif job.spec.kind is JobKind.WORKFLOW:
        release_dependents(draft, job, now_s)


def _ended_before_its_stop(draft: Draft, run: Run) -> bool:
    """Whether a run that was taken off has done its work all the same: its program ended well before the order to stop came.

    Of a run in several domains it is not known whether the others stopped or finished: it is made again. So is one on
    what was revoked.
    """
    job, unit = draft.job(run.key.job_id), draft.unit(run.key)
    if job is None or unit is None or len(run.domains) > 1:
        return False
    if any(_touches(draft.fleet, run, mark) for mark in draft.fleet.marks.values()):
        return False
    going_on = job.state in {JobState.QUEUED, JobState.RUNNING}
    return going_on and unit.state is UnitState.QUEUED and unit.epoch == run.epoch


def failed(draft: Draft, report: RunReport, failure: Failure, now_s: float, rules: RestartRules) -> None:
    """A domain's part of the run ended without success; the other domains are stopped and the unit goes on by its rules."""
    run = draft.run(report.run_id)
    if run is None or report.domain_id not in run.open_domains:
        return
    was_active = run.state is RunState.ACTIVE
    run = close_run(draft, run, {report.domain_id}, now_s)
    if not was_active:
        return
    job, unit = in_book(draft, run.key)
    reason = failure.reason or f"the run failed: {failure.kind}"
    if failure.kind in LOST:
        lose_run(draft, run, reason, now_s, rules)
        _, unit = in_book(draft, run.key)
        due_s = now_s + rules.recovery_fallback_s
        draft.units[unit.key] = replace(unit, state=UnitState.RECOVERING, recovery_due_s=due_s, reason=reason)
    elif failure.kind in FENCED:
        lose_run(draft, run, reason, now_s, rules)
        wait_s = rules.backoff(unit.recoveries + 1) if failure.kind is FailureKind.REFUSED else 0.0
        queue_lost(draft, unit.key, reason, now_s, rules, wait_s=wait_s)
    elif job.spec.kind is JobKind.SERVICE:
        stop_run(draft, run, "another part of the run failed", now_s, rules)
        restart_unit(draft, unit, run, reason, now_s, rules)
    elif failure.kind is FailureKind.TIME_LIMIT or unit.failures >= job.spec.max_restarts:
        stop_run(draft, run, "another part of the run failed", now_s, rules)
        fail_unit(draft, unit.key, reason, now_s, rules)
    else:
        stop_run(draft, run, "another part of the run failed", now_s, rules)
        restart_unit(draft, unit, run, reason, now_s, rules)


# -- losses --------------------------------------------------------------------------------------------------------------


def recover(draft: Draft, plan: RecoveryPlan, now_s: float, rules: RestartRules) -> None:
    """Queue a lost run's unit again. A plan for an older epoch, or one that was carried out, changes nothing."""
    unit = draft.unit(plan.key)
    if unit is None or unit.epoch != plan.epoch or unit.state not in {UnitState.RUNNING, UnitState.RECOVERING}:
        return
    reason = plan.reason or "the run was lost"
    run = draft.run(run_id_of(plan.key, plan.epoch))
    if run is not None and run.state is not RunState.ENDED:
        gone = _gone_domains(draft.fleet, run)
        if run.state is RunState.ACTIVE:
            lose_run(draft, run, reason, now_s, rules, gone=gone)
        else:
            close_run(draft, run, gone, now_s)
    checkpoint = unit.checkpoint
    if plan.checkpoint is not None and (checkpoint is None or plan.checkpoint.step > checkpoint.step):
        checkpoint = plan.checkpoint
    _, unit = in_book(draft, plan.key)
    draft.units[plan.key] = replace(
        unit,
        checkpoint=checkpoint,
        excluded_nodes=plan.excluded_nodes,
        excluded_until_s=now_s + rules.exclusion_s if plan.excluded_nodes else 0.0,
    )
    queue_lost(draft, plan.key, reason, now_s, rules)


def node_failed(draft: Draft, node_id: str, domain_id: str, now_s: float, rules: RestartRules) -> None:
    """Runs of the domain on the node are lost; if no plan for them comes in time, the scheduler makes its own. What another domain
    runs on it, which has it by now, is not."""
    for run in draft.open_runs_on(node_id):
        if run.state is not RunState.ACTIVE or not any(
            (rank.node_id, rank.domain_id) == (node_id, domain_id) and domain_id in run.open_domains
            for rank in run.ranks
        ):
            continue
        _, unit = in_book(draft, run.key)
        if not unit.recovery_due_s:
            draft.units[unit.key] = replace(unit, recovery_due_s=now_s + rules.recovery_fallback_s)


def node_recovered(draft: Draft, node_id: str) -> None:
    """Units that were to avoid the node need not any more."""
    for unit in draft.units_avoiding(node_id):
        draft.units[unit.key] = replace(unit, excluded_nodes=unit.excluded_nodes - {node_id})


def fence(draft: Draft, mark: Mark, now_s: float, rules: RestartRules) -> None:
    """Take runs off what was revoked, and queue their units again."""
    for run in draft.open_runs():
        if run.state is RunState.ACTIVE and _touches(draft.fleet, run, mark):
            reason = mark.reason or "an identity was revoked"
            lose_run(draft, run, reason, now_s, rules)
            queue_lost(draft, run.key, reason, now_s, rules)


def tick(draft: Draft, due: Iterable[Deadline], now_s: float, rules: RestartRules) -> None:
    """Carry out deadlines that have come; those that events overtook change nothing."""
    for _, kind, key in due:
        if kind == "stop" and isinstance(key, str):
            run = draft.run(key)
            if run is not None and run.state is RunState.STOPPING and run.stop_until_s <= now_s:
                close_run(draft, run, run.open_domains, now_s)
        elif kind == "recovery" and isinstance(key, UnitKey):
            unit = draft.unit(key)
            if unit is not None and unit.recovery_due_s and unit.recovery_due_s <= now_s:
                _recover_unplanned(draft, unit, now_s, rules)
        elif kind == "nomination" and isinstance(key, UnitKey):
            unit = draft.unit(key)
            kept = unit.nomination if unit is not None else None
            if unit is None or kept is None or kept.until_s > now_s:
                continue
            asleep = frozenset(rank.node_id for rank in kept.ranks if draft.fleet.sleeps(rank.node_id))
            if asleep:
                # Another node is tried; this one again later.
                until_s = now_s + rules.exclusion_s
                before = unit.excluded_nodes if unit.excluded_until_s > now_s else frozenset()
                unit = replace(unit, excluded_nodes=before | asleep, excluded_until_s=until_s)
                drop_nomination(draft, unit, f"{', '.join(sorted(asleep))} did not wake in time")
            elif draft.runs_of(key) or any(is_open(draft, run_id) for run_id in kept.waits_for):
                drop_nomination(draft, unit)


def _recover_unplanned(draft: Draft, unit: Unit, now_s: float, rules: RestartRules) -> None:
    run = draft.run(run_id_of(unit.key, unit.epoch))
    ranks = run.ranks if run is not None else ()
    excluded = frozenset(rank.node_id for rank in ranks if draft.fleet.failed(rank.node_id))
    why = unit.reason if unit.state is UnitState.RECOVERING else "its node failed"
    plan = RecoveryPlan(unit.key, unit.epoch, None, excluded, f"{why}; no recovery plan came in time")
    recover(draft, plan, now_s, rules)


def _gone_domains(fleet: Fleet, run: Run) -> set[str]:
    """Domains in which nothing of a planned-to-recover run can be left: unreachable past the lease.

    A dead node is not enough: one that only fell silent may finish its program yet. Its agent, which is heard, fences it
    and says so; only then, or after ``stop_timeout_s``, does the unit run again.
    """
    return {domain_id for domain_id in run.open_domains if fleet.unreachable(domain_id)}


def _touches(fleet: Fleet, run: Run, mark: Mark) -> bool:
    for rank in run.ranks:
        if rank.domain_id not in run.open_domains:
            continue
        node = fleet.nodes.get(rank.node_id)
        if mark.kind is MarkKind.AGENT_REVOKED and rank.domain_id == mark.domain_id:
            return True
        if node is None:
            continue
        if mark.kind is MarkKind.NODE_REVOKED:
            known = mark.subject == node.compute_id if node.compute_id else mark.node_id == node.node_id
            if known:
                return True
        if mark.kind is MarkKind.DEVICE_REVOKED and any(
            device.compute_id == mark.subject and device.index in rank.devices for device in node.devices
        ):
            return True
    return False
