"""Bus handlers: each batch of events changes the read model and extends the event stream in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from meridian.bus import Bus
from meridian.codec import Envelope
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.forecast.v1 import forecast_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.outbox import Transaction
from services.gateway.lifecycle import JOB_EVENTS, Fold, thinned, touched
from services.gateway.network import GRAPH_EVENTS, INCIDENT_EVENTS, graph_changes, incident_changes
from services.gateway.store import folding, network, revocations, stream
from services.gateway.store.revocations import Revocation
from services.gateway.store.stream import NewEvent
from services.gateway.wire import time_text, to_body, to_datetime, to_text

PROGRESS_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Signals:
    """Told after a commit, so that this process sees its own writes at once."""

    events_written: Callable[[], None]
    network_changed: Callable[[], None]
    revoked: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of all subscriptions."""

    signals: Signals

    def subscribe(self, bus: Bus) -> None:
        """One consumer group per subject, so that a burst of jobs does not hold up the network's view."""
        bus.subscribe_batch("jobs", JOB_EVENTS, self.on_jobs)
        bus.subscribe_batch("graph", GRAPH_EVENTS, self.on_graph)
        bus.subscribe_batch("incidents", INCIDENT_EVENTS, self.on_incidents)
        forecasts = (
            forecast_pb2.DemandForecast,
            forecast_pb2.JobRequirementEstimated,
            forecast_pb2.TrainingPhaseChanged,
        )
        bus.subscribe_batch("forecasts", forecasts, self.on_forecasts)
        bus.subscribe_batch("identity", (identity_pb2.IdentityRevoked,), self.on_identity)

    async def on_jobs(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Fold job and run events into jobs, units and runs."""
        messages: list[Any] = [envelope.data for envelope in envelopes]
        fold = await folding.load(transaction.connection, touched(messages))
        streamed = []
        for envelope, message in zip(envelopes, messages, strict=True):
            fold.apply(message)
            if not (isinstance(message, run_pb2.RunProgress) and _too_soon(fold, message)):
                streamed.append(envelope)
        await folding.save(transaction.connection, fold)
        tenants = {job_id: job.tenant_id for job_id, job in fold.jobs.items()}
        await self._stream(transaction, streamed, tenants)

    async def on_graph(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Replace what changed of domains, nodes and links."""
        await network.save_graph(transaction.connection, graph_changes(envelope.data for envelope in envelopes))
        transaction.on_commit(self.signals.network_changed)
        await self._stream(transaction, envelopes, {})

    async def on_incidents(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Open, change and close incidents; a domain that left the network goes."""
        messages: list[Any] = [envelope.data for envelope in envelopes]
        known = await network.load_incidents(transaction.connection, {message.incident_id for message in messages})
        await network.save_incidents(transaction.connection, incident_changes(messages, known))
        left = {message.domain_id for message in messages if isinstance(message, failover_pb2.DomainForgotten)}
        if left:
            await network.remove_domains(transaction.connection, left)
            transaction.on_commit(self.signals.network_changed)
        await self._stream(transaction, envelopes, await self._tenants(transaction, messages))

    async def on_forecasts(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Keep the newest forecast of each subject and requirement of each job; phases are only streamed."""
        # A job's forecast that does not say whose job it is could be shown to nobody.
        envelopes = [envelope for envelope in envelopes if not _is_of_job(envelope.data) or _tenant_of(envelope.data)]
        rows, requirements = [], []
        for envelope in envelopes:
            body = to_body(envelope.data)
            if isinstance(envelope.data, forecast_pb2.DemandForecast):
                made_at = to_datetime(envelope.data.made_at) or envelope.time
                kind, subject_id = body["subject_kind"], body["subject_id"]
                rows.append({"subject_kind": kind, "subject_id": subject_id, "made_at": made_at, "body": body})
            elif isinstance(envelope.data, forecast_pb2.JobRequirementEstimated):
                requirements.append(body)
        await network.save_forecasts(transaction.connection, rows)
        await network.save_requirements(transaction.connection, requirements)
        tenants = await self._tenants(transaction, [envelope.data for envelope in envelopes])
        await self._stream(transaction, envelopes, tenants)

    async def on_identity(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Keep the revocations of tenants and tokens; those of nodes are the graph's business."""
        found = []
        for envelope in envelopes:
            message: Any = envelope.data
            if message.token_id or message.kind == identity_pb2.IDENTITY_KIND_TENANT:
                at = to_datetime(message.revoked_at) or envelope.time
                expires_at = to_datetime(message.token_expires_at) if message.token_id else None
                found.append(Revocation(message.identity_id, message.token_id, at, expires_at))
        await revocations.add(transaction.connection, found)
        transaction.on_commit(self.signals.revoked)

    async def _tenants(self, transaction: Transaction, messages: Iterable[Any]) -> dict[str, str]:
        named = {message.job_id for message in messages if "job_id" in message.DESCRIPTOR.fields_by_name}
        return await folding.tenants_of(transaction.connection, named)

    async def _stream(self, transaction: Transaction, envelopes: Sequence[Envelope], tenants: dict[str, str]) -> None:
        await stream.append(transaction.connection, [_event(envelope, tenants) for envelope in envelopes])
        transaction.on_commit(self.signals.events_written)


def _too_soon(fold: Fold, message: run_pb2.RunProgress) -> bool:
    run = fold.runs[message.run_id]
    at = to_datetime(message.at)
    if thinned(run.streamed_at, at, PROGRESS_INTERVAL_S):
        return True
    run.streamed_at = at
    return False


def _event(envelope: Envelope, tenants: dict[str, str]) -> NewEvent:
    message: Any = envelope.data
    names = message.DESCRIPTOR.fields_by_name
    job_id = message.job_id if "job_id" in names else ""
    tenant_id = tenants.get(job_id, "")
    if _is_of_tenant(message):
        tenant_id = message.subject_id
    elif _is_of_job(message):
        job_id, tenant_id = message.subject_id, message.tenant_id
    trace = envelope.traceparent.split("-")
    return NewEvent(
        type=message.DESCRIPTOR.name,
        time=envelope.time if envelope.time.tzinfo else envelope.time.replace(tzinfo=UTC),
        source=_clean(envelope.source),
        topic=envelope.type.topic.name,
        trace_id=trace[1] if len(trace) == 4 else "",
        event_id=_clean(envelope.id),
        job_id=_clean(job_id),
        tenant_id=_clean(tenant_id),
        domain_id=_clean(message.domain_id) if "domain_id" in names else "",
        data=to_text(_public(message)),
    )


def _is_of_tenant(message: Any) -> bool:
    is_forecast = isinstance(message, forecast_pb2.DemandForecast)
    return is_forecast and message.subject_kind == forecast_pb2.FORECAST_SUBJECT_KIND_TENANT


def _is_of_job(message: Any) -> bool:
    is_forecast = isinstance(message, forecast_pb2.DemandForecast)
    return is_forecast and message.subject_kind == forecast_pb2.FORECAST_SUBJECT_KIND_JOB


def _tenant_of(message: Any) -> str:
    return str(message.tenant_id)


def _public(message: Any) -> dict[str, Any]:
    """What of a message goes into the stream."""
    if isinstance(message, graph_pb2.GraphUpdated):
        updated_at = to_datetime(message.updated_at)
        # The whole image would go to every listener every few seconds; who wants it reads /v1/graph.
        return {
            "domain_id": message.domain_id,
            "version": message.version,
            "full": message.full,
            "nodes": len(message.nodes),
            "removed_node_ids": list(message.removed_node_ids),
            "updated_at": None if updated_at is None else time_text(updated_at),
        }
    body = to_body(message)
    if isinstance(message, failover_pb2.NodeFailed):
        # Runs of all tenants; each sees its own by RecoveryPlanned.
        del body["run_ids"]
    return body


def _clean(text: str) -> str:
    return text.replace("\x00", "\ufffd")
