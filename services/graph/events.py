"""Observations, identities and incidents in; the graph out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2
from meridian.outbox import Transaction
from services.graph import leaving, store
from services.graph.publication import Publication
from services.graph.update_plan import TrackedDomain

INPUTS: tuple[type[Message], ...] = (
    telemetry_pb2.ObservationRecorded,
    identity_pb2.IdentityIssued,
    identity_pb2.IdentityRevoked,
    failover_pb2.NodeSuspected,
    failover_pb2.NodeFailed,
    failover_pb2.NodeRecovered,
    failover_pb2.NodeForgotten,
    failover_pb2.DomainUnreachable,
    failover_pb2.DomainReachable,
    failover_pb2.DomainForgotten,
)
_PLACED = {identity_pb2.IDENTITY_KIND_NODE, identity_pb2.IDENTITY_KIND_DEVICE}


class GraphIntake:
    """Folds a batch of events into the facts of their domains, then publishes once per domain."""

    def __init__(self, clock: Clock, publication: Publication) -> None:
        self._clock = clock
        self._publication = publication

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Handle events in their order."""
        events: list[Any] = [envelope.data for envelope in envelopes if _is_about_a_place(envelope.data)]
        domain_ids = sorted({event.domain_id for event in events if event.domain_id})
        if not domain_ids:
            return
        connection = transaction.connection
        await store.lock_domains(connection, domain_ids)
        domains = await store.load(connection, domain_ids, self._publication.recent)
        touched: dict[str, str] = {}
        now_s = self._clock.now().timestamp()
        for event in events:
            domain = domains.get(event.domain_id)
            if domain is not None:
                self._fold(domain, event, touched, now_s)
        rows = [
            (domain_id, domains[domain_id].facts.certificates[identity_id])
            for identity_id, domain_id in touched.items()
        ]
        await store.save_certificates(connection, rows)
        newest = {event.domain_id: event for event in events}
        left = [name for name, event in newest.items() if isinstance(event, failover_pb2.DomainForgotten)]
        for domain_id in left:
            domains[domain_id].leave(now_s)
        await self._publication.publish(transaction, list(domains.values()), now_s)
        await leaving.remove(connection, left, self._publication.recent)

    @staticmethod
    def _fold(domain: TrackedDomain, event: Message, touched: dict[str, str], now_s: float) -> None:
        facts = domain.facts
        if isinstance(event, telemetry_pb2.ObservationRecorded):
            facts.observe(event, now_s)
            domain.observed = True
        elif isinstance(event, identity_pb2.IdentityIssued):
            facts.certify(event)
            touched[event.identity_id] = event.domain_id
        elif isinstance(event, identity_pb2.IdentityRevoked):
            facts.revoke(event)
            if event.identity_id in facts.certificates:
                touched[event.identity_id] = event.domain_id
        else:
            facts.suffer(event)  # type: ignore[arg-type]  # the rest of INPUTS are failover's


def _is_about_a_place(event: Any) -> bool:
    """Identities of agents and tenants do not stand in the graph."""
    if isinstance(event, identity_pb2.IdentityIssued | identity_pb2.IdentityRevoked):
        return event.kind in _PLACED
    return True
