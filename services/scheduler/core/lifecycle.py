"""The life of jobs: what each event does to the book. Every function writes to a draft and is pure otherwise.

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

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from services.scheduler.core.book import Deadline, Draft
from services.scheduler.core.effects import DecisionRecord, Finished, Placed, Preempted, Queued, Start, Stop, Wake
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import DEFAULT_ADDRESS, Fleet, Mark, MarkKind
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
    Nomination,
    PlacedRank,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitState,
    run_id_of,
)
from services.scheduler.core.units import units_of

LOST = frozenset({FailureKind.NODE_LOST, FailureKind.AGENT_RESTARTED, FailureKind.LEASE_EXPIRED})
"""Failover plans the recovery of runs that failed so."""

FENCED = frozenset({FailureKind.STOPPED, FailureKind.REFUSED})
"""Nobody plans a recovery of these: the scheduler queues the unit again by itself."""

PORTS = range(20_000, 30_000)
"""What jobs get for rendezvous and services; the one-machine stack keeps its own ports out of it."""


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
        _finish(draft, replace(job, outcome=JobState.FAILED, reason=reason), now_s)


def cancel(draft: Draft, job_id: str, reason: str, now_s: float, rules: RestartRules) -> None:
    """End a job by its tenant's wish. Unknown and finished jobs change nothing."""
    job = draft.job(job_id)
    if job is None or job.state in FINAL_JOB_STATES or job.state is JobState.ENDING:
        return
    _end(draft, job, JobState.CANCELLED, reason or "cancelled by the tenant", now_s, rules)


# -- placing -------------------------------------------------------------------------------------------------------------


def place(
    draft: Draft,
    key: UnitKey,
    ranks: tuple[PlacedRank, ...],
    now_s: float,
    *,
    decision_id: str,
    policy_version: str,
    reason: str,
    port_range: range = PORTS,
) -> Run:
    """Give a queued unit its nodes: the next epoch begins. The unit must have no open run. Its ports come from ``port_range``."""
    job, unit = _known(draft, key)
    assert unit.state is UnitState.QUEUED, f"{key} is {unit.state}"
    assert not draft.runs_of(key), f"{key} has an open run"
    spec = job.units[key.unit_index]
    epoch = unit.epoch + 1
    run_id = run_id_of(key, epoch)
    address = address_of(draft.fleet, ranks[0].node_id)
    ports = draft.ports(address)
    service_port = spec.demand.service_port
    if service_port:
        ports.add(service_port)
    elif job.spec.kind is JobKind.SERVICE:
        service_port = _free_port(ports, run_id + "/service", port_range)
    run = Run(
        run_id=run_id,
        key=key,
        epoch=epoch,
        tenant_id=job.tenant_id,
        ranks=ranks,
        open_domains=frozenset(rank.domain_id for rank in ranks),
        cpus=spec.demand.cpus,
        memory_bytes=spec.demand.memory_bytes,
        assigned_at_s=now_s,
        master_addr=address,
        master_port=_free_port(ports, run_id, port_range),
        service_port=service_port,
        reason=reason,
        decision_id=decision_id,
    )
    draft.units[key] = replace(
        unit,
        state=UnitState.RUNNING,
        epoch=epoch,
        not_before_s=0.0,
        recovery_due_s=0.0,
        reason=reason,
        attained_s=unit.attained_s + unit.kept_s,
        kept_s=0.0,
        nomination=None,
    )
    job = _put_run(draft, run)
    draft.effects.append(Placed(job, run, unit.checkpoint, policy_version, reason))
    draft.effects.extend(Start(job, spec, run, domain_id, unit.checkpoint) for domain_id in run.domains)
    return run


