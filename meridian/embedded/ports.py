"""Ports of the one-machine stack: chosen once per data directory and kept, so that addresses outlive a restart."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from meridian.errors import ConfigurationError

FIRST_PORT, LAST_PORT = 10_000, 19_999
"""Below every system's ephemeral range, so that no outgoing connection takes a port while its owner restarts, and apart from
20,000-29,999, out of which the scheduler gives jobs their rendezvous and service ports."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on ``host:port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def candidates(seed: str) -> Iterator[int]:
    """All ports of our range, from a place that ``seed`` decides, so that two stacks seldom try the same ones."""
    count = LAST_PORT - FIRST_PORT + 1
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") % count
    return (FIRST_PORT + (start + step) % count for step in range(count))


def choose_ports(
    names: Iterable[str], *, seed: str, kept: Mapping[str, int] | None = None, wanted: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A free port for each of ``names``: the one wanted, else the one kept from last time if it is free, else a new one.

    Raises ConfigurationError when a wanted port is taken or no port is left.
    """
    kept, wanted = kept or {}, wanted or {}
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if port in chosen.values() or not is_free(port):
            raise ConfigurationError(f"port {port}, wanted for {name}, is in use")
        chosen[name] = port
    fresh = candidates(seed)
    for name in names:
        if name in chosen:
            continue
        earlier = kept.get(name)
        if earlier is not None and earlier not in chosen.values() and is_free(earlier):
            chosen[name] = earlier
            continue
        taken = {*chosen.values(), *kept.values()}
        found = next((port for port in fresh if port not in taken and is_free(port)), None)
        if found is None:
            raise ConfigurationError(f"no free port between {FIRST_PORT} and {LAST_PORT} for {name}")
        chosen[name] = found
    return chosen


def kept_ports(path: Path, names: Iterable[str], *, wanted: Mapping[str, int] | None = None) -> dict[str, int]:
    """``choose_ports`` with memory in the JSON file ``path``; names that are not asked for now keep their entry."""
    kept: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    chosen = choose_ports(names, seed=str(path.resolve()), kept=kept, wanted=wanted)
    write_atomically(path, json.dumps(kept | chosen, indent=2))
    return chosen


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.touch(mode=mode)
    part.chmod(mode)
    part.write_text(text)
    part.replace(path)
