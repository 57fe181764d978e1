"""A node whose vital signs changed is reported at once, alone, long before the next report is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meridian.contracts.resource.v1.resource_pb2 import ResourceReported
from tests.fixtures_embedded import free_port
from tests.integration.agent.agent_process import (
    TOKEN,
    agent_running,
    broker_at,
    configuration,
    probe_at,
    short_directory,
)


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as found:
        yield found


async def test_a_dead_node_is_reported_before_the_next_report(directory: Path) -> None:
    with broker_at(free_port("broker"), directory) as address:
        async with probe_at(address) as bus:
            settings = configuration(
                directory, address, report_interval_s=3600.0, watch_interval_s=0.05, restart_after_s=3600.0
            )
            async with agent_running(settings, directory) as agent:
                whole = await bus.expect(ResourceReported)
                assert {reading.node_id for reading in whole.readings} == {"", "north-1", "north-2"}
                async with httpx.AsyncClient(base_url=agent.url) as http:
                    answer = await http.post("/nodes/north-2/kill", headers={"Authorization": f"Bearer {TOKEN}"})
                assert answer.status_code == 202
                early = await bus.expect(
                    ResourceReported, lambda item: {reading.node_id for reading in item.readings} == {"north-2"}
                )
    assert {node.node_id for node in early.inventory.nodes} == {"north-1", "north-2"}
    unknown = {reading.metric for reading in early.readings if not reading.HasField("value")}
    assert {"hw.gpu.utilization", "cpn.compute.capacity_free", "cpn.health"} <= unknown
