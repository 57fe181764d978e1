"""What a decider's facts say about one of its domains. What is the same stays the same object: a cluster is fitted anew only where
something changed."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.fleet import Domain, Fleet


def part_of(fleet: Fleet, domain_id: str, before: Fleet | None = None) -> Fleet:
    """What a fleet says about one domain; ``before`` itself when that is as it was."""
    nodes = {name: node for name, node in fleet.nodes.items() if node.domain_id == domain_id}
    domains = {domain_id: fleet.domains.get(domain_id, Domain(domain_id))}
    marks = {
        key: mark
        for key, mark in fleet.marks.items()
        if mark.domain_id == domain_id or mark.node_id in nodes or mark.subject in {domain_id, *nodes}
    }
    expected = {name: value for name, value in fleet.expected_demand.items() if name == domain_id}
    if before is None:
        return Fleet(domains, nodes, marks, expected)
    after = Fleet(
        before.domains if before.domains == domains else domains,
        before.nodes if before.nodes == nodes else nodes,
        before.marks if before.marks == marks else marks,
        before.expected_demand if before.expected_demand == expected else expected,
    )
    parts = ("domains", "nodes", "marks", "expected_demand")
    return before if all(getattr(after, name) is getattr(before, name) for name in parts) else after


def as_if_nobody_wakes(fleet: Fleet, before: Fleet | None = None) -> Fleet:
    """The fleet, but nodes that sleep take no work; what is as it was ``before`` stays the same object."""
    nodes = {name: node if not node.wake_s else replace(node, wake_s=0.0) for name, node in fleet.nodes.items()}
    if before is not None and before.nodes == nodes:
        if before.domains is fleet.domains and before.marks is fleet.marks:
            return before
        return Fleet(fleet.domains, before.nodes, fleet.marks)
    return Fleet(fleet.domains, nodes, fleet.marks)
