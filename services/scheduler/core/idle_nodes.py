"""Since when nodes are idle, kept up with what runs on them; and the rules of the policy about them.

Nominations and runs that are ending hold their nodes as runs do (kept.py), so that a node without any of them is idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet, NodeState
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit

IDLE_NODES = "idle_nodes"
"""Whose options the rules are; no plugin has this name."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """A node sleeps after ``sleep_after_s`` without work; ``reserve`` idle nodes of each domain and accelerator model stay awake."""

    sleep_after_s: float
    reserve: int = 0


def idle_rules_of(policy: Policy) -> IdleRules | None:
    """The rules of a policy; None when idle nodes stay awake. PolicyError names the option that is wrong."""
    options = policy.options_of(IDLE_NODES)
    if not options:
        return None
    refuse_unknown(IDLE_NODES, options, ("sleep_after_s", "reserve"))
    after_s, reserve = options.get("sleep_after_s"), options.get("reserve", 0)
    if (
        isinstance(after_s, bool)
        or not isinstance(after_s, int | float)
        or not (math.isfinite(after_s) and after_s > 0)
    ):
        raise PolicyError(f"options.{IDLE_NODES}.sleep_after_s: a number above 0 is wanted, not {after_s!r}")
    if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
        raise PolicyError(f"options.{IDLE_NODES}.reserve: a whole number of at least 0 is wanted, not {reserve!r}")
    return IdleRules(float(after_s), reserve)


@dataclass(slots=True)
class IdleNodes:
    """See the module. It watches a cluster (`Cluster.watch`); ``at_s`` is the time of the change that is being made.

    Nodes that were idle when it began count as idle since then. ``asked`` is when nodes were told to sleep, ``refused`` until when
    those are not told again that did not.
    """

    begun_s: float
    at_s: float = -math.inf
    asked: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    _holds: dict[str, int] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        for node_id in {rank.node_id for rank in running.ranks}:
            self._holds[node_id] = self._holds.get(node_id, 0) + 1
            self._since.pop(node_id, None)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more. The cluster's own time may lie behind that of the change: that one counts."""
        for node_id in {rank.node_id for rank in running.ranks}:
            left = self._holds.get(node_id, 0) - 1
            if left > 0:
                self._holds[node_id] = left
            else:
                self._holds.pop(node_id, None)
                self._since[node_id] = max(self.at_s, self.begun_s)

    def fleet_changed(self, before: Fleet, after: Fleet) -> None:
        """Nodes that are new, or that awoke, are idle since now."""
        for node_id, node in after.nodes.items():
            old = before.nodes.get(node_id)
            if old is node or node_id in self._holds:
                continue
            if old is None or (old.state is NodeState.ASLEEP and node.state is not NodeState.ASLEEP):
                self._since[node_id] = max(self.at_s, self.begun_s)
        for known in (self._since, self.asked, self.refused):
            for node_id in [name for name in known if name not in after.nodes]:
                del known[node_id]

    def is_idle(self, node_id: str) -> bool:
        """Whether nothing runs there, nothing ends there and nothing is kept there for a unit."""
        return node_id not in self._holds

    def since_s(self, node_id: str) -> float:
        """Since when an idle node is (s since 1970)."""
        return self._since.get(node_id, self.begun_s)

    def asked_s(self, node_id: str) -> float:
        """When a node was told to sleep; by another leader: when this one began."""
        return self.asked.get(node_id, self.begun_s)
