"""Steps of the lives of jobs, units and runs that events (lifecycle.py) and decisions (binding.py) have in common.

Each writes to a draft and keeps the counters and states right that hang together.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from services.scheduler.core.book import Draft
from services.scheduler.core.effects import DecisionRecord, Finished, Preempted, Queued, Stop
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.state import (
    FINAL_UNIT_STATES,
    Job,
    JobKind,
    JobState,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitState,
)


def in_book(draft: Draft, key: UnitKey) -> tuple[Job, Unit]:
    """A unit that the book must have, with its job."""
    job, unit = draft.job(key.job_id), draft.unit(key)
    assert job is not None, f"{key} has no job"
    assert unit is not None, f"{key} is not in the book"
    return job, unit


def put_run(draft: Draft, run: Run) -> Job:
    """Write a run and keep its job's counters and state right."""
    before = draft.run(run.run_id)
    draft.put_run(run)
    if run.state is RunState.ENDED and before is not None and before.state is not RunState.ENDED:
        _serve(draft, run)
    job = draft.job(run.key.job_id)
    assert job is not None
    was = before.state if before is not None else RunState.ENDED
    active = (run.state is RunState.ACTIVE) - (was is RunState.ACTIVE)
    opened = (run.state is not RunState.ENDED) - (was is not RunState.ENDED)
    if not (active or opened):
        return job
    job = replace(job, active_runs=job.active_runs + active, open_runs=job.open_runs + opened)
    if job.state in {JobState.QUEUED, JobState.RUNNING}:
        job = replace(job, state=JobState.RUNNING if job.active_runs else JobState.QUEUED)
    draft.jobs[job.job_id] = job
    return job


def _serve(draft: Draft, run: Run) -> None:
    """Count the time for which a run held its nodes as service that its unit got."""
    unit = draft.unit(run.key)
    if unit is not None:
        held_s = max(run.ended_at_s - (run.started_at_s or run.assigned_at_s), 0.0)
        draft.units[run.key] = replace(unit, served_s=unit.served_s + held_s)


def _has_live_node(fleet: Fleet, run: Run, domain_id: str) -> bool:
    return any(rank.domain_id == domain_id and not fleet.failed(rank.node_id) for rank in run.ranks)


def close_run(draft: Draft, run: Run, domains: Collection[str], now_s: float) -> Run:
    """Nothing of the run is left in these domains. A job that only waited for it is finished."""
    left = run.open_domains.difference(domains)
    state = run.state if left else RunState.ENDED
    run = replace(run, open_domains=left, state=state, ended_at_s=0.0 if left else now_s)
    job = put_run(draft, run)
    if job.state is JobState.ENDING and not job.open_runs:
        finish_job(draft, job, now_s)
    return run


def stop_run(
    draft: Draft, run: Run, reason: str, now_s: float, rules: RestartRules, *, gone: Collection[str] = ()
) -> None:
    """Tell what is left of a run to end; it keeps its capacity until that is confirmed, except where it is gone."""
    if run.state is not RunState.ACTIVE:
        return
    job = draft.job(run.key.job_id)
    assert job is not None
    for domain_id in sorted(run.open_domains):
        # On dead nodes nothing is worth waiting for.
        grace_s = rules.stop_grace_s if _has_live_node(draft.fleet, run, domain_id) else 0.0
        draft.effects.append(Stop(job, run, domain_id, reason, grace_s))
    left = run.open_domains.difference(gone)
    stopping = replace(
        run,
        state=RunState.STOPPING if left else RunState.ENDED,
        open_domains=left,
        stop_until_s=now_s + rules.stop_timeout_s if left else 0.0,
        ended_at_s=0.0 if left else now_s,
        reason=reason,
    )
    put_run(draft, stopping)


def lose_run(
    draft: Draft, run: Run, reason: str, now_s: float, rules: RestartRules, *, gone: Collection[str] = ()
) -> None:
    """A run is lost to its unit: what is left of it is told to end, and why is noted."""
    job = draft.job(run.key.job_id)
    assert job is not None
    draft.effects.append(Preempted(job, run, reason))
    note(draft, run.key, f"{run.run_id}.lost", "lost", now_s, {"run_id": run.run_id, "reason": reason})
    stop_run(draft, run, reason, now_s, rules, gone=gone)


