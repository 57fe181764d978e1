"""Several processes of the graph at once: one version per change, no change lost, every domain in order."""

from __future__ import annotations

import asyncio
import time

from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from tests.harness import environment
from tests.unit.graph.build import node, observation

DOMAINS = [f"domain-{number}" for number in range(6)]
ROUNDS = 8


async def test_two_processes_share_the_version(database_url: str) -> None:
    async with (
        environment(database_url) as stack,
        stack.service("graph", {"MERIDIAN_GRAPH_TICK_S": "0.2"}) as one,
        stack.service("graph", {"MERIDIAN_GRAPH_TICK_S": "0.2"}),
    ):
        start_s = time.time()
        for turn in range(ROUNDS):
            events = [
                observation(
                    [node(f"{name}-n{number}") for number in range(turn + 1)],
                    at_s=start_s + turn * 1e-3,
                    domain_id=name,
                )
                for name in DOMAINS
            ]
            await stack.bus.publish(*events)
            await asyncio.sleep(0.05)

        def is_last(event: GraphUpdated) -> bool:
            return any(item.inventory.node_id.endswith(f"-n{ROUNDS - 1}") for item in event.nodes)

        await stack.bus.expect(GraphUpdated, is_last, count=len(DOMAINS))
        updates = stack.bus.events(GraphUpdated)
        versions = sorted(event.version for event in updates)
        assert versions == list(range(1, len(versions) + 1))
        for name in DOMAINS:
            told = [event.version for event in updates if event.domain_id == name]
            assert told == sorted(told)
        body = (await one.http.get("/v1/graph")).json()
        assert body["version"] == versions[-1]
        assert {domain["domain_id"]: len(domain["nodes"]) for domain in body["domains"]} == dict.fromkeys(
            DOMAINS, ROUNDS
        )
