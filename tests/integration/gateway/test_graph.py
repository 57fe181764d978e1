"""The graph through the gateway: its changes as a stream, its past, and the reason of a node's state."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest_asyncio
import sqlalchemy as sa

from meridian.contracts.failover.v1.failover_pb2 import NodeFailed
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_FAILED, GraphUpdated, NodeStateChanged
from services.gateway.api.graph import held_version
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.integration.gateway.issuer import Issuer, serving
from tests.integration.gateway.test_stream import listening, messages, take
from tests.unit.graph.build import link, node, observation, stamp

FAST = {
    "MERIDIAN_GRAPH_TICK_S": "0.1",
    "MERIDIAN_GRAPH_METRIC_REFRESH_S": "0",
    "MERIDIAN_GRAPH_SILENT_AFTER_S": "3600",
    "MERIDIAN_GRAPH_READING_TTL_S": "3600",
}


@dataclass
class Network:
    """Gateway and graph, and who gives tokens."""

    environment: Environment
    gateway: RunningService
    graph: RunningService
    issuer: Issuer

    async def get(self, path: str, **parameters: str) -> httpx.Response:
        return await self.gateway.http.get(path, params=parameters, headers=self.issuer.headers())

    async def tell(self, *events: Any) -> None:
        await self.environment.bus.publish(*events)


@pytest_asyncio.fixture
async def network(database_url: str, redis_url: str) -> AsyncIterator[Network]:
    with serving() as issuer:
        urls = {"identity_url": issuer.url, "scheduler_url": issuer.url, "forecast_url": issuer.url}
        async with (
            environment(database_url, redis_url=redis_url, **urls) as env,
            env.service("graph", FAST) as graph,
            env.service("gateway", graph_url=graph.base_url) as gateway,
        ):
            yield Network(env, gateway, graph, issuer)


def failed(node_id: str, at_s: float) -> NodeFailed:
    return NodeFailed(domain_id="beijing", node_id=node_id, incident_id="i", reason="no beat", at=stamp(at_s))


async def test_changes_are_streamed_in_order_and_resumed_by_version(network: Network) -> None:
    now_s, bus = time.time(), network.environment.bus
    async with network.gateway.http.stream("GET", "/v1/graph/stream", headers=network.issuer.headers()) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = await listening(answer)
        first_change = asyncio.create_task(take(lines, 2))
        await network.tell(observation([node("a"), node("b")], links=[link("hangzhou")], at_s=now_s))
        await bus.expect(GraphUpdated)
        await network.tell(failed("b", now_s))
        found = await first_change
    assert [item["event"] for item in found] == ["change", "change"]
    assert [item["id"] for item in found] == ["1", "2"]
    bodies = [json.loads(item["data"]) for item in found]
    assert bodies[0]["full"]
    assert {item["node_id"] for item in bodies[0]["nodes"]} == {"a", "b"}
    assert [(item["node_id"], item["state"]) for item in bodies[1]["nodes"]] == [("b", "failed")]

    resumed = {**network.issuer.headers(), "last-event-id": "1"}
    async with network.gateway.http.stream("GET", "/v1/graph/stream", headers=resumed) as answer:
        [again] = await take(messages(answer), 1)
    assert again == found[1]


async def test_a_version_that_is_not_kept_resets(network: Network) -> None:
    now_s, bus = time.time(), network.environment.bus
    await network.tell(observation([node("a")], at_s=now_s))
    await bus.expect(GraphUpdated)
    await network.tell(failed("a", now_s))
    await bus.expect(NodeStateChanged, lambda event: event.state == NODE_STATE_FAILED)
    async with network.graph.kernel.database.transaction() as connection:
        await connection.execute(sa.text("DELETE FROM change_log WHERE version <= 1"))
    resumed = {**network.issuer.headers(), "last-event-id": "0"}
    async with network.gateway.http.stream("GET", "/v1/graph/stream", headers=resumed) as answer:
        [reset] = await take(messages(answer), 1)
    assert (reset["event"], json.loads(reset["data"])) == ("reset", {"version": 2})


def test_a_version_behind_which_nothing_is_missed() -> None:
    assert held_version((12, {"a": 12, "b": 9}), {"a": 12, "b": 9}) == 12
    assert held_version((12, {"a": 12, "b": 11}), {"a": 12, "b": 9}) == 9, "the change 11 of b is on its way"
    assert held_version((10, {"a": 10, "b": 9}), {"a": 12, "b": 9}) == 10, "b may have had one since it was asked"
    assert held_version((12, {"a": 12, "b": 11}), {"a": 12}) == 0, "a domain that is not here yet"
    assert held_version((12, {"a": 12}), {"a": 12, "gone": 3}) == 12
    assert held_version(None, {"a": 12, "b": 9}) == 9
    assert held_version(None, {}) == 0


async def test_a_version_that_is_not_there_yet_resets(network: Network) -> None:
    await network.tell(observation([node("a")], at_s=time.time()))
    await network.environment.bus.expect(GraphUpdated)
    resumed = {**network.issuer.headers(), "last-event-id": "1000"}
    async with network.gateway.http.stream("GET", "/v1/graph/stream", headers=resumed) as answer:
        [reset] = await take(messages(answer), 1)
    assert (reset["event"], json.loads(reset["data"])) == ("reset", {"version": 1})


async def test_the_version_of_a_graph_that_lacks_a_change_is_before_it(network: Network) -> None:
    now_s = time.time()
    await network.tell(observation([node("a")], at_s=now_s))
    await network.tell(observation([node("c")], domain_id="shanghai", at_s=now_s))
    async with asyncio.timeout(PATIENCE_S):
        while (present := (await network.get("/v1/graph")).json())["version"] < 2 or len(present["nodes"]) < 2:
            await asyncio.sleep(0.05)
    told = (await network.graph.http.get("/v1/graph/version")).json()
    assert told["version"] == present["version"]
    assert max(told["domains"].values()) == told["version"]
    held = {item["domain_id"]: item["version"] for item in present["domains"]}
    assert held == told["domains"]
    # As if the newest change of one domain were on its way, while that of the other came first.
    late, early = sorted(held, key=lambda name: -held[name])
    async with network.gateway.kernel.database.transaction() as connection:
        await connection.execute(
            sa.text("UPDATE domain SET version = :version WHERE domain_id = :id"),
            {"version": held[early] - 1, "id": early},
        )
    assert (await network.get("/v1/graph")).json()["version"] == held[early] - 1 < held[late]


async def test_the_past_has_the_form_of_the_present(network: Network) -> None:
    now_s, bus = time.time(), network.environment.bus
    await network.tell(observation([node("a"), node("b", 2)], links=[link("hangzhou")], at_s=now_s))
    first = await bus.expect(GraphUpdated)
    await network.tell(failed("b", now_s))
    await bus.expect(NodeStateChanged, lambda event: event.state == NODE_STATE_FAILED)

    past = (await network.get("/v1/graph", as_of=first.updated_at.ToJsonString())).json()
    assert past["version"] == 1
    assert {item["node_id"]: item["state"] for item in past["nodes"]} == {"a": "healthy", "b": "healthy"}
    [domain] = past["domains"]
    assert (domain["nodes"], domain["accelerators"], domain["nodes_by_state"]) == (2, 3, {"healthy": 2})
    async with asyncio.timeout(PATIENCE_S):
        while (present := (await network.get("/v1/graph")).json())["version"] < 2:
            await asyncio.sleep(0.05)
    assert {item["node_id"]: item["state"] for item in present["nodes"]} == {"a": "healthy", "b": "failed"}
    for part in ("domains", "nodes", "links"):
        assert present[part][0].keys() == past[part][0].keys()
    assert (await network.get("/v1/graph", as_of="2020-01-01T00:00:00Z")).status_code == 404
    assert (await network.get("/v1/graph", as_of="2099-01-01T00:00:00Z")).status_code == 422
    assert (await network.get("/v1/graph", as_of="yesterday")).status_code == 422


async def test_a_node_says_why_it_is_in_its_state(network: Network) -> None:
    now_s, bus = time.time(), network.environment.bus
    await network.tell(observation([node("a")], {("a", 0, "hw.temperature"): 95.0}, at_s=now_s))
    await bus.expect(GraphUpdated)
    view = (await network.get("/v1/nodes/a/state")).json()
    assert (view["state"], view["rule"], view["state_reason"]) == ("degraded", "hot", "an accelerator has 95 Cel")
    assert [(item["metric"], item["accelerator_index"], item["value"]) for item in view["readings"]] == [
        ("hw.temperature", 0, 95.0)
    ]
    assert (await network.get("/v1/nodes/nobody/state")).status_code == 404
