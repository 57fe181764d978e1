"""The position of a domain to which no order comes for long is not forgotten by the broker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, cast

import yaml

from agent.bus_clients import Producer
from agent.lease import Lease
from agent.orders import COMMIT_EVERY_S, Orders
from agent.settings import read_settings
from meridian.bus import ensure_topics
from meridian.clock import VirtualClock
from meridian.embedded.broker import Broker
from meridian.embedded.broker.group import CommittedOffset


async def test_the_position_is_told_anew_at_the_start_and_though_no_order_comes(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    await broker.start()
    await ensure_topics(broker.bootstrap_servers)
    path = tmp_path / "agent.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "domain": {"domain_id": "north", "nodes": [{"node_id": "n1"}]},
                "kafka_bootstrap_servers": broker.bootstrap_servers,
                "data_dir": str(tmp_path / "agent"),
            }
        )
    )
    clock = VirtualClock()
    producer = Producer(broker.bootstrap_servers, "agent-north", "/agent", request_timeout_s=30.0)
    await producer.start()
    nobody = cast("Any", None)  # no order comes, so nothing is carried out

    def grow_old() -> None:
        group = broker.coordinator.groups["agent.north"]
        old = {where: CommittedOffset(known.offset) for where, known in group.offsets.items()}
        broker.coordinator.commit(group, old)

    async def until_told() -> None:
        async with asyncio.timeout(60):
            while any(not known.committed_at_ms for known in broker.coordinator.groups["agent.north"].offsets.values()):
                await asyncio.sleep(0.01)

    try:
        for _ in range(2):
            orders = Orders(read_settings(path), nobody, producer, Lease(10, 2, 0), clock, {})
            await orders.start()
            await until_told()
            grow_old()
            await orders.stop()
        orders = Orders(read_settings(path), nobody, producer, Lease(10, 2, 0), clock, {})
        await orders.start()
        grow_old()
        running = asyncio.create_task(orders.run())
        clock.advance(COMMIT_EVERY_S)
        await until_told()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await orders.stop()
    finally:
        await producer.stop()
        await broker.stop()
