"""Which of several parts something belongs to: the same in every process, release and language."""

from __future__ import annotations

import hashlib


def shard_of(name: str, shards: int) -> int:
    """The part, from 0, of ``shards`` parts: the first 8 bytes of the name's SHA-256 as a number, modulo the parts."""
    if shards == 1:
        return 0
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % shards


def organisation_of(tenant_id: str) -> str:
    """The organisation of a tenant: what stands before the first full stop of its name ("acme" of "acme.vision"), or all of it."""
    return tenant_id.partition(".")[0]


def shard_of_tenant(tenant_id: str, shards: int) -> int:
    """The shard of the scheduler that has a tenant: that of its organisation, so that what its tenants share is in one place."""
    return shard_of(organisation_of(tenant_id), shards)
