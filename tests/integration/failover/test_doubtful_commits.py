"""A connection that is lost while something is committed leaves open whether it was: nothing is declared twice for that, and a
detector that another instance overtook does not go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.failover.v1.failover_pb2 import DomainReachable, DomainUnreachable, NodeRecovered
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


class LostAtTerm:
    """The database of a service whose connection breaks after the commit that begins a term."""

    def __init__(self, service: RunningService, term: int) -> None:
        self._real = service.kernel.database.transaction
        self._query = sa.text("SELECT term FROM leadership WHERE xmin = pg_current_xact_id()::xid")
        self._term = term
        self.lost = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._real() as connection:
            yield connection
            begun = await connection.scalar(self._query) == self._term
        if begun and not self.lost:
            self.lost = True
            raise ConnectionError("lost after the commit")


async def test_what_another_instance_declared_is_known_though_the_next_term_began_in_doubt(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with environment(database_url) as stack:
        north = Agent(stack.bus, "north", ["north-1"])
        async with stack.service("failover", QUICK) as service, beating(north):
            await heard(stack, service, "nodes")
            lost = LostAtTerm(service, term=3)
            monkeypatch.setattr(service.kernel.database, "transaction", lost.transaction)
            async with service.kernel.database.transaction() as connection:
                await connection.execute(sa.text("UPDATE leadership SET term = 2"))
                await connection.execute(sa.text("UPDATE nodes SET state = 'failed', changed_at = now()"))
            north.nodes.append("north-2")
            await heard(stack, service, "leadership WHERE term = 4")
            assert lost.lost
            recovered = await stack.bus.expect(NodeRecovered)
            assert recovered.node_id == "north-1"
