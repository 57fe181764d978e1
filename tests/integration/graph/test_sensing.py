"""A real agent, identity, telemetry and graph together: what an operator sees of a new domain."""

from __future__ import annotations

import json
from pathlib import Path

from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_HEALTHY, GraphNode, GraphUpdated
from meridian.contracts.telemetry.v1.telemetry_pb2 import ObservationRecorded
from services.graph.image import DomainImage, applied
from tests.harness import environment
from tests.integration.agent.agent_process import DOMAIN, TOKEN, agent_running, configuration, short_directory


def is_ready(node: GraphNode) -> bool:
    """Certified with its accelerators, healthy, and seen working."""
    chips = [item.compute_id for item in node.inventory.accelerators]
    return (
        node.certified
        and node.state == NODE_STATE_HEALTHY
        and bool(node.inventory.compute_id)
        and all(chips)
        and len(set(chips)) == len(chips)
        and node.metrics.get("cpn.compute.capacity_free") == 1.0
    )


async def test_a_new_domain_appears_certified_and_healthy(database_url: str, tmp_path: Path) -> None:
    bootstrap = tmp_path / "bootstrap.json"
    bootstrap.write_text(json.dumps({"join_tokens": [TOKEN]}))
    async with (
        environment(database_url) as stack,
        stack.service("identity", {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap)}) as identity,
        stack.service("telemetry") as telemetry,
        stack.service("graph"),
    ):
        with short_directory() as directory:
            settings = configuration(directory, stack.bootstrap_servers, identity_url=identity.base_url)
            async with agent_running(settings, directory):
                image = DomainImage()
                seen = 0
                while set(image.nodes) != {"north-1", "north-2"} or not all(map(is_ready, image.nodes.values())):
                    seen += 1
                    await stack.bus.expect(GraphUpdated, lambda event: event.domain_id == DOMAIN, count=seen)
                    image = applied(DomainImage(), stack.bus.events(GraphUpdated)[:seen])
                # Everything that the agent reads is in the catalogue of metrics and holds up.
                issues = [issue for event in stack.bus.events(ObservationRecorded) for issue in event.issues]
                assert issues == []
                observed = (await telemetry.http.get("/v1/observations", params={"node": "north-1"})).json()["items"]
                assert {"system.memory.limit", "cpn.compute.capacity_free"} <= {item["metric"] for item in observed}
