"""A domain of Kubernetes' without the bus: its scheduler and its engine in this process, with everything they report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from agent.engines.base import LaunchRequest, RankPlacement, RunEvent, RunFailed, RunFinished, RunLimits
from agent.engines.kubernetes.access import access_of
from agent.engines.kubernetes.api import KubernetesApi
from agent.engines.kubernetes.cluster import Cluster, KubernetesSettings
from agent.engines.kubernetes.engine import KubernetesEngine
from agent.engines.kubernetes.engine_settings import KubernetesEngineSettings
from agent.engines.kubernetes.scheduler import KubernetesScheduler, PodRules
from agent.engines.kubernetes.site import Site, Volume
from agent.engines.own_scheduler import Constraints, DeviceKind, Held, Refusal, UnitName
from agent.run_book import RunBook
from meridian.clock import SystemClock
from tests.integration.kubernetes.control_plane import GPUS, NAMESPACE, NODES, PATIENCE_S, ControlPlane

DOMAIN = "north"
H100 = DeviceKind("NVIDIA", "H100")
E = TypeVar("E", bound=RunEvent)


class KubernetesDomain:
    """See the module. Nodes are called as Kubernetes calls them."""

    def __init__(
        self, plane: ControlPlane, data_dir: Path, site: dict[str, Any], rules: PodRules, engine: dict[str, Any]
    ) -> None:
        self.data_dir = data_dir
        self.plane = plane
        volume = Volume(str(data_dir), host=True)
        place = Site(
            **{"image": "python", "namespace": NAMESPACE, "node_loss_s": 1, "volume": volume, **site}  # type: ignore[arg-type]
        )
        settings = KubernetesSettings(DOMAIN, place, {name: name for name in NODES}, poll_s=0.3)
        self.cluster = Cluster(settings, KubernetesApi(access_of(kubeconfig=plane.kubeconfig)))
        self.scheduler = KubernetesScheduler(self.cluster, rules, dict.fromkeys(NODES, (H100,) * GPUS))
        self.book = RunBook(data_dir / "journal", new_agent_mark=f"test-{data_dir.name}")
        self.settings = KubernetesEngineSettings(DOMAIN, data_dir, NODES, data_dir / "records", **engine)
        self.engine = KubernetesEngine(self.settings, self.cluster, self.scheduler, self.book, SystemClock())
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
        followers = [task for run in self.engine._runs.values() for task in run.followers.values()]
        tasks = [*self._tasks, *self.engine._tasks, *followers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.cluster.api.close()
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
        """The nodes of a unit that must be granted, perhaps after Kubernetes has tidied up behind another."""
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
        more.setdefault("limits", RunLimits(memory_bytes=constraints.memory_bytes))
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
            pods = self.plane.pods()
            raise AssertionError(f"no {kind.__name__} of {run_id}; {self.events}; {pods}") from None
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
async def kubernetes_domain(
    plane: ControlPlane,
    data_dir: Path,
    *,
    site: dict[str, Any] | None = None,
    rules: PodRules | None = None,
    held: dict[UnitName, Held] | None = None,
    **engine: Any,
) -> AsyncIterator[KubernetesDomain]:
    """A domain until the block ends; Kubernetes holds nothing of it then."""
    domain = KubernetesDomain(plane, data_dir, site or {}, rules or PodRules(), engine)
    await domain.start(held)
    try:
        yield domain
    finally:
        await domain.close()
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        for name in plane.jobs():
            plane.call("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Foreground"})
        await asyncio.to_thread(plane.until, lambda: not plane.jobs() and not plane.pods(), "nothing is left")
