"""Planners: plugins that look at all running and waiting units at once and say which should run, how large and on what.

A planner has a ``name`` and ``plan(cluster, context)``, and may have ``same_until_s(cluster, now_s)``: until when it would give the
plan that it gave last, if nothing happens to the cluster (minus infinity: it is asked again), and ``settled_until_s`` of the same form:
until when its rounds change nothing more now that its last plan was carried out as far as there was room. What it returns is carried out by
`decide`: running units that are not in the plan, or in it with another size or accelerator model, are taken off; then the targets
are placed in their order. A policy with a planner plans every ``interval_s`` (`Rounds`; 0: in every cycle); in between
everything that runs stays where it is, and only units without accelerators begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import OrderContext

_CLOCK = "rounds"
_SLACK = 1e-6
"""Part of an interval by which a round may come early: sums of intervals are not exact."""


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


class _Clock:
    """When the last round was, and by which policy; it belongs to the cluster, so copies of it go on from there."""

    def __init__(self) -> None:
        self.round_s = -math.inf
        self.version = ""

    def began(self, running: RunningUnit) -> None:
        """Nothing: rounds depend on the time alone."""

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """Nothing."""


class Rounds:
    """A planner that is asked every ``interval_s``.

    Steps: 1. a round is due when the interval is over, and at once under another policy or in a cluster that was built anew;
    asked again at the same time, it is the same round; 2. a due round is the planner's; 3. between rounds the plan is what
    runs, and the units that need no accelerator.
    """

    def __init__(self, planner: Planner, interval_s: float) -> None:
        self.name = planner.name
        self.planner = planner
        self.interval_s = interval_s

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The plan of the round, or what stays until the next."""
        clock = _clock(cluster)
        if context.now_s > clock.round_s and context.now_s < self.due_s(cluster):
            return between_rounds(cluster)
        clock.round_s, clock.version = context.now_s, cluster.version
        return self.planner.plan(cluster, context)

    def due_s(self, cluster: Cluster) -> float:
        """When the next round is due; minus infinity: at once."""
        clock = _clock(cluster)
        if clock.version != cluster.version:
            return -math.inf
        return clock.round_s + self.interval_s * (1.0 - _SLACK)

    def next_s(self, cluster: Cluster) -> float:
        """The time of the next round, to the second; minus infinity: now."""
        clock = _clock(cluster)
        return clock.round_s + self.interval_s if clock.version == cluster.version else -math.inf

    def same_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See the module."""
        return same_until_s(self.planner, cluster, now_s)

    def settled_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See the module."""
        return settled_until_s(self.planner, cluster, now_s)

    def says(self, cluster: Cluster, now_s: float) -> str:
        """Why a unit waits that is in no target."""
        clock = _clock(cluster)
        if clock.round_s == now_s:
            return f"the planner {self.name} gives it nothing in this round; the next is in {self.interval_s:g} s"
        left_s = max(clock.round_s + self.interval_s - now_s, 0.0)
        return f"it waits for the next round of the planner {self.name}, in {left_s:.0f} s"


def _clock(cluster: Cluster) -> _Clock:
    return cluster.watch(_CLOCK, None, _Clock)


def between_rounds(cluster: Cluster) -> list[Target]:
    """What runs, as it runs, and the units that need no accelerator."""
    targets = [Target(key) for key in cluster.running]
    waiting = [unit.key for unit in cluster.pending if not unit.demand.accelerators]
    return targets + [Target(key, reason="needs no accelerator") for key in sorted(waiting)]


def same_until_s(asked: Planner, cluster: Cluster, now_s: float) -> float:
    """Until when a planner would give the plan that it gave last, if nothing happens to the cluster; minus infinity: not known."""
    ask = getattr(asked, "same_until_s", None)
    return -math.inf if ask is None else float(ask(cluster, now_s))


def settled_until_s(asked: Planner, cluster: Cluster, now_s: float) -> float:
    """Until when a planner's rounds change nothing, asked right after its plan was carried out; minus infinity: not known."""
    ask = getattr(asked, "settled_until_s", None)
    return -math.inf if ask is None else float(ask(cluster, now_s))


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
