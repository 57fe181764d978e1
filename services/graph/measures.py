"""What graph counts for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class GraphMeasures:
    """Metrics named ``meridian_graph_*``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.updates = Counter(
            "meridian_graph_updates_total", "Updates published", ["domain", "kind"], registry=registry
        )
        self.transitions = Counter(
            "meridian_graph_node_transitions_total", "Changes of node states", ["state", "rule"], registry=registry
        )
        self.version = Gauge("meridian_graph_version", "Version of the graph", registry=registry)
        self.age = Gauge(
            "meridian_graph_age_seconds", "Age of the oldest reading relied upon", ["domain"], registry=registry
        )
        self.nodes = Gauge("meridian_graph_nodes", "Nodes by state", ["state"], registry=registry)
