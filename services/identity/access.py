"""Access tokens for clients, and who may do what here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from meridian.clock import Clock
from meridian.database import Database
from meridian.errors import InvalidArgumentError, MeridianError, PermissionDeniedError, UnauthenticatedError
from services.identity import access_store
from services.identity.credentials import NOBODY, secret_matches
from services.identity.token_keys import Grant, TokenKeys

SCOPES = ("jobs:read", "jobs:write", "resources:read", "operator", "admin")
# Of those that are asked for here, as at the gateway: who may administer may do what operators may.
_CONTAINED_IN = {"operator": "admin"}


class OAuthError(MeridianError):
    """An error of RFC 6749, section 5.2: problem details with its member ``error``."""

    code = "INVALID_ARGUMENT"
    status = 400
    title = "Token request refused"
    error: ClassVar[str] = "invalid_request"

    def problem(self, instance: str | None = None, correlation_id: str | None = None) -> dict[str, Any]:
        body = MeridianError.problem(self, instance, correlation_id)
        return body | {"error": self.error, "error_description": self.detail}


class InvalidClientError(OAuthError):
    """Unknown client or wrong secret; which of both is not told."""

    code = "UNAUTHENTICATED"
    status = 401
    error = "invalid_client"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Basic realm="meridian"'}


class InvalidScopeError(OAuthError):
    """A scope was asked for that the client does not have."""

    error = "invalid_scope"


class UnsupportedGrantError(OAuthError):
    """Only client credentials are granted."""

    error = "unsupported_grant_type"


def check_scopes(scopes: list[str]) -> None:
    """InvalidArgumentError names the scopes that do not exist."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown:
        raise InvalidArgumentError(f"unknown scopes {', '.join(unknown)}; known are {', '.join(SCOPES)}")


class Access:
    """Issues tokens and checks those that come back."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        new_token_id: Callable[[], str],
        keys: TokenKeys,
        hashing: asyncio.Semaphore,
        *,
        ttl_s: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._new_token_id = new_token_id
        self._keys = keys
        self._ttl = timedelta(seconds=ttl_s)
        self._hashing = hashing

    async def grant(self, client_id: str, secret: str, scope: str) -> tuple[str, Grant]:
        """A token with all scopes of the client or the named ones. OAuthError says why there is none."""
        async with self._database.reading() as connection:
            client = await access_store.client(connection, client_id.replace("\x00", " "))
        async with self._hashing:
            matches = await asyncio.to_thread(secret_matches, secret, client.secret_hash if client else NOBODY)
        if client is None or not matches or client.blocked:
            raise InvalidClientError("client_id or client_secret is wrong, or the client was revoked")
        wanted = tuple(dict.fromkeys(scope.split())) or client.scopes
        excess = sorted(set(wanted) - set(client.scopes))
        if excess:
            raise InvalidScopeError(f"the client does not have the scopes {', '.join(excess)}")
        now = self._clock.now().replace(microsecond=0)
        grant = Grant(self._new_token_id(), client.client_id, client.tenant_id, wanted, now, now + self._ttl)
        token = self._keys.sign(grant)
        async with self._database.transaction() as connection:
            # Who was revoked while the secret was checked has no token that the revocation does not name.
            if not await access_store.hold_standing(connection, grant.client_id):
                raise InvalidClientError("client_id or client_secret is wrong, or the client was revoked")
            await access_store.add_token(connection, grant)
        return token, grant

    async def authorize(self, token: str, scope: str) -> Grant:
        """The grant of a standing token that has ``scope``, or one that contains it; UnauthenticatedError or
        PermissionDeniedError else."""
        grant = self._keys.read(token, self._clock.now())
        async with self._database.reading() as connection:
            if not await access_store.token_stands(connection, grant):
                raise UnauthenticatedError("the token was revoked")
        if not {scope, _CONTAINED_IN.get(scope, scope)} & set(grant.scopes):
            raise PermissionDeniedError(f"this needs the scope {scope}")
        return grant
