"""What one agent sends does not stop the watch over all the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meridian.contracts.failover.v1.failover_pb2 import NodeFailed, NodeSuspected
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat, NodeBeat
from tests.harness import environment
from tests.integration.failover.test_service import QUICK, Agent, beating


@dataclass
class HostileAgent(Agent):
    """Names nodes, and itself, as nothing is named."""

    names: tuple[str, ...] = ("a\x00b", "", "x" * 5_000)

    async def beat(self) -> None:
        self.sequence += 1
        for domain_id in (self.domain_id, "d\x00", "y" * 5_000):
            beats = [NodeBeat(node_id=name, state=resource_pb2.NODE_PROCESS_STATE_RUNNING) for name in self.names]
            message = Heartbeat(domain_id=domain_id, sequence=self.sequence, lease_s=math.inf, nodes=beats)
            message.sent_at.GetCurrentTime()
            await self.bus.publish(message)


async def test_names_that_cannot_be_kept_stop_nothing(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("failover", QUICK):
        honest = Agent(stack.bus, "honest", ["honest-1", "honest-2"])
        async with beating(HostileAgent(stack.bus, "hostile", []), honest):
            honest.say_silent("honest-1", 1.5)
            found = await stack.bus.expect(NodeSuspected, lambda event: event.domain_id == "honest")
            assert found.node_id == "honest-1"


@dataclass
class TimelessAgent(Agent):
    """Says of its nodes that they were heard at times that are none."""

    ages_s: tuple[float, ...] = (math.inf, 1e300, math.nan, -math.inf)

    async def beat(self) -> None:
        self.sequence += 1
        beats = [
            NodeBeat(node_id=f"t-{place}", age_s=age_s, state=resource_pb2.NODE_PROCESS_STATE_RUNNING)
            for place, age_s in enumerate(self.ages_s)
        ]
        message = Heartbeat(domain_id=self.domain_id, sequence=self.sequence, interval_s=math.nan, nodes=beats)
        message.sent_at.GetCurrentTime()
        await self.bus.publish(message)


async def test_ages_that_are_none_stop_nothing(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("failover", QUICK):
        honest = Agent(stack.bus, "honest", ["honest-1", "honest-2"])
        async with beating(TimelessAgent(stack.bus, "hostile", []), honest):
            silent = await stack.bus.expect(NodeFailed, lambda event: event.domain_id == "hostile")
            assert silent.node_id in {"t-0", "t-1"}
            honest.say_silent("honest-1", 1.5)
            await stack.bus.expect(NodeSuspected, lambda event: event.domain_id == "honest")
