"""Identities as the events that the other services read."""

from __future__ import annotations

from datetime import datetime

from meridian.contracts.identity.v1 import identity_pb2 as pb
from services.identity.records import Identity, Kind

_KINDS = {
    Kind.AGENT: pb.IDENTITY_KIND_AGENT,
    Kind.NODE: pb.IDENTITY_KIND_NODE,
    Kind.DEVICE: pb.IDENTITY_KIND_DEVICE,
    Kind.TENANT: pb.IDENTITY_KIND_TENANT,
}


def issued(item: Identity, at: datetime, *, serial: str = "", expires_at: datetime | None = None) -> pb.IdentityIssued:
    """An identity may be accepted from now on."""
    event = pb.IdentityIssued(
        identity_id=item.identity_id,
        kind=_KINDS[item.kind],
        spiffe_id=item.spiffe_id,
        domain_id=item.domain_id,
        node_id=item.node_id,
        accelerator_index=item.accelerator_index,
        serial=serial,
        evidence_level=item.evidence_level,
    )
    event.issued_at.FromDatetime(at)
    if expires_at is not None:
        event.expires_at.FromDatetime(expires_at)
    return event


def revoked(
    item: Identity,
    at: datetime,
    reason: str,
    *,
    serial: str = "",
    token_id: str = "",
    token_expires_at: datetime | None = None,
) -> pb.IdentityRevoked:
    """An identity must not be accepted any more; with ``token_id`` only that token of the tenant."""
    event = pb.IdentityRevoked(
        identity_id=item.identity_id,
        kind=_KINDS[item.kind],
        domain_id=item.domain_id,
        node_id=item.node_id,
        serial=serial,
        reason=reason,
        token_id=token_id,
    )
    event.revoked_at.FromDatetime(at)
    if token_expires_at is not None:
        event.token_expires_at.FromDatetime(token_expires_at)
    return event
