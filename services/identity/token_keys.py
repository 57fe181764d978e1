"""Signing and checking of access tokens: JWT with EdDSA (RFC 8037), keys by id, old keys kept while tokens may live.

A key file is ``token-<unix time of creation>.key``. The newest key signs that every process which shares the directory has read
by now (`SETTLED_S`); a key leaves the set when every token that it may have signed has expired.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import KeySet, OKPKey

from meridian.errors import ConfigurationError, UnauthenticatedError
from services.identity.key_files import pem_of, private_directory, write_private

# The name of RFC 8037, which verifiers know; RFC 9864's "Ed25519" is not yet common.
ALGORITHM = "EdDSA"
# Processes read the directory anew once a minute.
SETTLED_S = 300.0
warnings.filterwarnings("ignore", category=SecurityWarning, message="EdDSA is deprecated")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token says."""

    token_id: str
    client_id: str
    tenant_id: str
    scopes: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime


class TokenKeys:
    """The key ring of the key directory."""

    def __init__(self, directory: Path, *, issuer: str, audience: str, key_ttl_s: float, token_ttl_s: float) -> None:
        self._directory = directory
        self._issuer = issuer
        self._audience = audience
        self._key_ttl = timedelta(seconds=key_ttl_s)
        self._token_ttl = timedelta(seconds=token_ttl_s)
        self._keys: list[OKPKey] = []
        self._signing: OKPKey | None = None

    def open(self, now: datetime) -> None:
        """Load the keys; make a new one when there is none or the newest is too old; remove those of no more use."""
        private_directory(self._directory)
        paths = sorted(self._directory.glob("token-*.key"))
        ages = {path: now - datetime.fromtimestamp(int(path.stem.removeprefix("token-")), UTC) for path in paths}
        if not paths or ages[paths[-1]] >= self._key_ttl:
            path = self._directory / f"token-{int(now.timestamp()):012d}.key"
            write_private(path, pem_of(ed25519.Ed25519PrivateKey.generate()))
            ages[path] = timedelta(0)
        order = sorted(ages)
        for path, following in pairwise(list(order)):
            # It signs until the next one, which may have been made late, has settled and every process has seen that.
            unused = ages[following] > 2 * timedelta(seconds=SETTLED_S) + self._token_ttl
            if unused and ages[path] > 2 * self._key_ttl + self._token_ttl:
                path.unlink(missing_ok=True)
                order.remove(path)
        self._keys = [self._load(path) for path in order]
        settled = [key for key, path in zip(self._keys, order, strict=True) if ages[path].total_seconds() >= SETTLED_S]
        self._signing = settled[-1] if settled else self._keys[0]

    def _load(self, path: Path) -> OKPKey:
        try:
            key = OKPKey.import_key(path.read_bytes())
        except (OSError, ValueError, JoseError) as error:
            raise ConfigurationError(f"{path}: token key cannot be read: {error}") from None
        return OKPKey.import_key(key.as_dict(private=True) | {"kid": key.thumbprint()})

    def sign(self, grant: Grant) -> str:
        """The token in compact form."""
        key = self._signing
        if key is None:
            raise ConfigurationError("the token keys are not open")
        claims = {
            "iss": self._issuer,
            "sub": grant.client_id,
            "aud": self._audience,
            "tenant": grant.tenant_id,
            "scope": " ".join(grant.scopes),
            "jti": grant.token_id,
            "iat": int(grant.issued_at.timestamp()),
            "exp": int(grant.expires_at.timestamp()),
        }
        return jwt.encode({"alg": ALGORITHM, "kid": key.kid, "typ": "JWT"}, claims, key, algorithms=[ALGORITHM])

    def read(self, token: str, now: datetime) -> Grant:
        """Check signature, issuer, audience and time; UnauthenticatedError says what is wrong. Not revocation."""
        try:
            decoded = jwt.decode(token, KeySet(list(self._keys)), algorithms=[ALGORITHM])
            claims = decoded.claims
            # The issue time and expiry are checked against our own clock.
            registry = jwt.JWTClaimsRegistry(
                now=int(now.timestamp()),
                iss={"essential": True, "value": self._issuer},
                aud={"essential": True, "value": self._audience},
                exp={"essential": True},
                jti={"essential": True},
                sub={"essential": True},
                tenant={"essential": True},
            )
            registry.validate(claims)
        except (JoseError, ValueError) as error:
            raise UnauthenticatedError(f"the token is not valid: {error}") from None
        return Grant(
            token_id=str(claims["jti"]),
            client_id=str(claims["sub"]),
            tenant_id=str(claims["tenant"]),
            scopes=tuple(str(claims.get("scope", "")).split()),
            issued_at=datetime.fromtimestamp(int(claims.get("iat", 0)), UTC),
            expires_at=datetime.fromtimestamp(int(claims["exp"]), UTC),
        )

    def public_set(self) -> dict[str, Sequence[dict[str, Any]]]:
        """The JSON Web Key Set (RFC 7517) of every key that may have signed a living token."""
        return {
            "keys": [
                dict(key.as_dict(private=False)) | {"kid": key.kid, "alg": ALGORITHM, "use": "sig"}
                for key in self._keys
            ]
        }
