"""From events to the lifecycle. Every handler works on the draft of its batch; nothing here waits or reads a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from meridian.codec import Envelope
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.outbox import Transaction
from services.scheduler import store
from services.scheduler.core import fleet as facts
from services.scheduler.core import lifecycle
from services.scheduler.core.book import Draft
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Fleet, Mark, MarkKind
from services.scheduler.core.lifecycle import Failure, RunReport
from services.scheduler.core.outlooks import tenants_held_for, with_outlook
from services.scheduler.core.policy import RestartRules
from services.scheduler.core.sleeping import asleep_now
from services.scheduler.core.state import Checkpoint
from services.scheduler.live import LiveScheduler
from services.scheduler.wire import domain_from, failure_kind, node_from, node_state, plan_from, seconds, spec_from


@dataclass(slots=True)
class Batch:
    """What handlers of one batch share."""

    draft: Draft
    now_s: float
    rules: RestartRules
    known_jobs: set[str]
    traceparent: str = ""
    new_specs: dict[str, bytes] = field(default_factory=dict)


# -- jobs --------------------------------------------------------------------------------------------------------------


def submitted(batch: Batch, message: job_pb2.JobSubmitted) -> None:
    """Take a job that was not seen before."""
    job_id, tenant_id = message.job_id, message.tenant_id
    if job_id in batch.known_jobs or batch.draft.job(job_id) is not None:
        return
    batch.new_specs[job_id] = message.spec.SerializeToString()
    at_s = seconds(message.submitted_at, batch.now_s)
    try:
        spec = spec_from(message.spec)
    except MalformedJobError as error:
        lifecycle.refuse(batch.draft, job_id, tenant_id, error.detail, at_s, traceparent=batch.traceparent)
        return
    lifecycle.submit(batch.draft, job_id, tenant_id, spec, at_s, traceparent=batch.traceparent)


def cancel_requested(batch: Batch, message: job_pb2.JobCancelRequested) -> None:
    """End a job by wish."""
    lifecycle.cancel(batch.draft, message.job_id, message.reason, batch.now_s, batch.rules)


# -- runs --------------------------------------------------------------------------------------------------------------


def _reported_s(stamp: Timestamp, now_s: float) -> float:
    """When what an agent reports happened; not later than it was heard of, however far ahead the agent's clock is."""
    return min(seconds(stamp, now_s), now_s)


def run_started(batch: Batch, message: run_pb2.RunStarted) -> None:
    """The ranks of a domain run."""
    at_s = _reported_s(message.at, batch.now_s)
    lifecycle.started(batch.draft, RunReport(message.run_id, message.domain_id), at_s)


def run_checkpointed(batch: Batch, message: run_pb2.RunCheckpointed) -> None:
    """There is a newer point to resume from."""
    checkpoint = Checkpoint(message.path, message.step, message.domain_id, message.size_bytes)
    at_s = _reported_s(message.at, batch.now_s)
    lifecycle.checkpointed(batch.draft, RunReport(message.run_id, message.domain_id), checkpoint, at_s)


def run_finished(batch: Batch, message: run_pb2.RunFinished) -> None:
    """A domain's part ended well."""
    lifecycle.finished(batch.draft, RunReport(message.run_id, message.domain_id), batch.now_s, batch.rules)


def run_failed(batch: Batch, message: run_pb2.RunFailed) -> None:
    """A domain's part ended without success."""
    failure = Failure(failure_kind(message.kind), message.reason)
    lifecycle.failed(batch.draft, RunReport(message.run_id, message.domain_id), failure, batch.now_s, batch.rules)


# -- graph -------------------------------------------------------------------------------------------------------------


def graph_updated(batch: Batch, message: graph_pb2.GraphUpdated) -> None:
    """A domain's part of the graph changed."""
    fleet = batch.draft.fleet
    before = fleet.domains.get(message.domain_id)
    domain = None
    if message.HasField("domain"):
        inventory = message.domain
        if not inventory.domain_id:
            inventory.domain_id = message.domain_id
        domain = domain_from(inventory, message.links, before, full=message.full)
    fleet = facts.with_domain(
        fleet,
        domain,
        [node_from(node, message.domain_id) for node in message.nodes],
        full_of=message.domain_id if message.full else "",
        removed=message.removed_node_ids,
    )
    batch.draft.fleet = _rested(fleet)


