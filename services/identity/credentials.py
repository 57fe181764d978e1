"""Secrets are stored as scrypt hashes (RFC 7914) and compared in constant time.

A client secret has a salt of its own. A join token comes without a name, so it is looked up by its hash under one salt of
the installation; the salt lies beside the private keys, not in the database.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

_N, _R, _P, _LENGTH = 2**14, 8, 1, 32
_MAX_MEMORY_BYTES = 64 * 2**20
SALT_BYTES = 16


def _scrypt(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=_N, r=_R, p=_P, dklen=_LENGTH, maxmem=_MAX_MEMORY_BYTES)


def new_secret() -> str:
    """A secret of 256 random bits for a new client or join token."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str, salt: bytes) -> str:
    """``scrypt$<salt>$<hash>``, base 64."""
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(secret, salt)).decode()}"


def secret_matches(secret: str, stored: str) -> bool:
    """Whether ``secret`` gives the stored hash; takes the same time whether or not it does."""
    _, salt, digest = stored.split("$")
    return hmac.compare_digest(_scrypt(secret, base64.b64decode(salt)), base64.b64decode(digest))


# Compared against when a client is unknown, so that the answer takes as long as for a known one.
NOBODY = hash_secret("nobody", bytes(SALT_BYTES))
