"""The fleet: what the scheduler knows about domains and nodes, as immutable facts.

A change gives a new `Fleet` that shares what did not change; when nothing that matters for placing changed, the very
same object comes back, so a caller sees by identity whether to write and to decide anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

DEFAULT_ADDRESS = "127.0.0.1"
"""Where a node is reached that names no address: all its ranks run on this machine."""


class NodeState(StrEnum):
    """State of a node in the resource graph."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    BUSY = "busy"
    DEGRADED = "degraded"
    FAILING = "failing"
    UNREACHABLE = "unreachable"
    ASLEEP = "asleep"
    FAILED = "failed"


USABLE_STATES = frozenset({NodeState.UNKNOWN, NodeState.HEALTHY, NodeState.BUSY, NodeState.DEGRADED})


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator of a node; ``emulated`` means declared, not present."""

    index: int
    vendor: str = ""
    model: str = ""
    emulated: bool = False
    compute_id: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the graph shows it.

    ``topology`` names the node's group per level ("rack": "r1"). ``wake_s`` > 0 says that a sleeping node can be woken for
    work, in so many seconds; otherwise a sleeping node takes none. ``idle_watts`` is what it draws without work.
    """

    node_id: str
    domain_id: str
    cpus: float
    memory_bytes: int
    devices: tuple[Device, ...] = ()
    address: str = ""
    compute_id: str = ""
    state: NodeState = NodeState.HEALTHY
    state_reason: str = ""
    certified: bool = False
    topology: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    idle_watts: float = 0.0
    wake_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """From a domain to another: ``rtt_s`` and ``bandwidth_bytes_per_s`` 0 mean unknown. The price is for each GiB that
    leaves this way."""

    to_domain_id: str
    rtt_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    price_micro_units_per_gib: int = 0


@dataclass(frozen=True, slots=True)
class Domain:
    """A member domain. The price is that of one accelerator for one hour. ``burst``: rented capacity that is to be used only
    when the others are full. ``own_scheduler``: its agent answers for it on two levels, and nobody else gives its nodes away."""

    domain_id: str
    security_level: int = 0
    price_micro_units: int = 0
    currency: str = ""
    carbon_g_per_kwh: float = 0.0
    links: tuple[Link, ...] = ()
    region: str = ""
    burst: bool = False
    electricity_micro_units_per_kwh: int = 0
    own_scheduler: bool = False


class MarkKind(StrEnum):
    """Something declared about a node, domain or identity that keeps it from taking work."""

    NODE_SUSPECTED = "node_suspected"
    NODE_FAILED = "node_failed"
    DOMAIN_UNREACHABLE = "domain_unreachable"
    NODE_REVOKED = "node_revoked"
    DEVICE_REVOKED = "device_revoked"
    AGENT_REVOKED = "agent_revoked"
    NODE_RESTING = "node_resting"


@dataclass(frozen=True, slots=True)
class Mark:
    """``subject`` is a node id, a domain id or, for revocations, an identity; ``node_id`` and ``domain_id`` its place."""

    kind: MarkKind
    subject: str
    reason: str = ""
    domain_id: str = ""
    node_id: str = ""


MarkKey = tuple[MarkKind, str]


