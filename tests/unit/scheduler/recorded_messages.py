"""What a recorded history of a scheduler is made of in tests: events as they come, and a domain as the graph tells it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

from google.protobuf.message import Message

from meridian.codec import Envelope, decode, encode
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_HEALTHY, GraphNode, GraphUpdated
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, DomainInventory, NodeInventory

_ids = count(1)


def envelope(message: Message) -> Envelope:
    """The message as it comes from the bus."""
    record = encode(message, event_id=f"event-{next(_ids)}", source="/test", time=datetime.now(UTC))
    return decode(record.value, record.headers)


def graph(nodes: int) -> GraphUpdated:
    """The domain north with nodes of four accelerators."""
    inventories = [
        NodeInventory(
            node_id=f"north-{number}",
            cpus=16,
            memory_bytes=2**36,
            accelerators=[Accelerator(index=index, vendor="NVIDIA", model="A100") for index in range(4)],
        )
        for number in range(nodes)
    ]
    parts = [GraphNode(inventory=item, state=NODE_STATE_HEALTHY) for item in inventories]
    return GraphUpdated(domain_id="north", full=True, domain=DomainInventory(domain_id="north"), nodes=parts)
