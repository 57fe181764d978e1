"""A domain of Slurm's without the bus: its scheduler and its engine in this process, with everything they report."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from agent.engines.base import LaunchRequest, RankPlacement, RunEvent, RunFailed, RunFinished
from agent.engines.own_scheduler import Constraints, DeviceKind, Refusal, UnitName
from agent.engines.slurm.allocation import Site
from agent.engines.slurm.cluster import Cluster, SlurmSettings
from agent.engines.slurm.engine import SlurmEngine
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.engines.slurm.scheduler import QueueRules, SlurmScheduler
from agent.run_book import RunBook
from meridian.clock import SystemClock
from tests.integration.slurm.cluster import GPUS, NODES, PATIENCE_S, SlurmCluster

DOMAIN = "north"
H100 = DeviceKind("NVIDIA", "H100")
E = TypeVar("E", bound=RunEvent)


class SlurmDomain:
    """See the module. Nodes are called as Slurm calls them."""

    def __init__(self, slurm: SlurmCluster, data_dir: Path, site: Site, rules: QueueRules, silence_s: float) -> None:
        settings = SlurmSettings(
            DOMAIN,
            data_dir / "slurm",
            {name: name for name in NODES},
            site,
            configuration=str(slurm.configuration),
            python=sys.executable,
            poll_s=0.3,
        )
        self.data_dir = data_dir
        self.cluster = Cluster(settings)
        self.scheduler = SlurmScheduler(self.cluster, rules, dict.fromkeys(NODES, (H100,) * GPUS))
        self.book = RunBook(data_dir / "journal", new_agent_mark=f"test-{data_dir.name}")
        self.settings = SlurmEngineSettings(DOMAIN, data_dir, NODES, agent_silence_s=silence_s)
        self.engine = SlurmEngine(self.settings, self.cluster, self.book, SystemClock())
        self.events: list[RunEvent] = []
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self.beating = True

    async def start(self) -> None:
        """Both, and a bus that takes every heartbeat while ``beating``."""
        self.book.open()
        await self.engine.start()
        await self.scheduler.restore({})
        self._tasks = [asyncio.create_task(part) for part in (self._read(), self._beat(), self.scheduler.run())]

    async def close(self) -> None:
        """End all runs."""
        await self.engine.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.book.close()

    async def crash(self) -> None:
        """Leave everything as it is, as ``kill -9`` does; what stands in the journal stays."""
        tasks = [*self._tasks, *self.engine._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.book.close()

    async def _read(self) -> None:
        async for delivery in self.engine.events():
            if delivery.number is not None:
                self.engine.acknowledge(delivery.number)
            async with self._changed:
                self.events.append(delivery.event)
                self._changed.notify_all()

    async def _beat(self) -> None:
        while True:
            if self.beating:
                self.engine.in_contact()
            await asyncio.sleep(0.2)

    def order(self, job_id: str, program: str, ranks: tuple[RankPlacement, ...], epoch: int = 1) -> LaunchRequest:
        """A START of a Python program."""
        return LaunchRequest(
            run_id=f"{job_id}.0.{epoch}",
            job_id=job_id,
            unit_index=0,
            epoch=epoch,
            tenant="acme",
            ranks=ranks,
            world_size=len(ranks),
            command=("python", "-S", "-c", program),
        )

    async def grant(self, name: UnitName, constraints: Constraints) -> tuple[RankPlacement, ...]:
        """The nodes of a unit that must be granted, perhaps after Slurm has tidied up behind another."""
        async with asyncio.timeout(PATIENCE_S):
            while isinstance(found := await self.scheduler.place(name, constraints), Refusal):
                await asyncio.sleep(0.2)
        return found

    async def start_run(self, job_id: str, program: str, constraints: Constraints, epoch: int = 1) -> LaunchRequest:
        """Grant and launch a Python program."""
        ranks = await self.grant(UnitName(job_id, 0, epoch), constraints)
        request = self.order(job_id, program, ranks, epoch)
        await self.engine.launch(request)
        return request

    async def event(self, kind: type[E], run_id: str, where: Callable[[E], bool] = lambda _: True) -> E:
        """The first such event of a run."""
        found: list[E] = []

        def there() -> bool:
            found[:] = [e for e in self.events if isinstance(e, kind) and e.run_id == run_id and where(e)]
            return bool(found)

        try:
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(there)
        except TimeoutError:
            raise AssertionError(f"no {kind.__name__} of {run_id}; {self.events}") from None
        return found[0]

    async def end(self, run_id: str) -> RunFinished | RunFailed:
        """How a run ended."""
        ended = await self.event(RunEvent, run_id, lambda event: isinstance(event, RunFinished | RunFailed))
        assert isinstance(ended, RunFinished | RunFailed)
        return ended

    def log(self, run_id: str, rank: int = 0) -> str:
        """What a rank printed."""
        return self.settings.log_path(run_id, rank).read_text()


@asynccontextmanager
async def slurm_domain(
    slurm: SlurmCluster,
    data_dir: Path,
    *,
    site: Site | None = None,
    rules: QueueRules | None = None,
    silence_s: float = 20.0,
) -> AsyncIterator[SlurmDomain]:
    """A domain until the block ends; Slurm holds nothing of it then."""
    domain = SlurmDomain(
        slurm, data_dir, site or Site(partition="main", gres_types={"H100": "h100"}), rules or QueueRules(), silence_s
    )
    await domain.start()
    try:
        yield domain
    finally:
        await domain.close()
        slurm.call("scancel", "-u", getpass.getuser(), check=False)