def queue_lost(
    draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules, *, wait_s: float = 0.0
) -> None:
    """Queue a unit again whose run was lost, after ``wait_s``; it fails when that happened too often."""
    _, unit = in_book(draft, key)
    if unit.recoveries >= rules.max_recoveries:
        fail_unit(draft, key, f"{reason}; given up after {unit.recoveries} recoveries", now_s, rules)
        return
    queue_again(draft, replace(unit, recoveries=unit.recoveries + 1), reason, now_s + wait_s if wait_s else 0.0)


def restart_unit(draft: Draft, unit: Unit, run: Run, reason: str, now_s: float, rules: RestartRules) -> None:
    """Queue a unit whose program ended, after a back-off that a long steady run resets (services only)."""
    job, unit = in_book(draft, unit.key)
    begun_s = run.started_at_s or run.assigned_at_s
    steady = job.spec.kind is JobKind.SERVICE and now_s - begun_s >= rules.steady_after_s
    failures = 1 if steady else unit.failures + 1
    limit = "" if job.spec.kind is JobKind.SERVICE else f" of {job.spec.max_restarts}"
    text = f"restart {failures}{limit}: {reason}"
    queue_again(draft, replace(unit, failures=failures), text, now_s + rules.backoff(failures))


def queue_again(draft: Draft, unit: Unit, reason: str, not_before_s: float) -> None:
    """The unit waits again; it is not placed before ``not_before_s``."""
    job, _ = in_book(draft, unit.key)
    draft.units[unit.key] = replace(
        unit, state=UnitState.QUEUED, not_before_s=not_before_s, recovery_due_s=0.0, reason=reason
    )
    job = replace(job, restarts=job.restarts + 1)
    draft.jobs[job.job_id] = job
    draft.effects.append(Queued(job, reason, unit.key.unit_index))


def release_dependents(draft: Draft, job: Job, now_s: float) -> None:
    """Queue the units of a workflow for which all has finished that they depend on."""
    done = {unit.key.unit_index for unit in draft.units_of(job) if unit.state is UnitState.SUCCEEDED}
    for unit in list(draft.units_of(job)):
        if unit.state is UnitState.BLOCKED and done.issuperset(job.units[unit.key.unit_index].depends_on):
            draft.units[unit.key] = replace(unit, state=UnitState.QUEUED, queued_at_s=now_s)
            draft.effects.append(Queued(job, "what it depends on has finished", unit.key.unit_index))


def fail_unit(draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules) -> None:
    """A unit failed for good, and its job with it."""
    job, unit = in_book(draft, key)
    draft.units[key] = replace(unit, state=UnitState.FAILED, recovery_due_s=0.0, reason=reason)
    where = f"unit {key.unit_index}: " if len(job.units) > 1 else ""
    end_job(draft, job, JobState.FAILED, where + reason, now_s, rules)


def end_job(draft: Draft, job: Job, outcome: JobState, reason: str, now_s: float, rules: RestartRules) -> None:
    """The outcome is certain: nothing waits any more, what runs is told to stop, and the job finishes when it has."""
    draft.jobs[job.job_id] = replace(job, state=JobState.ENDING, outcome=outcome, reason=reason)
    for unit in list(draft.units_of(job)):
        for run in draft.runs_of(unit.key):
            stop_run(draft, run, reason, now_s, rules)
        if unit.state not in FINAL_UNIT_STATES:
            state = UnitState.CANCELLED
            draft.units[unit.key] = replace(
                unit, state=state, recovery_due_s=0.0, not_before_s=0.0, reason=reason, nomination=None
            )
    ending = draft.job(job.job_id)
    assert ending is not None
    if not ending.open_runs:
        finish_job(draft, ending, now_s)


def finish_job(draft: Draft, job: Job, now_s: float) -> None:
    """A job whose outcome is certain is over."""
    assert job.outcome is not None
    final = replace(job, state=job.outcome, finished_at_s=now_s)
    draft.jobs[job.job_id] = final
    draft.effects.append(Finished(final, job.outcome, job.reason))


def note(draft: Draft, key: UnitKey, decision_id: str, kind: str, now_s: float, body: dict[str, object]) -> None:
    """Record what was done to a unit among its decisions."""
    draft.record(DecisionRecord(decision_id, key, kind, now_s, "", body))
