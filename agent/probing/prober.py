"""Asks the agents of other domains, each at its own pace, and keeps an estimate of every link."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.probing.estimates import LinkEstimate, LinkMeasurement
from agent.probing.wire import RECEIPT, Kind, Packet, header, packet
from meridian.clock import Clock

_log = logging.getLogger(__name__)
_SPACING_S = 0.02
_TRANSFER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Peer:
    """The agent of a domain, and where it answers probes."""

    domain_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Pace:
    """``packets`` every ``interval_s``, which are given up after ``timeout_s``; ``transfer_bytes`` every ``transfer_interval_s`` (0: none).
    What arrives counts ``scale`` times (emulated links are smaller models of the declared ones)."""

    interval_s: float = 5.0
    packets: int = 10
    timeout_s: float = 2.0
    transfer_bytes: int = 2 * 1024 * 1024
    transfer_interval_s: float = 600.0
    scale: float = 1.0


@dataclass(slots=True)
class _Replies(asyncio.DatagramProtocol):
    """Round trips of one burst by sequence; a reply needs the nonce of what was sent, and counts once."""

    nonce: int
    count: int
    clock: Clock
    sent_s: dict[int, float] = field(default_factory=dict)
    took_s: dict[int, float] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        found = packet(data)
        if found is None or found.kind is not Kind.REPLY or found.nonce != self.nonce:
            return
        sent_s = self.sent_s.get(found.sequence)
        if sent_s is not None and found.sequence not in self.took_s:
            self.took_s[found.sequence] = self.clock.monotonic_s() - sent_s
            if len(self.took_s) == self.count:
                self.complete.set()

    def error_received(self, exc: Exception) -> None:
        _log.debug("probe not sent: %s", exc)


class Prober:
    """Probes every peer until cancelled; `measured` is what was found, by domain."""

    def __init__(self, domain_id: str, peers: tuple[Peer, ...], pace: Pace, clock: Clock) -> None:
        self._domain_id = domain_id
        self._peers = peers
        self._pace = pace
        self._clock = clock
        self._estimates = {peer.domain_id: LinkEstimate() for peer in peers}

    def measured(self) -> Mapping[str, LinkMeasurement]:
        """Links that were measured at least once; times on the clock of the prober."""
        found = {domain_id: estimate.now() for domain_id, estimate in self._estimates.items()}
        return {domain_id: link for domain_id, link in found.items() if link is not None}

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for peer in self._peers:
                group.create_task(self._probe(peer))
                if self._pace.transfer_bytes and self._pace.transfer_interval_s:
                    group.create_task(self._transfers(peer))

    async def _probe(self, peer: Peer) -> None:
        # Agents that start together do not ask together.
        await asyncio.sleep(random.uniform(0, min(self._pace.interval_s, 1.0)))
        while True:
            await self.burst(peer)
            await asyncio.sleep(self._pace.interval_s)

    async def _transfers(self, peer: Peer) -> None:
        await asyncio.sleep(random.uniform(1, 3))
        while True:
            moved = await self.transfer(peer)
            # A peer that does not answer yet is asked again sooner; nothing was transferred.
            await asyncio.sleep(self._pace.transfer_interval_s if moved else 10 * self._pace.interval_s)

    async def burst(self, peer: Peer) -> None:
        """Send the packets of one burst, a little apart, and wait for their replies."""
        replies = _Replies(secrets.randbits(64), self._pace.packets, self._clock)
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: replies, remote_addr=(peer.host, peer.port))
        except OSError as error:
            _log.debug("probe of %s: %s", peer.domain_id, error)
            self._estimates[peer.domain_id].burst((), self._pace.packets, self._clock.monotonic_s())
            return
        try:
            for sequence in range(self._pace.packets):
                replies.sent_s[sequence] = self._clock.monotonic_s()
                transport.sendto(Packet(Kind.ASK, sequence, replies.nonce, self._domain_id).packed())
                await asyncio.sleep(_SPACING_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.timeout_s):
                    await replies.complete.wait()
        finally:
            transport.close()
        self._estimates[peer.domain_id].burst(
            tuple(replies.took_s.values()), self._pace.packets, self._clock.monotonic_s()
        )

    async def transfer(self, peer: Peer) -> bool:
        """Send ``transfer_bytes`` once; False when it did not arrive."""
        try:
            async with asyncio.timeout(_TRANSFER_TIMEOUT_S):
                return await self._transfer(peer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.debug("transfer to %s: %r", peer.domain_id, error)
            return False

    async def _transfer(self, peer: Peer) -> bool:
        reader, writer = await asyncio.open_connection(peer.host, peer.port)
        try:
            size_bytes = self._pace.transfer_bytes
            writer.write(header(size_bytes, self._domain_id) + bytes(size_bytes))
            await writer.drain()
            taken, took_ns = RECEIPT.unpack(await reader.readexactly(RECEIPT.size))
            self._estimates[peer.domain_id].transfer(int(taken * self._pace.scale), took_ns / 1e9)
            return True
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