def node_state_changed(batch: Batch, message: graph_pb2.NodeStateChanged) -> None:
    """A node changed its state in the graph."""
    state = node_state(message.state)
    batch.draft.fleet = _rested(facts.with_node_state(batch.draft.fleet, message.node_id, state, message.reason))


def _rested(fleet: Fleet) -> Fleet:
    """Nodes that were told to sleep, and do, are asleep like any other."""
    names = asleep_now(fleet)
    return facts.without_marks(fleet, [(MarkKind.NODE_RESTING, name) for name in names]) if names else fleet


# -- incidents ---------------------------------------------------------------------------------------------------------


def node_suspected(batch: Batch, message: failover_pb2.NodeSuspected) -> None:
    """The node takes no new work."""
    mark = Mark(MarkKind.NODE_SUSPECTED, message.node_id, message.reason, message.domain_id, message.node_id)
    batch.draft.fleet = facts.with_mark(batch.draft.fleet, mark)


def node_failed(batch: Batch, message: failover_pb2.NodeFailed) -> None:
    """The node is dead; plans for its runs follow."""
    mark = Mark(MarkKind.NODE_FAILED, message.node_id, message.reason, message.domain_id, message.node_id)
    fleet = facts.without_marks(batch.draft.fleet, [(MarkKind.NODE_SUSPECTED, message.node_id)])
    batch.draft.fleet = facts.with_mark(fleet, mark)
    lifecycle.node_failed(batch.draft, message.node_id, message.domain_id, batch.now_s, batch.rules)


def node_recovered(batch: Batch, message: failover_pb2.NodeRecovered | failover_pb2.NodeForgotten) -> None:
    """The node takes work again; one that left the network long ago would, should it come again: nothing is held against it."""
    keys = [(MarkKind.NODE_SUSPECTED, message.node_id), (MarkKind.NODE_FAILED, message.node_id)]
    batch.draft.fleet = facts.without_marks(batch.draft.fleet, keys)
    lifecycle.node_recovered(batch.draft, message.node_id)


def domain_unreachable(batch: Batch, message: failover_pb2.DomainUnreachable) -> None:
    """The domain takes no new work."""
    mark = Mark(MarkKind.DOMAIN_UNREACHABLE, message.domain_id, message.reason, message.domain_id)
    batch.draft.fleet = facts.with_mark(batch.draft.fleet, mark)


def domain_reachable(batch: Batch, message: failover_pb2.DomainReachable) -> None:
    """The domain takes work again."""
    key = (MarkKind.DOMAIN_UNREACHABLE, message.domain_id)
    batch.draft.fleet = facts.without_marks(batch.draft.fleet, [key])


def domain_forgotten(batch: Batch, message: failover_pb2.DomainForgotten) -> None:
    """The domain left the network; if it comes again, the graph tells of it as of a new one."""
    batch.draft.fleet = facts.without_domain(batch.draft.fleet, message.domain_id)


def recovery_planned(batch: Batch, message: failover_pb2.RecoveryPlanned) -> None:
    """A lost run's unit is queued again."""
    lifecycle.recover(batch.draft, plan_from(message), batch.now_s, batch.rules)


# -- identities --------------------------------------------------------------------------------------------------------

_REVOCABLE = {
    identity_pb2.IDENTITY_KIND_AGENT: MarkKind.AGENT_REVOKED,
    identity_pb2.IDENTITY_KIND_NODE: MarkKind.NODE_REVOKED,
    identity_pb2.IDENTITY_KIND_DEVICE: MarkKind.DEVICE_REVOKED,
}


def identity_revoked(batch: Batch, message: identity_pb2.IdentityRevoked) -> None:
    """Nothing is placed there any more, and what runs there is taken off."""
    kind = _REVOCABLE.get(message.kind)
    if kind is None:
        return
    reason = f"an identity was revoked: {message.reason}" if message.reason else "an identity was revoked"
    mark = Mark(kind, message.identity_id, reason, message.domain_id, message.node_id)
    batch.draft.fleet = facts.with_mark(batch.draft.fleet, mark)
    lifecycle.fence(batch.draft, mark, batch.now_s, batch.rules)


def identity_issued(batch: Batch, message: identity_pb2.IdentityIssued) -> None:
    """A revocation is over when the same identity, or a new one of the same agent's domain, is issued."""
    kind = _REVOCABLE.get(message.kind)
    if kind is None:
        return
    over = [
        key
        for key, mark in batch.draft.fleet.marks.items()
        if key == (kind, message.identity_id)
        or (kind is mark.kind is MarkKind.AGENT_REVOKED and mark.domain_id == message.domain_id)
    ]
    batch.draft.fleet = facts.without_marks(batch.draft.fleet, over)


