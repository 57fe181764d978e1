"""Wires failover: heartbeats to the watch, job and run events to the tables, incidents to HTTP."""

from __future__ import annotations

from datetime import timedelta

from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from meridian.periodic import every
from meridian.service import Kernel
from meridian.settings import load
from services.failover.api import create_router
from services.failover.events import RUN_EVENTS, RunEvents
from services.failover.metrics import FailoverMetrics
from services.failover.settings import FailoverSettings
from services.failover.store import Store
from services.failover.watch import Watch

_UPKEEP_S = 3600.0


def build(kernel: Kernel) -> None:
    """Add failover to a kernel."""
    settings = load(FailoverSettings)
    kernel.http_settings = settings
    metrics = FailoverMetrics(kernel.registry)
    watch = Watch(kernel, settings, metrics)
    runs = RunEvents(kernel.clock, kernel.new_id, metrics)

    # Every instance hears every heartbeat, so that the active one has them all and the others are warm.
    kernel.bus.stream("heartbeats", [Heartbeat], watch.hear, group=False)
    kernel.bus.subscribe_batch("runs", RUN_EVENTS, runs.handle)
    kernel.add_task("watch", watch.run)

    async def forget() -> None:
        async with kernel.database.transaction() as connection:
            await Store(connection).forget_older_than(kernel.clock.now(), timedelta(days=settings.keep_days))

    kernel.add_task("upkeep", every(_UPKEEP_S, forget))
    kernel.http.include_router(create_router(kernel.database, watch, kernel.clock))
