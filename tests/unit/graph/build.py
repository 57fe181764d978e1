"""Events for tests of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.identity.v1 import identity_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1 import telemetry_pb2

NOW_S = 1_800_000_000.0


def stamp(at_s: float) -> Timestamp:
    """A protobuf time."""
    found = Timestamp()
    found.FromNanoseconds(int(at_s * 1e9))
    return found


def node(node_id: str, accelerators: int = 1, **labels: str) -> resource_pb2.NodeInventory:
    """A node."""
    chips = [resource_pb2.Accelerator(index=index, model="H100") for index in range(accelerators)]
    return resource_pb2.NodeInventory(node_id=node_id, cpus=8, accelerators=chips, labels=labels)


def link(to_domain_id: str, rtt_s: float = 0.03, from_domain_id: str = "beijing") -> resource_pb2.Link:
    """A link of the domain."""
    return resource_pb2.Link(from_domain_id=from_domain_id, to_domain_id=to_domain_id, rtt_s=rtt_s)


Values = Mapping[tuple[str, int | None, str], float | None]


def observation(
    nodes: Iterable[resource_pb2.NodeInventory] = (),
    values: Values | None = None,
    *,
    links: Iterable[resource_pb2.Link] = (),
    issues: Iterable[telemetry_pb2.QualityIssue] = (),
    at_s: float = NOW_S,
    domain_id: str = "beijing",
    name: str = "Beijing",
) -> telemetry_pb2.ObservationRecorded:
    """An observation; ``values``: (node, accelerator, metric) -> value."""
    readings = [
        resource_pb2.Reading(
            node_id=place[0], accelerator_index=place[1], metric=place[2], value=value, observed_at=stamp(at_s)
        )
        for place, value in (values or {}).items()
    ]
    inventory = resource_pb2.DomainInventory(domain_id=domain_id, name=name, nodes=nodes, links=links)
    return telemetry_pb2.ObservationRecorded(
        domain_id=domain_id, inventory=inventory, readings=readings, issues=issues, observed_at=stamp(at_s)
    )


def issued(
    identity_id: str, node_id: str, index: int | None = None, *, domain_id: str = "beijing", at_s: float = NOW_S
) -> identity_pb2.IdentityIssued:
    """An identity of a node or accelerator."""
    kind = identity_pb2.IDENTITY_KIND_NODE if index is None else identity_pb2.IDENTITY_KIND_DEVICE
    return identity_pb2.IdentityIssued(
        identity_id=identity_id, kind=kind, domain_id=domain_id, node_id=node_id, accelerator_index=index,
        issued_at=stamp(at_s),
    )  # fmt: skip


def revoked(
    identity_id: str, node_id: str, index: int | None = None, *, domain_id: str = "beijing"
) -> identity_pb2.IdentityRevoked:
    """An identity that must not be accepted."""
    kind = identity_pb2.IDENTITY_KIND_NODE if index is None else identity_pb2.IDENTITY_KIND_DEVICE
    return identity_pb2.IdentityRevoked(identity_id=identity_id, kind=kind, domain_id=domain_id, node_id=node_id)
