"""The simulated network as the scheduler's fleet."""

from __future__ import annotations

from services.scheduler.core.fleet import Device, Domain, Fleet, Link, Node
from simulation.model import Network, SimNode


def fleet_of(network: Network) -> Fleet:
    """All nodes up and awake; facts as the network gives them (carbon: the mean over the day)."""
    links: dict[str, list[Link]] = {domain.domain_id: [] for domain in network.domains}
    for link in network.links:
        links[link.from_domain].append(
            Link(link.to_domain, link.rtt_s, link.bandwidth_bytes_per_s, link.price_micro_units_per_gib)
        )
    domains = {
        item.domain_id: Domain(
            item.domain_id,
            item.security_level,
            item.price_micro_units,
            item.currency,
            sum(item.carbon_g_per_kwh) / max(len(item.carbon_g_per_kwh), 1),
            tuple(links[item.domain_id]),
            item.region,
            item.burst,
            item.electricity_micro_units_per_kwh,
        )
        for item in network.domains
    }
    return Fleet(domains, {node.node_id: _node(node) for node in network.nodes})


def _node(node: SimNode) -> Node:
    topology = {level: name for level, name in (("rack", node.rack), ("spine", node.spine)) if name}
    return Node(
        node.node_id,
        node.domain_id,
        node.cpus,
        node.memory_bytes,
        tuple(Device(index, node.vendor, node.model) for index in range(node.accelerators)),
        topology=topology,
        resources=dict(node.resources),
        idle_watts=node.idle_watts,
        wake_s=node.wake_s,
    )
