"""Readiness probes on bare sockets: the supervisor starts in a fraction of a second because it imports no client library."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from meridian.embedded.process import Probe

PROBE_TIMEOUT_S = 1.0


def tcp_accepts(host: str, port: int) -> Probe:
    """Ready when something accepts a connection on ``host:port``."""

    async def probe() -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except OSError:  # includes TimeoutError
            return False
        writer.close()
        return True

    return probe


async def exchange(host: str, port: int, request: bytes, answer_bytes: int) -> bytes:
    """Send ``request`` and return up to ``answer_bytes`` of what comes back; empty if nobody answers in time."""
    writer = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            return await reader.read(answer_bytes)
    except OSError:
        return b""
    finally:
        if writer is not None:
            writer.close()


def http_ok(url: str) -> Probe:
    """Ready when a GET of the plain-http ``url`` answers 200."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()

    async def probe() -> bool:
        status_line = (await exchange(host, port, request, 64)).split(b"\r\n", 1)[0].split(b" ")
        return len(status_line) > 1 and status_line[1] == b"200"

    return probe


def all_of(*probes: Probe) -> Probe:
    """Ready when every one of ``probes`` is."""

    async def probe() -> bool:
        return all(await asyncio.gather(*(each() for each in probes)))

    return probe
