"""Which of several parts something belongs to: the same in every process, release and language."""

from __future__ import annotations

import hashlib


def shard_of(name: str, shards: int) -> int:
    """The part, from 0, of ``shards`` parts: the first 8 bytes of the name's SHA-256 as a number, modulo the parts."""
    if shards == 1:
        return 0
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % shards
