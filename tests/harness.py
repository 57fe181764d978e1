"""Run real services in a test's own event loop, and speak to them over the real bus and real HTTP.

    async with environment(database_url) as stack:           # a fresh broker and all topics
        async with stack.service("scheduler") as scheduler:  # migrated, started, ready
            await stack.bus.publish(JobSubmitted(...))
            placed = await stack.bus.expect(JobPlaced, lambda event: event.job_id == "job-1")
            answer = await scheduler.http.get("/v1/queue")

Each environment has a broker of its own, so that topics and consumer groups start empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from google.protobuf.message import Message

from meridian.bus import ensure_topics
from meridian.catalogue import catalogue
from meridian.clock import Clock
from meridian.codec import Envelope, decode, encode
from meridian.database import migrate
from meridian.errors import ContractError
from meridian.service import Kernel, build_service, run_service
from meridian.settings import KernelSettings
from tests.fixtures_embedded import ProcessSpec, free_port, running, tcp_accepts

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0
"""For what must come: nobody waits so long but where it does not come. A busy machine may need much of it."""
M = TypeVar("M", bound=Message)


class Probe:
    """Publishes events as another service would, and sees every event of the contracts from the beginning."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        self._arrived = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.seen: list[Envelope] = []
        self.dead_letters: list[Any] = []

    async def start(self) -> None:
        await self._producer.start()
        topics = catalogue().topics.values()
        self._consumer.subscribe([topic.name for topic in topics] + [topic.dead_letter for topic in topics])
        await self._consumer.start()
        self._task = asyncio.create_task(self._read())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._consumer.stop()
        await self._producer.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            async with self._arrived:
                if record.topic.endswith(".dlq"):
                    self.dead_letters.append(record)
                else:
                    with contextlib.suppress(ContractError):
                        self.seen.append(decode(record.value, record.headers))
                self._arrived.notify_all()

    async def publish(self, *messages: Message, event_id: str | None = None, source: str = "/test") -> None:
        """Send events in order and wait until the broker has them."""
        futures = []
        for message in messages:
            record = encode(message, event_id=event_id or uuid.uuid4().hex, source=source, time=datetime.now(UTC))
            futures.append(
                await self._producer.send(record.topic, record.value, key=record.key, headers=record.headers)
            )
        await asyncio.gather(*futures)

    async def publish_raw(self, topic: str, value: bytes, headers: list[tuple[str, bytes]], key: bytes = b"k") -> None:
        """Send any bytes."""
        await self._producer.send_and_wait(topic, value, key=key, headers=headers)

    def events(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> list[M]:
        """Events of a type seen so far, in order of arrival."""
        name = kind.DESCRIPTOR.full_name
        return [item.data for item in self.seen if item.type.name == name and where(item.data)]  # type: ignore[misc, arg-type]

    async def expect(
        self,
        kind: type[M],
        where: Callable[[M], bool] = lambda _: True,
        *,
        count: int = 1,
        timeout_s: float = PATIENCE_S,
    ) -> M:
        """Wait until ``count`` such events have been seen; returns the last of them."""
        try:
            async with asyncio.timeout(timeout_s), self._arrived:
                await self._arrived.wait_for(lambda: len(self.events(kind, where)) >= count)
        except TimeoutError:
            names = [item.type.name.rsplit(".", 1)[-1] for item in self.seen]
            raise AssertionError(
                f"waited {timeout_s} s for {count} x {kind.DESCRIPTOR.name}, saw {len(self.events(kind, where))}; all: {names[-60:]}"
            ) from None
        return self.events(kind, where)[count - 1]

    async def expect_dead_letter(self, *, timeout_s: float = PATIENCE_S) -> Any:
        """Wait for a record on any dead-letter topic."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: bool(self.dead_letters))
        return self.dead_letters[-1]


@dataclass(slots=True)
class RunningService:
    """A service that is ready; ``http`` speaks to its port."""

    kernel: Kernel
    http: httpx.AsyncClient
    base_url: str


@dataclass(slots=True)
class Environment:
    """A broker, a database and a data directory for services under test."""

    database_url: str
    bootstrap_servers: str
    data_dir: Path
    bus: Probe
    settings: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def service(
        self, name: str, env: dict[str, str] | None = None, *, clock: Clock | None = None, **settings: Any
    ) -> AsyncIterator[RunningService]:
        """Migrate, build and run a service until the block ends. ``env``: its own MERIDIAN_<NAME>_* variables; ``clock``: what it goes
        by instead of the machine's clock."""
        port = free_port(name)
        kernel_settings = KernelSettings(
            kafka_bootstrap_servers=self.bootstrap_servers,
            database_url=self.database_url,
            data_dir=self.data_dir,
            # A busy machine is no reason for a service to end itself.
            **{"stall_after_s": 10 * PATIENCE_S, **self.settings, **settings},
        )
        await migrate(self.database_url, name, ROOT / "services" / name / "migrations")
        variables = {f"MERIDIAN_{name.upper()}_HTTP_PORT": str(port), **(env or {})}
        with _environment_variables(variables):
            kernel = build_service(name, kernel_settings, clock=clock)
        stop = asyncio.Event()
        task = asyncio.create_task(run_service(kernel, stop))
        base_url = f"http://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S) as http:
                await _until_ready(http, task)
                yield RunningService(kernel, http, base_url)
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE_S)


@contextlib.contextmanager
def _environment_variables(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


async def _until_ready(http: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if task.done():
                task.result()
                raise RuntimeError("the service ended before it was ready")
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/health/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.02)


@contextlib.contextmanager
def fresh_broker() -> Iterator[str]:
    """A broker without topics; yields its address."""
    with tempfile.TemporaryDirectory(prefix="meridian-broker-") as directory:
        port = free_port("broker")
        spec = ProcessSpec(
            name="broker",
            argv=(
                sys.executable, "-m", "meridian.embedded.broker", "--host", "127.0.0.1",
                "--port", str(port), "--data-dir", f"{directory}/data",
            ),
            cwd=ROOT,
            log_path=Path(directory) / "broker.log",
            ready=tcp_accepts("127.0.0.1", port),
        )  # fmt: skip
        with running(spec):
            yield f"127.0.0.1:{port}"


@asynccontextmanager
async def environment(database_url: str, **settings: Any) -> AsyncIterator[Environment]:
    """A fresh broker with all topics of the contracts, beside the given database."""
    with fresh_broker() as bootstrap_servers, tempfile.TemporaryDirectory(prefix="meridian-data-") as directory:
        await ensure_topics(bootstrap_servers)
        probe = Probe(bootstrap_servers)
        await probe.start()
        try:
            yield Environment(database_url, bootstrap_servers, Path(directory), probe, settings)
        finally:
            await probe.stop()
