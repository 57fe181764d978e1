"""How long the gateway keeps what it shows: looks every few minutes for what is over, and removes it in small steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.clock import Clock
from meridian.database import Database, is_passing
from services.gateway.settings import GatewaySettings
from services.gateway.store import retention, revocations

log = logging.getLogger(__name__)

LOOK_EVERY_S = 300.0
STEP = 5000
"""So many rows, or units of jobs, are removed in one transaction."""

_Forget = Callable[[AsyncConnection, datetime, int], Awaitable[int]]


async def keep_forgetting(database: Database, clock: Clock, settings: GatewaySettings) -> None:
    """Forget until cancelled."""
    while True:
        try:
            await forget(database, clock.now(), settings)
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning("old rows could not be removed", extra={"error": repr(error)})
        await asyncio.sleep(LOOK_EVERY_S)


async def forget(database: Database, now: datetime, settings: GatewaySettings, step: int = STEP) -> None:
    """Remove all that is over at ``now``, ``step`` rows in each transaction."""
    kept = now - timedelta(days=settings.keep_days)
    limits: tuple[tuple[_Forget, datetime], ...] = (
        (retention.forget_events, now - timedelta(seconds=settings.event_retention_s)),
        (retention.forget_answers, now - timedelta(seconds=settings.idempotency_retention_s)),
        (retention.forget_jobs, kept),
        (retention.forget_incidents, kept),
        (retention.forget_forecasts, kept),
    )
    for forget_some, before in limits:
        while await _once(database, forget_some, before, step):
            pass
    async with database.transaction() as connection:
        await revocations.forget_expired(connection, now)


async def _once(database: Database, forget_some: _Forget, before: datetime, step: int) -> int:
    async with database.transaction() as connection:
        return await forget_some(connection, before, step)
