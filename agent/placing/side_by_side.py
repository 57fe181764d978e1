"""Work that is done side by side, where what concerns the same thing keeps its order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable

WAITING_FOR_EACH = 16
"""For each that is worked on so many may wait; then nobody may add more."""


class SideBySide:
    """At most ``most`` at once, as tasks of ``group``: one that fails ends the group."""

    def __init__(self, group: asyncio.TaskGroup, most: int) -> None:
        self._group = group
        self._working = asyncio.Semaphore(most)
        self._added = asyncio.Semaphore(most * (1 + WAITING_FOR_EACH))
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    async def add(self, names: Collection[Hashable], work: Callable[[], Awaitable[None]]) -> None:
        """Have it done after all that was added before under one of these names; returns when there is room for it to wait."""
        await self._added.acquire()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = {self._last[name] for name in names if name in self._last}
        self._last |= dict.fromkeys(names, over)
        self._group.create_task(self._do(names, before, over, work))

    async def _do(
        self,
        names: Collection[Hashable],
        before: Collection[asyncio.Future[None]],
        over: asyncio.Future[None],
        work: Callable[[], Awaitable[None]],
    ) -> None:
        if before:
            await asyncio.wait(before)
        async with self._working:
            await work()
        over.set_result(None)
        for name in names:
            if self._last[name] is over:
                del self._last[name]
        self._added.release()
