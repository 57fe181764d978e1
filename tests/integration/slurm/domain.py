"""A domain of Slurm's without the bus: its scheduler and its engine in this process, with everything they report."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.engines.slurm.allocation import Site
from agent.engines.slurm.cluster import Cluster, SlurmSettings
from agent.engines.slurm.engine import SlurmEngine
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.engines.slurm.scheduler import QueueRules, SlurmScheduler
from agent.run_book import RunBook
from meridian.clock import SystemClock
from tests.integration.own_scheduler_domain import DOMAIN, H100, OwnSchedulerDomain
from tests.integration.slurm.cluster import GPUS, NODES, SlurmCluster


class SlurmDomain(OwnSchedulerDomain):
    """See the module. Nodes are called as Slurm calls them."""

    scheduler: SlurmScheduler
    engine: SlurmEngine

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
        self.settings = SlurmEngineSettings(DOMAIN, data_dir, NODES, agent_silence_s=silence_s)
        book = RunBook(data_dir / "journal", new_agent_mark=f"test-{data_dir.name}")
        super().__init__(
            SlurmScheduler(self.cluster, rules, dict.fromkeys(NODES, (H100,) * GPUS)),
            SlurmEngine(self.settings, self.cluster, book, SystemClock()),
            book,
        )

    def engine_tasks(self) -> list[asyncio.Task[Any]]:
        return list(self.engine._tasks)

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
