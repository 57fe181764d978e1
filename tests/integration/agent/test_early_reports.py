"""A node whose vital signs changed is reported at once, alone, long before the next report is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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

LOST = {"hw.gpu.utilization", "cpn.compute.capacity_free", "cpn.health"}


def unknown_in(report: ResourceReported) -> set[str]:
    return {reading.metric for reading in report.readings if not reading.HasField("value")}


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
                async with agent.http() as http:
                    answer = await http.post("/nodes/north-2/kill", headers={"Authorization": f"Bearer {TOKEN}"})
                assert answer.status_code == 202

                def says_so(report: ResourceReported) -> bool:
                    """Alone, as it is not one of the reports of everything, and of the node that is gone."""
                    return {reading.node_id for reading in report.readings} == {"north-2"} and unknown_in(
                        report
                    ) >= LOST

                early = await bus.expect(ResourceReported, says_so)
    assert {node.node_id for node in early.inventory.nodes} == {"north-1", "north-2"}