# -- forecasts ---------------------------------------------------------------------------------------------------------


def demand_forecast(batch: Batch, message: forecast_pb2.DemandForecast) -> None:
    """The nearest expectation for a domain is kept for the score; of a tenant all that is forecast, where capacity is held for it.
    Points that are no finite numbers say nothing."""
    points = [point for point in message.points if math.isfinite(point.horizon_s) and math.isfinite(point.expected)]
    if not points:
        return
    if message.subject_kind == forecast_pb2.FORECAST_SUBJECT_KIND_TENANT:
        if message.subject_id in tenants_held_for(batch.draft.book.cluster.policy):
            bands = [
                (
                    point.horizon_s,
                    point.expected,
                    point.high if point.has_band and math.isfinite(point.high) else math.nan,
                )
                for point in points
            ]
            made_at_s = seconds(message.made_at, batch.now_s)
            batch.draft.fleet = with_outlook(batch.draft.fleet, message.subject_id, made_at_s, bands)
        return
    if message.subject_kind != forecast_pb2.FORECAST_SUBJECT_KIND_DOMAIN:
        return
    nearest = min(points, key=lambda point: point.horizon_s)
    batch.draft.fleet = facts.with_expected_demand(batch.draft.fleet, message.subject_id, nearest.expected)


_Handler = Callable[[Batch, Any], None]
SUBSCRIPTIONS: dict[str, dict[type[Message], _Handler]] = {
    "requests": {
        job_pb2.JobSubmitted: submitted,
        job_pb2.JobCancelRequested: cancel_requested,
    },
    "runs": {
        run_pb2.RunStarted: run_started,
        run_pb2.RunCheckpointed: run_checkpointed,
        run_pb2.RunFinished: run_finished,
        run_pb2.RunFailed: run_failed,
    },
    "graph": {
        graph_pb2.GraphUpdated: graph_updated,
        graph_pb2.NodeStateChanged: node_state_changed,
    },
    "incidents": {
        failover_pb2.NodeSuspected: node_suspected,
        failover_pb2.NodeFailed: node_failed,
        failover_pb2.NodeRecovered: node_recovered,
        failover_pb2.NodeForgotten: node_recovered,
        failover_pb2.DomainUnreachable: domain_unreachable,
        failover_pb2.DomainReachable: domain_reachable,
        failover_pb2.DomainForgotten: domain_forgotten,
        failover_pb2.RecoveryPlanned: recovery_planned,
    },
    "identities": {
        identity_pb2.IdentityRevoked: identity_revoked,
        identity_pb2.IdentityIssued: identity_issued,
    },
    "forecasts": {forecast_pb2.DemandForecast: demand_forecast},
}


HANDLERS: dict[str, _Handler] = {
    kind.DESCRIPTOR.full_name: handler for handlers in SUBSCRIPTIONS.values() for kind, handler in handlers.items()
}


def event_name(envelope: Envelope) -> str:
    """An event's name in the journal: source and id together are unique (CloudEvents 1.0, section 3.1)."""
    return f"{envelope.source}|{envelope.id}"


def apply(batch: Batch, envelopes: Sequence[Envelope]) -> None:
    """Apply events in order to the draft of a batch; the live service and replay do the same."""
    batch.draft.at_s = batch.now_s
    for envelope in envelopes:
        batch.traceparent = envelope.traceparent
        HANDLERS[envelope.type.name](batch, envelope.data)


class Events:
    """Handles batches of events for a live scheduler."""

    def __init__(self, live: LiveScheduler) -> None:
        self._live = live

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Apply a batch in order and write its changes in its transaction."""
        draft = await self._live.draft(transaction)
        new = {item.data.job_id for item in envelopes if isinstance(item.data, job_pb2.JobSubmitted)}
        known = await store.known_jobs(transaction.connection, new - self._live.book.jobs.keys())
        batch = Batch(draft, self._live.now_s(), self._live.policy.restarts, known)
        apply(batch, envelopes)
        await self._live.write(transaction, draft, batch.new_specs)
        if draft.changed:
            ids = [event_name(envelope) for envelope in envelopes]
            transaction.on_commit(lambda: self._live.journal.events(batch.now_s, ids, known))
