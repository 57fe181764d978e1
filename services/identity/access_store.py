"""SQL of join tokens, tenants, clients and access tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.identity.tables import clients, join_tokens, tenants, tokens
from services.identity.token_keys import Grant


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token as stored. No domain ids: good for every domain."""

    join_token_id: str
    domain_ids: tuple[str, ...]
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a tenant. ``blocked``: it or its tenant was revoked."""

    client_id: str
    tenant_id: str
    secret_hash: str
    scopes: tuple[str, ...]
    blocked: bool


async def join_token(connection: AsyncConnection, token_hash: str) -> JoinToken | None:
    """The join token with this hash."""
    row = (await connection.execute(sa.select(join_tokens).where(join_tokens.c.token_hash == token_hash))).first()
    if row is None:
        return None
    return JoinToken(row.join_token_id, tuple(row.domain_ids), row.expires_at, row.revoked_at)


async def save_join_token(
    connection: AsyncConnection,
    token_hash: str,
    join_token_id: str,
    domain_ids: Sequence[str],
    now: datetime,
    expires_at: datetime | None = None,
) -> None:
    """Add a join token, or change the domains of one that is there; a revoked one stays revoked."""
    insert = postgresql.insert(join_tokens).values(
        token_hash=token_hash,
        join_token_id=join_token_id,
        domain_ids=list(domain_ids),
        created_at=now,
        expires_at=expires_at,
    )
    await connection.execute(
        insert.on_conflict_do_update(
            index_elements=["token_hash"], set_={"domain_ids": list(domain_ids), "expires_at": expires_at}
        )
    )


async def revoke_join_token(connection: AsyncConnection, join_token_id: str, now: datetime) -> bool:
    """Whether there was one to revoke."""
    result = await connection.execute(
        join_tokens.update()
        .where(join_tokens.c.join_token_id == join_token_id, join_tokens.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    return result.rowcount > 0


async def add_tenant(connection: AsyncConnection, tenant_id: str, name: str, now: datetime) -> bool:
    """Add a tenant; False when the id is taken (also by a revoked one)."""
    insert = postgresql.insert(tenants).values(tenant_id=tenant_id, name=name, created_at=now)
    result = await connection.execute(insert.on_conflict_do_nothing().returning(tenants.c.tenant_id))
    return result.first() is not None


async def tenant(connection: AsyncConnection, tenant_id: str) -> dict[str, Any] | None:
    """A tenant, revoked or not."""
    row = (await connection.execute(sa.select(tenants).where(tenants.c.tenant_id == tenant_id))).first()
    return dict(row._mapping) if row else None  # noqa: SLF001


async def page_of_tenants(connection: AsyncConnection, after: str, limit: int) -> list[dict[str, Any]]:
    """Tenants by id."""
    query = sa.select(tenants).where(tenants.c.tenant_id > after).order_by(tenants.c.tenant_id).limit(limit)
    return [dict(row._mapping) for row in await connection.execute(query)]  # noqa: SLF001


async def page_of_clients(
    connection: AsyncConnection, tenant_id: str | None, after: str, limit: int
) -> list[dict[str, Any]]:
    """Clients by id, without their secrets."""
    columns = [column for column in clients.c if column.name != "secret_hash"]
    query = sa.select(*columns).where(clients.c.client_id > after).order_by(clients.c.client_id).limit(limit)
    if tenant_id is not None:
        query = query.where(clients.c.tenant_id == tenant_id)
    return [dict(row._mapping) for row in await connection.execute(query)]  # noqa: SLF001


async def add_client(
    connection: AsyncConnection, client_id: str, tenant_id: str, secret_hash: str, scopes: Sequence[str], now: datetime
) -> bool:
    """Add a client; False when the id is taken."""
    insert = postgresql.insert(clients).values(
        client_id=client_id, tenant_id=tenant_id, secret_hash=secret_hash, scopes=list(scopes), created_at=now
    )
    result = await connection.execute(insert.on_conflict_do_nothing().returning(clients.c.client_id))
    return result.first() is not None


async def change_client(
    connection: AsyncConnection, client_id: str, tenant_id: str, secret_hash: str, scopes: Sequence[str]
) -> None:
    """Change what a client has; a revoked one stays revoked."""
    await connection.execute(
        clients.update()
        .where(clients.c.client_id == client_id)
        .values(tenant_id=tenant_id, secret_hash=secret_hash, scopes=list(scopes))
    )


async def client(connection: AsyncConnection, client_id: str) -> Client | None:
    """A client with the state of its tenant."""
    query = (
        sa.select(clients, tenants.c.revoked_at.label("tenant_revoked_at"))
        .join(tenants, tenants.c.tenant_id == clients.c.tenant_id)
        .where(clients.c.client_id == client_id)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    blocked = row.revoked_at is not None or row.tenant_revoked_at is not None
    return Client(row.client_id, row.tenant_id, row.secret_hash, tuple(row.scopes), blocked)


async def hold_standing(connection: AsyncConnection, client_id: str) -> bool:
    """Whether neither the client nor its tenant is revoked; nobody revokes them until this transaction ends."""
    query = (
        sa.select(sa.literal(1))
        .select_from(clients)
        .join(tenants, tenants.c.tenant_id == clients.c.tenant_id)
        .where(clients.c.client_id == client_id, clients.c.revoked_at.is_(None), tenants.c.revoked_at.is_(None))
        .with_for_update(read=True)
    )
    return (await connection.execute(query)).first() is not None


async def add_token(connection: AsyncConnection, grant: Grant) -> None:
    """Record a token that was issued."""
    await connection.execute(
        tokens.insert().values(
            token_id=grant.token_id,
            client_id=grant.client_id,
            tenant_id=grant.tenant_id,
            issued_at=grant.issued_at,
            expires_at=grant.expires_at,
        )
    )


async def token_stands(connection: AsyncConnection, grant: Grant) -> bool:
    """Whether neither the token, its client nor its tenant was revoked."""
    query = (
        sa.select(sa.literal(1))
        .select_from(tokens)
        .join(clients, clients.c.client_id == tokens.c.client_id)
        .join(tenants, tenants.c.tenant_id == tokens.c.tenant_id)
        .where(
            tokens.c.token_id == grant.token_id,
            tokens.c.revoked_at.is_(None),
            clients.c.revoked_at.is_(None),
            tenants.c.revoked_at.is_(None),
        )
    )
    return (await connection.execute(query)).first() is not None


@dataclass(frozen=True, slots=True)
class RevokedToken:
    """A token that was revoked."""

    token_id: str
    tenant_id: str
    expires_at: datetime


_REVOKED = (tokens.c.token_id, tokens.c.tenant_id, tokens.c.expires_at)


async def revoke_token(connection: AsyncConnection, token_id: str, now: datetime) -> RevokedToken | None:
    """Revoke one token; None when there is no such token or it was revoked before."""
    statement = (
        tokens.update()
        .where(tokens.c.token_id == token_id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(*_REVOKED)
    )
    row = (await connection.execute(statement)).first()
    return RevokedToken(*row) if row else None


async def revoke_client(connection: AsyncConnection, client_id: str, now: datetime) -> list[RevokedToken] | None:
    """Revoke a client with its living tokens; returns those, None when there was nothing."""
    statement = (
        clients.update()
        .where(clients.c.client_id == client_id, clients.c.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(clients.c.tenant_id)
    )
    if (await connection.execute(statement)).first() is None:
        return None
    living = (
        tokens.update()
        .where(tokens.c.client_id == client_id, tokens.c.revoked_at.is_(None), tokens.c.expires_at > now)
        .values(revoked_at=now)
        .returning(*_REVOKED)
    )
    return [RevokedToken(*row) for row in await connection.execute(living)]


async def revoke_tenant(connection: AsyncConnection, tenant_id: str, now: datetime) -> bool:
    """Whether there was one to revoke."""
    result = await connection.execute(
        tenants.update().where(tenants.c.tenant_id == tenant_id, tenants.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    return result.rowcount > 0


async def forget_tokens(connection: AsyncConnection, expired_before: datetime) -> int:
    """Remove the records of tokens that expired long ago; returns how many."""
    result = await connection.execute(tokens.delete().where(tokens.c.expires_at < expired_before))
    return result.rowcount
