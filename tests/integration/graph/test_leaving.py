"""A domain that is forgotten leaves the graph, and is a new one when it comes again."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from meridian.contracts.failover.v1.failover_pb2 import DomainForgotten, DomainUnreachable
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from tests.harness import Environment, RunningService
from tests.integration.graph.test_graph import graph, stack, states, whole
from tests.unit.graph.build import link, node, observation, stamp

__all__ = ["graph", "stack"]


@pytest.mark.parametrize("with_silence", [True, False])
async def test_a_domain_that_is_forgotten_goes_with_its_nodes(
    stack: Environment, graph: RunningService, with_silence: bool
) -> None:
    now_s = time.time()
    await stack.bus.publish(observation([node("a"), node("b")], links=[link("hangzhou")], at_s=now_s))
    first = await stack.bus.expect(GraphUpdated)
    if with_silence:
        await stack.bus.publish(DomainUnreachable(domain_id="beijing", reason="silent", at=stamp(now_s)))
    await stack.bus.publish(DomainForgotten(domain_id="beijing", at=stamp(now_s)))
    gone = await stack.bus.expect(GraphUpdated, lambda event: bool(event.removed_node_ids))
    assert (list(gone.removed_node_ids), gone.full, gone.HasField("domain")) == (["a", "b"], False, False)
    assert (await whole(graph))["domains"] == []
    async with graph.kernel.database.reading() as connection:
        for table in ("domains", "nodes", "incidents"):
            assert await connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) == 0
    await stack.bus.publish(observation([node("a")], at_s=now_s + 1.0))
    again = await stack.bus.expect(GraphUpdated, lambda event: event.full and event.version > gone.version)
    assert [item.inventory.node_id for item in again.nodes] == ["a"]
    assert states(await whole(graph)) == {"a": "healthy"}
    assert again.version > first.version
