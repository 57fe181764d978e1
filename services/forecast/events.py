"""What forecast hears on the bus: demand, capacity, and models to estimate."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.forecast.v1.forecast_pb2 import JobRequirementEstimated
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobPlaced, JobPreempted, JobSubmitted
from meridian.contracts.resource.v1.resource_pb2 import NodeInventory
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import RunFailed, RunFinished, RunProgress
from meridian.errors import InvalidArgumentError
from meridian.hardware.parts import part_model
from meridian.outbox import Transaction
from services.forecast import ledger
from services.forecast.job_units import layout_of, model_of, units_of
from services.forecast.ledger import Job, Placement
from services.forecast.metrics import ForecastMetrics
from services.forecast.progress import Progress
from services.forecast.requirement import estimate
from services.forecast.store import Change, NodeCapacity, Store
from services.forecast.work_store import Arrived, Ended, WorkStore

log = logging.getLogger(__name__)

DEMAND_EVENTS = (JobSubmitted, JobPlaced, JobPreempted, JobFinished, RunFinished, RunFailed)

# Ends that say how long a run lasts; others say that it lasted at least so long.
_OWN_ENDS = frozenset(
    {run_pb2.RUN_FAILURE_KIND_PROGRAM, run_pb2.RUN_FAILURE_KIND_TIME_LIMIT, run_pb2.RUN_FAILURE_KIND_OUT_OF_MEMORY}
)


class DemandEvents:
    """Keeps the ledger of who holds and asks for how much."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Take a batch of `DEMAND_EVENTS`; each change counts from the time of its event."""
        now = self._clock.now()
        store = Store(transaction.connection)
        work = WorkStore(transaction.connection)
        before = await store.take_jobs([job_id_of(envelope.data) for envelope in envelopes])
        placed = [envelope.data for envelope in envelopes if isinstance(envelope.data, JobPlaced)]
        chips = await work.chips_of_nodes(rank.node_id for message in placed for rank in message.ranks)
        submitted = any(isinstance(envelope.data, JobSubmitted) for envelope in envelopes)
        models = await work.models() if submitted else frozenset()
        jobs = dict(before)
        changes: list[Change] = []
        arrived: list[Arrived] = []
        ended: list[Ended] = []
        specs: dict[str, bytes] = {}
        for envelope in envelopes:
            message = envelope.data
            job_id = job_id_of(message)
            job, at = apply(jobs[job_id], message, now, chips, models)
            at = min(at, now)
            amounts = ledger.changes(ledger.demand(jobs[job_id]), ledger.demand(job))
            changes += [Change(subject, at, amount) for subject, amount in amounts.items()]
            arrived += [
                Arrived(subject, job.tenant_id, amount.accelerators, at)
                for subject, amount in amounts.items()
                if amount.accelerators > 0
            ]
            runs = ledger.ended_runs(jobs[job_id], job, at.timestamp(), by_itself=_came_to_its_end(message))
            ended += [Ended(job.tenant_id, run.accelerators, run.lasted_s, run.by_itself, at) for run in runs]
            if isinstance(message, JobSubmitted):
                specs[job_id] = message.spec.SerializeToString()
            jobs[job_id] = job
        await store.keep_jobs([(before[job_id], job) for job_id, job in jobs.items()], now)
        await store.add_changes(changes)
        await work.keep_specs(specs)
        await work.add_ended(ended)
        await work.add_arrived(arrived)


def _came_to_its_end(message: Message) -> bool:
    match message:
        case JobPreempted():
            return False
        case RunFailed():
            return message.kind in _OWN_ENDS
        case _:
            return True


def job_id_of(message: Message) -> str:
    """The job that one of `DEMAND_EVENTS` is about."""
    assert isinstance(message, DEMAND_EVENTS)
    return message.job_id


def apply(
    job: Job, message: Message, now: datetime, chips: Mapping[str, str], models: Collection[str]
) -> tuple[Job, datetime]:
    """The job after an event, and when the event happened. ``chips``: models of accelerators by node; ``models``: all that the
    network has."""

    def at(stamp: Timestamp) -> datetime:
        return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else now

    match message:
        case JobSubmitted():
            return ledger.submit(job, message.tenant_id, units_of(message.spec, models)), at(message.submitted_at)
        case JobPlaced():
            placed_at = at(message.placed_at)
            given = placement_of(message, placed_at.timestamp(), chips)
            return ledger.place(job, message.tenant_id, message.unit_index, message.epoch, given), placed_at
        case JobPreempted():
            return ledger.end_badly(job, message.unit_index, message.epoch), at(message.preempted_at)
        case RunFailed():
            return ledger.end_badly(job, message.unit_index, message.epoch), at(message.at)
        case RunFinished():
            return ledger.end_well(job, message.unit_index, message.epoch, message.domain_id), at(message.at)
        case JobFinished():
            return ledger.finish(job), at(message.finished_at)
        case _:
            raise AssertionError(f"{type(message).__name__} is no event of demand")


