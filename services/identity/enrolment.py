"""Registration of an agent: join token and CSR in, certificate and compute ids out, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.clock import Clock
from meridian.errors import ConflictError, FieldError, PermissionDeniedError, UnauthenticatedError
from meridian.outbox import Outbox, Transaction
from services.identity import access_store, announcements, store
from services.identity.authority import CertificateAuthority
from services.identity.compute_ids import MintId
from services.identity.credentials import hash_secret
from services.identity.records import LIVE, EvidenceLevel, Identity, Kind, Status
from services.identity.registration import (
    Action,
    ClaimedDevice,
    ClaimedNode,
    Decision,
    NodeDecision,
    Plan,
    canonical_scheme,
    check_claims,
    decide,
    exclusive_aliases,
)
from services.identity.spiffe import compute_spiffe_id
from services.identity.x509_profile import Leaf, fingerprint_of, public_key_of_csr

_AUTHORIZATION = "header:authorization"


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What the agent gets."""

    agent: Identity
    new: bool
    serial: str
    chain_pem: str
    bundle_pem: str
    not_before: datetime
    not_after: datetime
    nodes: tuple[NodeDecision, ...]


class Enrolment:
    """Steps of `register`:

    1. The join token must stand and be good for the domain; the CSR must be a P-256 key's own.
    2. The agent is the one that registered with this key before, or a new one. A revoked one stays out.
    3. `registration.decide` decides the nodes and accelerators; the decision is stored with its history.
    4. The certificate is signed and recorded; what is new or changed is announced.
    """

    def __init__(
        self,
        outbox: Outbox,
        clock: Clock,
        authority: CertificateAuthority,
        mint: MintId,
        hashing: asyncio.Semaphore,
        *,
        ttl_s: float,
        backdate_s: float,
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._authority = authority
        self._mint = mint
        self._hashing = hashing
        self._ttl = timedelta(seconds=ttl_s)
        self._backdate = timedelta(seconds=backdate_s)
        self.join_token_salt = b""

    async def check_token(self, join_token: str) -> None:
        """UnauthenticatedError unless the join token stands, for whatever domain."""
        token_hash = await self._hashed(join_token)
        async with self._outbox.database.reading() as connection:
            await self._check_token(connection, token_hash, None, self._clock.now())

    async def _hashed(self, join_token: str) -> str:
        async with self._hashing:
            return await asyncio.to_thread(hash_secret, join_token, self.join_token_salt)

    async def register(self, join_token: str, domain_id: str, csr_pem: str, nodes: Sequence[ClaimedNode]) -> Enrolled:
        """Register; every error of the steps names its field, and then nothing has changed."""
        token_hash = await self._hashed(join_token)
        key = public_key_of_csr(csr_pem, "/agent_csr_pem")
        fingerprint = fingerprint_of(key)
        check_claims(nodes)
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            connection = transaction.connection
            await self._check_token(connection, token_hash, domain_id, now)
            await store.lock_registrations(connection)
            # It was this one's turn only now: the token may have been revoked, or have expired, since.
            now = self._clock.now()
            await self._check_token(connection, token_hash, domain_id, now)
            agent, new = await self._agent(connection, fingerprint, domain_id, now)
            claimed = sorted({alias for node in nodes for alias in self._exclusive(node)})
            known = await store.known_for(connection, domain_id, claimed, now)
            plan = decide(agent.identity_id, domain_id, nodes, known, self._mint)
            await self._apply(transaction, agent, plan, now)
            leaf = Leaf(
                spiffe_id=agent.spiffe_id,
                common_name=f"agent.{domain_id}",
                key=key,
                not_before=now - self._backdate,
                not_after=now + self._ttl,
                serial=x509.random_serial_number(),
            )
            certificate, chain_pem = self._authority.issue(leaf)
            serial = f"{certificate.serial_number:x}"
            starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            await store.add_agent_key(connection, fingerprint, agent.identity_id, now)
            await store.add_certificate(connection, serial, agent.identity_id, starts, ends)
            transaction.publish(announcements.issued(agent, now, serial=serial, expires_at=ends))
        return Enrolled(agent, new, serial, chain_pem, self._authority.bundle_pem, starts, ends, plan.nodes)

    @staticmethod
    def _exclusive(node: ClaimedNode) -> set[tuple[str, str]]:
        return {*node.exclusive, *(alias for device in node.devices for alias in device.exclusive)}

    @staticmethod
    async def _check_token(connection: AsyncConnection, token_hash: str, domain_id: str | None, now: datetime) -> None:
        token = await access_store.join_token(connection, token_hash)
        if token is None or token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now):
            detail = "the join token is unknown, expired or revoked"
            raise UnauthenticatedError(detail, errors=(FieldError(_AUTHORIZATION, detail),))
        if domain_id is not None and token.domain_ids and domain_id not in token.domain_ids:
            detail = f"the join token is not good for domain {domain_id!r}"
            raise PermissionDeniedError(detail, errors=(FieldError("/domain_id", detail),))

    async def _agent(
        self, connection: AsyncConnection, fingerprint: str, domain_id: str, now: datetime
    ) -> tuple[Identity, bool]:
        agent = await store.agent_of_key(connection, fingerprint)
        if agent is not None:
            if agent.status not in LIVE:
                detail = f"the agent with this key is {agent.status}: {agent.reason}"
                raise PermissionDeniedError(detail, errors=(FieldError("/agent_csr_pem", detail),))
            if agent.domain_id != domain_id:
                detail = f"this key belongs to an agent of domain {agent.domain_id!r}"
                raise ConflictError(detail, errors=(FieldError("/agent_csr_pem", detail),))
            return agent, False
        agent_id = self._mint()
        agent = Identity(
            identity_id=agent_id,
            kind=Kind.AGENT,
            domain_id=domain_id,
            spiffe_id=compute_spiffe_id(self._authority.trust_domain, domain_id, Kind.AGENT, agent_id),
            status=Status.ISSUED,
            reason="",
            evidence_level=EvidenceLevel.JOIN_TOKEN,
            created_at=now,
            updated_at=now,
        )
        await store.save(connection, [agent])
        await store.add_life_events(connection, [(agent_id, "issued", "join token")], now)
        return agent, True

    async def _apply(self, transaction: Transaction, agent: Identity, plan: Plan, now: datetime) -> None:
        connection = transaction.connection
        retired = await store.set_status(connection, plan.retire, Status.RETIRED, now)
        set_aside = await store.set_status(connection, plan.quarantine, Status.QUARANTINED, now)
        decisions: list[tuple[ClaimedNode | ClaimedDevice, Decision]] = []
        for entry in plan.nodes:
            decisions += [(entry.claim, entry.node), *entry.devices]
        accepted = [(claim, decision) for claim, decision in decisions if decision.action is not Action.REFUSE]
        identities = [self._identity(agent, claim, decision, now) for claim, decision in accepted]
        await store.save(connection, identities)
        await store.add_aliases(connection, _alias_rows(accepted), now)
        events = [(item.identity_id, "retired", item.reason) for item in retired]
        events += [(item.identity_id, "quarantined", item.reason) for item in set_aside]
        events += [
            (decision.identity_id, _event_of(decision), decision.reason or _detail_of(agent, decision))
            for _, decision in accepted
            if decision.action is not Action.KEEP
        ]
        await store.add_life_events(connection, events, now)
        for item in retired:
            transaction.publish(announcements.revoked(item, now, f"retired: {item.reason}"))
        for item in set_aside:
            transaction.publish(announcements.revoked(item, now, f"quarantined: {item.reason}"))
        for (_, decision), item in zip(accepted, identities, strict=True):
            if decision.announce:
                transaction.publish(announcements.issued(item, now))

    def _identity(
        self, agent: Identity, claim: ClaimedNode | ClaimedDevice, decision: Decision, now: datetime
    ) -> Identity:
        return Identity(
            identity_id=decision.identity_id,
            kind=decision.kind,
            domain_id=agent.domain_id,
            node_id=decision.node_id,
            accelerator_index=decision.index,
            agent_id=agent.identity_id,
            spiffe_id=self.spiffe_id(agent, decision),
            status=decision.status,
            reason=decision.reason,
            evidence_level=decision.evidence_level,
            emulated=claim.emulated,
            vendor=claim.vendor if isinstance(claim, ClaimedDevice) else "",
            model=claim.model if isinstance(claim, ClaimedDevice) else "",
            replaces=decision.replaces,
            created_at=now,
            updated_at=now,
        )

    def spiffe_id(self, agent: Identity, decision: Decision) -> str:
        """The name of a node or device of the agent's domain."""
        return compute_spiffe_id(self._authority.trust_domain, agent.domain_id, decision.kind, decision.identity_id)


def _event_of(decision: Decision) -> str:
    if decision.action is Action.MINT:
        return decision.status.value
    return decision.action.value


def _detail_of(agent: Identity, decision: Decision) -> str:
    place = decision.node_id if decision.index is None else f"{decision.node_id}, accelerator {decision.index}"
    return f"{place}, agent {agent.identity_id}"


def _alias_rows(
    accepted: Sequence[tuple[ClaimedNode | ClaimedDevice, Decision]],
) -> list[tuple[str, str, str, bool]]:
    rows: dict[tuple[str, str, str], bool] = {}
    for claim, decision in accepted:
        exclusive = dict(exclusive_aliases(claim.aliases))
        for name, value in claim.aliases.items():
            scheme = canonical_scheme(name)
            compared = not claim.emulated and scheme in exclusive
            rows[decision.identity_id, scheme, exclusive[scheme] if compared else value.strip()] = compared
    return [(identity_id, scheme, value, compared) for (identity_id, scheme, value), compared in rows.items()]
