"""Revocation by an administrator, the retirement of agent keys, and the release of what stands in quarantine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from meridian.clock import Clock
from meridian.errors import ConflictError, FieldError, NotFoundError
from meridian.outbox import Outbox, Transaction
from services.identity import access_store, announcements, store
from services.identity.records import Identity, Kind, Status


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a revocation took with it."""

    revocation_id: str
    revoked_at: datetime
    identity_ids: tuple[str, ...] = ()
    token_ids: tuple[str, ...] = ()


def _tenant(tenant_id: str, now: datetime) -> Identity:
    return Identity(tenant_id, Kind.TENANT, "", "", Status.REVOKED, "", 0, now, now)


class Revocation:
    """Each call is one transaction: the state changes and the other services are told, or neither."""

    def __init__(self, outbox: Outbox, clock: Clock, new_revocation_id: Callable[[], str]) -> None:
        self._outbox = outbox
        self._clock = clock
        self._new_revocation_id = new_revocation_id

    async def revoke(self, subject_kind: str, subject_id: str, reason: str, revoked_by: str) -> Revoked:
        """Revoke ``subject_kind`` (compute_id, agent_id, tenant_id, client_id, token_id or join_token_id).

        An agent falls with its nodes and devices, a node with its devices, a client with its tokens. NotFoundError when
        there is no such subject, ConflictError when it was revoked or retired before.
        """
        now = self._clock.now()
        revocation_id = self._new_revocation_id()
        async with self._outbox.transaction() as transaction:
            await store.lock_registrations(transaction.connection)
            await store.add_revocation(
                transaction.connection, revocation_id, (subject_kind, subject_id), reason, revoked_by, now
            )
            identity_ids: tuple[str, ...] = ()
            token_ids: tuple[str, ...] = ()
            if subject_kind in {"compute_id", "agent_id"}:
                identity_ids = await self._revoke_identity(transaction, subject_kind, subject_id, reason, now)
            elif subject_kind == "tenant_id":
                identity_ids = await self._revoke_tenant(transaction, subject_id, reason, now)
            elif subject_kind == "join_token_id":
                if not await access_store.revoke_join_token(transaction.connection, subject_id, now):
                    raise NotFoundError(f"there is no join token {subject_id!r} that stands")
            else:
                token_ids = await self._revoke_tokens(transaction, subject_kind, subject_id, reason, now)
        return Revoked(revocation_id, now, identity_ids, token_ids)

    async def _revoke_identity(
        self, transaction: Transaction, subject_kind: str, subject_id: str, reason: str, now: datetime
    ) -> tuple[str, ...]:
        connection = transaction.connection
        item = await store.identity(connection, subject_id)
        wrong = item is None or item.kind is Kind.TENANT or (subject_kind == "agent_id" and item.kind is not Kind.AGENT)
        if item is None or wrong:
            raise NotFoundError(f"there is no {subject_kind} {subject_id!r}")
        if item.status in {Status.REVOKED, Status.RETIRED}:
            raise ConflictError(f"{subject_id} is {item.status} already: {item.reason}")
        reasons = {subject_id: reason}
        reasons |= dict.fromkeys(
            await store.dependents(connection, item), f"fell with {item.kind} {subject_id}: {reason}"
        )
        changed = await store.set_status(connection, reasons, Status.REVOKED, now)
        serials = await store.revoke_certificates(connection, list(reasons), now)
        await store.add_life_events(
            connection, [(entry.identity_id, "revoked", entry.reason) for entry in changed], now
        )
        for entry in changed:
            serial = serials.get(entry.identity_id, "")
            transaction.publish(announcements.revoked(entry, now, entry.reason, serial=serial))
        return tuple(sorted(entry.identity_id for entry in changed))

    @staticmethod
    async def _revoke_tenant(transaction: Transaction, tenant_id: str, reason: str, now: datetime) -> tuple[str, ...]:
        if not await access_store.revoke_tenant(transaction.connection, tenant_id, now):
            raise NotFoundError(f"there is no tenant {tenant_id!r} that stands")
        await store.set_status(transaction.connection, {tenant_id: reason}, Status.REVOKED, now)
        await store.add_life_events(transaction.connection, [(tenant_id, "revoked", reason)], now)
        transaction.publish(announcements.revoked(_tenant(tenant_id, now), now, reason))
        return (tenant_id,)

    @staticmethod
    async def _revoke_tokens(
        transaction: Transaction, subject_kind: str, subject_id: str, reason: str, now: datetime
    ) -> tuple[str, ...]:
        connection = transaction.connection
        if subject_kind == "token_id":
            token = await access_store.revoke_token(connection, subject_id, now)
            revoked = None if token is None else [token]
        else:
            revoked = await access_store.revoke_client(connection, subject_id, now)
        if revoked is None:
            raise NotFoundError(f"there is no {subject_kind} {subject_id!r} that stands")
        for item in revoked:
            event = announcements.revoked(
                _tenant(item.tenant_id, now), now, reason, token_id=item.token_id, token_expires_at=item.expires_at
            )
            transaction.publish(event)
        return tuple(item.token_id for item in revoked)

    async def retire_agent(self, agent_id: str, reason: str, retired_by: str) -> Identity:
        """End an agent key without suspicion: its nodes and devices keep their compute ids and pass to the next key.

        NotFoundError when there is no such agent, ConflictError when it is retired or revoked already.
        """
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            connection = transaction.connection
            await store.lock_registrations(connection)
            item = await store.identity(connection, agent_id)
            if item is None or item.kind is not Kind.AGENT:
                raise NotFoundError(f"there is no agent {agent_id!r}")
            changed = await store.set_status(connection, {agent_id: reason}, Status.RETIRED, now)
            if not changed:
                raise ConflictError(f"{agent_id} is {item.status} already: {item.reason}")
            serials = await store.revoke_certificates(connection, [agent_id], now)
            await store.add_life_events(connection, [(agent_id, "retired", f"by {retired_by}: {reason}")], now)
            serial = serials.get(agent_id, "")
            transaction.publish(announcements.revoked(changed[0], now, f"retired: {reason}", serial=serial))
        return changed[0]

    async def release(self, identity_id: str, reason: str, released_by: str) -> Identity:
        """Take an identity out of quarantine. ConflictError while another living identity claims its vendor id."""
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            connection = transaction.connection
            await store.lock_registrations(connection)
            item = await store.identity(connection, identity_id)
            if item is None:
                raise NotFoundError(f"there is no identity {identity_id!r}")
            if item.status is not Status.QUARANTINED:
                raise ConflictError(f"{identity_id} is {item.status}, not in quarantine")
            rivals = await store.rivals_of(connection, identity_id)
            if rivals:
                raise ConflictError(
                    f"{', '.join(rivals)} claims the same vendor id; revoke it first",
                    errors=(FieldError("path:identity_id", "its vendor id is still claimed elsewhere"),),
                )
            [released] = await store.set_status(connection, {identity_id: ""}, Status.ISSUED, now)
            await store.add_life_events(connection, [(identity_id, "released", f"by {released_by}: {reason}")], now)
            transaction.publish(announcements.issued(released, now))
        return released
