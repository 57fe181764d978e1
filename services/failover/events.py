"""What failover hears on the bus: heartbeats as a stream, jobs and runs with exactly one effect each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite, isnan

from google.protobuf.timestamp_pb2 import Timestamp

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, JobPreempted
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import RunCheckpointed, RunFailed, RunFinished, RunStarted
from meridian.ids import NewId
from meridian.outbox import Transaction
from services.failover.beliefs import Beat, Summary
from services.failover.declarations import publish_plans, report_lost_runs
from services.failover.metrics import FailoverMetrics
from services.failover.recovery import Cause, Checkpoint, LostRun, Unit
from services.failover.run_store import ENDED_BY_PROGRAM, Ending, Placement, RunStore, Written
from services.failover.store import Store

RUN_EVENTS = (JobPlaced, JobPreempted, JobFinished, RunStarted, RunCheckpointed, RunFinished, RunFailed)

# Failures that are failover's business; the others are the scheduler's (README.md).
_LOST_KINDS = {
    run_pb2.RUN_FAILURE_KIND_NODE_LOST: "the agent lost the node",
    run_pb2.RUN_FAILURE_KIND_AGENT_RESTARTED: "the agent was restarted",
    run_pb2.RUN_FAILURE_KIND_LEASE_EXPIRED: "the agent was out of contact and ended the run",
}


MAX_ID_CHARS = 200
# Longer ago says no more.
MAX_AGE_S = 365 * 86_400.0


def _is_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def _age_s(said_s: float) -> float:
    return MAX_AGE_S if isnan(said_s) else min(max(said_s, 0.0), MAX_AGE_S)


def summary_of(heartbeat: Heartbeat) -> Summary | None:
    """The detector's form of a heartbeat, without beats of nodes whose id is none (1 to 200 printable characters are); None
    when that of its domain is none. A node whose age is no number has not been heard. No sender may stop the watch over all
    the others."""
    if not _is_id(heartbeat.domain_id):
        return None
    return Summary(
        heartbeat.domain_id,
        heartbeat.agent_id,
        heartbeat.incarnation,
        heartbeat.sequence,
        heartbeat.sent_at.seconds + heartbeat.sent_at.nanos / 1e9,
        heartbeat.interval_s if isfinite(heartbeat.interval_s) else 0.0,
        heartbeat.lease_s if isfinite(heartbeat.lease_s) else 0.0,
        tuple(
            Beat(
                beat.node_id,
                beat.incarnation,
                _age_s(beat.age_s),
                running=beat.state == resource_pb2.NODE_PROCESS_STATE_RUNNING,
                exited=beat.state == resource_pb2.NODE_PROCESS_STATE_EXITED,
                run_ids=tuple(beat.run_ids),
            )
            for beat in heartbeat.nodes
            if _is_id(beat.node_id)
        ),
    )


@dataclass(slots=True)
class _Batch:
    """One batch of job and run events, sorted by what is to be done; the order of these steps is safe for any mixture."""

    placements: list[Placement] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    finished: list[tuple[str, str, datetime]] = field(default_factory=list)
    checkpoints: list[Written] = field(default_factory=list)
    started: list[tuple[Unit, int, datetime]] = field(default_factory=list)
    lost: list[tuple[LostRun, str, str]] = field(default_factory=list)
    finished_jobs: list[str] = field(default_factory=list)


class RunEvents:
    """Keeps what recovery needs to know about runs, and plans those that agents report as lost."""

    def __init__(self, clock: Clock, new_id: NewId, metrics: FailoverMetrics) -> None:
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Take a batch of `RUN_EVENTS`."""
        now = self._clock.now()
        batch = _sort(envelopes, now)
        store, runs = Store(transaction.connection), RunStore(transaction.connection)
        await runs.note_placements(batch.placements)
        await runs.note_checkpoints(batch.checkpoints)
        await runs.note_endings(batch.endings)
        await runs.note_finished(batch.finished)
        if batch.placements:
            await self._recover_misplaced(transaction, batch, now)
        if batch.lost:
            await report_lost_runs(transaction, batch.lost, now, self._new_id, self._metrics)
        if batch.finished_jobs:
            await runs.note_jobs_finished(batch.finished_jobs, now)
        resumed = await runs.note_resumed(batch.started)
        for row in resumed:
            await store.advance_incident(row.incident_id, row.resumed_at, "resumed", row.run_id)
            waited_s = max(0.0, (row.resumed_at - row.detected_at).total_seconds())
            transaction.on_commit(lambda waited_s=waited_s: self._metrics.resumed.observe(waited_s))  # type: ignore[misc]
        if resumed or batch.finished_jobs:
            await runs.close_run_incidents([row.incident_id for row in resumed], batch.finished_jobs, now)

    async def _recover_misplaced(self, transaction: Transaction, batch: _Batch, now: datetime) -> None:
        """Plan at once what was placed on a node or in a domain that is gone: the declaration came too late for it."""
        store = Store(transaction.connection)
        placed = {item.run_id: item for item in batch.placements}
        domain_ids = {domain_id for item in placed.values() for domain_id in item.nodes_by_domain}
        node_ids = {node for item in placed.values() for names in item.nodes_by_domain.values() for node in names}
        gone_domains, gone_nodes = await store.lock_places(domain_ids, node_ids)
        if not gone_domains and not gone_nodes:
            return
        ended = {ending.run_id for ending in batch.endings}
        for item in placed.values():
            if item.run_id in ended:
                continue
            for domain_id, names in item.nodes_by_domain.items():
                gone = [node for node in names if node in gone_nodes]
                incident_id = gone_nodes[gone[0]] if gone else gone_domains.get(domain_id)
                if incident_id is None:
                    continue
                await publish_plans(
                    transaction,
                    [
                        LostRun(
                            item.run_id, item.unit, item.epoch, domain_id, names, item.restore_from, item.restore_step
                        )
                    ],
                    incident_id=incident_id,
                    cause=Cause.NODE_FAILED if gone else Cause.DOMAIN_LOST,
                    reason=f"placed on {', '.join(gone) or domain_id}, which is gone",
                    at=now,
                    last_seen_at=None,
                    metrics=self._metrics,
                    unusable=gone or names,
                )


