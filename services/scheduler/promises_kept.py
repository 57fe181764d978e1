"""Keeping the accounts of what was promised over restarts: observations with each change, their sum now and then."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.database import Database
from services.scheduler import store, store_promises
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.contracts.plan import PER_WINDOW
from services.scheduler.core.contracts.service_levels import ServiceLevels
from services.scheduler.errors import LeadershipLostError

SAVE_EVERY_S = 60.0
_SAVE_AFTER = 1000
"""Observations after which the sum is saved before its time."""


class PromisesKept:
    """What a live scheduler does with the accounts of its book beside deciding."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._saved_at_s = 0.0
        self._saved_number = 0
        self._saved: tuple[ShareAccount | None, ServiceLevels | None] = (None, None)
        self._saved_window: int | None = None

    async def note(self, connection: AsyncConnection, book: Book, draft: Draft) -> None:
        """Write what a draft tells of service levels, in its transaction and before it is merged."""
        found = book.promises.seen(draft)
        await store_promises.add_observations(connection, book.promises.number + 1, found)

    def due(self, book: Book, now_s: float) -> bool:
        """Whether the sum is to be saved: other promises apply, the plan of a window was issued, or it is time."""
        now = (book.promises.shares, book.promises.levels)
        if any(mine is not theirs for mine, theirs in zip(now, self._saved, strict=True)):
            return True
        shares = book.promises.shares
        if shares is not None and shares.plan.plan == PER_WINDOW and shares.number != self._saved_window:
            return True
        late = now_s >= self._saved_at_s + SAVE_EVERY_S or book.promises.number >= self._saved_number + _SAVE_AFTER
        return late and any(item is not None for item in now)

    async def save(self, book: Book, term: int, now_s: float) -> None:
        """Save the sum. LeadershipLostError when another scheduler leads by now."""
        promises = book.promises
        saved, number, state = (promises.shares, promises.levels), promises.number, promises.state()
        window = None if promises.shares is None else promises.shares.number
        packed = await asyncio.to_thread(store_promises.packed, state)
        async with self._database.transaction() as connection:
            if await store.current_term(connection) != term:
                raise LeadershipLostError("another scheduler leads in a newer term")
            await store_promises.save_state(connection, packed, number)
        self._saved, self._saved_number, self._saved_at_s, self._saved_window = saved, number, now_s, window
