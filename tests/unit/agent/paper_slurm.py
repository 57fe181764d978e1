"""A Slurm on paper: it begins jobs in the order of its queue, and says so when it is asked; what happens when is a test's choice."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.own_scheduler import DeviceKind, UnitName
from agent.engines.slurm import folder
from agent.engines.slurm.allocation import Site
from agent.engines.slurm.cluster import Cluster, SlurmSettings
from agent.engines.slurm.words import QueuedJob, SlurmNode

A100 = DeviceKind("NVIDIA", "A100")
CPUS, MEMORY_MIB, GPUS = 8, 65_536, 4


@dataclass(slots=True)
class PaperJob:
    """A job: ``ranks`` tasks with ``gpus`` each; ``given`` are the indices that it has by node while it runs."""

    number: int
    name: str
    ranks: int
    gpus: int
    state: str = "PENDING"
    given: dict[str, tuple[int, ...]] = field(default_factory=dict)


class PaperSlurm(Cluster):
    """Slurm and the agent's view of it: `cycle` is Slurm's scheduler, `batch_steps` the programs in the jobs that it began, `look`
    the agent that asks. Strictly in order: what cannot begin holds up all behind it."""

    def __init__(self, shared_dir: Path, nodes: tuple[str, ...]) -> None:
        settings = SlurmSettings("north", shared_dir, {name: name for name in nodes}, Site(gres_types={"A100": "a100"}))
        super().__init__(settings)
        self.queue: dict[int, PaperJob] = {}
        self.begins_at_once = True
        """Whether its scheduler runs with each submission."""
        self.free = {name: set(range(GPUS)) for name in nodes}
        self.takes_jobs = asyncio.Event()
        """Until it is set a submission waits."""
        self.takes_jobs.set()
        self.hears = True
        """Whether what is to be cancelled is."""
        self.was_asked = asyncio.Event()
        """A submission has come."""

    # -- what Slurm does ---------------------------------------------------------------------------------------------------

    def cycle(self) -> None:
        """Begin what can begin."""
        for job in self.queue.values():
            if job.state != "PENDING":
                continue
            given: dict[str, tuple[int, ...]] = {}
            left = job.ranks
            for node, free in self.free.items():
                here = min(left, len(free) // job.gpus)
                if here:
                    given[node] = tuple(sorted(free)[: here * job.gpus])
                    left -= here
            if left:
                return
            for node, indices in given.items():
                self.free[node] -= set(indices)
            job.state, job.given = "RUNNING", given

    def batch_steps(self) -> None:
        """Every job that runs says what it holds."""
        for job in self.queue.values():
            name = self.unit_of(self._shown(job))
            if job.state == "RUNNING" and name is not None:
                place = self.place_of(name, job.number)
                place.mkdir(parents=True, exist_ok=True)
                tasks = ",".join(str(len(given) // job.gpus) for given in job.given.values())
                folder.write_json(place / folder.HELD, {"nodes": ",".join(job.given), "tasks": tasks})

    def end(self, job: PaperJob, state: str) -> None:
        """A job is over, whatever it did."""
        for node, indices in job.given.items():
            self.free[node] |= set(indices)
        job.state, job.given = state, {}

    def foreign(self, gpus: int) -> PaperJob:
        """Somebody else submits a job."""
        number = len(self.queue) + 1
        self.queue[number] = PaperJob(number, "theirs", 1, gpus)
        self.cycle()
        return self.queue[number]

    def job_of(self, job_id: str) -> PaperJob:
        """The job of a unit that has not ended."""
        (found,) = [
            job
            for job in self.queue.values()
            if job.name.split(":")[2:3] == [job_id] and job.state in {"PENDING", "RUNNING"}
        ]
        return found

    # -- what the agent asks and orders ------------------------------------------------------------------------------------

    async def look_at_jobs(self, since_s: float = math.inf) -> None:
        """See `Cluster`."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(0)
        self.jobs = {number: self._shown(job) for number, job in self.queue.items()}
        self.jobs_at_s = now_s

    async def look_at_nodes(self) -> None:
        """See `Cluster`."""
        await asyncio.sleep(0)
        self.nodes = {name: self._node(name, free) for name, free in self.free.items()}
        self.heard_at_s = asyncio.get_running_loop().time()

    async def given(self, job: int) -> dict[str, tuple[int, ...] | None]:
        """See `Cluster`."""
        await asyncio.sleep(0)
        return dict(self.queue[job].given)

    async def submit(self, name: UnitName, options: tuple[str, ...], arguments: str) -> int:
        """See `Cluster`."""
        self.was_asked.set()
        await self.takes_jobs.wait()
        text = " ".join(options)
        gpus = re.search(r"--(?:gres=gpu:|gpus-per-task=)(\d+)", text)
        ranks = re.search(r"--ntasks=(\d+)", text)
        assert gpus is not None
        assert ranks is not None
        number = len(self.queue) + 1
        self.queue[number] = PaperJob(number, self.job_name(name), int(ranks[1]), int(gpus[1]))
        if self.begins_at_once:
            self.cycle()
            self.batch_steps()
        return number

    async def cancel(self, job: int) -> None:
        """See `Cluster`."""
        await asyncio.sleep(0)
        if self.hears and self.queue[job].state in {"PENDING", "RUNNING"}:
            self.end(self.queue[job], "CANCELLED")

    # -- steps -------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _shown(job: PaperJob) -> QueuedJob:
        reason = "Resources" if job.state == "PENDING" else ""
        return QueuedJob(job.number, job.state, reason, None, tuple(job.given), job.name)

    @staticmethod
    def _node(name: str, free: set[int]) -> SlurmNode:
        used = frozenset(range(GPUS)) - free
        gres: Mapping[str, int] = {"a100": GPUS}
        states = frozenset({"MIXED" if used else "IDLE"})
        return SlurmNode(name, states, CPUS, len(used), MEMORY_MIB, 0, gres, {"a100": len(used)}, used, 1)