def _time(stamp: Timestamp, default: datetime) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else default


def _sort(envelopes: Sequence[Envelope], now: datetime) -> _Batch:
    batch = _Batch()
    for envelope in envelopes:
        message = envelope.data
        match message:
            case JobPlaced():
                batch.placements.append(_placement(message, now))
            case JobPreempted():
                at = _time(message.preempted_at, now)
                unit = Unit(message.job_id, message.unit_index)
                batch.endings.append(Ending(message.run_id, unit, message.epoch, at, "preempted"))
            case JobFinished():
                batch.finished_jobs.append(message.job_id)
            case RunStarted():
                unit = Unit(message.job_id, message.unit_index)
                batch.started.append((unit, message.epoch, _time(message.at, now)))
            case RunCheckpointed():
                unit = Unit(message.job_id, message.unit_index)
                checkpoint = Checkpoint(message.path, message.step)
                batch.checkpoints.append(Written(unit, message.run_id, checkpoint, _time(message.at, now)))
            case RunFinished():
                batch.finished.append((message.run_id, message.domain_id, _time(message.at, now)))
            case RunFailed():
                _take_failure(batch, message, now)
    return batch


def _placement(message: JobPlaced, now: datetime) -> Placement:
    nodes: dict[str, list[str]] = {}
    for rank in message.ranks:
        nodes.setdefault(rank.domain_id, []).append(rank.node_id)
    return Placement(
        message.run_id,
        Unit(message.job_id, message.unit_index),
        message.epoch,
        message.restore_from,
        message.restore_step,
        _time(message.placed_at, now),
        {domain_id: tuple(sorted(set(names))) for domain_id, names in nodes.items()},
    )


def _take_failure(batch: _Batch, message: RunFailed, now: datetime) -> None:
    unit = Unit(message.job_id, message.unit_index)
    # A newer agent may know kinds that this release does not.
    names = {number: name for name, number in run_pb2.RunFailureKind.items()}
    reason = names.get(message.kind, str(message.kind)).removeprefix("RUN_FAILURE_KIND_").lower()
    if message.kind == run_pb2.RUN_FAILURE_KIND_PROGRAM:
        reason = ENDED_BY_PROGRAM
    batch.endings.append(Ending(message.run_id, unit, message.epoch, _time(message.at, now), reason))
    if message.kind in _LOST_KINDS:
        why = _LOST_KINDS[message.kind] + (f": {message.reason}" if message.reason else "")
        batch.lost.append((LostRun(message.run_id, unit, message.epoch, message.domain_id), message.node_id, why))
