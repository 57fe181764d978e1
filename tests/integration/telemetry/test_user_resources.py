"""A resource goes its whole way: defined over HTTP, told to agents, read by a command, reported, and seen by the scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest_asyncio

from agent.bus_clients import Producer
from agent.contract_messages import add_amounts
from agent.resource_definitions import ResourceDefinitions
from agent.settings import AgentSettings
from agent.user_resources import CommandPolicy, UserResources
from meridian.contracts.graph.v1.graph_pb2 import GraphNode
from meridian.contracts.resource.v1.resource_pb2 import ResourceDefined
from meridian.contracts.telemetry.v1.telemetry_pb2 import ObservationRecorded
from services.scheduler.wire import node_from
from services.telemetry import store
from tests.harness import PATIENCE_S, Environment, RunningService, environment
from tests.unit.telemetry.reports import node, reading, report

NODES = ("beijing-1", "beijing-2")


@pytest_asyncio.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    async with environment(database_url) as found:
        yield found


@pytest_asyncio.fixture
async def telemetry(stack: Environment) -> AsyncIterator[RunningService]:
    async with stack.service("telemetry") as service:
        yield service


@pytest_asyncio.fixture
async def resources(stack: Environment, tmp_path: Path) -> AsyncIterator[UserResources]:
    """What an agent of the domain `beijing` knows of the definitions on the bus."""
    settings = AgentSettings.model_validate(
        {
            "domain": {"domain_id": "beijing", "nodes": [{"node_id": name} for name in NODES]},
            "kafka_bootstrap_servers": stack.bootstrap_servers,
            "data_dir": tmp_path,
        }
    )
    found = UserResources("beijing", NODES, (), CommandPolicy("any"), tmp_path)
    producer = Producer(stack.bootstrap_servers, "agent-beijing", "/agents/beijing", request_timeout_s=30.0)
    await producer.start()
    definitions = ResourceDefinitions(settings, found, producer)
    parts = [asyncio.create_task(work) for work in (definitions.run(), found.run())]
    yield found
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)
    await producer.stop()


async def _until(met: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not met():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_from_its_definition_to_the_scheduler(
    stack: Environment, telemetry: RunningService, resources: UserResources
) -> None:
    definition = {
        "name": "fpga", "description": "boards", "dynamic": True, "command": ["/bin/echo", "2 vendor=acme"], "interval_s": 30,
        "scope": ["beijing-1"],
    }  # fmt: skip
    answer = await telemetry.http.put("/v1/resources/fpga", json=definition, params={"changed_by": "me"})
    assert answer.status_code == 201
    assert (await telemetry.http.put("/v1/resources/fpga", json=definition)).status_code == 200
    event = await stack.bus.expect(ResourceDefined)
    assert (event.name, list(event.definition.scope), event.actor_id) == ("fpga", ["node:beijing-1"], "me")

    def is_read() -> bool:
        amounts = resources.amounts()
        return bool(amounts) and amounts["beijing-1"][0].value == 2

    await _until(is_read)
    message = report([reading("cpn.health", 1, "1", at_s=time.time())], [node(name) for name in NODES])
    add_amounts(message.inventory, resources.amounts())
    await stack.bus.publish(message)
    observation = await stack.bus.expect(ObservationRecorded)
    first, second = (node_from(GraphNode(inventory=item), "beijing") for item in observation.inventory.nodes)
    assert (dict(first.resources), dict(second.resources)) == ({"fpga": 2.0}, {})
    shown = (await telemetry.http.get("/v1/resources/fpga")).json()
    assert [(item["node_id"], item["value"], item["attributes"]) for item in shown["nodes"]] == [
        ("beijing-1", 2.0, {"vendor": "acme"})
    ]

    assert (await telemetry.http.delete("/v1/resources/fpga")).status_code == 200
    await _until(lambda: not resources.amounts())
    assert (await telemetry.http.delete("/v1/resources/fpga")).status_code == 404
    assert (await telemetry.http.get("/v1/resources")).json() == {"items": []}


async def test_a_definition_that_cannot_be_changes_nothing(stack: Environment, telemetry: RunningService) -> None:
    answer = await telemetry.http.put("/v1/resources/fpga", json={"dynamic": True})
    assert answer.status_code == 422
    assert [item["pointer"] for item in answer.json()["errors"]] == ["/command"]
    assert (await telemetry.http.put("/v1/resources/fpga", json={"name": "other", "value": 1})).status_code == 409
    assert (await telemetry.http.get("/v1/resources")).json() == {"items": []}
    assert stack.bus.events(ResourceDefined) == []


async def test_impossible_amounts_are_left_out(stack: Environment, telemetry: RunningService) -> None:
    wrong = node("beijing-1")
    for name, value in (("good", 3.0), ("bad", float("nan")), ("two words", 1.0), ("good", 4.0)):
        wrong.user_resources.add(name=name, value=value, consumable=True)
    await stack.bus.publish(report([], [wrong]))
    observation = await stack.bus.expect(ObservationRecorded)
    (found,) = observation.inventory.nodes
    assert [(item.name, item.value) for item in found.user_resources] == [("good", 3.0)]
    assert len(observation.issues) == 3
    assert [item["value"] for item in (await telemetry.http.get("/v1/resources/good")).json()["nodes"]] == [3.0]


async def test_amounts_that_are_gone_after_a_restart_are_removed(stack: Environment) -> None:
    """The process that stored them is gone; the next one hears of nodes that have nothing."""
    having = node("beijing-1")
    having.user_resources.add(name="fpga", value=2.0, consumable=True)
    async with stack.service("telemetry") as telemetry:
        await stack.bus.publish(report([], [having]))
        await stack.bus.expect(ObservationRecorded)
        assert len((await telemetry.http.get("/v1/resources/fpga")).json()["nodes"]) == 1
    async with stack.service("telemetry") as telemetry:
        await stack.bus.publish(report([], [node("beijing-1")]))
        await stack.bus.expect(ObservationRecorded, count=2)
        assert (await telemetry.http.get("/v1/resources/fpga")).status_code == 404


async def test_amounts_of_a_domain_that_is_gone_are_forgotten(stack: Environment, telemetry: RunningService) -> None:
    having = node("beijing-1")
    having.user_resources.add(name="fpga", value=2.0, consumable=True)
    await stack.bus.publish(report([], [having]))
    await stack.bus.expect(ObservationRecorded)
    now = telemetry.kernel.clock.now()
    for passed, status in ((-timedelta(hours=1), 200), (timedelta(hours=1), 404)):
        limit = now + passed
        async with telemetry.kernel.database.transaction() as connection:
            await store.forget(connection, history_before=limit, quality_before=limit, series_before=limit)
        assert (await telemetry.http.get("/v1/resources/fpga")).status_code == status
