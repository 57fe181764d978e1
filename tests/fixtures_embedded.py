"""Real servers for tests: PostgreSQL, Valkey and the embedded broker, once per test session, on free loopback ports.

In a conftest.py:  ``from tests.fixtures_embedded import *  # noqa: F403``
A test then asks for ``database_url`` (a fresh, empty database), ``redis_url`` (emptied) or ``bootstrap_servers`` (shared by
the session: use topic names of your own). ``postgres_server``, ``valkey_server`` and ``embedded_broker`` are behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import asyncpg
import pytest
import pytest_asyncio

from meridian.embedded import postgres, valkey
from meridian.embedded.ports import choose_ports
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec, log_tail

__all__ = [
    "ProcessSpec",
    "bootstrap_servers",
    "data_directory",
    "database_url",
    "embedded_broker",
    "free_port",
    "held_port",
    "postgres_server",
    "redis_url",
    "running",
    "tcp_accepts",
    "valkey_server",
]

ROOT = Path(__file__).parent.parent
PR_SET_PDEATHSIG = 1
MOST_CLAIMS = 64
_claims: deque[int] = deque()
T = TypeVar("T")


def free_port(name: str = "test") -> int:
    """A loopback port that nothing listens on now, and that no other run of tests on this machine is given before it is used."""
    directory = Path(tempfile.gettempdir()) / f"meridian-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    while True:
        port = choose_ports([name], seed=uuid.uuid4().hex)[name]
        claim = os.open(directory / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
            continue
        _claims.append(claim)
        if len(_claims) > MOST_CLAIMS:
            os.close(_claims.popleft())
        return port


@contextlib.contextmanager
def held_port() -> Iterator[socket.socket]:
    """A socket bound to a loopback port on which nothing listens, until the block ends. The system gives the port to nobody else
    meanwhile, neither to servers that take any nor to outgoing connections, but a server of the test may listen on it, as servers
    reuse addresses; or ``listen()`` on the socket itself, and the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held


@contextlib.contextmanager
def data_directory() -> Iterator[Path]:
    """A temporary directory that PostgreSQL's account can reach when the tests run as root."""
    directory = Path(tempfile.mkdtemp(prefix="meridian-test-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def running(spec: ProcessSpec) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``spec`` without a supervisor until the block ends; on Linux it also ends when the test run is killed."""
    if spec.before_start is not None:
        _wait_for(spec.before_start())
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    with spec.log_path.open("ab") as log:
        process = subprocess.Popen(
            spec.argv,
            stdout=log,
            stderr=log,
            preexec_fn=_end_with_parent(spec.stop_signal),  # noqa: PLW1509 - one call into the C library
            **spec.popen_arguments(),
        )
    try:
        _until_ready(spec, process)
        yield process
    finally:
        process.send_signal(spec.stop_signal)
        try:
            process.wait(spec.stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """One PostgreSQL with fsync off."""
    with data_directory() as directory:
        server = postgres.locate(directory, free_port("postgres"), fsync=False)
        with running(server.process(directory / "postgres.log")):
            yield server


@pytest_asyncio.fixture
async def database_url(postgres_server: postgres.Postgres) -> AsyncIterator[str]:
    """The SQLAlchemy URL (postgresql+asyncpg) of an empty database that lives as long as the test."""
    name = f"test_{uuid.uuid4().hex}"
    plain = postgres_server.url.replace("+asyncpg", "")
    connection = await asyncpg.connect(plain)
    await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    await connection.close()
    yield postgres_server.url.removesuffix(postgres.DATABASE) + name
    connection = await asyncpg.connect(plain)
    await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await connection.close()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[valkey.Valkey]:
    """One Valkey."""
    with data_directory() as directory:
        server = valkey.locate(directory, free_port("valkey"))
        with running(server.process(directory / "valkey.log")):
            yield server


@pytest.fixture
def redis_url(valkey_server: valkey.Valkey) -> str:
    """The URL of a Valkey that holds nothing."""
    import redis

    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return valkey_server.url


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[str]:
    """One embedded Kafka-wire broker: its ``host:port``."""
    with data_directory() as directory:
        port = free_port("broker")
        arguments = ("--host", "127.0.0.1", "--port", str(port), "--data-dir", str(directory / "broker"))
        spec = ProcessSpec(
            name="broker",
            argv=(sys.executable, "-m", "meridian.embedded.broker", *arguments),
            cwd=ROOT,
            log_path=directory / "broker.log",
            ready=tcp_accepts("127.0.0.1", port),
        )
        with running(spec):
            yield f"127.0.0.1:{port}"


@pytest.fixture
def bootstrap_servers(embedded_broker: str) -> str:
    """Bootstrap address of the broker that the session shares; use topics of your own."""
    return embedded_broker


def _wait_for(awaitable: Awaitable[T]) -> T:
    """The result of ``awaitable`` from a loop in another thread, so that a running loop here does not mind."""

    async def wait() -> T:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def _until_ready(spec: ProcessSpec, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + spec.ready_timeout_s
    while spec.ready is not None and not _wait_for(spec.ready()):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"{spec.name} did not start (exit code {process.poll()}):\n{log_tail(spec.log_path)}")
        time.sleep(0.02)


def _end_with_parent(stop_signal: signal.Signals) -> Callable[[], object] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, int(stop_signal))
