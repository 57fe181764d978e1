"""Start services: `python -m meridian.service NAME`, `... all` (one process for all), `... prepare` (topics, schemas).

A service is a function ``build(kernel) -> None`` found by its name among the entry points ``meridian.services``. It
subscribes to events, adds routes and background tasks; the kernel gives it the database, the outbox, the bus, an HTTP
application with health and metrics, a clock and ids, and runs it until a signal comes or a part of it fails.

A service that is split says so in its module: ``part_name()`` is the name under which this process keeps its schema, consumer
groups and locks, ``schemas()`` gives the migrations of all schemas to prepare.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from meridian import inbox
from meridian.bus import Bus, Liveness, ensure_topics
from meridian.clock import Clock, SystemClock
from meridian.database import Database, is_passing, migrate
from meridian.errors import ConfigurationError
from meridian.http import install_errors, install_tracing, known_parameters
from meridian.ids import NewId, new_id
from meridian.observability import BusMetrics, configure_logging, logged_as
from meridian.outbox import Outbox, Relay
from meridian.periodic import every
from meridian.settings import PARTS, SERVICES, HttpSettings, KernelSettings, load

log = logging.getLogger(__name__)

Task = Callable[[], Awaitable[None]]

KEEP_ALIVE_S = 75
"""A connection without requests is kept so long: far longer than our clients use one again (httpx: 5 s), so that none is closed
while a request is on its way over it, though the process stood still for a while."""


@dataclass(slots=True)
class Kernel:
    """What a service is built on. A service's ``build`` receives one and adds to it."""

    name: str
    settings: KernelSettings
    clock: Clock
    new_id: NewId
    database: Database
    outbox: Outbox
    bus: Bus
    http: FastAPI
    registry: CollectorRegistry
    bus_metrics: BusMetrics
    tasks: dict[str, Task] = field(default_factory=dict)
    before_start: list[Task] = field(default_factory=list)
    after_stop: list[Task] = field(default_factory=list)
    http_settings: HttpSettings = field(default_factory=HttpSettings)
    ready: bool = False

    def add_task(self, name: str, task: Task) -> None:
        """Run ``task()`` for the life of the service; when it ends or fails, the service ends with an error."""
        self.tasks[name] = task


def create_kernel(
    name: str, settings: KernelSettings, *, clock: Clock | None = None, ids: NewId | None = None
) -> Kernel:
    """A kernel for one service, nothing started."""
    clock = clock or SystemClock()
    ids = ids or new_id
    registry = CollectorRegistry()
    metrics = BusMetrics(registry)
    database = Database(settings.database_url, name, pool_size=settings.database_pool_size)
    outbox = Outbox(database, f"/meridian/{name}", clock, ids)
    bus = Bus(
        name,
        settings.kafka_bootstrap_servers,
        outbox,
        metrics,
        clock,
        batch_records=settings.batch_records,
        instance=settings.instance,
    )
    http = FastAPI(
        title=f"Meridian {name}",
        version="1",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(known_parameters)],
    )
    install_errors(http)
    install_tracing(http, name)
    return Kernel(name, settings, clock, ids, database, outbox, bus, http, registry, metrics)


def _module_of(name: str) -> tuple[Callable[[Kernel], None], ModuleType]:
    for point in entry_points(group="meridian.services"):
        if point.name == name:
            build = point.load()
            return build, sys.modules[build.__module__]
    known = ", ".join((*SERVICES, *PARTS))
    raise ConfigurationError(f"there is no service {name!r}; known are {known} (is the package installed?)")


