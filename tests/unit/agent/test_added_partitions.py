"""Partitions that are added to a topic of the agent's are read from their beginning, whether it was there then or not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator

from agent.lease import Lease
from agent.orders import Orders
from agent.resource_definitions import ResourceDefinitions
from agent.user_resources import CommandPolicy, UserResources
from meridian.catalogue import catalogue
from meridian.clock import VirtualClock
from meridian.contracts.resource.v1.resource_pb2 import ResourceDefined, ResourceDefinition
from meridian.contracts.run.v1.run_pb2 import Assignment
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementRequest
from tests.unit.agent.broker_network import Network, network, placing_of, running, until

__all__ = ["network"]
NOBODY = cast("Any", None)  # orders without an action are counted, and nobody carries them out


def order(number: int) -> Assignment:
    return Assignment(domain_id="north", run_id=f"r{number}", job_id="j", unit_index=number, epoch=1)


@pytest.fixture(params=["a quick coordinator", "a slow coordinator"])
def coordinator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps the group's positions is found at once, or late: aiokafka's coordination must not see its partitions change meanwhile."""
    find = GroupCoordinator.ensure_coordinator_known

    async def find_late(self: GroupCoordinator) -> None:
        await asyncio.sleep(0.05)
        await find(self)

    if request.param == "a slow coordinator":
        monkeypatch.setattr(GroupCoordinator, "ensure_coordinator_known", find_late)


@pytest.mark.usefixtures("coordinator")
async def test_orders_in_a_partition_that_is_added_while_the_agent_runs(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Orders(network.settings, NOBODY, network.producer, Lease(10, 2, 0), VirtualClock(), {})
    await orders.start()
    async with running(orders.run()):
        await network.send(order(1), 0)
        await until(lambda: orders.handled_count == 1)
        added = await network.add_partition(orders._topic.name)
        await network.send(order(2), added)
        await until(lambda: orders.handled_count == 2)
        await network.send(order(3), 0)
        await until(lambda: orders.handled_count == 3)
    await orders.stop()
    again = Orders(network.settings, NOBODY, network.producer, Lease(10, 2, 0), VirtualClock(), {})
    await again.start()
    async with running(again.run()):
        await network.send(order(4), added)
        await until(lambda: "'r4'" in caplog.text)  # by name: what was handled and not yet committed comes once more
    await again.stop()


async def test_orders_in_a_partition_that_was_added_while_the_agent_was_away(network: Network) -> None:
    first = Orders(network.settings, NOBODY, network.producer, Lease(10, 2, 0), VirtualClock(), {})
    await first.start()
    await first.stop()
    added = await network.add_partition(first._topic.name)
    await network.send(order(1), added)
    second = Orders(network.settings, NOBODY, network.producer, Lease(10, 2, 0), VirtualClock(), {})
    await second.start()
    async with running(second.run()):
        await until(lambda: second.handled_count == 1)
    await second.stop()


def asked(number: int) -> PlacementRequest:
    return PlacementRequest(domain_id="north", shard="s", term=1, session=number, begins=True, complete=True, round=1)


@pytest.mark.usefixtures("coordinator")
async def test_requests_in_partitions_that_are_added(network: Network) -> None:
    placing = placing_of(network, 1)
    await placing.start()
    added = await network.add_partition(placing._topic.name)
    async with running(placing.run()):
        await network.send(asked(1), added)
        await until(lambda: added in placing.book.positions and placing.book.positions[added] == 0)
    await placing.stop()
    later = await network.add_partition(placing._topic.name)
    await network.send(asked(2), later)
    again = placing_of(network, 2)
    await again.start()
    async with running(again.run()):
        await until(lambda: again.book.sessions["s"].number == (1, 2))
    assert again.book.positions[later] == 0
    await again.stop()


def defined(name: str) -> ResourceDefined:
    definition = ResourceDefinition(name=name, description="seats", consumable=True, value=3, scope=["north"])
    return ResourceDefined(name=name, definition=definition)


async def test_definitions_in_a_partition_that_is_added(network: Network) -> None:
    resources = UserResources("north", ["n1"], (), CommandPolicy(), network.directory)
    definitions = ResourceDefinitions(network.settings, resources, network.producer)
    topic = catalogue().event_of(ResourceDefined()).topic.name
    before = await network.add_partition(topic)
    await network.send(defined("before"), before)
    async with running(definitions.run()):
        await until(lambda: "before" in resources.definitions)
        added = await network.add_partition(topic)
        await network.send(defined("added"), added)
        await network.send(defined("old"), 0)
        await until(lambda: {"added", "old"} <= resources.definitions.keys())
