"""Follows training runs on the bus: each report of progress goes to the phases of its unit; a change is kept and published.

The state of each unit is read and written in the transaction of its reports, so a restart loses and repeats nothing. Units
whose programs report no loss cost a look at the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.forecast.v1 import forecast_pb2 as pb
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobSubmitted
from meridian.contracts.run.v1.run_pb2 import RunProgress
from meridian.outbox import Transaction
from services.forecast.metrics import ForecastMetrics
from services.forecast.phases.curve import Phase
from services.forecast.phases.declared import from_body, schedule_of, to_body
from services.forecast.phases.schedule import TrainingSchedule
from services.forecast.phases.store import PhaseStore, StoredChange, TrainingJob, UnitKey
from services.forecast.phases.tracking import LOSS_NAMES, Told, UnitPhases, report_of

PHASE_EVENTS = (JobSubmitted, RunProgress, JobFinished)
UNKNOWN = "unknown"
_KEEP = timedelta(days=30)

_CONTRACT = {
    None: pb.TRAINING_PHASE_UNKNOWN,
    Phase.WARM_UP: pb.TRAINING_PHASE_WARM_UP,
    Phase.FAST: pb.TRAINING_PHASE_FAST,
    Phase.STABLE: pb.TRAINING_PHASE_STABLE,
}


def name_of(phase: Phase | None) -> str:
    """The phase as the API writes it."""
    return UNKNOWN if phase is None else phase.name.lower()


class PhaseEvents:
    """Keeps the phase of every unit that reports a loss."""

    def __init__(self, clock: Clock, metrics: ForecastMetrics) -> None:
        self._clock = clock
        self._metrics = metrics

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Take a batch of `PHASE_EVENTS`."""
        now = self._clock.now()
        store = PhaseStore(transaction.connection)
        submitted = [item.data for item in envelopes if isinstance(item.data, JobSubmitted)]
        reports = [item.data for item in envelopes if isinstance(item.data, RunProgress) and _trains(item.data)]
        finished = any(isinstance(item.data, JobFinished) for item in envelopes)
        training = [message for message in submitted if message.spec.HasField("model")]
        about = {message.job_id for message in training} | {message.job_id for message in reports}
        jobs = await store.take_jobs(about, now)
        told = {
            message.job_id: TrainingJob(message.tenant_id, to_body(schedule_of(message.spec))) for message in training
        }
        jobs |= told
        await store.keep_jobs(told, now)
        if reports:
            await self._follow(transaction, store, reports, jobs)
            await store.touch((message.job_id for message in reports), now)
        if finished:
            await store.forget(now - _KEEP)

    async def _follow(
        self, transaction: Transaction, store: PhaseStore, reports: Sequence[RunProgress], jobs: dict[str, TrainingJob]
    ) -> None:
        schedules = {job_id: _schedule(jobs[job_id]) for job_id in {message.job_id for message in reports}}
        kept = await store.load_units(schedules)
        units: dict[UnitKey, UnitPhases] = {}
        changes: list[StoredChange] = []
        for message in reports:
            key = message.job_id, message.unit_index
            schedule = schedules[message.job_id]
            if key not in units:
                declared = schedule.for_detector()
                units[key] = UnitPhases.restored(kept[key], declared) if key in kept else UnitPhases(declared)
            unit = units[key]
            before = unit.told.phase
            at = message.at.ToDatetime(tzinfo=UTC) if message.at.seconds else self._clock.now()
            report = report_of(message.epoch, message.step, message.total_steps, at.timestamp(), message.metrics)
            change = unit.observe(report)
            if change is not None:
                changes.append(_stored(message, change, at))
                tenant = jobs[message.job_id].tenant_id
                transaction.publish(_event(message, tenant, change, before, unit, schedule))
                name = name_of(change.phase)
                transaction.on_commit(self._metrics.phases.labels(name).inc)
        await store.keep_units({key: unit.state() for key, unit in units.items()})
        await store.add_changes(changes)


def _trains(message: RunProgress) -> bool:
    return any(name in message.metrics for name in LOSS_NAMES)


def _schedule(job: TrainingJob) -> TrainingSchedule:
    return TrainingSchedule(0, 0, 0.0) if job.schedule is None else from_body(job.schedule)


def _stored(message: RunProgress, change: Told, at: datetime) -> StoredChange:
    return StoredChange(
        message.job_id, message.unit_index, message.epoch, change.step, name_of(change.phase), change.reason, at
    )


def _event(
    message: RunProgress, tenant_id: str, change: Told, before: Phase | None, unit: UnitPhases, plan: TrainingSchedule
) -> pb.TrainingPhaseChanged:
    event = pb.TrainingPhaseChanged(
        job_id=message.job_id,
        tenant_id=tenant_id,
        unit_index=message.unit_index,
        run_id=message.run_id,
        epoch=message.epoch,
        step=change.step,
        total_steps=unit.total_steps or 0,
        phase=_CONTRACT[change.phase],
        before=_CONTRACT[before],
        reason=change.reason,
        reports=unit.taken,
        demand=_demand(plan, change.step),
    )
    event.at.CopyFrom(message.at)
    return event


def _demand(plan: TrainingSchedule, step: int) -> pb.PhaseDemand | None:
    for stage in plan.stages():
        if stage.first_step <= step < stage.end_step:
            return pb.PhaseDemand(
                global_batch=stage.global_batch,
                flops_per_step=stage.global_batch * plan.flops_per_sample,
                busy_share=stage.busy_share,
                until_step=stage.end_step,
            )
    return None
