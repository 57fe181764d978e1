"""Who calls: tokens are checked here, offline, against identity's published keys and the revocations heard on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import httpx
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from meridian.clock import Clock
from meridian.database import Database, is_passing
from meridian.errors import PermissionDeniedError, UnauthenticatedError, UnavailableError
from services.gateway.store import revocations
from services.gateway.store.revocations import Revocation

log = logging.getLogger(__name__)

# RFC 8037 and, since RFC 9864, the same under its fully specified name.
ALGORITHMS = ["EdDSA", "Ed25519"]
# Clocks of two machines may differ by so much.
LEEWAY_S = 5.0
_REFETCH_S = 1.0


class Scope(StrEnum):
    """What a token may be good for."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    RESOURCES_READ = "resources:read"
    OPERATOR = "operator"
    ADMIN = "admin"


_READER = frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.RESOURCES_READ})
_CONTAINS: dict[str, frozenset[Scope]] = {
    Scope.OPERATOR: _READER,
    Scope.ADMIN: _READER | {Scope.OPERATOR},
}


class BearerError(UnauthenticatedError):
    """No token that is good; says so in the way of RFC 6750."""

    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer realm="meridian", error="invalid_token"'}


class NoTokenError(UnauthenticatedError):
    """No token at all."""

    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer realm="meridian"'}


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a good token."""

    tenant_id: str
    client_id: str
    token_id: str
    scopes: frozenset[str]
    issued_at: datetime
    expires_at: datetime

    def may(self, scope: str) -> bool:
        """Whether the token is good for a scope, directly or by one that contains it."""
        return scope in self.scopes

    def require(self, *scopes: str) -> None:
        """PermissionDeniedError unless the token is good for one of the scopes."""
        if not any(self.may(scope) for scope in scopes):
            raise PermissionDeniedError(f"this needs a token with the scope {' or '.join(scopes)}")

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs the caller sees; None sees those of all."""
        return None if self.may(Scope.OPERATOR) else self.tenant_id


def expand(scopes: Iterable[str]) -> frozenset[str]:
    """Scopes with those they contain."""
    given = frozenset(scopes)
    return given.union(*(_CONTAINS.get(scope, frozenset()) for scope in given))


class RevocationList:
    """Revocations in memory, kept fresh from the table (which one replica's bus handler writes for all)."""

    def __init__(self, database: Database, clock: Clock, poll_s: float) -> None:
        self._database = database
        self._clock = clock
        self._poll_s = poll_s
        self._position = 0
        self._tokens: set[str] = set()
        # Tokens by when they expire, the first on top.
        self._ends: list[tuple[datetime, str]] = []
        self._identities: dict[str, datetime] = {}
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Revocations were committed by this process."""
        self._changed.set()

    def add(self, revocation: Revocation) -> None:
        """Refuse from now on what is named."""
        if revocation.token_id:
            self._tokens.add(revocation.token_id)
            if revocation.expires_at is not None:
                heapq.heappush(self._ends, (revocation.expires_at, revocation.token_id))
            return
        before = self._identities.get(revocation.identity_id)
        if before is None or revocation.revoked_at > before:
            self._identities[revocation.identity_id] = revocation.revoked_at

    def refuses(self, caller: Caller) -> bool:
        """Whether the token, or its tenant or client after the token was issued, is revoked."""
        if caller.token_id in self._tokens:
            return True
        return any(
            (at := self._identities.get(identity_id)) is not None and caller.issued_at <= at
            for identity_id in (caller.tenant_id, caller.client_id)
        )

    async def load(self) -> None:
        """Read what is new in the table, and forget tokens that nobody takes for valid any more."""
        async with self._database.reading() as connection:
            for position, revocation in await revocations.read_after(connection, self._position):
                self.add(revocation)
                self._position = position
        gone = self._clock.now() - revocations.KEPT
        while self._ends and self._ends[0][0] < gone:
            self._tokens.discard(heapq.heappop(self._ends)[1])

    async def run(self) -> None:
        """Keep the list fresh until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.load()
            except Exception as error:
                if not is_passing(error):
                    raise
                log.warning("revocations could not be read", extra={"error": repr(error)})
                await asyncio.sleep(self._poll_s)


