"""Validation of an inventory: a node with an impossible description is left out, the rest stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import isfinite

from meridian.contracts.resource.v1 import resource_pb2 as pb
from meridian.resource_model import MAX_AMOUNT, NAME
from services.telemetry.issues import WHOLE_NODE, Issue, IssueKind
from services.telemetry.reading_check import is_part_id

MAX_ID_CHARACTERS = 200
MAX_INDEX = 1023
MAX_AMOUNTS = 256
MAX_WAKE_S = 86_400.0


def is_node_id(text: str) -> bool:
    """1 to 200 printable characters."""
    return 0 < len(text) <= MAX_ID_CHARACTERS and text.isprintable()


def _amount(value: float) -> bool:
    return isfinite(value) and value >= 0


def _node_problems(node: pb.NodeInventory) -> Iterator[tuple[IssueKind, int, str, str]]:
    if not is_node_id(node.node_id):
        detail = f"a node id has 1 to {MAX_ID_CHARACTERS} printable characters"
        yield IssueKind.UNKNOWN_DEVICE, WHOLE_NODE, "node_id", detail
    if not _amount(node.cpus):
        yield IssueKind.OUT_OF_RANGE, WHOLE_NODE, "cpus", f"{node.cpus} processors"
    if node.memory_bytes < 0:
        yield IssueKind.OUT_OF_RANGE, WHOLE_NODE, "memory_bytes", f"{node.memory_bytes} bytes of memory"
    if not (_amount(node.wake_s) and node.wake_s <= MAX_WAKE_S):
        yield IssueKind.OUT_OF_RANGE, WHOLE_NODE, "wake_s", f"{node.wake_s} s to wake"
    whole = {accelerator.index for accelerator in node.accelerators}
    indices: set[int] = set()
    for accelerator in node.accelerators:
        index = accelerator.index
        if not 0 <= index <= MAX_INDEX:
            yield IssueKind.OUT_OF_RANGE, WHOLE_NODE, "accelerators.index", f"accelerator index {index}"
        if index in indices:
            yield IssueKind.DUPLICATE, index, "accelerators.index", f"accelerator {index} stands twice on the node"
        indices.add(index)
        if accelerator.memory_bytes < 0:
            detail = f"{accelerator.memory_bytes} bytes of device memory"
            yield IssueKind.OUT_OF_RANGE, index, "accelerators.memory_bytes", detail
        if not _amount(accelerator.peak_flops):
            detail = f"a peak of {accelerator.peak_flops} FLOP/s"
            yield IssueKind.OUT_OF_RANGE, index, "accelerators.peak_flops", detail
        ids: set[str] = set()
        for part in accelerator.parts:
            yield from _part_problems(part, index, ids, indices | whole)
            ids.add(part.id)
            if part.index:
                indices.add(part.index)


def _part_problems(
    part: pb.AcceleratorPart, accelerator: int, ids: Collection[str], taken: Collection[int]
) -> Iterator[tuple[IssueKind, int, str, str]]:
    if not is_part_id(part.id):
        yield IssueKind.UNKNOWN_DEVICE, accelerator, "accelerators.parts.id", f"{part.id[:64]!r} is no part"
    if part.id in ids:
        yield IssueKind.DUPLICATE, accelerator, "accelerators.parts.id", f"part {part.id[:64]} stands twice"
    if not 0 <= part.index <= MAX_INDEX:
        yield IssueKind.OUT_OF_RANGE, accelerator, "accelerators.parts.index", f"part number {part.index}"
    elif part.index and part.index in taken:
        detail = f"number {part.index} of part {part.id[:64]} is another device's"
        yield IssueKind.DUPLICATE, accelerator, "accelerators.parts.index", detail
    if part.memory_bytes < 0 or not _amount(part.peak_flops):
        detail = f"{part.memory_bytes} bytes, {part.peak_flops} FLOP/s"
        yield IssueKind.OUT_OF_RANGE, accelerator, "accelerators.parts", detail


def _amount_problem(item: pb.ResourceAmount) -> str:
    if not re.fullmatch(NAME, item.name):
        return f"the name {item.name[:80]!r} cannot be that of a resource"
    if item.HasField("value") and not (_amount(item.value) and item.value <= MAX_AMOUNT):
        return f"{item.value} of {item.name}"
    return ""


def _without_wrong_amounts(node: pb.NodeInventory) -> Iterator[Issue]:
    """Takes amounts out of a node that cannot be, or stand twice."""
    kept: dict[str, pb.ResourceAmount] = {}
    for item in node.user_resources:
        problem = _amount_problem(item)
        if problem:
            yield Issue(
                IssueKind.OUT_OF_RANGE, node.node_id, WHOLE_NODE, "inventory.user_resources", f"{problem}: left out"
            )
        elif item.name in kept or len(kept) >= MAX_AMOUNTS:
            detail = f"{item.name} stands twice, or is one of more than {MAX_AMOUNTS}: left out"
            yield Issue(IssueKind.DUPLICATE, node.node_id, WHOLE_NODE, "inventory.user_resources", detail)
        else:
            kept[item.name] = item
    if len(kept) < len(node.user_resources):
        copies = [pb.ResourceAmount.FromString(item.SerializeToString()) for item in kept.values()]
        del node.user_resources[:]
        node.user_resources.extend(copies)


def _link_problems(link: pb.Link, domain_id: str) -> Iterator[tuple[str, str]]:
    if link.from_domain_id != domain_id:
        yield "links.from_domain_id", f"a link of domain {link.from_domain_id!r}"
    if not link.to_domain_id:
        yield "links.to_domain_id", "a link to nowhere"
    for name in ("rtt_s", "bandwidth_bytes_per_s"):
        if not _amount(getattr(link, name)):
            yield f"links.{name}", f"{name} {getattr(link, name)} to {link.to_domain_id!r}"
    if not 0 <= link.loss <= 1:
        yield "links.loss", f"loss {link.loss} to {link.to_domain_id!r}"
    if link.price_per_gb.micro_units < 0:
        yield "links.price_per_gb", f"price {link.price_per_gb.micro_units} to {link.to_domain_id!r}"


def check_inventory(
    inventory: pb.DomainInventory, domain_id: str, claimed_elsewhere: Mapping[str, str]
) -> tuple[pb.DomainInventory, list[Issue]]:
    """The inventory without what cannot be, and what was left out.

    Of a node id that stands twice the first stays. ``claimed_elsewhere``: node id -> domain that lists it at present.
    """
    issues: list[Issue] = []
    clean = pb.DomainInventory()
    clean.CopyFrom(inventory)
    del clean.nodes[:]
    del clean.links[:]
    seen: set[str] = set()
    for node in inventory.nodes:
        problems = list(_node_problems(node))
        if node.node_id in seen:
            problems.append((IssueKind.DUPLICATE, WHOLE_NODE, "node_id", "the node stands twice in the inventory"))
        elif node.node_id in claimed_elsewhere:
            detail = f"the node is listed by domain {claimed_elsewhere[node.node_id]!r}"
            problems.append((IssueKind.DUPLICATE, WHOLE_NODE, "node_id", detail))
        issues += [
            Issue(kind, node.node_id, index, f"inventory.{name}", f"{detail}: the node is left out")
            for kind, index, name, detail in problems
        ]
        if not problems:
            seen.add(node.node_id)
            clean.nodes.add().CopyFrom(node)
            if node.user_resources:
                issues += _without_wrong_amounts(clean.nodes[-1])
    for link in inventory.links:
        found = list(_link_problems(link, domain_id))
        issues += [
            Issue(IssueKind.OUT_OF_RANGE, "", WHOLE_NODE, f"inventory.{name}", f"{detail}: the link is left out")
            for name, detail in found
        ]
        if not found:
            clean.links.add().CopyFrom(link)
    issues += _check_domain(clean)
    clean.domain_id = domain_id
    return clean, issues


def _check_domain(clean: pb.DomainInventory) -> list[Issue]:
    """Impossible facts of the domain become unknown (zero)."""
    problems = []
    if clean.security_level < 0:
        problems.append(("security_level", f"security level {clean.security_level}"))
        clean.security_level = 0
    if clean.price_per_accelerator_hour.micro_units < 0:
        detail = f"price {clean.price_per_accelerator_hour.micro_units}"
        problems.append(("price_per_accelerator_hour", detail))
        clean.ClearField("price_per_accelerator_hour")
    if not _amount(clean.carbon_g_per_kwh):
        problems.append(("carbon_g_per_kwh", f"{clean.carbon_g_per_kwh} g/kWh"))
        clean.carbon_g_per_kwh = 0.0
    return [
        Issue(IssueKind.OUT_OF_RANGE, "", WHOLE_NODE, f"inventory.{name}", f"{detail}: taken as unknown")
        for name, detail in problems
    ]
