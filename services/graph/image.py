"""The image of a domain, and the differences between two images.

`difference` and `applied` belong together: a consumer that has the earlier image and applies the difference has the later one.
Links cannot be taken out of an image by a difference (the contract has no field for it): then the whole image is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.resource.v1 import resource_pb2
from services.graph.facts import WHOLE_NODE, Certificate, Decided, DomainFacts
from services.graph.node_state import Assessment, NodeState, Thresholds, node_state

TOLD_AGAIN_S = 15.0


@dataclass(slots=True)
class DomainImage:
    """What consumers know of a domain. Messages in it are never changed, only replaced."""

    domain: resource_pb2.DomainInventory = field(default_factory=resource_pb2.DomainInventory)
    nodes: dict[str, graph_pb2.GraphNode] = field(default_factory=dict)
    links: dict[tuple[str, str], resource_pb2.Link] = field(default_factory=dict)

    def copy(self) -> DomainImage:
        """Another image with the same messages."""
        return DomainImage(self.domain, dict(self.nodes), dict(self.links))


@dataclass(frozen=True, slots=True)
class StateChange:
    """A node that changed its state or the rule for it."""

    node_id: str
    previous: NodeState
    state: NodeState
    decided: Decided


class Judge(Protocol):
    """Decides beside the rules."""

    def decide(self, node_id: str, rule: Assessment, before: Decided | None) -> Assessment:
        """The state of a node, given what the rules say and what was in force."""
        ...

    def expected_load(self, node_id: str) -> float | None:
        """Its load one interval later, 0-1; None unknown."""
        ...


def _bare(inventory: resource_pb2.DomainInventory) -> resource_pb2.DomainInventory:
    bare = resource_pb2.DomainInventory()
    bare.CopyFrom(inventory)
    bare.ClearField("nodes")
    bare.ClearField("links")
    return bare


def build_image(
    facts: DomainFacts, now_s: float, limits: Thresholds, judge: Judge | None = None
) -> tuple[DomainImage, dict[str, Decided]]:
    """The image that the facts give, and the rule in force for each node. ``judge``: what the model has to say beside the rules.

    While the same rule holds, its reason and time stay those of its beginning, so that a number in a reason that moves a
    little changes nothing.
    """
    if facts.inventory is None:
        return DomainImage(), {}
    image = DomainImage(_bare(facts.inventory))
    identities = facts.identities()
    decided: dict[str, Decided] = {}
    for inventory in facts.inventory.nodes:
        node_id = inventory.node_id
        before = facts.decided.get(node_id)
        found = node_state(facts.signals(inventory, now_s), before.rule if before else None, limits)
        if judge is not None:
            found = judge.decide(node_id, found, before)
        if before is not None and before.rule is found.rule:
            decided[node_id] = before
        else:
            decided[node_id] = Decided(found.rule, found.reason, now_s)
        node = graph_pb2.GraphNode(
            inventory=inventory,
            state=found.state.value,
            state_reason=decided[node_id].reason,
            metrics=facts.figures(node_id).metrics,
            certified=_certified(identities, inventory),
            expected_load=judge.expected_load(node_id) if judge is not None else None,
        )
        _name(identities, node.inventory)
        image.nodes[node_id] = node
    image.links = {(link.from_domain_id, link.to_domain_id): link for link in facts.inventory.links}
    return image, decided


Identities = Mapping[tuple[str, int], Certificate]


def _certified(identities: Identities, inventory: resource_pb2.NodeInventory) -> bool:
    """The node has an identity that stands, and no accelerator has one that was revoked and not replaced."""
    identity = identities.get((inventory.node_id, WHOLE_NODE))
    if identity is None or identity.revoked:
        return False
    devices = (identities.get((inventory.node_id, item.index)) for item in inventory.accelerators)
    return not any(device is not None and device.revoked for device in devices)


def _name(identities: Identities, inventory: resource_pb2.NodeInventory) -> None:
    """The compute ids are those that identity gave, whatever the agent says."""

    def standing(index: int) -> str:
        item = identities.get((inventory.node_id, index))
        return item.identity_id if item is not None and not item.revoked else ""

    inventory.compute_id = standing(WHOLE_NODE)
    for accelerator in inventory.accelerators:
        accelerator.compute_id = standing(accelerator.index)


def _moved(before: Mapping[str, float], after: Mapping[str, float], tolerance: float) -> bool:
    if before.keys() != after.keys():
        return True
    return any(abs(after[name] - before[name]) > tolerance * max(abs(before[name]), abs(after[name])) for name in after)


def _load_moved(before: graph_pb2.GraphNode, after: graph_pb2.GraphNode, tolerance: float) -> bool:
    if before.HasField("expected_load") is not after.HasField("expected_load"):
        return True
    return abs(after.expected_load - before.expected_load) > tolerance


def _same_but_metrics(before: graph_pb2.GraphNode, after: graph_pb2.GraphNode) -> bool:
    return (
        before.state == after.state
        and before.certified == after.certified
        and before.state_reason == after.state_reason
        and before.inventory == after.inventory
    )


class LinkChange(Enum):
    """How a link differs: not in a way that matters, in what was measured, or in what it is."""

    NONE = "none"
    MEASURED = "measured"
    STRUCTURE = "structure"


def link_change(before: resource_pb2.Link | None, after: resource_pb2.Link, tolerance: float) -> LinkChange:
    """With probes every image brings other numbers. Of a measured link it matters that round trip or bandwidth moved by more
    than five times ``tolerance``, loss by more than ``tolerance``, or that the measurement told is `TOLD_AGAIN_S` old."""
    if before is None:
        return LinkChange.STRUCTURE
    if before == after:
        return LinkChange.NONE
    if not before.HasField("measured_at") or not after.HasField("measured_at"):
        return LinkChange.STRUCTURE
    for name in ("price_per_gb", "emulated"):
        if getattr(before, name) != getattr(after, name):
            return LinkChange.STRUCTURE
    pairs = ((before.rtt_s, after.rtt_s), (before.bandwidth_bytes_per_s, after.bandwidth_bytes_per_s))
    moved = any(abs(b - a) > 5 * tolerance * max(a, b) for a, b in pairs)
    moved = moved or abs(before.loss - after.loss) > tolerance
    older_s = after.measured_at.seconds - before.measured_at.seconds
    return LinkChange.MEASURED if moved or older_s >= TOLD_AGAIN_S or tolerance == 0 else LinkChange.NONE


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed between two images. ``structure``: more than metrics."""

    update: graph_pb2.GraphUpdated
    structure: bool