def placement_of(message: JobPlaced, at_s: float, chips: Mapping[str, str]) -> Placement:
    """What a unit got, by domain: accelerators (parts of one as such), ranks, and how many are of each model of ``chips`` (by node)."""
    ranks: dict[str, int] = {}
    held: dict[str, float] = {}
    models: dict[str, dict[str, float]] = {}
    for rank in message.ranks:
        count = len(rank.accelerator_indices) * (rank.accelerator_milli or 1000) / 1000
        ranks[rank.domain_id] = ranks.get(rank.domain_id, 0) + 1
        held[rank.domain_id] = held.get(rank.domain_id, 0.0) + count
        if count and rank.node_id in chips:
            own = models.setdefault(rank.domain_id, {})
            own[chips[rank.node_id]] = own.get(chips[rank.node_id], 0.0) + count
    return Placement(held, ranks, models, at_s)


async def keep_progress(transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
    """Take a batch of RunProgress: how far each run is. A run over several domains is as far as its newest report."""
    reports = [envelope.data for envelope in envelopes]
    store = WorkStore(transaction.connection)
    found = await store.take_progress((message.job_id, message.unit_index) for message in _progress(reports))
    for message in _progress(reports):
        key = message.job_id, message.unit_index
        epoch, progress = found.get(key, (0, None))
        if message.epoch < epoch:
            continue
        at_s = message.at.ToDatetime(tzinfo=UTC).timestamp()
        step, total = float(message.step), float(message.total_steps)
        if progress is None or message.epoch > epoch:
            found[key] = message.epoch, Progress(at_s, step, total)
        else:
            found[key] = epoch, progress.reported(at_s, step, total)
    await store.keep_progress(found)


def _progress(messages: Sequence[Message]) -> list[RunProgress]:
    return [message for message in messages if isinstance(message, RunProgress)]


async def keep_capacity(transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
    """Take a batch of GraphUpdated: what the nodes of each domain offer."""
    nodes: list[NodeCapacity] = []
    removed: set[tuple[str, str]] = set()
    full: dict[str, int] = {}
    chips: dict[str, int] = {}
    for envelope in envelopes:
        message = envelope.data
        assert isinstance(message, GraphUpdated)
        nodes += [
            NodeCapacity(
                node.inventory.node_id,
                message.domain_id,
                len(models),
                node.inventory.cpus,
                message.version,
                models[0] if len(set(models)) == 1 else "",
            )
            for node in message.nodes
            for models in (models_offered(node.inventory),)
        ]
        for node in message.nodes:
            for chip in node.inventory.accelerators:
                if chip.model and chip.memory_bytes > 0:
                    chips[chip.model] = min(chip.memory_bytes, chips.get(chip.model, chip.memory_bytes))
        # Of one node in one batch the last word counts.
        removed -= {(message.domain_id, node.inventory.node_id) for node in message.nodes}
        removed |= {(message.domain_id, node_id) for node_id in message.removed_node_ids}
        if message.full:
            full[message.domain_id] = max(message.version, full.get(message.domain_id, 0))
    store = Store(transaction.connection)
    await store.keep_capacity(nodes, removed, full)
    await store.keep_chips(chips)


def models_offered(inventory: NodeInventory) -> list[str]:
    """The models of the devices that a node gives to work: its accelerators, or the parts that stand for them."""
    found: list[str] = []
    for item in inventory.accelerators:
        parts = [part_model(item.model, part.profile) for part in item.parts if part.index]
        found += parts if item.partitioned else [item.model]
    return found


class RequirementEvents:
    """Estimates what submitted training jobs need."""

    def __init__(self, clock: Clock, metrics: ForecastMetrics) -> None:
        self._clock = clock
        self._metrics = metrics

    async def handle(self, transaction: Transaction, message: JobSubmitted) -> None:
        """Publish the requirement of a job that describes its model."""
        model = model_of(message.spec)
        if not model.parameters and not model.has_shape:
            return
        try:
            found = estimate(model, layout_of(message.spec))
        except InvalidArgumentError as error:
            # The gateway took the job as it is; there is nobody here to tell.
            log.warning("a job's layout is impossible", extra={"job_id": message.job_id, "reason": error.detail})
            transaction.on_commit(self._metrics.requirements.labels("impossible").inc)
            return
        event = JobRequirementEstimated(
            job_id=message.job_id,
            tenant_id=message.tenant_id,
            parameters=found.parameters,
            flops_per_step=found.flops_per_step,
            total_flops=found.total_flops,
            memory_bytes_per_accelerator=found.memory_bytes_per_accelerator,
            memory_parts_bytes=found.memory_parts_bytes,
            formula=found.formula,
        )
        event.estimated_at.FromDatetime(self._clock.now())
        transaction.publish(event)
        transaction.on_commit(self._metrics.requirements.labels("estimated").inc)