class KeyCache:
    """Identity's public signing keys."""

    def __init__(self, http: httpx.AsyncClient, url: str, clock: Clock, max_age_s: float) -> None:
        self._http = http
        self._url = url
        self._clock = clock
        self._max_age_s = max_age_s
        self._keys: dict[str, Any] = {}
        self._fetched_s: float | None = None
        self._tried_s: float | None = None
        self._fetching = asyncio.Lock()

    async def key(self, kid: str) -> Any:
        """The key of that id, fetched when it is not known; UnavailableError when no key could ever be fetched."""
        if kid in self._keys and not self._older_than(self._fetched_s, self._max_age_s):
            return self._keys[kid]
        if kid in self._keys and self._fetching.locked():
            # Keys fetched earlier stay good: identity may take its time, one request waits for it, not all.
            return self._keys[kid]
        async with self._fetching:
            fresh = kid in self._keys and not self._older_than(self._fetched_s, self._max_age_s)
            if not fresh and self._older_than(self._tried_s, _REFETCH_S):
                await self._fetch()
        if self._fetched_s is None:
            raise UnavailableError("the identity service does not answer, tokens cannot be checked")
        return self._keys.get(kid)

    def _older_than(self, moment_s: float | None, age_s: float) -> bool:
        return moment_s is None or self._clock.monotonic_s() - moment_s > age_s

    async def _fetch(self) -> None:
        self._tried_s = self._clock.monotonic_s()
        try:
            answer = await self._http.get(self._url)
            answer.raise_for_status()
            keys = KeySet.import_key_set(answer.json()).keys
        except (httpx.HTTPError, ValueError, KeyError, TypeError, JoseError) as error:
            # Keys fetched earlier stay good.
            log.warning("signing keys could not be fetched", extra={"error": repr(error)})
            return
        self._keys = {key.kid: key for key in keys if key.kid}
        self._fetched_s = self._clock.monotonic_s()


class Authority:
    """Decides whether a token is good."""

    def __init__(self, keys: KeyCache, revoked: RevocationList, clock: Clock, audience: str) -> None:
        self._keys = keys
        self._revoked = revoked
        self._clock = clock
        self._audience = audience

    async def check_header(self, authorization: str | None) -> Caller:
        """The caller by its Authorization header; NoTokenError, BearerError."""
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise NoTokenError("this needs a header Authorization: Bearer TOKEN")
        return await self.check(token.strip())

    async def check(self, token: str) -> Caller:
        """The caller that holds the token; BearerError says why it is not good."""
        try:
            header = jws.extract_compact(token.encode("ascii")).protected
        except (JoseError, ValueError, UnicodeError):
            raise BearerError("the token is not a JSON Web Token") from None
        if header.get("alg") not in ALGORITHMS or not isinstance(header.get("kid"), str):
            raise BearerError(f"the token is not signed with {ALGORITHMS[0]} under a named key")
        key = await self._keys.key(header["kid"])
        if key is None:
            raise BearerError("the token is signed with an unknown key")
        try:
            claims = jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (JoseError, ValueError):
            raise BearerError("the signature of the token is wrong") from None
        caller = self._caller(claims)
        self.confirm(caller)
        return caller

    def confirm(self, caller: Caller) -> None:
        """BearerError when a token that was good has expired or was revoked since."""
        if self._clock.now() >= caller.expires_at + timedelta(seconds=LEEWAY_S):
            raise BearerError("the token has expired")
        if self._revoked.refuses(caller):
            raise BearerError("the token was revoked")

    def _caller(self, claims: dict[str, Any]) -> Caller:
        audience = claims.get("aud")
        if self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise BearerError("the token is for another audience")
        tenant_id, client_id = claims.get("tenant"), claims.get("sub")
        if not isinstance(tenant_id, str) or not tenant_id or not isinstance(client_id, str):
            raise BearerError("the token names no tenant or client")
        now = self._clock.now()
        issued_at = self._moment(claims, "iat")
        expires_at = self._moment(claims, "exp")
        if issued_at is None or expires_at is None:
            raise BearerError("the token does not say when it was issued and when it expires")
        leeway = timedelta(seconds=LEEWAY_S)
        not_before = self._moment(claims, "nbf")
        if issued_at > now + leeway or (not_before is not None and not_before > now + leeway):
            raise BearerError("the token is not good yet")
        scope = claims.get("scope", "")
        token_id = claims.get("jti", "")
        scopes = expand(scope.split()) if isinstance(scope, str) else frozenset()
        return Caller(
            tenant_id, client_id, token_id if isinstance(token_id, str) else "", scopes, issued_at, expires_at
        )

    def _moment(self, claims: dict[str, Any], name: str) -> datetime | None:
        value = claims.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BearerError(f"the token's {name} is not a time")
        try:
            return datetime.fromtimestamp(value, tz=self._clock.now().tzinfo)
        except (ValueError, OverflowError, OSError):
            raise BearerError(f"the token's {name} is not a time") from None
