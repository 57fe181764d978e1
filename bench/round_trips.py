"""Counts what is asked of PostgreSQL: a proxy before the server, so that the driver and all above it are as they are.

Every question to PostgreSQL, whatever it is made of, is answered by exactly one ReadyForQuery (protocol 3.0, section 54.2), so
their number is the number of round trips; that of starting a connection is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import make_url

READY_FOR_QUERY = ord("Z")


@dataclass(slots=True)
class RoundTrips:
    """``count``: answers so far; ``connections``: made so far; ``url``: the address of the database through the proxy."""

    url: str
    count: int = 0
    connections: int = 0


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trips: RoundTrips) -> None:
    first = True
    while True:
        head = await reader.readexactly(5)
        writer.write(head + await reader.readexactly(int.from_bytes(head[1:]) - 4))
        if head[0] == READY_FOR_QUERY:
            trips.count += not first
            trips.connections += first
            first = False
            await writer.drain()


@asynccontextmanager
async def counted(database_url: str) -> AsyncIterator[RoundTrips]:
    """A proxy on the loopback before the database of ``database_url`` (which must not ask for TLS) until the block ends."""
    address = make_url(database_url)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(address.host, address.port)
        ssl_request = await client.readexactly(8)
        if ssl_request[4:] == (80877103).to_bytes(4):
            to_client.write(b"N")
        else:
            to_server.write(ssl_request)
        both = [
            asyncio.create_task(_forward(client, to_server)),
            asyncio.create_task(_answers(server, to_client, trips)),
        ]
        tasks.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            for found in await asyncio.gather(*both, return_exceptions=True):
                if not isinstance(found, asyncio.CancelledError | asyncio.IncompleteReadError | OSError | None):
                    raise found
            tasks.difference_update(both)
            to_server.close()
            to_client.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    trips = RoundTrips(address.set(host="127.0.0.1", port=port).render_as_string(hide_password=False))
    try:
        yield trips
    finally:
        proxy.close()
        for task in list(tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await proxy.wait_closed()
