"""Wiring of the graph service."""

from __future__ import annotations

import logging
from pathlib import Path

from meridian.periodic import every
from meridian.service import Kernel
from meridian.settings import load
from services.graph.api import graph_router
from services.graph.events import INPUTS, GraphIntake
from services.graph.measures import GraphMeasures
from services.graph.publication import Publication
from services.graph.recognition.model import SHIPPED, ModelUnavailableError, NodeStateModel
from services.graph.recognition.recogniser import Recogniser
from services.graph.settings import GraphSettings
from services.graph.upkeep import Upkeep

_log = logging.getLogger(__name__)


def build(kernel: Kernel) -> None:
    """Subscribe to what the graph is made of; add routes and the upkeep."""
    settings = load(GraphSettings)
    kernel.http_settings = settings
    measures = GraphMeasures(kernel.registry)
    recogniser = Recogniser(shipped_model(settings.model), kernel.clock, settings.model_slowest_s)
    publication = Publication(settings, measures, recogniser)
    intake = GraphIntake(kernel.clock, publication)
    upkeep = Upkeep(settings, kernel.outbox, kernel.clock, publication, measures)
    kernel.bus.subscribe_batch("inputs", INPUTS, intake.handle)
    kernel.add_task("upkeep", every(settings.tick_s, upkeep.tick))
    kernel.http.include_router(graph_router(kernel.database, kernel.clock, recogniser))


def shipped_model(setting: str) -> NodeStateModel | None:
    """The model that the setting ``model`` names; None when there is none, and then rules serve alone."""
    if setting == "none":
        return None
    try:
        return NodeStateModel(Path(setting) if setting else SHIPPED)
    except ModelUnavailableError as error:
        _log.warning("no model of node states, rules decide: %s", error)
        return None