def preempt(
    draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules, *, beneficiary: UnitKey | None = None
) -> Run | None:
    """Take a unit's run off for ``beneficiary`` (None: for a planner's plan). Returns the run as it was, None without one.

    The run is told to stop and keeps its nodes until it has; the unit is queued again with the time it was queued first.
    """
    run = next((item for item in draft.runs_of(key) if item.state is RunState.ACTIVE), None)
    if run is None:
        return None
    job, _ = _known(draft, key)
    draft.effects.append(Preempted(job, run, reason, beneficiary))
    whom = "plan" if beneficiary is None else str(beneficiary)
    body: dict[str, object] = {"run_id": run.run_id, "reason": reason, "beneficiary": whom}
    _note(draft, key, f"{run.run_id}.preempted", "preempted", now_s, body)
    _stop(draft, replace(run, preempted_for=whom), reason, now_s, rules)
    _, unit = _known(draft, key)
    _queue_again(draft, unit, reason, 0.0)
    return run


def park(draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules) -> None:
    """A replica is not wanted: its run is told to stop, and it waits for nothing but `unpark`."""
    job, _ = _known(draft, key)
    for run in draft.runs_of(key):
        if run.state is RunState.ACTIVE:
            draft.effects.append(Preempted(job, run, reason))
            _note(draft, key, f"{run.run_id}.parked", "parked", now_s, {"run_id": run.run_id, "reason": reason})
            _stop(draft, run, reason, now_s, rules)
    _, unit = _known(draft, key)
    draft.units[key] = replace(
        unit, state=UnitState.BLOCKED, not_before_s=0.0, recovery_due_s=0.0, reason=reason, nomination=None
    )


def unpark(draft: Draft, key: UnitKey, reason: str, now_s: float) -> None:
    """A replica is wanted (again): it is queued from now on."""
    job, unit = _known(draft, key)
    draft.units[key] = replace(unit, state=UnitState.QUEUED, queued_at_s=now_s, failures=0, reason=reason)
    draft.effects.append(Queued(job, reason, key.unit_index))


def nominate(draft: Draft, key: UnitKey, nomination: Nomination) -> None:
    """Keep nodes for a queued unit until the runs on them have ended."""
    _, unit = _known(draft, key)
    assert unit.state is UnitState.QUEUED, f"{key} is {unit.state}"
    draft.units[key] = replace(unit, nomination=nomination, reason=nomination.reason)


def wake(draft: Draft, key: UnitKey, nomination: Nomination) -> tuple[str, ...]:
    """Ask for the nodes of a nomination that sleep to be woken; returns them."""
    job, _ = _known(draft, key)
    asleep = {rank.node_id: rank.domain_id for rank in nomination.ranks if draft.fleet.sleeps(rank.node_id)}
    for domain_id in sorted(set(asleep.values())):
        nodes = tuple(sorted(node_id for node_id, place in asleep.items() if place == domain_id))
        draft.effects.append(Wake(job, key, domain_id, nodes, f"{key} waits for them"))
    return tuple(sorted(asleep))


def carry_out_nomination(
    draft: Draft, key: UnitKey, now_s: float, *, room: bool, port_range: range = PORTS
) -> Run | None:
    """Place a nominated unit when the runs it waits for have ended. Without ``room`` (a node went away) it waits like others."""
    _, unit = _known(draft, key)
    kept = unit.nomination
    if kept is None:
        return None
    if not kept_nodes_usable(draft.fleet, kept):
        _drop_nomination(draft, unit)
        return None
    if draft.runs_of(key) or any(_is_open(draft, run_id) for run_id in kept.waits_for):
        return None
    if any(draft.fleet.sleeps(rank.node_id) for rank in kept.ranks):
        return None
    if not room:
        _drop_nomination(draft, unit)
        return None
    return place(
        draft,
        key,
        kept.ranks,
        now_s,
        decision_id=kept.decision_id,
        policy_version=kept.policy_version,
        reason=kept.reason,
        port_range=port_range,
    )


def give_up_nomination(draft: Draft, key: UnitKey) -> None:
    """No nodes are kept for the unit any more."""
    _, unit = _known(draft, key)
    if unit.nomination is not None:
        _drop_nomination(draft, unit)


def kept_nodes_usable(fleet: Fleet, kept: Nomination) -> bool:
    """Whether all nodes of a nomination take work and have its devices."""
    for rank in kept.ranks:
        node = fleet.nodes.get(rank.node_id)
        if node is None or node.domain_id != rank.domain_id or fleet.why_down(node):
            return False
        usable = {device.index for device in node.devices if fleet.usable(device)}
        if not usable.issuperset(rank.devices):
            return False
    return True


