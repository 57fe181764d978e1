"""A gateway that runs against real PostgreSQL, the real broker and Valkey, with tokens of a test issuer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest_asyncio
import sqlalchemy as sa

from meridian.contracts.graph.v1 import graph_pb2
from tests.harness import Environment, RunningService, environment
from tests.integration.gateway.issuer import Issuer, serving

TABLES = ("job", "unit", "run", "event", "idempotency", "outbox")


@dataclass
class Stack:
    """The gateway and what it talks to."""

    environment: Environment
    service: RunningService
    issuer: Issuer

    @property
    def http(self) -> httpx.AsyncClient:
        return self.service.http

    @property
    def bus(self) -> Any:
        return self.environment.bus

    async def rows(self, *tables: str) -> dict[str, int]:
        """How many rows the tables hold."""
        async with self.service.kernel.database.reading() as connection:
            return {name: await connection.scalar(sa.text(f"SELECT count(*) FROM {name}")) for name in tables or TABLES}


@pytest_asyncio.fixture
async def stack(database_url: str, redis_url: str) -> AsyncIterator[Stack]:
    with serving() as issuer:
        async with (
            environment(
                database_url,
                redis_url=redis_url,
                identity_url=issuer.url,
                scheduler_url=issuer.url,
                forecast_url=issuer.url,
            ) as env,
            env.service("gateway", {"MERIDIAN_GATEWAY_AGENT_TOKEN": "join-secret"}) as service,
        ):
            yield Stack(env, service, issuer)


def task_file(**changes: Any) -> dict[str, Any]:
    """A sound job file."""
    return {"name": "hello", "kind": "task", "command": ["echo", "hello"], **changes}


def image(
    domain_id: str = "beijing",
    *,
    nodes: int = 2,
    accelerators: int = 4,
    cpus: float = 8,
    memory_bytes: int = 1 << 34,
    emulated: bool = True,
    security_level: int = 1,
    agent_url: str = "",
    model: str = "Ascend 910B",
    accelerator_memory_bytes: int = 1 << 36,
    version: int = 1,
) -> graph_pb2.GraphUpdated:
    """The full image of a domain as the graph service publishes it."""
    update = graph_pb2.GraphUpdated(domain_id=domain_id, version=version, full=True)
    update.updated_at.GetCurrentTime()
    update.domain.domain_id = domain_id
    update.domain.name = domain_id.title()
    update.domain.emulated = emulated
    update.domain.security_level = security_level
    update.domain.agent_url = agent_url
    update.domain.price_per_accelerator_hour.micro_units = 1_500_000
    update.domain.price_per_accelerator_hour.currency = "CNY"
    for index in range(nodes):
        node = update.nodes.add(state=graph_pb2.NODE_STATE_HEALTHY, certified=True)
        node.inventory.node_id = f"{domain_id}-{index + 1}"
        node.inventory.cpus = cpus
        node.inventory.memory_bytes = memory_bytes
        node.metrics["hw.cpu.utilization"] = 0.25
        for number in range(accelerators):
            node.inventory.accelerators.add(
                index=number, model=model, memory_bytes=accelerator_memory_bytes, emulated=emulated
            )
    update.links.add(from_domain_id=domain_id, to_domain_id="elsewhere", rtt_s=0.03, bandwidth_bytes_per_s=1e9)
    return update
