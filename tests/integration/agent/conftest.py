"""A local engine with real node processes, and a reader of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.engines.base import Delivery, LaunchRequest, RankPlacement, RunEvent, RunFailed, RunFinished
from agent.engines.local.engine import LocalEngine, LocalEngineSettings
from agent.run_book import RunBook
from meridian.clock import SystemClock

PATIENCE_S = 60.0
"""Far less than programs of the tests sleep: an end that comes is not theirs."""


class Domain:
    """An engine under test with everything it has reported so far."""

    def __init__(self, data_dir: Path, settings: LocalEngineSettings) -> None:
        self.data_dir = data_dir
        self.settings = settings
        self.book = RunBook(data_dir / "journal", new_agent_mark="test-agent")
        self.engine = LocalEngine(settings, self.book, SystemClock())
        self.deliveries: list[Delivery] = []
        self.acknowledging = True
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    @property
    def events(self) -> list[RunEvent]:
        return [delivery.event for delivery in self.deliveries]

    async def start(self) -> None:
        self.book.open()
        await self.engine.start()
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reader is None:
            return
        await self.engine.close()
        await asyncio.sleep(0)
        self._reader.cancel()
        self._reader = None
        await self.book.close()

    async def _read(self) -> None:
        async for delivery in self.engine.events():
            if delivery.number is not None and self.acknowledging:
                self.engine.acknowledge(delivery.number)
            async with self._changed:
                self.deliveries.append(delivery)
                self._changed.notify_all()

    async def wait_for(self, wanted: Callable[[RunEvent], bool], patience_s: float = PATIENCE_S) -> RunEvent:
        async with asyncio.timeout(patience_s), self._changed:
            await self._changed.wait_for(lambda: any(wanted(event) for event in self.events))
        return next(event for event in self.events if wanted(event))

    async def broken(self, patience_s: float = PATIENCE_S) -> None:
        """Until the engine's events end with an error, which is raised."""
        assert self._reader is not None
        await asyncio.wait_for(asyncio.shield(self._reader), patience_s)

    async def end_of(self, run_id: str, patience_s: float = PATIENCE_S) -> RunFinished | RunFailed:
        event = await self.wait_for(lambda e: isinstance(e, RunFinished | RunFailed) and e.run_id == run_id, patience_s)
        assert isinstance(event, RunFinished | RunFailed)
        return event

    def of(self, kind: type[RunEvent], run_id: str) -> list[RunEvent]:
        return [event for event in self.events if isinstance(event, kind) and event.run_id == run_id]

    def log(self, run_id: str, rank: int = 0) -> str:
        return self.settings.log_path(run_id, rank).read_text()


MakeDomain = Callable[..., Awaitable[Domain]]


@pytest.fixture
async def make_domain(tmp_path: Path) -> AsyncIterator[MakeDomain]:
    domains: list[Domain] = []

    async def make(**changes: object) -> Domain:
        settings = LocalEngineSettings("north", ("north/n1", "north/n2"), tmp_path, restart_after_s=0.5)
        domain = Domain(tmp_path, replace(settings, **changes))  # type: ignore[arg-type]
        await domain.start()
        domains.append(domain)
        return domain

    yield make
    for domain in domains:
        await domain.close()


def request_for(
    program: str,
    *,
    run_id: str = "job-1.0.1",
    job_id: str = "job-1",
    epoch: int = 1,
    nodes: tuple[str, ...] = ("north/n1",),
    **changes: object,
) -> LaunchRequest:
    """A run of a Python program, one rank per entry of ``nodes``."""
    ranks = tuple(RankPlacement(rank, node, nodes[:rank].count(node)) for rank, node in enumerate(nodes))
    request = LaunchRequest(
        run_id=run_id,
        job_id=job_id,
        unit_index=0,
        epoch=epoch,
        tenant="acme",
        ranks=ranks,
        world_size=len(ranks),
        command=("python", "-S", "-c", program),
    )
    return replace(request, **changes)  # type: ignore[arg-type]
