"""Tenants and their clients: who may ask the network for work."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from meridian.clock import Clock
from meridian.errors import ConflictError, FieldError, NotFoundError
from meridian.outbox import Outbox, Transaction
from services.identity import access_store, announcements, store
from services.identity.credentials import SALT_BYTES, hash_secret, new_secret
from services.identity.records import EvidenceLevel, Identity, Kind, Status
from services.identity.spiffe import parse_spiffe_id

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
# Of domains and nodes: a segment of a SPIFFE path.
PlaceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
# PostgreSQL stores no NUL.
Text = Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]


async def found_tenant(transaction: Transaction, tenant_id: str, name: str, trust_domain: str, now: datetime) -> bool:
    """Make and announce a tenant; False when there is one of this id already."""
    connection = transaction.connection
    if not await access_store.add_tenant(connection, tenant_id, name, now):
        return False
    item = Identity(
        identity_id=tenant_id,
        kind=Kind.TENANT,
        domain_id="",
        spiffe_id=str(parse_spiffe_id(f"spiffe://{trust_domain}/cpn/tenant/{tenant_id}")),
        status=Status.ISSUED,
        reason="",
        evidence_level=EvidenceLevel.SELF_DECLARED,
        created_at=now,
        updated_at=now,
    )
    await store.save(connection, [item])
    await store.add_life_events(connection, [(tenant_id, "issued", name)], now)
    transaction.publish(announcements.issued(item, now))
    return True


@dataclass(frozen=True, slots=True)
class NewClient:
    """A client with its secret, which is shown this once."""

    client_id: str
    client_secret: str
    tenant_id: str
    scopes: tuple[str, ...]
    created_at: datetime


class Tenancy:
    """Changes of tenants, clients and join tokens."""

    def __init__(self, outbox: Outbox, clock: Clock, trust_domain: str) -> None:
        self._outbox = outbox
        self._clock = clock
        self._trust_domain = trust_domain
        self.join_token_salt = b""

    async def add_tenant(self, tenant_id: str, name: str) -> datetime:
        """Make a tenant; ConflictError when the id is taken. Ids are never used again."""
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            if not await found_tenant(transaction, tenant_id, name, self._trust_domain, now):
                detail = f"the tenant id {tenant_id!r} is taken"
                raise ConflictError(detail, errors=(FieldError("/tenant_id", detail),))
        return now

    async def add_client(self, client_id: str, tenant_id: str, scopes: tuple[str, ...]) -> NewClient:
        """Make a client of a standing tenant."""
        secret = new_secret()
        digest = await asyncio.to_thread(hash_secret, secret, secrets.token_bytes(SALT_BYTES))
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            tenant = await access_store.tenant(transaction.connection, tenant_id)
            if tenant is None or tenant["revoked_at"] is not None:
                raise NotFoundError(f"there is no tenant {tenant_id!r} that stands")
            if not await access_store.add_client(transaction.connection, client_id, tenant_id, digest, scopes, now):
                detail = f"the client id {client_id!r} is taken"
                raise ConflictError(detail, errors=(FieldError("/client_id", detail),))
        return NewClient(client_id, secret, tenant_id, scopes, now)

    async def add_join_token(self, join_token_id: str, domain_ids: tuple[str, ...], expires_at: datetime | None) -> str:
        """Make a join token and return it; it is not stored in readable form."""
        token = new_secret()
        token_hash = await asyncio.to_thread(hash_secret, token, self.join_token_salt)
        async with self._outbox.transaction() as transaction:
            await access_store.save_join_token(
                transaction.connection, token_hash, join_token_id, domain_ids, self._clock.now(), expires_at
            )
        return token
