"""Wiring of the telemetry service."""

from __future__ import annotations

import gc
from datetime import timedelta

from meridian.contracts.resource.v1.resource_pb2 import ResourceReported
from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported
from meridian.periodic import every
from meridian.service import Kernel
from meridian.settings import load
from services.telemetry import store
from services.telemetry.api import telemetry_router
from services.telemetry.events import ReportIntake
from services.telemetry.index_api import IndexService, index_router
from services.telemetry.measures import TelemetryMeasures
from services.telemetry.settings import TelemetrySettings
from services.telemetry.user_resources import user_resource_router


def build(kernel: Kernel) -> None:
    """Subscribe to reports, add routes and the removal of old rows."""
    settings = load(TelemetrySettings)
    kernel.http_settings = settings
    # A batch makes hundreds of thousands of tuples that live until the next one: with the default of 700 allocations the
    # collector of cycles looks through all that is known for a third of the time.
    gc.set_threshold(200_000, 20, 20)
    # What is loaded by now stays: looking through it took 60 ms each time.
    gc.freeze()
    measures = TelemetryMeasures(kernel.registry)
    intake = ReportIntake(settings, kernel.clock, measures)

    async def upkeep() -> None:
        now = kernel.clock.now()
        intake.drop_held()
        async with kernel.database.transaction() as connection:
            await store.forget(
                connection,
                history_before=now - timedelta(seconds=settings.history_retention_s),
                quality_before=now - timedelta(seconds=settings.quality_retention_s),
                series_before=now - timedelta(seconds=max(settings.history_retention_s, 3600.0)),
            )
            reported = await store.last_reports(connection)
        for domain_id, reported_at in reported:
            measures.silence.labels(domain_id).set(max(0.0, (now - reported_at).total_seconds()))

    kernel.bus.subscribe_batch("reports", [ResourceReported], intake.handle)
    kernel.add_task("upkeep", every(settings.upkeep_interval_s, upkeep))
    kernel.http.include_router(telemetry_router(kernel.database, kernel.clock))
    index = IndexService(kernel.database, kernel.clock)
    kernel.bus.subscribe_batch("probes", [ProbeReported], index.on_probes)
    kernel.http.include_router(index_router(index))
    kernel.http.include_router(user_resource_router(kernel.database, kernel.outbox, kernel.clock))
