"""Idle nodes are put to sleep, by the policy: who may, when, and how many stay awake.

    options:
      idle_nodes: {sleep_after_s: 600, reserve: 1}

A node may sleep when it says how long it takes to wake (``wake_s``). Its agent is told to put it to sleep; from then on it takes no
work, until the graph says that it is asleep (it can be woken then) or, if it does not fall asleep, until `PATIENCE_S` are over.

On one level the scheduler does this for all nodes (`follow`), on two the decider of each domain for its own (apart/resting.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from services.scheduler.core.book import Draft
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.effects import Sleep
from services.scheduler.core.fleet import Fleet, Mark, MarkKind, Node, NodeState, with_mark, without_marks
from services.scheduler.core.idle_nodes import IdleNodes, IdleRules
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools

PATIENCE_S = 60.0
"""A node that is not asleep so long after it was told to takes work again."""
ASKED_AGAIN_S = 3600.0
"""Such a node is told again after so long."""
AWAKE_STATES = frozenset({NodeState.HEALTHY, NodeState.BUSY})
_MOST_PAUSE_S = 30.0


def pause_s(rules: IdleRules) -> float:
    """How long it is not worth to look again."""
    return min(max(0.1 * rules.sleep_after_s, 0.1), _MOST_PAUSE_S)


def follow(draft: Draft, idle: IdleNodes, rules: IdleRules, now_s: float) -> bool:
    """Tell idle nodes to sleep, on an empty draft; whether anything changed."""
    cluster = draft.book.cluster
    wanted = [lane.demand for lane in cluster.pending.lanes.values()]
    before = draft.fleet
    draft.fleet, told = rest(before, cluster, wanted, idle, rules, now_s)
    draft.effects += told
    return draft.fleet is not before


def rest(
    fleet: Fleet, cluster: Cluster, wanted: Iterable[Demand], idle: IdleNodes, rules: IdleRules, now_s: float
) -> tuple[Fleet, list[Sleep]]:
    """The fleet with the marks of those that are told to sleep (itself when nothing changes), and what agents are told. ``wanted`` is
    what units ask for that wait; ``cluster`` has the nodes of the fleet.

    Steps:
    1. Nodes that were told and did not fall asleep in time take work again.
    2. Of the nodes that are idle for ``sleep_after_s``, those are left out that a waiting unit could use.
    3. The others are told, the longest idle first, while in their pool (domain and accelerator model) ``reserve`` idle nodes stay
       awake, and in their domain as many accelerators as are forecast to be needed.
    """
    before = fleet
    late = [mark for mark in _told(fleet) if now_s >= idle.asked_s(mark.node_id) + PATIENCE_S]
    for mark in late:
        idle.refused[mark.node_id] = now_s + ASKED_AGAIN_S
    fleet = without_marks(fleet, [(mark.kind, mark.subject) for mark in late])
    chosen = _chosen(before, cluster, wanted, idle, rules, now_s)
    for node in chosen:
        idle.asked[node.node_id] = now_s
        why = f"told to go to sleep: idle for {now_s - idle.since_s(node.node_id):.0f} s"
        fleet = with_mark(fleet, Mark(MarkKind.NODE_RESTING, node.node_id, why, node.domain_id, node.node_id))
    by_domain: dict[str, list[str]] = {}
    for node in chosen:
        by_domain.setdefault(node.domain_id, []).append(node.node_id)
    reason = f"idle for {rules.sleep_after_s:g} s, nobody waits for them"
    return fleet, [Sleep(name, tuple(sorted(nodes)), reason) for name, nodes in sorted(by_domain.items())]


def asleep_now(fleet: Fleet) -> list[str]:
    """Nodes that were told to sleep and do, or are gone: their mark has served."""
    found = []
    for mark in _told(fleet):
        node = fleet.nodes.get(mark.node_id)
        if node is None or node.state is NodeState.ASLEEP:
            found.append(mark.node_id)
    return found


def _told(fleet: Fleet) -> Iterable[Mark]:
    return [mark for mark in fleet.marks.values() if mark.kind is MarkKind.NODE_RESTING]


def _may(fleet: Fleet, idle: IdleNodes, node: Node) -> bool:
    return node.wake_s > 0 and node.state in AWAKE_STATES and idle.is_idle(node.node_id) and not fleet.why_down(node)


def _chosen(
    fleet: Fleet, cluster: Cluster, demands: Iterable[Demand], idle: IdleNodes, rules: IdleRules, now_s: float
) -> list[Node]:
    nodes = [node for node in fleet.nodes.values() if _may(fleet, idle, node)]
    wanted = _wanted(cluster, demands)
    index = cluster.table.node_index
    ripe = [
        node
        for node in nodes
        if now_s >= idle.since_s(node.node_id) + rules.sleep_after_s
        and now_s >= idle.refused.get(node.node_id, -math.inf)
        and not (node.node_id in index and wanted[index[node.node_id]])
    ]
    ripe.sort(key=lambda node: (idle.since_s(node.node_id), node.node_id))
    pools: dict[tuple[str, str], int] = {}
    for node in nodes:
        pools[_pool(node)] = pools.get(_pool(node), 0) + 1
    spare = _spare(fleet)
    chosen = []
    for node in ripe:
        left = spare.get(node.domain_id, math.inf) - len(node.devices)
        if pools[_pool(node)] > rules.reserve and (left >= 0 or not node.devices):
            pools[_pool(node)] -= 1
            spare[node.domain_id] = left
            chosen.append(node)
    return chosen


def _pool(node: Node) -> tuple[str, str]:
    return node.domain_id, node.devices[0].model if node.devices else ""


def _spare(fleet: Fleet) -> dict[str, float]:
    """Accelerators awake beyond those that are forecast to be needed, by domain; domains without a forecast are left out."""
    spare = {name: -expected for name, expected in fleet.expected_demand.items() if math.isfinite(expected)}
    for node in fleet.nodes.values():
        if node.domain_id in spare and node.state is not NodeState.ASLEEP and not fleet.why_down(node):
            spare[node.domain_id] += len(node.devices)
    return spare


def _wanted(cluster: Cluster, demands: Iterable[Demand]) -> Bools:
    """Nodes (N) that some waiting unit could use, by accelerator model and domain."""
    table = cluster.table
    wanted = np.zeros(len(table.nodes), dtype=np.bool_)
    for demand in dict.fromkeys(demands):
        rows = np.ones(len(table.nodes), dtype=np.bool_)
        if demand.accelerators:
            rows = table.devices[:, cluster.view.columns(demand)].sum(axis=1) > 0
        if demand.domains or demand.excluded_domains:
            rows = rows & table.domains_of(demand)[table.node_domain]
        wanted |= rows
    return wanted