def _is_open(draft: Draft, run_id: str) -> bool:
    run = draft.run(run_id)
    return run is not None and run.state is not RunState.ENDED


def _drop_nomination(
    draft: Draft, unit: Unit, reason: str = "the nodes that were kept for it did not become free"
) -> None:
    draft.units[unit.key] = replace(unit, nomination=None, reason=reason)


def address_of(fleet: Fleet, node_id: str) -> str:
    """The address on which the ranks of other nodes reach a node."""
    node = fleet.nodes.get(node_id)
    return (node.address if node is not None else "") or DEFAULT_ADDRESS


def _free_port(taken: set[int], seed: str, among: range) -> int:
    """A port that no open run has on the address; 0 when all are taken. Each attempt begins at another place."""
    start = zlib.crc32(seed.encode()) % len(among)
    for offset in range(len(among)):
        port = among[(start + offset) % len(among)]
        if port not in taken:
            taken.add(port)
            return port
    return 0


# -- runs ----------------------------------------------------------------------------------------------------------------


def started(draft: Draft, report: RunReport, now_s: float) -> None:
    """The ranks of a domain are running."""
    run = draft.run(report.run_id)
    if run is None or run.state is not RunState.ACTIVE or run.started_at_s:
        return
    _put_run(draft, replace(run, started_at_s=now_s))


def checkpointed(draft: Draft, report: RunReport, checkpoint: Checkpoint, at_s: float = 0.0) -> None:
    """The unit can resume from a newer checkpoint, written at ``at_s`` (0: unknown). One that is preempted may still write."""
    run = draft.run(report.run_id)
    if run is None or not (run.state is RunState.ACTIVE or (run.state is RunState.STOPPING and run.preempted_for)):
        return
    _, unit = _known(draft, run.key)
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
        _close(draft, run, {report.domain_id}, now_s)
        return
    job, unit = _known(draft, run.key)
    job = _put_run(draft, replace(run, state=RunState.ENDED, open_domains=frozenset(), ended_at_s=now_s))
    if job.spec.kind is JobKind.SERVICE:
        _restart(draft, unit, run, "the replica ended and is started again", now_s, rules)
        return
    draft.units[unit.key] = replace(
        unit, state=UnitState.SUCCEEDED, recovery_due_s=0.0, not_before_s=0.0, reason="finished", nomination=None
    )
    job = replace(job, succeeded_units=job.succeeded_units + 1)
    draft.jobs[job.job_id] = job
    if job.succeeded_units == len(job.units):
        _end(draft, job, JobState.SUCCEEDED, "every unit finished", now_s, rules)
    elif job.spec.kind is JobKind.WORKFLOW:
        _release_dependents(draft, job, now_s)


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
    run = _close(draft, run, {report.domain_id}, now_s)
    if not was_active:
        return
    job, unit = _known(draft, run.key)
    reason = failure.reason or f"the run failed: {failure.kind}"
    if failure.kind in LOST:
        _lose(draft, run, reason, now_s, rules)
        _, unit = _known(draft, run.key)
        due_s = now_s + rules.recovery_fallback_s
        draft.units[unit.key] = replace(unit, state=UnitState.RECOVERING, recovery_due_s=due_s, reason=reason)
    elif failure.kind in FENCED:
        _lose(draft, run, reason, now_s, rules)
        wait_s = rules.backoff(unit.recoveries + 1) if failure.kind is FailureKind.REFUSED else 0.0
        _queue_lost(draft, unit.key, reason, now_s, rules, wait_s=wait_s)
    elif job.spec.kind is JobKind.SERVICE:
        _stop(draft, run, "another part of the run failed", now_s, rules)
        _restart(draft, unit, run, reason, now_s, rules)
    elif failure.kind is FailureKind.TIME_LIMIT or unit.failures >= job.spec.max_restarts:
        _stop(draft, run, "another part of the run failed", now_s, rules)
        _fail_unit(draft, unit.key, reason, now_s, rules)
    else:
        _stop(draft, run, "another part of the run failed", now_s, rules)
        _restart(draft, unit, run, reason, now_s, rules)


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
            _lose(draft, run, reason, now_s, rules, gone=gone)
        else:
            _close(draft, run, gone, now_s)
    checkpoint = unit.checkpoint
    if plan.checkpoint is not None and (checkpoint is None or plan.checkpoint.step > checkpoint.step):
        checkpoint = plan.checkpoint
    _, unit = _known(draft, plan.key)
    draft.units[plan.key] = replace(
        unit,
        checkpoint=checkpoint,
        excluded_nodes=plan.excluded_nodes,
        excluded_until_s=now_s + rules.exclusion_s if plan.excluded_nodes else 0.0,
    )
    _queue_lost(draft, plan.key, reason, now_s, rules)


