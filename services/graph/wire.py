"""The graph as JSON: snake case, times as RFC 3339, states as words, 64-bit integers as numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.graph.v1 import graph_pb2
from services.graph.change_log import LoggedChange
from services.graph.facts import WHOLE_NODE, Readings
from services.graph.image import DomainImage
from services.graph.node_state import NodeState
from services.graph.recognition.judgement import Opinion
from services.graph.store import NodeView


def time_of(seconds: float) -> datetime | None:
    """Seconds since 1970 as a time; None for 0."""
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def body(message: Message) -> dict[str, Any]:
    """All fields of a message; what is unset and has presence is null."""
    return {field.name: _value(field, message) for field in message.DESCRIPTOR.fields}


def _value(field: Any, message: Message) -> Any:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [_single(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToDatetime(UTC)
    if isinstance(value, Message):
        return body(value)
    if field.enum_type is not None and field.enum_type.name == "NodeState":
        return state_name(value)
    return value


def state_name(number: int) -> str:
    """``healthy``, ``busy``, ..."""
    return NodeState(number).name.lower()


def node_body(domain_id: str, node: graph_pb2.GraphNode) -> dict[str, Any]:
    """A node: its inventory with state, metrics and certification beside it."""
    return {
        "domain_id": domain_id,
        **body(node.inventory),
        "state": state_name(node.state),
        "state_reason": node.state_reason,
        "certified": node.certified,
        "metrics": dict(sorted(node.metrics.items())),
        "expected_load": node.expected_load if node.HasField("expected_load") else None,
    }


def domain_body(domain_id: str, image: DomainImage) -> dict[str, Any]:
    """A domain with its nodes and links."""
    found = body(image.domain)
    found["domain_id"] = domain_id
    found["nodes"] = [node_body(domain_id, node) for _, node in sorted(image.nodes.items())]
    found["links"] = [body(link) for _, link in sorted(image.links.items())]
    return found


def change_body(change: LoggedChange) -> dict[str, Any]:
    """An entry of the log of changes."""
    update = change.update
    domain = None
    if update.HasField("domain"):
        domain = {name: value for name, value in body(update.domain).items() if name not in {"nodes", "links"}}
    return {
        "version": change.version,
        "domain_id": change.domain_id,
        "at": change.at,
        "kind": change.kind,
        "full": update.full,
        "domain": domain,
        "nodes": [node_body(change.domain_id, node) for node in update.nodes],
        "removed_node_ids": list(update.removed_node_ids),
        "links": [body(link) for link in update.links],
    }


def explained_node(view: NodeView) -> dict[str, Any]:
    """A node with the reason of its state and the readings it rests on."""
    found = node_body(view.domain_id, view.node)
    found["rule"] = view.decided.rule
    found["state_since"] = time_of(view.decided.since_s)
    found["bad_readings"] = list(view.bad_readings)
    found["readings"] = _readings(view.readings)
    return found


def model_word(name: str, opinion: Opinion | None) -> dict[str, Any] | None:
    """What the model said of a node at its newest observation, whoever decided."""
    if opinion is None:
        return None
    return {"name": name, "state": state_name(opinion.state), "confidence": round(opinion.confidence, 4)}


def _readings(readings: Readings) -> list[dict[str, Any]]:
    return [
        {
            "metric": metric,
            "accelerator_index": None if index == WHOLE_NODE else index,
            "value": value,
            "observed_at": time_of(at_s),
        }
        for metric, series in sorted(readings.items())
        for index, (value, at_s) in sorted(series.items())
    ]
