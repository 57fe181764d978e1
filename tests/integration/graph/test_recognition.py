"""The model in the running service: what it says is shown, and without it the rules serve."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from meridian.contracts.failover.v1.failover_pb2 import NodeSuspected
from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_UNREACHABLE, GraphUpdated, NodeStateChanged
from services.graph.recognition.recogniser import LEAST_SAMPLES
from tests.harness import Environment, environment
from tests.unit.graph.build import node, observation, stamp

FAST = {
    "MERIDIAN_GRAPH_TICK_S": "0.1",
    "MERIDIAN_GRAPH_METRIC_REFRESH_S": "0",
    "MERIDIAN_GRAPH_METRIC_TOLERANCE": "0",
    "MERIDIAN_GRAPH_IMAGE_INTERVAL_S": "3600",
    "MERIDIAN_GRAPH_SILENT_AFTER_S": "3600",
    "MERIDIAN_GRAPH_READING_TTL_S": "3600",
    # A busy machine is not taken for a slow model.
    "MERIDIAN_GRAPH_MODEL_SLOWEST_S": "60",
}


@pytest_asyncio.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as found:
        yield found


async def observed(stack: Environment, start_s: float, times: int) -> None:
    """Observations of two nodes, one after the other, each of which changes a metric."""
    before = len(stack.bus.events(GraphUpdated))
    for number in range(times):
        read = {("a", 0, "cpn.compute.capacity_free"): 0.0, ("a", 0, "hw.power"): 300.0 + number}
        read |= {("b", 0, "cpn.compute.capacity_free"): 1.0, ("b", 0, "hw.power"): 60.0 + number}
        await stack.bus.publish(observation([node("a"), node("b")], read, at_s=start_s + 0.01 * number))
        await stack.bus.expect(GraphUpdated, count=before + number + 1)


async def test_the_models_word_is_shown_and_facts_stand_above_it(stack: Environment) -> None:
    start_s = time.time()
    async with stack.service("graph", FAST) as graph:
        await observed(stack, start_s, LEAST_SAMPLES - 1)
        before = (await graph.http.get("/v1/nodes/a")).json()
        assert (before["rule"], before["model"], before["expected_load"]) == ("allocated", None, None)
        await observed(stack, start_s + 1, LEAST_SAMPLES + 1)
        view = (await graph.http.get("/v1/nodes/a")).json()
        assert view["model"]["name"].startswith("node-state-")
        assert 0 < view["model"]["confidence"] <= 1
        assert 0 <= view["expected_load"] <= 1
        suspected = NodeSuspected(domain_id="beijing", node_id="b", incident_id="i", reason="late", at=stamp(start_s))
        await stack.bus.publish(suspected)
        event = await stack.bus.expect(NodeStateChanged, lambda item: item.state == NODE_STATE_UNREACHABLE)
        assert (event.node_id, event.rule, event.reason) == ("b", "suspected", "late")


@pytest.mark.parametrize("model", ["none", "/nowhere/at-all.onnx"])
async def test_without_a_model_the_rules_serve(stack: Environment, model: str) -> None:
    async with stack.service("graph", {**FAST, "MERIDIAN_GRAPH_MODEL": model}) as graph:
        await observed(stack, time.time(), LEAST_SAMPLES + 1)
        view = (await graph.http.get("/v1/nodes/a")).json()
    assert (view["rule"], view["state_reason"]) == ("allocated", "every accelerator is allocated")
    assert (view["model"], view["expected_load"]) == (None, None)