def node_failed(draft: Draft, node_id: str, now_s: float, rules: RestartRules) -> None:
    """Runs on the node are lost; if no plan for them comes in time, the scheduler makes its own."""
    for run in draft.open_runs():
        if run.state is not RunState.ACTIVE or not any(
            rank.node_id == node_id and rank.domain_id in run.open_domains for rank in run.ranks
        ):
            continue
        _, unit = _known(draft, run.key)
        if not unit.recovery_due_s:
            draft.units[unit.key] = replace(unit, recovery_due_s=now_s + rules.recovery_fallback_s)


def node_recovered(draft: Draft, node_id: str) -> None:
    """Units that were to avoid the node need not any more."""
    for key in draft.queued_keys():
        _, unit = _known(draft, key)
        if node_id in unit.excluded_nodes:
            draft.units[key] = replace(unit, excluded_nodes=unit.excluded_nodes - {node_id})


def fence(draft: Draft, mark: Mark, now_s: float, rules: RestartRules) -> None:
    """Take runs off what was revoked, and queue their units again."""
    for run in draft.open_runs():
        if run.state is RunState.ACTIVE and _touches(draft.fleet, run, mark):
            reason = mark.reason or "an identity was revoked"
            _lose(draft, run, reason, now_s, rules)
            _queue_lost(draft, run.key, reason, now_s, rules)


def tick(draft: Draft, due: Iterable[Deadline], now_s: float, rules: RestartRules) -> None:
    """Carry out deadlines that have come; those that events overtook change nothing."""
    for _, kind, key in due:
        if kind == "stop" and isinstance(key, str):
            run = draft.run(key)
            if run is not None and run.state is RunState.STOPPING and run.stop_until_s <= now_s:
                _close(draft, run, run.open_domains, now_s)
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
                _drop_nomination(draft, unit, f"{', '.join(sorted(asleep))} did not wake in time")
            elif draft.runs_of(key) or any(_is_open(draft, run_id) for run_id in kept.waits_for):
                _drop_nomination(draft, unit)


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


def _has_live_node(fleet: Fleet, run: Run, domain_id: str) -> bool:
    return any(rank.domain_id == domain_id and not fleet.failed(rank.node_id) for rank in run.ranks)


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


# -- steps ---------------------------------------------------------------------------------------------------------------


def _known(draft: Draft, key: UnitKey) -> tuple[Job, Unit]:
    job, unit = draft.job(key.job_id), draft.unit(key)
    assert job is not None, f"{key} has no job"
    assert unit is not None, f"{key} is not in the book"
    return job, unit


def _put_run(draft: Draft, run: Run) -> Job:
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


def _close(draft: Draft, run: Run, domains: Collection[str], now_s: float) -> Run:
    """Nothing of the run is left in these domains. A job that only waited for it is finished."""
    left = run.open_domains.difference(domains)
    state = run.state if left else RunState.ENDED
    run = replace(run, open_domains=left, state=state, ended_at_s=0.0 if left else now_s)
    job = _put_run(draft, run)
    if job.state is JobState.ENDING and not job.open_runs:
        _finish(draft, job, now_s)
    return run


