"""Work that a service does again and again: it waits out a database that is away, and fails on anything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from meridian.database import is_passing

log = logging.getLogger(__name__)


def every(interval_s: float, step: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """A task for `Kernel.add_task`: ``step()`` at once, then ``interval_s`` after it has ended, for ever.

    A passing error (`meridian.database.is_passing`) is logged and the step is tried again at its next turn.
    """

    async def run() -> None:
        while True:
            try:
                await step()
            except Exception as error:
                if not is_passing(error):
                    raise
                log.warning("a periodic step is put off", extra={"error": repr(error)})
            await asyncio.sleep(interval_s)

    return run
