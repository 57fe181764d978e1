"""One client's connection: bytes in, frames out, requests answered one after the other in the order they came."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from meridian.embedded.broker.errors import MalformedFrameError

PAUSE_AT_FRAMES = 64
"""More requests waiting than this and no further ones are read."""

_LENGTH = struct.Struct(">i")
_logger = logging.getLogger(__name__)

Reply = bytearray | None
Serve = Callable[[memoryview, str], Reply | Awaitable[Reply]]
"""From a request frame and the client's host to the response frame, at once or later; raises ``MalformedFrameError``."""


class Connection(asyncio.Protocol):
    """Splits the stream into frames and keeps the order of answers.

    While one request waits (a long poll, a rebalance, a sync to disk) those behind it wait as well, as the protocol wants.
    A malformed frame, one over ``max_request_bytes`` or a failure of the broker closes this connection only.
    """

    def __init__(self, serve: Serve, max_request_bytes: int, open_connections: set[Connection]) -> None:
        self._serve = serve
        self._max_request_bytes = max_request_bytes
        self._open_connections = open_connections
        self._received = bytearray()
        self._frames: deque[memoryview] = deque()
        self._task: asyncio.Task[None] | None = None
        self._may_write = True
        self._writable: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else "local"
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: nobody waits for answers any more."""
        self._open_connections.discard(self)
        self._frames.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._split(data)
        except MalformedFrameError as error:
            self._refuse(error)
            return
        if self._task is None:
            self._drain()
        if len(self._frames) > PAUSE_AT_FRAMES:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Called by the event loop: the client reads more slowly than we write."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._may_write = True
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def close(self) -> None:
        """Close at once, with what has been answered sent."""
        if self._task is not None:
            self._task.cancel()
        self._transport.close()

    def _split(self, data: bytes) -> None:
        received = self._received
        received += data
        position, end = 0, len(received)
        while position + 4 <= end:
            length = _LENGTH.unpack_from(received, position)[0]
            if not 0 < length <= self._max_request_bytes:
                raise MalformedFrameError(f"frame of {length} bytes, at most {self._max_request_bytes}")
            if position + 4 + length > end:
                break
            with memoryview(received) as view:
                self._frames.append(memoryview(bytes(view[position + 4 : position + 4 + length])))
            position += 4 + length
        del received[:position]

    def _drain(self) -> None:
        """Answer what can be answered at once; hand over to a task at the first that must wait."""
        try:
            while self._frames and self._may_write:
                reply = self._serve(self._frames.popleft(), self._peer)
                if isinstance(reply, Awaitable):
                    self._task = asyncio.ensure_future(self._drain_waiting(reply))
                    return
                if reply is not None:
                    self._transport.write(reply)
        except MalformedFrameError as error:
            self._refuse(error)
            return
        if self._frames:
            self._task = asyncio.ensure_future(self._drain_waiting(None))

    async def _drain_waiting(self, waiting: Awaitable[Reply] | None) -> None:
        try:
            while True:
                reply = await waiting if waiting is not None else None
                if reply is not None:
                    self._transport.write(reply)
                if not self._may_write:
                    self._writable = asyncio.get_running_loop().create_future()
                    await self._writable
                if not self._frames:
                    break
                following = self._serve(self._frames.popleft(), self._peer)
                waiting = following if isinstance(following, Awaitable) else _ready(following)
        except MalformedFrameError as error:
            self._refuse(error)
            return
        except Exception:
            _logger.exception("closing the connection from %s: its request could not be served", self._peer)
            self._transport.abort()
            return
        finally:
            self._task = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _refuse(self, error: MalformedFrameError) -> None:
        _logger.warning("closing the connection from %s: %s", self._peer, error.detail)
        self._frames.clear()
        self._received.clear()
        self._transport.abort()


async def _ready(reply: Reply) -> Reply:
    return reply
