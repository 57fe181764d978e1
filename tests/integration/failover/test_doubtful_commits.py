"""A connection that is lost while a declaration is committed leaves open whether it was: nothing is declared twice for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa

from meridian.contracts.failover.v1.failover_pb2 import DomainReachable, DomainUnreachable
from meridian.outbox import Transaction
from tests.harness import RunningService, environment
from tests.integration.failover.test_service import QUICK, Agent, beating, heard


class LostOnce:
    """The outbox of a service whose connection breaks once, after or before a commit with events, when told to."""

    def __init__(self, service: RunningService, *, committed: bool) -> None:
        self._real = service.kernel.outbox.transaction
        self._committed = committed
        self.armed = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        breaks = False
        async with self._real() as transaction:
            yield transaction
            rows = await transaction.connection.scalar(sa.text("SELECT count(*) FROM incidents"))
            breaks, self.armed = self.armed and bool(rows), self.armed and not rows
            if breaks and not self._committed:
                raise ConnectionError("lost before the commit")
        if breaks:
            raise ConnectionError("lost after the commit")


@pytest.mark.parametrize("committed", [True, False])
async def test_a_domain_that_fell_silent_is_told_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    async with environment(database_url) as stack:
        north, south = Agent(stack.bus, "north", ["north-1"]), Agent(stack.bus, "south", ["south-1"])
        async with stack.service("failover", QUICK) as service, beating(north, south):
            await heard(stack, service, "nodes", 2)
            lost = LostOnce(service, committed=committed)
            monkeypatch.setattr(service.kernel.outbox, "transaction", lost.transaction)
            lost.armed = True
            north.muted = True
            await stack.bus.expect(DomainUnreachable)
            await heard(stack, service, "leadership WHERE term = 2")
            assert not lost.armed
            north.muted = False
            await stack.bus.expect(DomainReachable)
            await heard(stack, service, "incidents WHERE state = 'closed'")
            assert len(stack.bus.events(DomainUnreachable)) == 1
            async with service.kernel.database.reading() as connection:
                assert await connection.scalar(sa.text("SELECT count(*) FROM incidents")) == 1
