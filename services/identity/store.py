"""SQL of agents, nodes, devices and their certificates. Tenants, clients and tokens: `access_store`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.identity.records import LIVE, Identity, Kind, Status
from services.identity.registration import Alias, Known
from services.identity.tables import agent_keys, aliases, certificates, identities, life_events, revocations, tokens

_LIVE = [status.value for status in LIVE]


def _any_of(column: sa.Column[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    return column == sa.any_(sa.literal(sorted(set(values)), postgresql.ARRAY(sa.Text)))


def _identity(row: Any) -> Identity:
    values = dict(row._mapping)  # noqa: SLF001 - the public name of a row's columns
    return Identity(**values | {"kind": Kind(values["kind"]), "status": Status(values["status"])})


async def lock_registrations(connection: AsyncConnection) -> None:
    """Registrations, releases and revocations happen one after the other until the transaction ends."""
    await connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('meridian.identity.registrations'))"))


async def lock_key_directory(connection: AsyncConnection) -> None:
    """Only one process makes keys at a time."""
    await connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('meridian.identity.keys'))"))


# -- agents ----------------------------------------------------------------------------------------------------------


async def agent_of_key(connection: AsyncConnection, fingerprint: str) -> Identity | None:
    """The agent that registered with this key, in whatever state."""
    query = (
        sa.select(identities)
        .join(agent_keys, agent_keys.c.agent_id == identities.c.identity_id)
        .where(agent_keys.c.fingerprint == fingerprint)
    )
    row = (await connection.execute(query)).first()
    return _identity(row) if row else None


async def add_agent_key(connection: AsyncConnection, fingerprint: str, agent_id: str, now: datetime) -> None:
    """Remember the key of an agent, or that it was seen again."""
    values = {"fingerprint": fingerprint, "agent_id": agent_id, "first_seen_at": now, "last_seen_at": now}
    insert = postgresql.insert(agent_keys).values(**values)
    await connection.execute(insert.on_conflict_do_update(index_elements=["fingerprint"], set_={"last_seen_at": now}))


async def add_certificate(
    connection: AsyncConnection, serial: str, identity_id: str, not_before: datetime, not_after: datetime
) -> None:
    """Record a certificate that was issued."""
    await connection.execute(
        certificates.insert().values(serial=serial, identity_id=identity_id, not_before=not_before, not_after=not_after)
    )


async def revoked_certificates(connection: AsyncConnection, now: datetime) -> list[tuple[str, datetime]]:
    """Serial and time of revocation of certificates that have not expired."""
    query = (
        sa.select(certificates.c.serial, certificates.c.revoked_at)
        .where(certificates.c.revoked_at.is_not(None), certificates.c.not_after > now)
        .order_by(certificates.c.revoked_at)
    )
    return [(row.serial, row.revoked_at) for row in await connection.execute(query)]


async def revocation_mark(connection: AsyncConnection, now: datetime) -> tuple[int, datetime | None]:
    """Number of the certificates that `revoked_certificates` lists for this time, and the latest time of revocation: a
    certificate that is revoked later changes it."""
    query = sa.select(sa.func.count(), sa.func.max(certificates.c.revoked_at)).where(
        certificates.c.revoked_at.is_not(None), certificates.c.not_after > now
    )
    count, latest = (await connection.execute(query)).one()
    return count, latest


async def forget_certificates(connection: AsyncConnection, expired_before: datetime) -> int:
    """Remove the records of certificates that expired long ago; returns how many."""
    result = await connection.execute(certificates.delete().where(certificates.c.not_after < expired_before))
    return result.rowcount


# -- nodes and devices -----------------------------------------------------------------------------------------------

_KNOWN = (
    sa.text(
        """
    WITH wanted AS (
        SELECT identity_id FROM identities WHERE domain_id = :domain_id AND kind IN ('node', 'device')
        UNION
        SELECT x.identity_id FROM aliases x JOIN unnest(:schemes, :values) AS w (scheme, value)
        ON x.scheme = w.scheme AND x.value = w.value WHERE x.exclusive
    ),
    -- Of the agents that are asked about only: all agents of the network have very many certificates.
    live_agents AS (
        SELECT a.identity_id FROM identities a
        WHERE a.identity_id IN (SELECT i.agent_id FROM identities i JOIN wanted USING (identity_id))
            AND a.kind = 'agent' AND a.status = 'issued' AND EXISTS (
                SELECT FROM certificates c
                WHERE c.identity_id = a.identity_id AND c.revoked_at IS NULL AND c.not_after > :now
            )
    )
    SELECT i.*, i.agent_id IN (SELECT identity_id FROM live_agents) AS agent_live,
        coalesce((SELECT jsonb_agg(jsonb_build_array(x.scheme, x.value)) FROM aliases x
                  WHERE x.identity_id = i.identity_id AND x.exclusive), '[]'::jsonb) AS exclusive_aliases
    FROM identities i JOIN wanted USING (identity_id)
    WHERE i.kind IN ('node', 'device') AND i.status <> 'retired'
    """
    )
    .bindparams(
        sa.bindparam("schemes", type_=postgresql.ARRAY(sa.Text)),
        sa.bindparam("values", type_=postgresql.ARRAY(sa.Text)),
    )
    .columns(exclusive_aliases=postgresql.JSONB)
)


async def known_for(
    connection: AsyncConnection, domain_id: str, claimed: Sequence[Alias], now: datetime
) -> list[Known]:
    """What `registration.decide` needs: the domain's nodes and devices, and all holders of the claimed vendor ids."""
    parameters = {
        "domain_id": domain_id,
        "schemes": [scheme for scheme, _ in claimed],
        "values": [value for _, value in claimed],
        "now": now,
    }
    rows = await connection.execute(_KNOWN, parameters)
    return [
        Known(
            identity_id=row.identity_id,
            kind=Kind(row.kind),
            domain_id=row.domain_id,
            node_id=row.node_id,
            index=row.accelerator_index,
            agent_id=row.agent_id,
            agent_live=bool(row.agent_live),
            status=Status(row.status),
            reason=row.reason,
            evidence_level=row.evidence_level,
            aliases=frozenset((scheme, value) for scheme, value in row.exclusive_aliases),
        )
        for row in rows
    ]