def difference(
    before: DomainImage, after: DomainImage, *, metrics: bool = True, tolerance: float = 0.0
) -> Difference | None:
    """The update that leads from ``before`` to ``after``; None when there is nothing to tell.

    Without ``metrics``, nodes of which only metrics changed are left out, and links that were only measured anew; with them,
    nodes of which a metric appeared, vanished or moved by more than ``tolerance`` of its size, and links as `link_change`
    says. Version and times are left to the caller.
    """
    update = graph_pb2.GraphUpdated()
    if before.domain != after.domain:
        update.domain.CopyFrom(after.domain)
    removed = sorted(before.nodes.keys() - after.nodes.keys())
    update.removed_node_ids.extend(removed)
    structure = update.HasField("domain") or bool(removed)
    for node_id, node in after.nodes.items():
        known = before.nodes.get(node_id)
        if known is None or not _same_but_metrics(known, node):
            structure = True
            update.nodes.append(node)
        elif metrics and (_moved(known.metrics, node.metrics, tolerance) or _load_moved(known, node, tolerance)):
            update.nodes.append(node)
    changed_links = []
    for key, link in after.links.items():
        change = link_change(before.links.get(key), link, tolerance)
        structure = structure or change is LinkChange.STRUCTURE
        if change is LinkChange.STRUCTURE or (metrics and change is LinkChange.MEASURED):
            changed_links.append(link)
    if before.links.keys() - after.links.keys():
        return Difference(whole(after), structure=True)
    update.links.extend(changed_links)
    if not structure and not changed_links and not update.nodes:
        return None
    return Difference(update, structure)


def whole(image: DomainImage) -> graph_pb2.GraphUpdated:
    """The image as an update that replaces everything."""
    return graph_pb2.GraphUpdated(
        full=True, domain=image.domain, nodes=image.nodes.values(), links=image.links.values()
    )


def applied(image: DomainImage, updates: Iterable[graph_pb2.GraphUpdated]) -> DomainImage:
    """The image after updates in their order, as a consumer would have it."""
    result = image.copy()
    for update in updates:
        if update.full:
            result = DomainImage()
        if update.HasField("domain"):
            result.domain = update.domain
        for node_id in update.removed_node_ids:
            result.nodes.pop(node_id, None)
        result.nodes.update({node.inventory.node_id: node for node in update.nodes})
        result.links.update({(link.from_domain_id, link.to_domain_id): link for link in update.links})
    return result


def state_changes(
    before: DomainImage, after: DomainImage, rules_before: Mapping[str, Decided], rules_after: Mapping[str, Decided]
) -> list[StateChange]:
    """Nodes whose state or rule differs; a node that is new comes from unspecified."""
    changes = []
    for node_id, node in after.nodes.items():
        known = before.nodes.get(node_id)
        previous = NodeState(known.state) if known else NodeState.UNSPECIFIED
        rule_before = rules_before.get(node_id)
        decided = rules_after[node_id]
        if previous.value != node.state or (rule_before is not None and rule_before.rule is not decided.rule):
            changes.append(StateChange(node_id, previous, NodeState(node.state), decided))
    return changes