def _stop(
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
    _put_run(draft, stopping)


def _lose(
    draft: Draft, run: Run, reason: str, now_s: float, rules: RestartRules, *, gone: Collection[str] = ()
) -> None:
    job = draft.job(run.key.job_id)
    assert job is not None
    draft.effects.append(Preempted(job, run, reason))
    _note(draft, run.key, f"{run.run_id}.lost", "lost", now_s, {"run_id": run.run_id, "reason": reason})
    _stop(draft, run, reason, now_s, rules, gone=gone)


def _queue_lost(
    draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules, *, wait_s: float = 0.0
) -> None:
    _, unit = _known(draft, key)
    if unit.recoveries >= rules.max_recoveries:
        _fail_unit(draft, key, f"{reason}; given up after {unit.recoveries} recoveries", now_s, rules)
        return
    _queue_again(draft, replace(unit, recoveries=unit.recoveries + 1), reason, now_s + wait_s if wait_s else 0.0)


def _restart(draft: Draft, unit: Unit, run: Run, reason: str, now_s: float, rules: RestartRules) -> None:
    """Queue a unit whose program ended, after a back-off that a long steady run resets (services only)."""
    job, unit = _known(draft, unit.key)
    begun_s = run.started_at_s or run.assigned_at_s
    steady = job.spec.kind is JobKind.SERVICE and now_s - begun_s >= rules.steady_after_s
    failures = 1 if steady else unit.failures + 1
    limit = "" if job.spec.kind is JobKind.SERVICE else f" of {job.spec.max_restarts}"
    text = f"restart {failures}{limit}: {reason}"
    _queue_again(draft, replace(unit, failures=failures), text, now_s + rules.backoff(failures))


def _queue_again(draft: Draft, unit: Unit, reason: str, not_before_s: float) -> None:
    job, _ = _known(draft, unit.key)
    draft.units[unit.key] = replace(
        unit, state=UnitState.QUEUED, not_before_s=not_before_s, recovery_due_s=0.0, reason=reason
    )
    job = replace(job, restarts=job.restarts + 1)
    draft.jobs[job.job_id] = job
    draft.effects.append(Queued(job, reason, unit.key.unit_index))


def _release_dependents(draft: Draft, job: Job, now_s: float) -> None:
    done = {unit.key.unit_index for unit in draft.units_of(job) if unit.state is UnitState.SUCCEEDED}
    for unit in list(draft.units_of(job)):
        if unit.state is UnitState.BLOCKED and done.issuperset(job.units[unit.key.unit_index].depends_on):
            draft.units[unit.key] = replace(unit, state=UnitState.QUEUED, queued_at_s=now_s)
            draft.effects.append(Queued(job, "what it depends on has finished", unit.key.unit_index))


def _fail_unit(draft: Draft, key: UnitKey, reason: str, now_s: float, rules: RestartRules) -> None:
    job, unit = _known(draft, key)
    draft.units[key] = replace(unit, state=UnitState.FAILED, recovery_due_s=0.0, reason=reason)
    where = f"unit {key.unit_index}: " if len(job.units) > 1 else ""
    _end(draft, job, JobState.FAILED, where + reason, now_s, rules)


def _end(draft: Draft, job: Job, outcome: JobState, reason: str, now_s: float, rules: RestartRules) -> None:
    """The outcome is certain: nothing waits any more, what runs is told to stop, and the job finishes when it has."""
    draft.jobs[job.job_id] = replace(job, state=JobState.ENDING, outcome=outcome, reason=reason)
    for unit in list(draft.units_of(job)):
        for run in draft.runs_of(unit.key):
            _stop(draft, run, reason, now_s, rules)
        if unit.state not in FINAL_UNIT_STATES:
            state = UnitState.CANCELLED
            draft.units[unit.key] = replace(
                unit, state=state, recovery_due_s=0.0, not_before_s=0.0, reason=reason, nomination=None
            )
    ending = draft.job(job.job_id)
    assert ending is not None
    if not ending.open_runs:
        _finish(draft, ending, now_s)


def _finish(draft: Draft, job: Job, now_s: float) -> None:
    assert job.outcome is not None
    final = replace(job, state=job.outcome, finished_at_s=now_s)
    draft.jobs[job.job_id] = final
    draft.effects.append(Finished(final, job.outcome, job.reason))


def _note(draft: Draft, key: UnitKey, decision_id: str, kind: str, now_s: float, body: dict[str, object]) -> None:
    draft.record(DecisionRecord(decision_id, key, kind, now_s, "", body))
