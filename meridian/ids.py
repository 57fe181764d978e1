"""Identifiers are injected too, so that tests and replays are deterministic.

Time-ordered ids follow RFC 9562 UUIDv7: 48 bits of milliseconds, then random bits. They are written in Crockford
base 32 with a prefix that tells the kind, e.g. ``job-06b4r2x9...``: sortable by creation, safe in URLs and file names.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

NewId = Callable[[str], str]


def _base32(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """A fresh time-ordered id of 26 characters after ``prefix-`` (48 bits of time, 82 bits of randomness)."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{prefix}-{_base32((milliseconds << 82) | secrets.randbits(82), 26)}"
