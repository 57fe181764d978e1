"""A kept cluster after news about the fleet: cheap where nodes only went up or down, anew where the arrays changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.scheduler.core import outlooks
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.contracts.contract import refitted
from services.scheduler.core.fleet import Fleet, MarkKind, Node, NodeState
from services.scheduler.core.table import Table, sum_by, table_of
from services.scheduler.core.view import View


def refit(cluster: Cluster, before: Fleet, after: Fleet) -> None:
    """Bring a cluster from one fleet to another; what waits and what runs stays."""
    if before is after:
        return
    if alike(before, after):
        _restate(cluster, before, after)
    else:
        _renew(cluster, table_of(after))
    refitted(cluster)
    outlooks.refitted(cluster, before, after)


def alike(before: Fleet, after: Fleet) -> bool:
    """Whether the same nodes with the same devices stand in the same domains, so that only their states differ."""
    if before.domains is not after.domains or before.nodes.keys() != after.nodes.keys():
        return False
    revoked = [
        {key for key in fleet.marks if key[0] is MarkKind.DEVICE_REVOKED} if fleet.marks else set()
        for fleet in (before, after)
    ]
    if revoked[0] != revoked[1]:
        return False
    if before.nodes is after.nodes:
        return True
    old = before.nodes
    return all(
        node is old[name] or replace(node, state=old[name].state, state_reason=old[name].state_reason) == old[name]
        for name, node in after.nodes.items()
    )


def _restate(cluster: Cluster, before: Fleet, after: Fleet) -> None:
    view, table = cluster.view, cluster.table
    nodes = tuple([after.nodes[node.node_id] for node in table.nodes])
    marks_changed = before.marks is not after.marks
    down = tuple(
        [
            after.why_down(new) if marks_changed or new is not old else why
            for new, old, why in zip(nodes, table.nodes, table.down, strict=True)
        ]
    )
    renewed = _with_states(table, nodes, down)
    if before.expected_demand is not after.expected_demand:
        names = table.domain_ids
        demand = np.array([after.expected_demand.get(name, np.nan) for name in names])
        renewed = replace(renewed, expected_demand=demand)
        view.generation += 1
    elif down != table.down or (renewed.degraded != table.degraded).any() or (renewed.asleep != table.asleep).any():
        view.generation += 1
    view.table = renewed
    changed = renewed.up != table.up
    if changed.any():
        view.set_up(np.flatnonzero(changed & renewed.up).tolist(), True)
        view.set_up(np.flatnonzero(changed & ~renewed.up).tolist(), False)


def _with_states(table: Table, nodes: tuple[Node, ...], down: tuple[str, ...]) -> Table:
    up = np.array([not reason for reason in down], dtype=np.bool_)
    size = len(table.domain_ids)
    return replace(
        table,
        nodes=nodes,
        down=down,
        up=up,
        degraded=np.array([node.state is NodeState.DEGRADED for node in nodes], dtype=np.bool_),
        asleep=np.array([node.state is NodeState.ASLEEP for node in nodes], dtype=np.bool_),
        domain_cpus=sum_by(table.node_domain, table.cpus * up, size),
        domain_devices=sum_by(table.node_domain, table.devices.sum(axis=1) * up, size),
    )


def _renew(cluster: Cluster, table: Table) -> None:
    old = cluster.view
    view = View(table)
    view.facts.update(old.facts)
    view.facts_version = old.facts_version + 1
    view.ports_held = old.ports_held
    # Nothing that was judged before holds, and there may be more room than before.
    view.generation, view.gives = old.generation + 1, old.gives + 1
    cluster.view = view
    cluster.forget()
    cluster.holders.clear()
    for running in cluster.running.values():
        running.rows = cluster.rows_of(running.ranks)
        cluster.enter(running)
        for row, devices in running.rows:
            view.occupy(row, running.unit.demand, devices)
