"""Answers the probes of other agents: UDP packets one by one, transfers up to a limit and a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping
from typing import cast

from agent.probing.shaping import UNSHAPED, Shape
from agent.probing.wire import HEADER_BYTES, LONGEST_NAME, RECEIPT, Kind, Packet, announced, packet

_log = logging.getLogger(__name__)
MOST_TRANSFER_BYTES = 16 * 1024 * 1024
TRANSFERS_AT_ONCE = 4
TRANSFER_TIMEOUT_S = 20.0
# Packets per second that are answered at most, whoever sends them.
REPLIES_PER_S = 2000
_PIECE = 256 * 1024


class _Echo(asyncio.DatagramProtocol):
    def __init__(self, shapes: Mapping[str, Shape], domain_id: str, chance: random.Random) -> None:
        self._shapes = shapes
        self._domain_id = domain_id
        self._chance = chance
        self._transport: asyncio.DatagramTransport | None = None
        self._second = 0
        self._replies = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        asked = packet(data)
        if asked is None or asked.kind is not Kind.ASK or not self._may_reply():
            return
        shape = self._shapes.get(asked.domain_id, UNSHAPED)
        if self._chance.random() < shape.loss:
            return
        # The name of the asking domain comes back: the reply is exactly as long as what it answers.
        reply = Packet(Kind.REPLY, asked.sequence, asked.nonce, asked.domain_id).packed()
        if shape.rtt_s > 0:
            asyncio.get_running_loop().call_later(shape.rtt_s, self._send, reply, addr)
        else:
            self._send(reply, addr)

    def _may_reply(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._replies = second, 0
        self._replies += 1
        return self._replies <= REPLIES_PER_S

    def _send(self, reply: bytes, addr: tuple[str | object, int]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(reply, addr)

    def error_received(self, exc: Exception) -> None:
        _log.debug("probe not answered: %s", exc)


class Responder:
    """Listens on one port, UDP and TCP. ``shapes``: what an emulated domain does to probes, by the domain that asks."""

    def __init__(
        self, domain_id: str, host: str, port: int, shapes: Mapping[str, Shape], chance: random.Random | None = None
    ) -> None:
        self._domain_id = domain_id
        self._host = host
        self._shapes = shapes
        self._chance = chance or random.Random()
        self._transfers = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None
        self.port = port

    async def start(self) -> None:
        """Listen; port 0 takes a free one and `port` names it then. OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._receive, self._host, self.port, limit=_PIECE)
        self.port = self._tcp.sockets[0].getsockname()[1]
        self._udp, _ = await loop.create_datagram_endpoint(
            lambda: _Echo(self._shapes, self._domain_id, self._chance), local_addr=(self._host, self.port)
        )

    async def stop(self) -> None:
        """Close both sockets."""
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
            await self._tcp.wait_closed()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TRANSFER_TIMEOUT_S), self._transfers:
                await self._take(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.debug("transfer ended early: %r", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = announced(await reader.readexactly(HEADER_BYTES))
        if found is None or found[0] > MOST_TRANSFER_BYTES:
            return
        size_bytes, length = found
        name = (await reader.readexactly(min(length, LONGEST_NAME))).decode(errors="replace")
        shape = self._shapes.get(name, UNSHAPED)
        taken = len(await reader.read(1))
        began_s = time.monotonic()
        while taken < size_bytes:
            piece = await reader.read(min(_PIECE, size_bytes - taken))
            if not piece:
                return
            taken += len(piece)
            pause_s = shape.pause_s(taken, time.monotonic() - began_s)
            if pause_s > 0:
                await asyncio.sleep(pause_s)
        writer.write(RECEIPT.pack(taken, int((time.monotonic() - began_s) * 1e9)))
        await writer.drain()
