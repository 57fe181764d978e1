"""The planners of this package, known by name. A program calls `register_all` once; the core alone knows none of them."""

from __future__ import annotations

from services.scheduler.core import planning
from services.scheduler.plans.completion import CompletionPlanner
from services.scheduler.plans.deadlines import DeadlinePlanner
from services.scheduler.plans.elastic import ExactPlanner, MarginalPlanner, PolluxPlanner, SiaPlanner
from services.scheduler.plans.gavel import GavelPlanner
from services.scheduler.plans.rolling import RollingPlanner

PLANNERS: tuple[planning.Planner, ...] = (
    GavelPlanner(),
    CompletionPlanner(),
    SiaPlanner(),
    MarginalPlanner(),
    PolluxPlanner(),
    ExactPlanner(),
    DeadlinePlanner(),
    RollingPlanner(),
)


def register_all() -> None:
    """Make them known to the core; asking twice changes nothing. PolicyError when another plugin has one of the names."""
    for plugin in PLANNERS:
        if planning.PLANNERS.get(plugin.name) is not plugin:
            planning.register(plugin)
