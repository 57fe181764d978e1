"""Planners: plugins that look at all running and waiting units at once and say which should run, how large and on what.

A planner has a ``name`` and ``plan(cluster, context)``. What it returns is carried out by `decide`: running units that are not
in the plan, or in it with another size or accelerator model, are taken off; then the targets are placed in their order. A
policy with a planner decides every ``interval_s``; in between only the ends of runs change anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.queue import OrderContext
from services.scheduler.core.state import UnitKey


@dataclass(frozen=True, slots=True)
class Target:
    """A unit that should run: with ``ranks`` ranks (0: as it asks for) on an accelerator model and in a domain (empty: any).

    ``reason`` says why, for people."""

    key: UnitKey
    ranks: int = 0
    model: str = ""
    domain_id: str = ""
    reason: str = ""


class Planner(Protocol):
    """See the module."""

    name: str

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The units that should run now, most important first."""
        ...


PLANNERS: dict[str, Planner] = {}


def register(plugin: Planner) -> None:
    """Make a planner known by its name; PolicyError when the name is taken."""
    if plugin.name in PLANNERS:
        raise PolicyError(f"a planner {plugin.name!r} exists already")
    PLANNERS[plugin.name] = plugin


def planner(name: str) -> Planner | None:
    """The planner of this name, None for the empty name; PolicyError when it does not exist."""
    if not name:
        return None
    try:
        return PLANNERS[name]
    except KeyError:
        raise PolicyError(f"there is no planner {name!r}; known are {', '.join(sorted(PLANNERS))}") from None
