"""Where the agent of another domain answers probes, as its address is written."""

from __future__ import annotations

MOST_PORT = 65_535


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 address may stand in brackets.

    :raises ValueError: no name of a host or no port has this form.
    """
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= MOST_PORT:
        raise ValueError(f"{port[:20]!r} is no port from 1 to {MOST_PORT}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{host[:80]!r} is no name of a host") from None
    if not host or not host.isprintable():
        raise ValueError(f"{host[:80]!r} is no name of a host")
    return host, int(port)
