"""A revoked token is remembered until no clock takes it for valid any more; what says nothing of its end is kept for ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from meridian.clock import VirtualClock
from meridian.contracts.identity.v1 import identity_pb2
from services.gateway.auth import Caller, RevocationList
from services.gateway.retention import keep_forgetting
from services.gateway.settings import GatewaySettings
from services.gateway.store import revocations
from services.gateway.store.revocations import KEPT, Revocation
from tests.integration.gateway.conftest import Stack
from tests.integration.gateway.test_jobs import eventually

# Far ahead of the service's own clock, by which it forgets what has expired from its start on.
NOW = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def refused(heard: RevocationList, token_id: str) -> bool:
    return heard.refuses(Caller("t", "c", token_id, frozenset(), NOW, NOW + HOUR))


async def test_a_list_forgets_tokens_a_while_after_they_expired(stack: Stack) -> None:
    database, clock = stack.service.kernel.database, VirtualClock(NOW)
    heard = RevocationList(database, clock, 1.0)
    found = [
        Revocation("t", "one", NOW, NOW + HOUR),
        Revocation("t", "two", NOW, NOW + 2 * HOUR),
        Revocation("t", "of an older release", NOW),
        Revocation("u", "", NOW),
    ]
    async with database.transaction() as connection:
        await revocations.add(connection, found)
    await heard.load()
    assert [refused(heard, name) for name in ("one", "two", "of an older release", "other")] == [
        True,
        True,
        True,
        False,
    ]
    clock.advance((HOUR + KEPT).total_seconds())
    await heard.load()
    assert refused(heard, "one"), "clocks differ"
    clock.advance(1.0)
    await heard.load()
    assert [refused(heard, name) for name in ("one", "two", "of an older release")] == [False, True, True]
    async with database.transaction() as connection:
        await revocations.forget_expired(connection, clock.now())
    fresh = RevocationList(database, clock, 1.0)
    await fresh.load()
    assert [refused(fresh, name) for name in ("one", "two", "of an older release")] == [False, True, True]
    clock.advance(1e9)
    await fresh.load()
    assert refused(fresh, "of an older release")
    assert fresh.refuses(Caller("u", "c", "", frozenset(), NOW, NOW + HOUR)), "a tenant is revoked for ever"


async def test_the_table_keeps_what_may_still_be_used(stack: Stack) -> None:
    kernel = stack.service.kernel
    now = kernel.clock.now()
    for token_id, ends in (("over", now - 2 * KEPT), ("not over", now + HOUR), ("not said", None)):
        event = identity_pb2.IdentityRevoked(
            identity_id="tenant-a", kind=identity_pb2.IDENTITY_KIND_TENANT, token_id=token_id
        )
        event.revoked_at.FromDatetime(now - 3 * KEPT)
        if ends is not None:
            event.token_expires_at.FromDatetime(ends)
        await stack.bus.publish(event)

    async def kept() -> set[str]:
        async with kernel.database.reading() as connection:
            return set(await connection.scalars(sa.text("SELECT token_id FROM revocation")))

    await eventually(kept, lambda found: "not said" in found)
    forgetting = asyncio.create_task(keep_forgetting(kernel.database, kernel.clock, GatewaySettings()))
    try:
        assert await eventually(kept, lambda found: "over" not in found) == {"not over", "not said"}
    finally:
        forgetting.cancel()
