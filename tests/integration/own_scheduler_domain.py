"""A domain with a scheduler of its own without the bus: scheduler and engine in this process, with everything they report."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from agent.engines.base import Engine, LaunchRequest, RankPlacement, RunEvent, RunFailed, RunFinished
from agent.engines.own_scheduler import Constraints, DeviceKind, Held, OwnScheduler, Refusal, UnitName
from agent.run_book import RunBook

DOMAIN = "north"
H100 = DeviceKind("NVIDIA", "H100")
PATIENCE_S = 120.0
E = TypeVar("E", bound=RunEvent)


class OwnSchedulerDomain(ABC):
    """See the module. Nodes are called as the domain's own scheduler calls them."""

    def __init__(self, scheduler: OwnScheduler, engine: Engine, book: RunBook) -> None:
        self.scheduler, self.engine, self.book = scheduler, engine, book
        self.events: list[RunEvent] = []
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self.beating = True

    async def start(self, held: dict[UnitName, Held] | None = None) -> None:
        """Both, and a bus that takes every heartbeat while ``beating``."""
        self.book.open()
        await self.engine.start()
        await self.scheduler.restore(held or {})
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
        tasks = [*self._tasks, *self.engine_tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.book.close()

    @abstractmethod
    def engine_tasks(self) -> list[asyncio.Task[Any]]:
        """What of the engine must be ended for a crash."""

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

    def order(
        self, job_id: str, program: str, ranks: tuple[RankPlacement, ...], epoch: int = 1, **more: Any
    ) -> LaunchRequest:
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
            **more,
        )

    async def grant(self, name: UnitName, constraints: Constraints) -> tuple[RankPlacement, ...]:
        """The nodes of a unit that must be granted, perhaps after the domain has tidied up behind another."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while isinstance(found := await self.scheduler.place(name, constraints), Refusal):
            assert asyncio.get_running_loop().time() < end, found
            await asyncio.sleep(0.2)
        return found

    async def start_run(
        self, job_id: str, program: str, constraints: Constraints, epoch: int = 1, **more: Any
    ) -> LaunchRequest:
        """Grant and launch a Python program."""
        ranks = await self.grant(UnitName(job_id, 0, epoch), constraints)
        request = self.order(job_id, program, ranks, epoch, **more)
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
