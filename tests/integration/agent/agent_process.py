"""A real agent process on a real broker: `python -m agent --config FILE`, and a look at what it says on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from agent.node import proc
from meridian.bus import ensure_topics
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_START, ASSIGNMENT_ACTION_STOP, Assignment
from tests.fixtures_embedded import ProcessSpec, free_port, running, tcp_accepts
from tests.harness import PATIENCE_S, Probe

ROOT = Path(__file__).parents[3]
TOKEN = "join-token-of-the-test"
DOMAIN = "north"


@contextmanager
def broker_at(port: int, directory: Path) -> Iterator[str]:
    """A broker that keeps its data in ``directory``, so that it can be stopped and started again."""
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


@asynccontextmanager
async def probe_at(address: str) -> AsyncIterator[Probe]:
    """The topics of the contracts and one who sees all events."""
    await ensure_topics(address)
    probe = Probe(address)
    await probe.start()
    try:
        yield probe
    finally:
        await probe.stop()


def configuration(directory: Path, address: str, **changes: Any) -> dict[str, Any]:
    """Two nodes with four declared accelerators each."""
    group = {"vendor": "NVIDIA", "model": "H100", "count": 4, "memory_bytes": 85899345920, "peak_flops": 9.9e14}
    domain = {
        "domain_id": DOMAIN,
        "name": "North",
        "region": "cn-north",
        "emulated": True,
        "price_micro_per_accelerator_hour": 18500000,
        "currency": "CNY",
        "nodes": [{"node_id": f"north-{n}", "cpus": 8, "memory_bytes": 2**34, "accelerators": [group]} for n in (1, 2)],
        "links": [{"to_domain_id": "south", "rtt_s": 0.04, "bandwidth_bytes_per_s": 1e9, "price_micro_per_gb": 60000}],
    }
    return {
        "domain": domain,
        "kafka_bootstrap_servers": address,
        "join_token": TOKEN,
        "data_dir": str(directory / "agent"),
        "http_port": free_port("agent"),
        "report_interval_s": 0.5,
        "restart_after_s": 0.5,
        # Tests of the lease shorten it: a busy machine needs more than the usual one to start an agent again.
        "lease_s": 120.0,
        **changes,
    }


class AgentProcess:
    """A running agent."""

    def __init__(self, settings: dict[str, Any], directory: Path) -> None:
        self.settings = settings
        self.url = f"http://127.0.0.1:{settings['http_port']}"
        self.log_path = directory / "agent.log"
        self._config = directory / "agent.yaml"
        self._config.write_text(yaml.safe_dump(settings))
        self.process: asyncio.subprocess.Process | None = None
        self.start_s = 0.0

    async def start(self, *, until_ready: bool = True) -> None:
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent", "--config", str(self._config), cwd=ROOT, stdout=log, stderr=log
            )
        if until_ready:
            await self.until_ready()
            self.start_s = time.monotonic() - began

    async def until_ready(self, patience_s: float = 90) -> None:
        async with asyncio.timeout(patience_s), self.http() as http:
            while True:
                assert self.process is not None
                assert self.process.returncode is None, self.log_path.read_text()
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get("/health/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.02)

    def http(self, **options: Any) -> httpx.AsyncClient:
        """A client of its HTTP side, as patient as the rest."""
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, **options)

    async def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    def node_pids(self) -> list[int]:
        """Processes of its nodes."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"agent.node" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@asynccontextmanager
async def agent_running(settings: dict[str, Any], directory: Path, **how: bool) -> AsyncIterator[AgentProcess]:
    """An agent until the block ends; nothing of it is left then."""
    agent = AgentProcess(settings, directory)
    await agent.start(**how)
    try:
        yield agent
    finally:
        assert agent.process is not None
        if agent.process.returncode is None:
            try:
                await agent.stop()
            except TimeoutError:
                await agent.kill()


def order(
    program: str, *, epoch: int = 1, job_id: str = "job-1", nodes: tuple[str, ...] = ("north-1",), **more: Any
) -> Assignment:
    """A START of a Python program, one rank on each node named."""
    message = Assignment(
        domain_id=DOMAIN,
        action=ASSIGNMENT_ACTION_START,
        run_id=f"{job_id}.0.{epoch}",
        job_id=job_id,
        epoch=epoch,
        tenant_id="acme",
        world_size=len(nodes),
        command=["python", "-S", "-c", program],
        **more,
    )
    for rank, node_id in enumerate(nodes):
        message.ranks.add(rank=rank, node_id=node_id, accelerator_indices=[rank])
    message.assigned_at.FromDatetime(datetime.now(UTC))
    return message


def stop_order(*, epoch: int = 1, job_id: str = "job-1") -> Assignment:
    """A STOP."""
    return Assignment(
        domain_id=DOMAIN,
        action=ASSIGNMENT_ACTION_STOP,
        run_id=f"{job_id}.0.{epoch}",
        job_id=job_id,
        epoch=epoch,
        reason="no longer needed",
        grace_s=1,
    )


def processes_of(run_id: str) -> list[int]:
    """Live processes of a run, wherever they are."""
    return proc.marked_processes(f"MERIDIAN_RUN_ID={run_id}".encode())


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory of the test's own."""
    with tempfile.TemporaryDirectory(prefix="meridian-agent-") as name:
        yield Path(name)
