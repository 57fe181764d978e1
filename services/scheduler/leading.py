"""What holding the lock of those that decide means for them."""

from __future__ import annotations

import asyncpg

from meridian.leadership import AdvisoryLock
from services.scheduler.errors import LeadershipLostError


async def keep_leading(lock: AdvisoryLock) -> None:
    """Runs until cancelled; LeadershipLostError when another process may have taken over."""
    try:
        await lock.keep()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise LeadershipLostError(f"the connection that holds the lock is gone: {error!r}") from error
