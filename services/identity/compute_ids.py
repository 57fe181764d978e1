"""Compute ids: opaque, random, never used again. Vendor ids are only aliases of them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

LENGTH = 26

MintId = Callable[[], str]


def mint_compute_id() -> str:
    """128 random bits as 26 lower-case letters and digits (RFC 4648 base 32 without padding)."""
    return base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