async def save(connection: AsyncConnection, items: Sequence[Identity]) -> None:
    """Insert identities, or bring what may change up to date."""
    if not items:
        return
    insert = postgresql.insert(identities)
    changing = (
        "node_id", "accelerator_index", "agent_id", "status", "reason",
        "evidence_level", "emulated", "vendor", "model", "updated_at",
    )  # fmt: skip
    upsert = insert.on_conflict_do_update(
        index_elements=["identity_id"], set_={name: insert.excluded[name] for name in changing}
    )
    await connection.execute(upsert, [asdict(item) for item in items])


async def set_status(
    connection: AsyncConnection, reasons: Mapping[str, str], status: Status, now: datetime
) -> list[Identity]:
    """Change the status of living identities, each with its reason; returns those that changed."""
    if not reasons:
        return []
    statement = (
        sa.text(
            "UPDATE identities i SET status = :status, reason = w.reason, updated_at = :now "
            "FROM unnest(:ids, :reasons) AS w (id, reason) "
            "WHERE i.identity_id = w.id AND i.status <> :status AND i.status IN ('issued', 'quarantined') RETURNING i.*"
        )
        .bindparams(
            sa.bindparam("ids", type_=postgresql.ARRAY(sa.Text)),
            sa.bindparam("reasons", type_=postgresql.ARRAY(sa.Text)),
        )
        .columns(*identities.c)
    )
    parameters = {"status": status.value, "now": now, "ids": list(reasons), "reasons": list(reasons.values())}
    return [_identity(row) for row in await connection.execute(statement, parameters)]


async def add_aliases(connection: AsyncConnection, rows: Sequence[tuple[str, str, str, bool]], now: datetime) -> None:
    """Record aliases ``(identity id, scheme, value, exclusive)``, or that they were seen again."""
    if not rows:
        return
    insert = postgresql.insert(aliases)
    upsert = insert.on_conflict_do_update(
        index_elements=["identity_id", "scheme", "value"],
        set_={"last_seen_at": insert.excluded.last_seen_at, "exclusive": insert.excluded.exclusive},
    )
    names = ("identity_id", "scheme", "value", "exclusive")
    values = [dict(zip(names, row, strict=True)) | {"first_seen_at": now, "last_seen_at": now} for row in rows]
    await connection.execute(upsert, values)


async def add_life_events(connection: AsyncConnection, events: Sequence[tuple[str, str, str]], now: datetime) -> None:
    """Add to the history: ``(identity id, event, detail)``."""
    if events:
        values = [{"identity_id": item, "event": event, "detail": detail, "at": now} for item, event, detail in events]
        await connection.execute(life_events.insert(), values)


# -- revocation ------------------------------------------------------------------------------------------------------


async def identity(connection: AsyncConnection, identity_id: str) -> Identity | None:
    """One identity of any kind and state."""
    row = (await connection.execute(sa.select(identities).where(identities.c.identity_id == identity_id))).first()
    return _identity(row) if row else None


async def dependents(connection: AsyncConnection, item: Identity) -> list[str]:
    """Living identities that fall with this one: what an agent vouches for, the devices of a node."""
    query = sa.select(identities.c.identity_id).where(_any_of(identities.c.status, _LIVE))
    if item.kind is Kind.AGENT:
        query = query.where(identities.c.agent_id == item.identity_id)
    elif item.kind is Kind.NODE:
        query = query.where(
            identities.c.kind == Kind.DEVICE.value,
            identities.c.domain_id == item.domain_id,
            identities.c.node_id == item.node_id,
        )
    else:
        return []
    return [row.identity_id for row in await connection.execute(query.order_by(identities.c.identity_id))]


