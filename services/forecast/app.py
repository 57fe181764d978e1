"""Wires forecast: demand, capacity and progress from the bus, windows and forecasts by a loop, answers by HTTP."""

from __future__ import annotations

from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.job.v1.job_pb2 import JobSubmitted
from meridian.contracts.run.v1.run_pb2 import RunProgress
from meridian.service import Kernel
from meridian.settings import load
from services.forecast.advice.api import create_advice_router
from services.forecast.advice.terms import TERM_EVENTS, TermEvents
from services.forecast.api import create_router
from services.forecast.events import DEMAND_EVENTS, DemandEvents, RequirementEvents, keep_capacity, keep_progress
from services.forecast.metrics import ForecastMetrics
from services.forecast.phases.api import create_phases_router
from services.forecast.phases.following import PHASE_EVENTS, PhaseEvents
from services.forecast.sampling import Sampling
from services.forecast.settings import ForecastSettings
from services.forecast.waveform.api import create_waveform_router


def build(kernel: Kernel) -> None:
    """Add forecast to a kernel."""
    settings = load(ForecastSettings)
    kernel.http_settings = settings
    metrics = ForecastMetrics(kernel.registry)
    sampling = Sampling(kernel, settings, metrics)

    kernel.bus.subscribe_batch("demand", DEMAND_EVENTS, DemandEvents(kernel.clock).handle)
    kernel.bus.subscribe_batch("capacity", [GraphUpdated], keep_capacity)
    kernel.bus.subscribe_batch("progress", [RunProgress], keep_progress)
    kernel.bus.subscribe("requirements", {JobSubmitted: RequirementEvents(kernel.clock, metrics).handle})
    kernel.bus.subscribe_batch("phases", PHASE_EVENTS, PhaseEvents(kernel.clock, metrics).handle)
    kernel.bus.subscribe_batch("terms", TERM_EVENTS, TermEvents(kernel.clock).handle)
    kernel.add_task("sampling", sampling.run)
    kernel.http.include_router(create_router(kernel.database))
    kernel.http.include_router(create_phases_router(kernel.database))
    kernel.http.include_router(create_waveform_router(kernel.clock))
    kernel.http.include_router(create_advice_router(kernel.database, kernel.clock))
