"""Wiring of the graph service."""

from __future__ import annotations

from meridian.periodic import every
from meridian.service import Kernel
from meridian.settings import load
from services.graph.api import graph_router
from services.graph.events import INPUTS, GraphIntake
from services.graph.measures import GraphMeasures
from services.graph.publication import Publication
from services.graph.settings import GraphSettings
from services.graph.upkeep import Upkeep


def build(kernel: Kernel) -> None:
    """Subscribe to what the graph is made of; add routes and the upkeep."""
    settings = load(GraphSettings)
    kernel.http_settings = settings
    measures = GraphMeasures(kernel.registry)
    publication = Publication(settings, measures)
    intake = GraphIntake(kernel.clock, publication)
    upkeep = Upkeep(settings, kernel.outbox, kernel.clock, publication, measures)
    kernel.bus.subscribe_batch("inputs", INPUTS, intake.handle)
    kernel.add_task("upkeep", every(settings.tick_s, upkeep.tick))
    kernel.http.include_router(graph_router(kernel.database, kernel.clock))
