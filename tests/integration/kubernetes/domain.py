"""A domain of Kubernetes' without the bus: its scheduler and its engine in this process, with everything they report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.engines.base import LaunchRequest, RunLimits
from agent.engines.kubernetes.access import access_of
from agent.engines.kubernetes.api import KubernetesApi
from agent.engines.kubernetes.cluster import Cluster, KubernetesSettings
from agent.engines.kubernetes.engine import KubernetesEngine
from agent.engines.kubernetes.engine_settings import KubernetesEngineSettings
from agent.engines.kubernetes.scheduler import KubernetesScheduler, PodRules
from agent.engines.kubernetes.site import Site, Volume
from agent.engines.own_scheduler import Constraints, Held, UnitName
from agent.run_book import RunBook
from meridian.clock import SystemClock
from tests.integration.kubernetes.control_plane import GPUS, NAMESPACE, NODES, ControlPlane
from tests.integration.own_scheduler_domain import DOMAIN, H100, OwnSchedulerDomain


class KubernetesDomain(OwnSchedulerDomain):
    """See the module. Nodes are called as Kubernetes calls them."""

    scheduler: KubernetesScheduler
    engine: KubernetesEngine

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
        self.settings = KubernetesEngineSettings(DOMAIN, data_dir, NODES, data_dir / "records", **engine)
        scheduler = KubernetesScheduler(self.cluster, rules, dict.fromkeys(NODES, (H100,) * GPUS))
        book = RunBook(data_dir / "journal", new_agent_mark=f"test-{data_dir.name}")
        super().__init__(scheduler, KubernetesEngine(self.settings, self.cluster, scheduler, book, SystemClock()), book)

    def engine_tasks(self) -> list[asyncio.Task[Any]]:
        followers = [task for run in self.engine._runs.values() for task in run.followers.values()]
        return [*self.engine._tasks, *followers]

    async def crash(self) -> None:
        await super().crash()
        await self.cluster.api.close()

    async def start_run(
        self, job_id: str, program: str, constraints: Constraints, epoch: int = 1, **more: Any
    ) -> LaunchRequest:
        more.setdefault("limits", RunLimits(memory_bytes=constraints.memory_bytes))
        return await super().start_run(job_id, program, constraints, epoch, **more)

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
