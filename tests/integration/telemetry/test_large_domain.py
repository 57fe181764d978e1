"""A domain of 2,000 nodes with 8 accelerators each: its report crosses the bus in parts and stands in telemetry and graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.bus_clients import Producer
from agent.engines.local.engine import LocalEngine, LocalEngineSettings
from agent.report_parts import PART_BYTES
from agent.resource_reports import ResourceReports
from agent.run_book import RunBook
from agent.settings import AgentSettings
from meridian.clock import SystemClock
from meridian.contracts.graph.v1.graph_pb2 import GraphUpdated
from meridian.contracts.resource.v1.resource_pb2 import ResourceReported
from meridian.contracts.telemetry.v1.telemetry_pb2 import ObservationRecorded, QualityIssueKind
from services.graph.image import DomainImage, applied
from tests.harness import PATIENCE_S, environment

NODES = [f"large.hall-1.rack-{number // 32:03d}.node-{number:05d}" for number in range(2000)]


def settings_of(node_ids: list[str], address: str, data_dir: Path) -> AgentSettings:
    chip = {"vendor": "NVIDIA", "model": "H100", "count": 8, "memory_bytes": 80 << 30, "peak_flops": 9.9e14}
    nodes: list[dict[str, Any]] = [
        {"node_id": node_id, "cpus": 128, "memory_bytes": 2 << 40, "accelerators": [chip]} for node_id in node_ids
    ]
    domain = {"domain_id": "large", "emulated": True, "nodes": nodes}
    content = {"domain": domain, "kafka_bootstrap_servers": address, "data_dir": str(data_dir)}
    return AgentSettings.model_validate(content)


def reports_of(node_ids: list[str], address: str, data_dir: Path, producer: Producer, run: int) -> ResourceReports:
    """Reports of an agent of which the nodes have not begun, so that everything that is read of them is unknown."""
    settings = settings_of(node_ids, address, data_dir)
    book = RunBook(data_dir / f"journal-{run}", new_agent_mark="large")
    engine = LocalEngine(LocalEngineSettings("large", tuple(node_ids), data_dir), book, SystemClock())
    reports = ResourceReports(settings, engine, producer, SystemClock(), incarnation=run, agent_url="")
    reports.agent_id = "agent-large"
    reports.compute_ids = {
        (node_id, index): f"{index or 0:032d}" for node_id in node_ids for index in (None, *range(8))
    }
    return reports


@pytest.mark.timeout(30 * PATIENCE_S)
async def test_a_domain_of_2000_nodes_is_reported_in_parts(database_url: str, tmp_path: Path) -> None:
    async with (
        environment(database_url) as stack,
        stack.service("telemetry") as telemetry,
        stack.service("graph", {"MERIDIAN_GRAPH_IMAGE_INTERVAL_S": "3"}),
    ):
        address = stack.bootstrap_servers
        producer = Producer(address, "agent-large", "/agents/large", request_timeout_s=2 * PATIENCE_S)
        await producer.start()
        try:
            await reports_of(NODES, address, tmp_path, producer, 1).report()
            first = await stack.bus.expect(ResourceReported)
            assert first.part.of > 1
            await stack.bus.expect(ResourceReported, count=first.part.of)
            parts = stack.bus.events(ResourceReported)
            assert sum(part.ByteSize() for part in parts) > 2 * 1024 * 1024
            assert all(part.ByteSize() <= PART_BYTES for part in parts)
            await stack.bus.expect(ObservationRecorded, count=first.part.of, timeout_s=10 * PATIENCE_S)
            told = stack.bus.events(ObservationRecorded)
            assert [item.part for item in told] == [item.part for item in parts]
            # Nodes that have not begun are a fault that the agent itself told; parts make none of their own.
            kinds = {QualityIssueKind.Name(issue.kind) for item in told for issue in item.issues}
            assert kinds <= {"QUALITY_ISSUE_KIND_UNAVAILABLE"}
            image = await stack.bus.expect(
                GraphUpdated, lambda event: event.full and len(event.nodes) == len(NODES), timeout_s=10 * PATIENCE_S
            )
            assert image.ByteSize() > 1 << 20
            read = await telemetry.http.get("/v1/observations", params={"node": NODES[-1]})
            assert {item["accelerator_index"] for item in read.json()["items"]} >= set(range(8))
            await reports_of(NODES[1:], address, tmp_path, producer, 2).report()
            gone = await stack.bus.expect(
                GraphUpdated, lambda event: list(event.removed_node_ids) == NODES[:1], timeout_s=10 * PATIENCE_S
            )
        finally:
            await producer.stop()
        seen = [event for event in stack.bus.events(GraphUpdated) if event.version <= gone.version]
        assert set(applied(DomainImage(), seen).nodes) == set(NODES[1:])
        counted = (await telemetry.http.get("/metrics")).text
    assert 'meridian_telemetry_reports_total{domain="large",outcome="accepted"} 2.0' in counted
