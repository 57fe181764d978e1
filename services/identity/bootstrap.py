"""The content an installation starts with: join tokens and clients from a file, upserted at every start."""

from __future__ import annotations

import asyncio
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meridian.errors import ConfigurationError, InvalidArgumentError
from meridian.outbox import Transaction
from services.identity import access_store
from services.identity.access import check_scopes
from services.identity.credentials import SALT_BYTES, hash_secret, secret_matches
from services.identity.tenancy import Name, PlaceName, found_tenant

_Secret = Annotated[str, Field(min_length=8, max_length=512)]


class BootstrapJoinToken(BaseModel):
    """A join token; with ``domain_ids`` only good for those."""

    model_config = ConfigDict(extra="forbid")

    token: _Secret
    domain_ids: list[PlaceName] = []


class BootstrapClient(BaseModel):
    """A client with its tenant, which is made where it is missing."""

    model_config = ConfigDict(extra="forbid")

    client_id: Name
    client_secret: _Secret
    tenant_id: Name
    scopes: list[str]


class Bootstrap(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    join_tokens: list[_Secret | BootstrapJoinToken] = []
    clients: list[BootstrapClient] = []


def read_bootstrap(path: Path) -> Bootstrap:
    """ConfigurationError names the file and what is wrong in it; no secret is shown."""
    try:
        content = Bootstrap.model_validate_json(path.read_bytes())
        for client in content.clients:
            check_scopes(client.scopes)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise ConfigurationError(f"{path}: {problems}") from None
    except InvalidArgumentError as error:
        raise ConfigurationError(f"{path}: {error.detail}") from None
    return content


async def apply_bootstrap(
    transaction: Transaction, content: Bootstrap, join_token_salt: bytes, trust_domain: str, now: datetime
) -> None:
    """Bring the database to what the file says. What the file does not name stays; what was revoked stays revoked."""
    connection = transaction.connection
    for entry in content.join_tokens:
        token = entry if isinstance(entry, BootstrapJoinToken) else BootstrapJoinToken(token=entry)
        token_hash = await asyncio.to_thread(hash_secret, token.token, join_token_salt)
        identifier = f"jtk-{token_hash[-12:].lower().translate(str.maketrans('+/=', 'xyz'))}"
        await access_store.save_join_token(connection, token_hash, identifier, token.domain_ids, now)
    for client in content.clients:
        await found_tenant(transaction, client.tenant_id, client.tenant_id, trust_domain, now)
        stored = await access_store.client(connection, client.client_id)
        if stored is None:
            digest = await asyncio.to_thread(hash_secret, client.client_secret, secrets.token_bytes(SALT_BYTES))
            await access_store.add_client(connection, client.client_id, client.tenant_id, digest, client.scopes, now)
            continue
        digest = stored.secret_hash
        if not await asyncio.to_thread(secret_matches, client.client_secret, digest):
            digest = await asyncio.to_thread(hash_secret, client.client_secret, secrets.token_bytes(SALT_BYTES))
        await access_store.change_client(connection, client.client_id, client.tenant_id, digest, client.scopes)
