"""Probes over real sockets: round trip, loss and bandwidth as an emulated domain declares them; nobody there; bad guests."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent import contract_messages
from agent.probing.prober import Pace, Peer, Prober
from agent.probing.responder import MOST_TRANSFER_BYTES, Responder
from agent.probing.service import Probing
from agent.probing.shaping import Shape
from agent.probing.wire import Kind, Packet, header
from agent.settings import AgentSettings, Domain, Link, Node, ProbingSettings
from meridian.clock import SystemClock

SIZE = 512 * 1024
PACE = Pace(interval_s=0.1, packets=20, timeout_s=60.0, transfer_bytes=SIZE, transfer_interval_s=60.0)
"""All packets are answered."""
IN_VAIN = replace(PACE, timeout_s=0.5)
"""Some or all are not, and nobody waits for them for long."""


@asynccontextmanager
async def responder(shape: Shape) -> AsyncIterator[Responder]:
    """The agent of `south`, which shapes what comes from `north`."""
    found = Responder("south", "127.0.0.1", 0, {"north": shape}, random.Random(7))
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def prober(port: int, domain_id: str = "north", pace: Pace = PACE) -> tuple[Prober, Peer]:
    peer = Peer("south", "127.0.0.1", port)
    return Prober(domain_id, (peer,), pace, SystemClock()), peer


async def test_a_shaped_link_is_measured_as_declared() -> None:
    async with responder(Shape(rtt_s=0.03, loss=0.5, bytes_per_s=4e6)) as south:
        north, peer = prober(south.port, pace=IN_VAIN)
        async with asyncio.timeout(60):
            # Of 20 packets half are lost on average; the dice are the responder's, cast with one seed. More are when all stand still.
            while not (link := north.measured().get("south")) or not 0.15 <= link.loss <= 0.85:
                await north.burst(peer)
        assert await north.transfer(peer)
        link = north.measured()["south"]
    assert link.rtt_s is not None
    assert link.rtt_s >= 0.03
    assert link.bandwidth_bytes_per_s is not None
    # The receiver reads no faster than the rate that is declared.
    assert 0 < link.bandwidth_bytes_per_s <= 4.1e6


async def test_only_the_named_domain_is_shaped() -> None:
    async with responder(Shape(loss=1.0)) as south:
        north, peer = prober(south.port, pace=IN_VAIN)
        await north.burst(peer)
        west, _ = prober(south.port, "west")
        await west.burst(peer)
    assert north.measured()["south"].loss == 1.0
    assert north.measured()["south"].rtt_s is None
    assert west.measured()["south"].loss == 0.0


async def test_nobody_there_is_loss_and_no_transfer() -> None:
    async with responder(Shape()) as south:
        port = south.port
    north, peer = prober(port, pace=IN_VAIN)
    await north.burst(peer)
    assert not await north.transfer(peer)
    link = north.measured()["south"]
    assert (link.loss, link.rtt_s, link.bandwidth_bytes_per_s) == (1.0, None, None)


async def test_bad_guests_get_no_answer_and_harm_nobody() -> None:
    async with responder(Shape()) as south:
        loop = asyncio.get_running_loop()
        guest = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        guest.setblocking(False)
        guest.connect(("127.0.0.1", south.port))
        for bad in (
            b"",
            b"hello",
            Packet(Kind.REPLY, 1, 2, "north").packed(),
            Packet(Kind.ASK, 1, 2, "n").packed()[:-1],
        ):
            guest.send(bad)
        guest.send(Packet(Kind.ASK, 9, 5, "north").packed())
        # The only answer is that to the only question, and it is not longer.
        answer = await asyncio.wait_for(loop.sock_recv(guest, 4096), 60)
        assert answer == Packet(Kind.REPLY, 9, 5, "north").packed()
        guest.close()
        for bad in (b"GET / HTTP/1.1\r\n\r\n", header(MOST_TRANSFER_BYTES + 1, "north")):
            reader, writer = await asyncio.open_connection("127.0.0.1", south.port)
            writer.write(bad)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        north, peer = prober(south.port)
        await north.burst(peer)
        assert north.measured()["south"].loss == 0.0


async def test_measured_links_stand_before_declared_ones_in_the_report(tmp_path: Path) -> None:
    async with responder(Shape()) as south:
        links = (
            Link(to_domain_id="south", rtt_s=9.0, bandwidth_bytes_per_s=5.0, price_micro_per_gb=7, currency="CNY",
                 probe=f"127.0.0.1:{south.port}"),
            Link(to_domain_id="west", rtt_s=0.2, loss=0.1),
        )  # fmt: skip
        settings = AgentSettings(
            domain=Domain(domain_id="north", nodes=(Node(node_id="n"),), links=links),
            kafka_bootstrap_servers="nowhere",
            data_dir=tmp_path,
            probing=ProbingSettings(interval_s=0.05, packets=3, transfer_bytes=0),
        )
        probing = Probing(settings, SystemClock())
        running = asyncio.create_task(probing.run())
        async with asyncio.timeout(60):
            while not (link := probing.measured().get("south")) or link.loss > 0:  # none but by a standstill
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    measured = {domain_id: (link, at) for domain_id, link in probing.measured().items()}
    assert set(measured) == {"south"}
    found = {link.to_domain_id: link for link in contract_messages.inventory(settings, {}, "", links=measured).links}
    assert 0 < found["south"].rtt_s < 9.0
    assert found["south"].loss == 0.0
    assert found["south"].measured_at.ToDatetime(UTC) == at
    # Bandwidth was not measured: what is declared stands, and so does the price.
    assert (found["south"].bandwidth_bytes_per_s, found["south"].price_per_gb.micro_units) == (5.0, 7)
    assert (found["west"].rtt_s, found["west"].loss, found["west"].HasField("measured_at")) == (0.2, 0.1, False)
