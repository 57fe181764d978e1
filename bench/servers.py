"""Real PostgreSQL (fsync on), the embedded broker and services as processes of their own, for benchmarks that need them."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from meridian.bus import ensure_topics
from meridian.database import migrate
from meridian.embedded import postgres
from meridian.embedded.ports import choose_ports
from meridian.embedded.probes import http_ok, tcp_accepts
from meridian.embedded.process import ProcessSpec

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are; ``database`` is the process of PostgreSQL."""

    bootstrap_servers: str
    database_url: str
    directory: Path
    database: psutil.Process


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A service that is ready."""

    process: psutil.Process
    base_url: str


def cpu_s(process: psutil.Process) -> float:
    """Processor time of a process and all that it started, in seconds."""
    own = process.cpu_times()
    spent = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        times = child.cpu_times()
        spent += times.user + times.system
    return spent


@asynccontextmanager
async def running(spec: ProcessSpec, patience_s: float = 60.0) -> AsyncIterator[psutil.Process]:
    """A process until the block ends; it has answered when the block begins."""
    if spec.before_start is not None:
        await spec.before_start()
    with spec.log_path.open("ab") as log:
        child = await asyncio.create_subprocess_exec(*spec.argv, stdout=log, stderr=log, **spec.popen_arguments())
    try:
        deadline_s = time.monotonic() + patience_s
        while spec.ready is not None and not await spec.ready():
            if child.returncode is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{spec.name} did not start:\n{spec.log_path.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        if child.returncode is None:
            child.send_signal(spec.stop_signal)
        await child.wait()


@asynccontextmanager
async def servers(*services: str) -> AsyncIterator[Servers]:
    """PostgreSQL and a broker with all topics, and the schemas of the named services; nothing stays."""
    with tempfile.TemporaryDirectory(prefix="meridian-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL may have an account of its own
        ports = choose_ports(["postgres", "broker"], seed=uuid.uuid4().hex)
        database = postgres.locate(directory, ports["postgres"])
        broker = ProcessSpec(
            name="broker",
            argv=(
                sys.executable, "-m", "meridian.embedded.broker", "--host", "127.0.0.1",
                "--port", str(ports["broker"]), "--data-dir", str(directory / "broker"),
            ),
            cwd=ROOT,
            log_path=directory / "broker.log",
            ready=tcp_accepts("127.0.0.1", ports["broker"]),
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            postgres_process = await stack.enter_async_context(running(database.process(directory / "postgres.log")))
            await stack.enter_async_context(running(broker))
            bootstrap_servers = f"127.0.0.1:{ports['broker']}"
            await ensure_topics(bootstrap_servers)
            for service in services:
                await migrate(database.url, service, ROOT / "services" / service / "migrations")
            yield Servers(bootstrap_servers, database.url, directory, postgres_process)


@asynccontextmanager
async def service(where: Servers, name: str, **settings: str) -> AsyncIterator[ServiceProcess]:
    """A service as a process of its own until the block ends; ``settings``: further environment variables."""
    port = choose_ports([name], seed=uuid.uuid4().hex)[name]
    spec = ProcessSpec(
        name=name,
        argv=(sys.executable, "-m", "meridian.service", name),
        cwd=ROOT,
        log_path=where.directory / f"{name}.log",
        env={
            **os.environ,
            "MERIDIAN_DATABASE_URL": where.database_url,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": where.bootstrap_servers,
            "MERIDIAN_DATA_DIR": str(where.directory / "data"),
            "MERIDIAN_LOG_LEVEL": "WARNING",
            f"MERIDIAN_{name.upper()}_HTTP_PORT": str(port),
            **settings,
        },
        ready=http_ok(f"http://127.0.0.1:{port}/health/ready"),
    )
    async with running(spec) as process:
        yield ServiceProcess(process, f"http://127.0.0.1:{port}")