@dataclass(frozen=True, slots=True)
class Fleet:
    """All facts. ``expected_demand``: accelerators a domain is forecast to need, by domain. ``asks_domains``: nodes are asked for,
    not given away, by who has these facts (two levels), so domains with a scheduler of their own take work."""

    domains: Mapping[str, Domain] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    marks: Mapping[MarkKey, Mark] = field(default_factory=dict)
    expected_demand: Mapping[str, float] = field(default_factory=dict)
    asks_domains: bool = False

    def unreachable(self, domain_id: str) -> bool:
        """Whether failover holds the domain for unreachable."""
        return (MarkKind.DOMAIN_UNREACHABLE, domain_id) in self.marks

    def schedules_itself(self, domain_id: str) -> bool:
        """Whether the domain has a scheduler of its own."""
        domain = self.domains.get(domain_id)
        return domain is not None and domain.own_scheduler

    def failed(self, node_id: str) -> bool:
        """Whether failover declared the node dead."""
        return (MarkKind.NODE_FAILED, node_id) in self.marks

    def why_down(self, node: Node) -> str:
        """Why the node takes no work; empty when it does."""
        if (MarkKind.NODE_FAILED, node.node_id) in self.marks:
            return "declared failed"
        if (MarkKind.NODE_SUSPECTED, node.node_id) in self.marks:
            return "suspected to have failed"
        if node.state is not NodeState.ASLEEP and (MarkKind.NODE_RESTING, node.node_id) in self.marks:
            return "it was told to go to sleep"
        if (MarkKind.DOMAIN_UNREACHABLE, node.domain_id) in self.marks:
            return "its domain is unreachable"
        if self._revoked(MarkKind.NODE_REVOKED, node.compute_id, node.node_id):
            return "its identity was revoked"
        if any(
            mark.kind is MarkKind.AGENT_REVOKED and mark.domain_id == node.domain_id for mark in self.marks.values()
        ):
            return "the identity of its domain's agent was revoked"
        if not self.asks_domains and self.schedules_itself(node.domain_id):
            return "its domain gives its nodes away by a scheduler of its own, which is asked on two levels only"
        if node.state is NodeState.ASLEEP and node.wake_s > 0:
            return ""
        if node.state not in USABLE_STATES:
            return f"its state is {node.state}" + (f" ({node.state_reason})" if node.state_reason else "")
        return ""

    def sleeps(self, node_id: str) -> bool:
        """Whether the node would have to be woken before anything can start on it."""
        node = self.nodes.get(node_id)
        return node is not None and node.state is NodeState.ASLEEP

    def usable(self, device: Device) -> bool:
        """Whether the device's identity is not revoked."""
        return not device.compute_id or (MarkKind.DEVICE_REVOKED, device.compute_id) not in self.marks

    def _revoked(self, kind: MarkKind, identity: str, node_id: str) -> bool:
        if identity:
            return (kind, identity) in self.marks
        return any(mark.kind is kind and mark.node_id == node_id for mark in self.marks.values())


def with_domain(
    fleet: Fleet, domain: Domain | None, nodes: Iterable[Node], *, full_of: str = "", removed: Iterable[str] = ()
) -> Fleet:
    """The fleet after news from the graph; with ``full_of`` the nodes are the whole of that domain."""
    nodes = tuple(nodes)
    gone = set(removed)
    if full_of:
        present = {node.node_id for node in nodes}
        gone |= {
            node_id for node_id, node in fleet.nodes.items() if node.domain_id == full_of and node_id not in present
        }
    changed = {node.node_id: node for node in nodes if fleet.nodes.get(node.node_id) != node}
    gone &= fleet.nodes.keys()
    domain_changed = domain is not None and fleet.domains.get(domain.domain_id) != domain
    if not changed and not gone and not domain_changed:
        return fleet
    merged = {node_id: node for node_id, node in {**fleet.nodes, **changed}.items() if node_id not in gone}
    domains = {**fleet.domains, domain.domain_id: domain} if domain_changed and domain is not None else fleet.domains
    return replace(fleet, nodes=merged, domains=domains)


def without_domain(fleet: Fleet, domain_id: str) -> Fleet:
    """The fleet without a domain that left the network, its nodes and what was held against it."""
    fleet = without_marks(fleet, [(MarkKind.DOMAIN_UNREACHABLE, domain_id)])
    nodes = {node_id: node for node_id, node in fleet.nodes.items() if node.domain_id != domain_id}
    if domain_id not in fleet.domains and domain_id not in fleet.expected_demand and len(nodes) == len(fleet.nodes):
        return fleet
    return replace(
        fleet,
        domains={name: item for name, item in fleet.domains.items() if name != domain_id},
        nodes=nodes,
        expected_demand={name: value for name, value in fleet.expected_demand.items() if name != domain_id},
    )


def with_node_state(fleet: Fleet, node_id: str, state: NodeState, reason: str) -> Fleet:
    """The fleet after a node changed its state; unknown nodes change nothing."""
    node = fleet.nodes.get(node_id)
    if node is None or (node.state is state and node.state_reason == reason):
        return fleet
    return replace(fleet, nodes={**fleet.nodes, node_id: replace(node, state=state, state_reason=reason)})


def with_mark(fleet: Fleet, mark: Mark) -> Fleet:
    """The fleet with a mark set."""
    if fleet.marks.get((mark.kind, mark.subject)) == mark:
        return fleet
    return replace(fleet, marks={**fleet.marks, (mark.kind, mark.subject): mark})


def without_marks(fleet: Fleet, keys: Iterable[MarkKey]) -> Fleet:
    """The fleet with marks lifted."""
    lifted = set(keys) & fleet.marks.keys()
    if not lifted:
        return fleet
    return replace(fleet, marks={key: mark for key, mark in fleet.marks.items() if key not in lifted})


def with_expected_demand(fleet: Fleet, domain_id: str, accelerators: float) -> Fleet:
    """The fleet with a newer forecast of a domain's demand."""
    if fleet.expected_demand.get(domain_id) == accelerators:
        return fleet
    return replace(fleet, expected_demand={**fleet.expected_demand, domain_id: accelerators})