def _add_operations(kernel: Kernel, liveness: Liveness) -> None:
    @kernel.http.get("/health/live", include_in_schema=False)
    async def live() -> Response:
        stalled = liveness.stalled()
        return Response(
            status_code=503 if stalled else 200, content=", ".join(stalled) or "ok", media_type="text/plain"
        )

    @kernel.http.get("/health/ready", include_in_schema=False)
    async def ready() -> Response:
        return Response(
            status_code=200 if kernel.ready else 503,
            content="ok" if kernel.ready else "starting",
            media_type="text/plain",
        )

    @kernel.http.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(kernel.registry), media_type=CONTENT_TYPE_LATEST)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us."""

    def capture_signals(self):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        return nullcontext()


async def _watch(liveness: Liveness) -> None:
    while True:
        await asyncio.sleep(5.0)
        await liveness.check()
        stalled = liveness.stalled()
        if stalled:
            raise RuntimeError(f"no progress in {', '.join(stalled)}: the process ends so that a fresh one takes over")


def _forgetting(kernel: Kernel) -> Task:
    async def forget() -> None:
        async with kernel.database.transaction() as connection:
            await inbox.forget_older_than(connection, days=35)

    return every(3600.0, forget)


async def run_service(kernel: Kernel, stop: asyncio.Event) -> None:
    """Run one built service until ``stop`` is set; raises when a part of it fails."""
    liveness = Liveness(kernel.bus, kernel.bus_metrics, kernel.settings.stall_after_s)
    _add_operations(kernel, liveness)
    server = _Server(
        uvicorn.Config(
            kernel.http,
            host=kernel.http_settings.http_host,
            port=kernel.http_settings.http_port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="off",
        )
    )
    with logged_as(kernel.name):
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(kernel.database.close)
            for task in kernel.after_stop:
                cleanup.push_async_callback(task)
            if not await _prepared(kernel, stop):
                return
            await kernel.bus.start()
            cleanup.push_async_callback(kernel.bus.stop)
            assert kernel.bus.producer is not None
            relay = kernel.outbox.relay = Relay(kernel.database, kernel.bus.producer, kernel.bus_metrics, kernel.clock)
            tasks: dict[str, Task] = {
                "http": server.serve,
                "relay": relay.run,
                "liveness": lambda: _watch(liveness),
                "inbox": _forgetting(kernel),
                **kernel.tasks,
            }
            kernel.ready = True
            log.info("service is ready", extra={"port": kernel.http_settings.http_port})
            await _run_until(stop, tasks, server)
            kernel.ready = False
    log.info("service has stopped")


async def _prepared(kernel: Kernel, stop: asyncio.Event) -> bool:
    """Take the steps before the start; False when the service is told to stop meanwhile (a step may wait for long)."""

    async def take_steps() -> None:
        for step in kernel.before_start:
            await step()

    steps = asyncio.create_task(take_steps())
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({steps, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not steps.done():
            return False
        steps.result()
        return True
    finally:
        steps.cancel()
        waiting.cancel()
        await asyncio.gather(steps, waiting, return_exceptions=True)


async def _run_until(stop: asyncio.Event, tasks: dict[str, Task], server: uvicorn.Server) -> None:
    async def named(name: str, task: Task) -> None:
        await task()
        if not stop.is_set():
            raise RuntimeError(f"task {name} ended")

    running = {asyncio.create_task(named(name, task), name=name) for name, task in tasks.items()}
    waiting = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({*running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()
    finally:
        server.should_exit = True
        waiting.cancel()
        for task in running:
            if task.get_name() != "http":
                task.cancel()
        await asyncio.gather(waiting, *running, return_exceptions=True)


def build_service(name: str, settings: KernelSettings, *, clock: Clock | None = None) -> Kernel:
    """Create a kernel and let the service of that name wire itself; without a ``clock`` it goes by the machine's."""
    build, module = _module_of(name)
    part_name: Callable[[], str] = getattr(module, "part_name", lambda: name)
    kernel = create_kernel(part_name(), settings, clock=clock)
    build(kernel)
    return kernel


async def _wait_for(database: Database) -> None:
    """Wait until the database answers: it may start, or recover from a crash, at the same time."""
    while True:
        try:
            await database.ping()
        except Exception as error:  # any kind of "not yet"; others are raised
            if not is_passing(error):
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def run(names: Sequence[str]) -> None:
    """Run services in this process until SIGINT or SIGTERM, or until one of them fails."""
    settings = load(KernelSettings)
    configure_logging(settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    kernels = [build_service(name, settings) for name in names]
    for kernel in kernels:
        await _wait_for(kernel.database)
    try:
        async with asyncio.TaskGroup() as group:
            for kernel in kernels:
                group.create_task(run_service(kernel, stop))
    finally:
        stop.set()


async def prepare(names: Sequence[str]) -> None:
    """Create the topics and bring the schemas of the named services up to date."""
    settings = load(KernelSettings)
    configure_logging(settings.log_level)
    database = Database(settings.database_url, "public", pool_size=1)
    await _wait_for(database)
    await database.close()
    await ensure_topics(settings.kafka_bootstrap_servers, replication=settings.topic_replication)
    for name in names:
        _, module = _module_of(name)
        for schema, scripts in _schemas_of(name, module).items():
            await migrate(settings.database_url, schema, scripts)
        after: Callable[[str], Awaitable[None]] | None = getattr(module, "after_migrations", None)
        if after is not None:
            await after(settings.database_url)


def _schemas_of(name: str, module: ModuleType) -> Mapping[str, Path]:
    split: Callable[[], Mapping[str, Path]] | None = getattr(module, "schemas", None)
    if split is not None:
        return split()
    assert module.__file__ is not None
    return {name: Path(module.__file__).parent / "migrations"}


def _run_fast(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def main() -> int:
    """Command line of `python -m meridian.service`."""
    parser = argparse.ArgumentParser(prog="python -m meridian.service", description=__doc__)
    parser.add_argument("what", choices=[*SERVICES, *PARTS, "all", "prepare"])
    what = parser.parse_args().what
    # Many small matrices: threads of their own cost far more than they give. Read when numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    work = prepare(SERVICES) if what == "prepare" else run(SERVICES if what == "all" else [what])
    try:
        _run_fast(work)
    except ConfigurationError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        return 2
    except Exception as error:  # the process boundary: the supervisor starts the process again
        wrong = error.subgroup(ConfigurationError) if isinstance(error, ExceptionGroup) else None
        if wrong is not None:
            print(f"error: {_first(wrong).detail}", file=sys.stderr)
            return 2
        log.exception("the service failed")
        return 1
    return 0


def _first(group: ExceptionGroup[ConfigurationError]) -> ConfigurationError:
    """The first error in a group of groups."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


if __name__ == "__main__":
    sys.exit(main())
