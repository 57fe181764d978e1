"""The live end of the event stream, shared by all connections of this process.

One task reads new events from the table and keeps the newest in memory; each connection has only a position. A
connection whose position is still in memory is served from it, a slower or resuming one reads pages from the table. So a
slow consumer costs nothing but its own page.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque

from meridian.database import Database, is_passing
from services.gateway.store import stream
from services.gateway.store.stream import StoredEvent

log = logging.getLogger(__name__)

PAGE = 500
# Other replicas write events too; without word from them the table is looked at this often.
POLL_S = 1.0


class Feed:
    """Hands out events behind a position, and waits for more."""

    def __init__(self, database: Database, keep: int) -> None:
        self._database = database
        self._newest: deque[StoredEvent] = deque(maxlen=keep)
        # Everything behind this position, up to `position`, is in memory.
        self._floor = 0
        self.position = 0
        self.closed = False
        self._written = asyncio.Event()
        self._arrived = asyncio.Condition()

    def wake(self) -> None:
        """Events were committed by this process."""
        self._written.set()

    async def open(self) -> None:
        """Begin at the present end of the table."""
        async with self._database.reading() as connection:
            self.position = self._floor = await stream.newest(connection)

    async def run(self) -> None:
        """Follow the table until cancelled; then `closed` is set and every waiting connection returns."""
        try:
            while True:
                try:
                    await self._follow()
                except Exception as error:
                    if not is_passing(error):
                        raise
                    log.warning("the event stream pauses", extra={"error": repr(error)})
                    await asyncio.sleep(POLL_S)
        finally:
            self.closed = True
            # A plain cancellation leaves no time to take the lock; connections look at `closed` once a second anyway.
            self._written.set()

    async def _follow(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._written.wait()
        self._written.clear()
        while True:
            async with self._database.reading() as connection:
                events = await stream.read_after(connection, self.position, PAGE)
            if not events:
                return
            self._keep(events)
            async with self._arrived:
                self._arrived.notify_all()
            if len(events) < PAGE:
                return

    def _keep(self, events: list[StoredEvent]) -> None:
        for item in events:
            if len(self._newest) == self._newest.maxlen:
                self._floor = self._newest[0].seq
            self._newest.append(item)
        self.position = events[-1].seq

    async def after(self, position: int, wait_s: float) -> list[StoredEvent]:
        """The next events behind ``position``, at most a page; empty when none came within ``wait_s``."""
        if position >= self.position and not self.closed:
            await self._wait(position, wait_s)
        if position >= self.position:
            return []
        if position >= self._floor:
            return self._from_memory(position)
        async with self._database.reading() as connection:
            return await stream.read_after(connection, position, PAGE)

    async def _wait(self, position: int, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._arrived:
                await self._arrived.wait_for(lambda: position < self.position)

    def _from_memory(self, position: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        for item in reversed(self._newest):
            if item.seq <= position:
                break
            found.append(item)
        found.reverse()
        return list(itertools.islice(found, PAGE))
