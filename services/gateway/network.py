"""The network as callers see it, folded from graph updates and incidents. Pure: messages in, changed rows out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.resource.v1 import resource_pb2
from services.gateway.wire import enum_name, to_body, to_datetime

GRAPH_EVENTS: tuple[type[Message], ...] = (graph_pb2.GraphUpdated, graph_pb2.NodeStateChanged)
INCIDENT_EVENTS: tuple[type[Message], ...] = (
    failover_pb2.NodeSuspected,
    failover_pb2.NodeFailed,
    failover_pb2.NodeRecovered,
    failover_pb2.NodeForgotten,
    failover_pb2.DomainUnreachable,
    failover_pb2.DomainReachable,
    failover_pb2.DomainForgotten,
    failover_pb2.RecoveryPlanned,
)


@dataclass(slots=True)
class NodeRow:
    """One node; ``body`` is what the inventory and the graph say beside the state."""

    node_id: str
    domain_id: str
    state: str
    state_reason: str
    body: dict[str, Any]
    updated_at: datetime | None


@dataclass(slots=True)
class LinkRow:
    """One link, as the image of ``domain_id`` names it."""

    from_domain_id: str
    to_domain_id: str
    domain_id: str
    body: dict[str, Any]


@dataclass(slots=True)
class DomainChange:
    """All that some graph updates of one domain change, taken together."""

    domain_id: str
    version: int = 0
    body: dict[str, Any] | None = None
    updated_at: datetime | None = None
    # The nodes and links given are all there are.
    full: bool = False
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    links: dict[tuple[str, str], LinkRow] = field(default_factory=dict)
    # Of nodes that are not among ``nodes``: state and reason.
    states: dict[str, tuple[str, str]] = field(default_factory=dict)


def graph_changes(messages: Iterable[Message]) -> list[DomainChange]:
    """What graph events, in their order, change: one item per domain."""
    changes: dict[str, DomainChange] = {}
    for message in messages:
        if isinstance(message, graph_pb2.GraphUpdated):
            _apply_update(changes.setdefault(message.domain_id, DomainChange(message.domain_id)), message)
        elif isinstance(message, graph_pb2.NodeStateChanged):
            change = changes.setdefault(message.domain_id, DomainChange(message.domain_id))
            state = enum_name(graph_pb2.NodeState.DESCRIPTOR, message.state)
            if message.node_id in change.nodes:
                row = change.nodes[message.node_id]
                row.state, row.state_reason = state, message.reason
            else:
                change.states[message.node_id] = (state, message.reason)
    return list(changes.values())


def _apply_update(change: DomainChange, message: graph_pb2.GraphUpdated) -> None:
    change.version = max(change.version, message.version)
    change.updated_at = to_datetime(message.updated_at)
    if message.HasField("domain"):
        change.body = _domain_body(message.domain)
    if message.full:
        change.full = True
        change.nodes, change.links, change.removed, change.states = {}, {}, set(), {}
    for node in message.nodes:
        row = _node_row(message, node)
        change.nodes[row.node_id] = row
        change.removed.discard(row.node_id)
        change.states.pop(row.node_id, None)
    for node_id in message.removed_node_ids:
        change.nodes.pop(node_id, None)
        change.states.pop(node_id, None)
        change.removed.add(node_id)
    for link in message.links:
        key = (link.from_domain_id, link.to_domain_id)
        change.links[key] = LinkRow(*key, message.domain_id, to_body(link))


def _domain_body(inventory: resource_pb2.DomainInventory) -> dict[str, Any]:
    bare = resource_pb2.DomainInventory()
    bare.CopyFrom(inventory)
    bare.ClearField("nodes")
    bare.ClearField("links")
    body = to_body(bare)
    del body["nodes"], body["links"]
    return body


def _node_row(message: graph_pb2.GraphUpdated, node: graph_pb2.GraphNode) -> NodeRow:
    body = to_body(node.inventory)
    shown = to_body(node)
    body["metrics"], body["expected_load"] = shown["metrics"], shown["expected_load"]
    body["certified"] = node.certified
    state = enum_name(graph_pb2.NodeState.DESCRIPTOR, node.state)
    updated_at = to_datetime(message.updated_at)
    return NodeRow(node.inventory.node_id, message.domain_id, state, node.state_reason, body, updated_at)


@dataclass(slots=True)
class IncidentRow:
    """A failure from the first suspicion to the recovery, or until the node is no longer known."""

    incident_id: str
    domain_id: str
    node_id: str
    state: str
    reason: str
    opened_at: datetime | None
    updated_at: datetime | None
    closed_at: datetime | None = None


@dataclass(slots=True)
class RecoveryRow:
    """A run that an incident took, and from where it goes on."""

    run_id: str
    incident_id: str
    job_id: str
    unit_index: int
    epoch: int
    restore_from: str
    restore_step: int
    reason: str
    planned_at: datetime | None


_STATES: dict[type[Message], str] = {
    failover_pb2.NodeSuspected: "suspected",
    failover_pb2.NodeFailed: "failed",
    failover_pb2.DomainUnreachable: "unreachable",
    failover_pb2.NodeRecovered: "recovered",
    failover_pb2.NodeForgotten: "forgotten",
    failover_pb2.DomainReachable: "recovered",
    failover_pb2.DomainForgotten: "forgotten",
}
_OVER = {"recovered", "forgotten"}


@dataclass(slots=True)
class IncidentChanges:
    """What incident events change."""

    incidents: dict[str, IncidentRow] = field(default_factory=dict)
    recoveries: list[RecoveryRow] = field(default_factory=list)


def incident_changes(messages: Iterable[Any], known: Iterable[IncidentRow]) -> IncidentChanges:
    """Fold incident events, in their order, into the rows they name; ``known`` are those rows as stored."""
    stored = {row.incident_id: row for row in known}
    changes = IncidentChanges()
    for message in messages:
        at = to_datetime(message.at)
        if isinstance(message, failover_pb2.RecoveryPlanned):
            changes.recoveries.append(
                RecoveryRow(
                    message.run_id, message.incident_id, message.job_id, message.unit_index, message.epoch,
                    message.restore_from, message.restore_step, message.reason, at,
                )
            )  # fmt: skip
            continue
        if not message.incident_id:
            continue
        state = _STATES[type(message)]
        row = changes.incidents.get(message.incident_id) or stored.get(message.incident_id)
        if row is None:
            node_id = getattr(message, "node_id", "")
            row = IncidentRow(message.incident_id, message.domain_id, node_id, state, "", at, at)
        row.state, row.updated_at = state, at
        row.reason = getattr(message, "reason", "") or row.reason
        row.closed_at = at if state in _OVER else None
        changes.incidents[row.incident_id] = row
    return changes