async def revoke_certificates(
    connection: AsyncConnection, identity_ids: Sequence[str], now: datetime
) -> dict[str, str]:
    """Revoke the unexpired certificates of identities; returns the newest serial of each."""
    statement = (
        certificates.update()
        .where(
            _any_of(certificates.c.identity_id, identity_ids),
            certificates.c.revoked_at.is_(None),
            certificates.c.not_after > now,
        )
        .values(revoked_at=now)
        .returning(certificates.c.identity_id, certificates.c.serial, certificates.c.not_after)
    )
    rows = sorted(await connection.execute(statement), key=lambda row: row.not_after)
    return {row.identity_id: row.serial for row in rows}


async def add_revocation(
    connection: AsyncConnection,
    revocation_id: str,
    subject: tuple[str, str],
    reason: str,
    revoked_by: str,
    now: datetime,
) -> None:
    """Record what an administrator revoked: ``subject`` is its kind and id."""
    await connection.execute(
        revocations.insert().values(
            revocation_id=revocation_id,
            subject_kind=subject[0],
            subject_id=subject[1],
            reason=reason,
            revoked_by=revoked_by,
            revoked_at=now,
        )
    )


async def forget_token_revocations(connection: AsyncConnection, before: datetime) -> int:
    """Remove revocations from before that time of single tokens whose records are gone (`access_store.forget_tokens`);
    returns how many."""
    known = sa.select(tokens.c.token_id).where(tokens.c.token_id == revocations.c.subject_id)
    result = await connection.execute(
        revocations.delete().where(
            revocations.c.subject_kind == "token_id", revocations.c.revoked_at < before, ~known.exists()
        )
    )
    return result.rowcount


async def list_revocations(connection: AsyncConnection, since: datetime | None, limit: int) -> list[dict[str, Any]]:
    """Revocations in the order of time."""
    query = sa.select(revocations).order_by(revocations.c.revoked_at, revocations.c.revocation_id).limit(limit)
    if since is not None:
        query = query.where(revocations.c.revoked_at >= since)
    return [dict(row._mapping) for row in await connection.execute(query)]  # noqa: SLF001


# -- reading ---------------------------------------------------------------------------------------------------------


async def page(connection: AsyncConnection, filters: Mapping[str, str], after: str, limit: int) -> list[Identity]:
    """Identities by id, those after ``after`` first; ``filters`` are equalities on columns."""
    query = sa.select(identities).where(identities.c.identity_id > after)
    for name, value in filters.items():
        query = query.where(identities.c[name] == value)
    rows = await connection.execute(query.order_by(identities.c.identity_id).limit(limit))
    return [_identity(row) for row in rows]


async def aliases_of(connection: AsyncConnection, identity_id: str) -> list[dict[str, Any]]:
    """The aliases of an identity, oldest first."""
    query = (
        sa.select(
            aliases.c.scheme, aliases.c.value, aliases.c.exclusive, aliases.c.first_seen_at, aliases.c.last_seen_at
        )
        .where(aliases.c.identity_id == identity_id)
        .order_by(aliases.c.first_seen_at, aliases.c.scheme, aliases.c.value)
    )
    return [dict(row._mapping) for row in await connection.execute(query)]  # noqa: SLF001


async def history_of(connection: AsyncConnection, identity_id: str) -> list[dict[str, Any]]:
    """The life of an identity in order."""
    query = (
        sa.select(life_events.c.at, life_events.c.event, life_events.c.detail)
        .where(life_events.c.identity_id == identity_id)
        .order_by(life_events.c.seq)
    )
    return [dict(row._mapping) for row in await connection.execute(query)]  # noqa: SLF001


async def rivals_of(connection: AsyncConnection, identity_id: str) -> list[str]:
    """Other living identities that claim one of its exclusive vendor ids."""
    mine, theirs = aliases.alias("mine"), aliases.alias("theirs")
    query = (
        sa.select(theirs.c.identity_id)
        .distinct()
        .select_from(mine)
        .join(theirs, sa.and_(mine.c.scheme == theirs.c.scheme, mine.c.value == theirs.c.value))
        .join(identities, identities.c.identity_id == theirs.c.identity_id)
        .where(
            mine.c.identity_id == identity_id,
            theirs.c.identity_id != identity_id,
            mine.c.exclusive,
            theirs.c.exclusive,
            _any_of(identities.c.status, _LIVE),
        )
        .order_by(theirs.c.identity_id)
    )
    return [row.identity_id for row in await connection.execute(query)]


async def count_by_state(connection: AsyncConnection) -> list[tuple[str, str, int]]:
    """Number of identities per kind and status."""
    query = sa.select(identities.c.kind, identities.c.status, sa.func.count()).group_by(
        identities.c.kind, identities.c.status
    )
    return [(row[0], row[1], row[2]) for row in await connection.execute(query)]
