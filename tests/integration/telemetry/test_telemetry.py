"""Reports on the bus become observations; values, history and quality can be asked for."""

from __future__ import annotations

import random
import string
import time
from collections.abc import AsyncIterator

import pytest_asyncio

from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.telemetry.v1.telemetry_pb2 import QUALITY_ISSUE_KIND_OUT_OF_RANGE, ObservationRecorded
from tests.harness import Environment, RunningService, environment
from tests.unit.telemetry.reports import node, reading, report


@pytest_asyncio.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as found:
        yield found


@pytest_asyncio.fixture
async def telemetry(stack: Environment) -> AsyncIterator[RunningService]:
    env = {"MERIDIAN_TELEMETRY_HISTORY_INTERVAL_S": "0"}
    async with stack.service("telemetry", env) as service:
        yield service


def load_report(incarnation: int = 1, utilization: float = 0.5) -> resource_pb2.ResourceReported:
    now_s = time.time()
    readings = [
        reading("hw.gpu.utilization", utilization, "1", at_s=now_s),
        reading("hw.power", 300_000, "mW", at_s=now_s),
        reading("hw.temperature", 9223372036854775794, "Cel", at_s=now_s),
        reading("cpn.health", None, "1", at_s=now_s, reason="no sensor"),
    ]
    return report(readings, incarnation=incarnation)


async def test_a_report_becomes_an_observation_and_can_be_read(stack: Environment, telemetry: RunningService) -> None:
    await stack.bus.publish(load_report())
    observation = await stack.bus.expect(ObservationRecorded)
    assert [item.node_id for item in observation.inventory.nodes] == ["beijing-1"]
    assert [issue.kind for issue in observation.issues] == [QUALITY_ISSUE_KIND_OUT_OF_RANGE]

    items = (await telemetry.http.get("/v1/observations", params={"node": "beijing-1"})).json()["items"]
    found = {item["metric"]: item for item in items}
    assert found["hw.power"]["value"] == 300.0
    assert found["hw.power"]["unit"] == "W"
    assert (found["cpn.health"]["value"], found["cpn.health"]["reason"]) == (None, "no sensor")
    assert "hw.temperature" not in found
    quality = (await telemetry.http.get("/v1/quality", params={"node": "beijing-1"})).json()["items"]
    assert [(item["kind"], item["metric"], item["occurrences"]) for item in quality] == [
        ("out_of_range", "hw.temperature", 1)
    ]


async def test_history_grows_and_issues_are_counted(stack: Environment, telemetry: RunningService) -> None:
    for utilization in (0.1, 0.2, 0.3):
        await stack.bus.publish(load_report(utilization=utilization))
    await stack.bus.expect(ObservationRecorded, count=3)
    parameters = {"node": "beijing-1", "metric": "hw.gpu.utilization"}
    history = (await telemetry.http.get("/v1/observations/history", params=parameters)).json()
    assert [item["value"] for item in history["items"]] == [0.1, 0.2, 0.3]
    quality = (await telemetry.http.get("/v1/quality")).json()["items"]
    assert [item["occurrences"] for item in quality] == [3]
    metrics = (await telemetry.http.get("/metrics")).text
    assert 'meridian_telemetry_reports_total{domain="beijing",outcome="accepted"} 3.0' in metrics


async def test_an_agent_that_was_replaced_is_refused(stack: Environment, telemetry: RunningService) -> None:
    await stack.bus.publish(load_report(incarnation=7), load_report(incarnation=6), load_report(incarnation=8))
    await stack.bus.expect(ObservationRecorded, lambda event: event.incarnation == 8)
    assert [event.incarnation for event in stack.bus.events(ObservationRecorded)] == [7, 8]
    quality = (await telemetry.http.get("/v1/quality")).json()["items"]
    assert "report.incarnation" in {item["metric"] for item in quality}


async def test_a_node_stays_with_the_domain_that_listed_it(stack: Environment, telemetry: RunningService) -> None:
    await stack.bus.publish(report(nodes=[node("shared"), node("beijing-1")]))
    await stack.bus.expect(ObservationRecorded)
    await stack.bus.publish(report(nodes=[node("shared"), node("hangzhou-1")], domain_id="hangzhou"))
    observation = await stack.bus.expect(ObservationRecorded, lambda event: event.domain_id == "hangzhou")
    assert [item.node_id for item in observation.inventory.nodes] == ["hangzhou-1"]


async def test_the_catalogue_and_unknown_metrics(telemetry: RunningService) -> None:
    items = (await telemetry.http.get("/v1/metrics-catalogue")).json()["items"]
    assert {item["core"] for item in items} - {None} == set(range(1, 13))
    wrong = await telemetry.http.get("/v1/observations", params={"metric": "hw.nothing"})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"] == "query:metric"


async def test_odd_names_neither_stop_the_service_nor_get_lost(stack: Environment, telemetry: RunningService) -> None:
    odd = report(
        [reading("hw.\x00", 1, "1"), reading("hw.power", 1, "W", node_id="n\x00")], [node("bad\x00"), node("good")]
    )
    await stack.bus.publish(odd)
    observation = await stack.bus.expect(ObservationRecorded)
    assert [item.node_id for item in observation.inventory.nodes] == ["good"]
    quality = (await telemetry.http.get("/v1/quality")).json()["items"]
    assert sorted(item["kind"] for item in quality) == ["unknown_device", "unknown_device", "unknown_metric"]
    assert (await telemetry.http.get("/v1/observations", params={"node": "a\x00"})).status_code == 422


async def test_a_node_id_without_end_is_set_aside(stack: Environment, telemetry: RunningService) -> None:
    """No index takes it; the whole report went to the dead letters, each time anew."""
    endless = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=20_000))
    await stack.bus.publish(report([reading("hw.power", 1, "W", node_id=endless)], [node(endless[::-1]), node("good")]))
    observation = await stack.bus.expect(ObservationRecorded)
    assert [item.node_id for item in observation.inventory.nodes] == ["good"]
    quality = (await telemetry.http.get("/v1/quality")).json()["items"]
    assert sorted(item["node_id"] for item in quality) == sorted([endless[:200], endless[::-1][:200]])
