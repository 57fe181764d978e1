"""The graph from real events: versions, states, snapshots of now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, NodeRecovered
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_BUSY, NODE_STATE_FAILED, GraphUpdated, NodeStateChanged
from services.graph.image import DomainImage, applied
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.unit.graph.build import issued, link, node, observation, revoked, stamp


@pytest_asyncio.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as found:
        yield found


FAST = {
    "MERIDIAN_GRAPH_IMAGE_INTERVAL_S": "2",
    "MERIDIAN_GRAPH_TICK_S": "0.1",
    "MERIDIAN_GRAPH_METRIC_REFRESH_S": "0",
    # Nothing gets old because the machine is busy.
    "MERIDIAN_GRAPH_SILENT_AFTER_S": "3600",
    "MERIDIAN_GRAPH_READING_TTL_S": "3600",
}


@pytest_asyncio.fixture
async def graph(stack: Environment) -> AsyncIterator[RunningService]:
    async with stack.service("graph", FAST) as service:
        yield service


async def whole(graph: RunningService, **parameters: str) -> dict[str, Any]:
    answer = await graph.http.get("/v1/graph", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def states(body: dict[str, Any]) -> dict[str, str]:
    return {item["node_id"]: item["state"] for domain in body["domains"] for item in domain["nodes"]}


async def test_events_become_a_versioned_graph(stack: Environment, graph: RunningService) -> None:
    now_s = time.time()
    read = {("a", 0, "cpn.compute.capacity_free"): 0.0, ("b", 0, "cpn.compute.capacity_free"): 1.0}
    await stack.bus.publish(observation([node("a"), node("b")], read, links=[link("hangzhou")], at_s=now_s))
    first = await stack.bus.expect(GraphUpdated)
    assert (first.version, first.full) == (1, True)
    busy = await stack.bus.expect(NodeStateChanged, lambda event: event.node_id == "a")
    assert (busy.state, busy.rule, busy.version) == (NODE_STATE_BUSY, "allocated", 1)

    await stack.bus.publish(issued("n-a", "a", at_s=now_s), issued("d-a", "a", 0, at_s=now_s))
    certified = await stack.bus.expect(GraphUpdated, lambda event: any(item.certified for item in event.nodes))
    assert certified.version > 1
    failed = NodeFailed(domain_id="beijing", node_id="b", incident_id="i", reason="no beat", at=stamp(now_s))
    await stack.bus.publish(failed)
    change = await stack.bus.expect(NodeStateChanged, lambda event: event.state == NODE_STATE_FAILED)
    assert (change.node_id, change.reason) == ("b", "no beat")

    body = await whole(graph)
    assert states(body) == {"a": "busy", "b": "failed"}
    assert body["domains"][0]["links"][0]["to_domain_id"] == "hangzhou"
    view = (await graph.http.get("/v1/nodes/b")).json()
    assert (view["rule"], view["state_reason"], view["metrics"]) == (
        "declared-dead",
        "no beat",
        {"cpn.compute.capacity_free": 1.0},
    )
    assert (await graph.http.get("/v1/nodes/c")).status_code == 404

    await stack.bus.publish(revoked("n-a", "a"), NodeRecovered(domain_id="beijing", node_id="b", at=stamp(now_s)))
    await stack.bus.expect(NodeStateChanged, lambda event: event.node_id == "b" and event.rule == "fit", count=2)


async def test_a_consumer_follows_by_bus_and_by_http(stack: Environment, graph: RunningService) -> None:
    start_s = time.time()
    for step in range(6):
        at_s = start_s + step * 0.001
        nodes = [node(name, step % 3) for name in ("a", "b", "c")[: step % 3 + 1]]
        read = {("a", None, "hw.power"): 100.0 + step * 10}
        await stack.bus.publish(observation(nodes, read, links=[link("x", step)], at_s=at_s))
        await stack.bus.expect(GraphUpdated, lambda event, rtt=step: any(item.rtt_s == rtt for item in event.links))
    # A regular image too.
    await stack.bus.expect(GraphUpdated, lambda event: event.full, count=2)

    body = await whole(graph)
    await stack.bus.expect(GraphUpdated, lambda event: event.version >= body["version"])
    updates = [event for event in stack.bus.events(GraphUpdated) if event.version <= body["version"]]
    consumer = applied(DomainImage(), updates)
    [domain] = body["domains"]
    assert {item["node_id"]: len(item["accelerators"]) for item in domain["nodes"]} == {
        node_id: len(item.inventory.accelerators) for node_id, item in consumer.nodes.items()
    }
    assert domain["nodes"][0]["metrics"] == dict(consumer.nodes["a"].metrics)
    changes = (await graph.http.get("/v1/graph/changes", params={"since": 0})).json()
    assert [item["version"] for item in changes["items"]] == list(range(1, body["version"] + 1))
    later = (await graph.http.get("/v1/graph/changes", params={"since": body["version"]})).json()
    assert later["items"] == []
    beyond = await graph.http.get("/v1/graph/changes", params={"since": body["version"] + 1})
    assert beyond.status_code == 422


async def test_the_graph_of_the_past(stack: Environment, graph: RunningService) -> None:
    now_s = time.time()
    await stack.bus.publish(observation([node("a"), node("b")], at_s=now_s))
    first = await stack.bus.expect(GraphUpdated)
    failed = NodeFailed(domain_id="beijing", node_id="b", incident_id="i", at=stamp(now_s))
    await stack.bus.publish(failed)
    second = await stack.bus.expect(NodeStateChanged, lambda event: event.state == NODE_STATE_FAILED)
    await stack.bus.publish(observation([node("a")], at_s=now_s + 0.001))
    await stack.bus.expect(GraphUpdated, lambda event: list(event.removed_node_ids) == ["b"])

    def when(stamped: Any) -> str:
        return f"{stamped.ToJsonString()}"

    assert states(await whole(graph)) == {"a": "healthy"}
    assert states(await whole(graph, as_of=when(second.changed_at))) == {"a": "healthy", "b": "failed"}
    assert states(await whole(graph, as_of=when(first.updated_at))) == {"a": "healthy", "b": "healthy"}
    assert (await graph.http.get("/v1/graph", params={"as_of": "2020-01-01T00:00:00Z"})).status_code == 404
    assert (await graph.http.get("/v1/graph", params={"as_of": "2099-01-01T00:00:00Z"})).status_code == 422


async def test_silence_degrades_and_the_age_is_measured(stack: Environment) -> None:
    async with stack.service("graph", {**FAST, "MERIDIAN_GRAPH_SILENT_AFTER_S": "1"}) as graph:
        at_s = time.time()
        await stack.bus.publish(observation([node("a")], at_s=at_s))
        event = await stack.bus.expect(NodeStateChanged, lambda item: item.rule == "old-readings")
        assert "no observation" in event.reason
        async with asyncio.timeout(PATIENCE_S):
            while 'meridian_graph_nodes{state="degraded"} 1.0' not in (await graph.http.get("/metrics")).text:
                await asyncio.sleep(0.05)
        metrics = (await graph.http.get("/metrics")).text
        [age] = [line.split()[-1] for line in metrics.splitlines() if line.startswith("meridian_graph_age_seconds{")]
        assert 1.0 < float(age) <= time.time() - at_s


async def test_a_restart_goes_on_where_it_was(stack: Environment) -> None:
    now_s = time.time()
    async with stack.service("graph", FAST):
        await stack.bus.publish(observation([node("a")], {("a", 0, "hw.power"): 5.0}, at_s=now_s))
        await stack.bus.publish(issued("n-a", "a", at_s=now_s))
        failed = NodeFailed(domain_id="beijing", node_id="a", incident_id="i", reason="gone", at=stamp(now_s))
        await stack.bus.publish(failed)
        await stack.bus.expect(NodeStateChanged, lambda event: event.state == NODE_STATE_FAILED)
        await stack.bus.expect(GraphUpdated, lambda event: any(item.certified for item in event.nodes))
    async with stack.service("graph", FAST) as graph:
        before = await whole(graph)
        assert states(before) == {"a": "failed"}
        await stack.bus.publish(observation([node("a"), node("b")], at_s=now_s + 1))
        await stack.bus.expect(GraphUpdated, lambda event: any(item.inventory.node_id == "b" for item in event.nodes))
        after = await whole(graph)
        assert after["version"] > before["version"]
        found = {item["node_id"]: item for item in after["domains"][0]["nodes"]}
        assert (found["a"]["state"], found["a"]["certified"], found["a"]["metrics"]) == (
            "failed",
            True,
            {"hw.power": 5.0},
        )
