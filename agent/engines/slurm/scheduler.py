"""Slurm as a domain's own scheduler: constraints become a job in its queue, and what it gives is the answer.

1. A unit is asked for as a batch job (`holder`) with the constraints as its options. What Slurm does not take is refused with
   its reason.
2. A job that begins within ``answer_s`` is the grant: nodes, tasks and indices of accelerators are Slurm's own words.
3. One that waits longer is refused for now, with Slurm's reason and the start that it expects. Up to ``most_queued`` of them keep
   their place in the queue; when one begins its room counts as free, so that the unit is asked for again and gets it at once. Nobody
   asks for ``claim_s``: it is given back.
4. The truth is Slurm's: jobs are named by unit and epoch, and after a crash those that are not in the book are cancelled. So are,
   after ``stray_s``, those that nobody holds because Slurm was silent: when it took them, or when they were to be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.engines.own_scheduler import (
    Constraints,
    DeviceKind,
    Held,
    Refusal,
    Room,
    UnitName,
    nodes_by_free,
)
from agent.engines.queued_scheduler import QueuedPlace, QueuedScheduler
from agent.engines.slurm import folder, words
from agent.engines.slurm.allocation import allocation_options, hosts_of
from agent.engines.slurm.cluster import Cluster, SlurmRefusedError, SlurmSilentError
from agent.engines.slurm.places import PlacesError, rank_places

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
OLD_S = 600.0
"""Folders of allocations that nobody used are kept for so long."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How long is waited for Slurm. ``most_queued`` 0: what does not begin at once is withdrawn. Times in seconds.

    ``stray_s`` is longer than a submission takes: until then its job is in the queue and its number is not known.
    """

    answer_s: float = 2.5
    claim_s: float = 30.0
    most_queued: int = 0
    stray_s: float = 60.0


@dataclass(slots=True)
class _Place(QueuedPlace):
    """A job in Slurm, of which Slurm's words count that were asked for after ``since_s``."""

    job: int
    since_s: float = float("-inf")


class SlurmScheduler(QueuedScheduler[_Place]):
    """See the module. ``devices`` are the accelerators of each node by index, as the domain declares them."""

    def __init__(
        self,
        cluster: Cluster,
        rules: QueueRules,
        devices: Mapping[str, tuple[DeviceKind, ...]],
        *,
        emulated: bool = False,
    ) -> None:
        super().__init__(
            devices,
            cluster.settings.node_names,
            answer_s=rules.answer_s,
            most_queued=rules.most_queued,
            emulated=emulated,
        )
        self._cluster = cluster
        self._rules = rules

    # --- what is asked ---------------------------------------------------------------------------------------------

    async def restore(self, held: Mapping[UnitName, Held]) -> None:
        await self._look_until_heard()
        for job in list(self._cluster.jobs.values()):
            name = self._cluster.unit_of(job)
            if name is None or job.ended:
                continue
            if name in held and not job.waits:
                self._places[name] = _Place(held[name].constraints, job.number, ranks=held[name].ranks, given=True)
            else:
                await self._cluster.cancel(job.number)

    async def adopt(self, name: UnitName, held: Held) -> None:
        """A run that this domain did not give: where Slurm has no job of it there is nothing to hold."""
        for job in self._cluster.jobs.values():
            if self._cluster.unit_of(job) == name and not job.ended and not job.waits:
                self._places[name] = _Place(held.constraints, job.number, ranks=held.ranks, given=True)

    async def _look_again(self) -> None:
        with contextlib.suppress(SlurmSilentError):  # the answer tells what is left, not what was there before
            await self._cluster.look_at_nodes()

    # --- what is told ----------------------------------------------------------------------------------------------

    def room(self) -> Room:
        """Free by Slurm's word, and what we hold for nobody yet. While fewer than ``most_queued`` units wait, all that is up
        counts as free: one more may wait for it."""
        may_queue = self._may_queue
        unclaimed = [place for place in self._places.values() if place.ranks and place.kept]
        total: dict[DeviceKind, int] = dict.fromkeys((kind for kinds in self._devices.values() for kind in kinds), 0)
        blocks: dict[DeviceKind, list[int]] = {kind: [] for kind in total}
        free_cpus = total_cpus = free_memory_mib = 0.0
        for node_id, kinds in self._devices.items():
            node = self._cluster.nodes.get(self._cluster.settings.node_names[node_id])
            if node is None or not node.takes_jobs:
                continue
            ours = [(place, rank) for place in unclaimed for rank in place.ranks if rank.node_id == node_id]
            held = {index for _, rank in ours for index in rank.accelerator_indices}
            taken = set() if may_queue else set(_busy(node, kinds)) - held
            total_cpus += node.cpus
            free_cpus += node.cpus - (0 if may_queue else node.cpus_in_use)
            free_memory_mib += node.memory_mib - (0 if may_queue else node.memory_in_use_mib)
            if not may_queue:
                free_cpus += sum(place.constraints.cpus for place, _ in ours)
                free_memory_mib += sum(place.constraints.memory_bytes for place, _ in ours) / 2**20
            for kind in dict.fromkeys(kinds):
                indices = [index for index, other in enumerate(kinds) if other == kind]
                total[kind] += len(indices)
                blocks[kind].append(sum(index not in taken for index in indices))
        memory_bytes = int(free_memory_mib * 2**20)
        return Room(total, nodes_by_free(blocks), free_cpus, total_cpus, memory_bytes, turns=self._turns)

    async def run(self) -> None:
        """Look after what waits in the queue, until cancelled: take it up when it begins, give it back when nobody wants it."""
        swept_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self._cluster.settings.poll_s)
            if asyncio.get_running_loop().time() - swept_s > OLD_S:
                swept_s = asyncio.get_running_loop().time()
                await self._sweep()
            await self.tend()

    async def tend(self) -> None:
        """Look after all that wait in the queue, and after what nobody holds, once, by what Slurm said last."""
        for name, place in list(self._places.items()):
            if self._waits(name, place):
                await self._look_after(name, place)
        await self._cancel_stray()

    # --- steps -----------------------------------------------------------------------------------------------------

    async def _ask_for(self, name: UnitName, constraints: Constraints, until_s: float) -> _Place | Refusal:
        """Submit, way after way, and wait until one begins; the last one stays in the queue. What is there is looked at again."""
        known = self._places.get(name)
        if known is not None:
            known.asked = True
            if not known.ranks and not known.wrong:
                await self._take_up(name, known)
            return known
        settings = self._cluster.settings
        asked = self._in_own_names(constraints)
        if isinstance(asked, Refusal):
            return asked
        ways = allocation_options(asked, settings.site, self._cluster.job_name(name))
        if isinstance(ways, Refusal):
            return ways
        arguments = {
            "shared": str(settings.shared_dir),
            "name": self._cluster.folder_name(name),
            "abandon_s": settings.abandon_s,
        }
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        said = ""
        for number, options in enumerate(ways, 1):
            try:
                job = await self._cluster.submit(name, options, json.dumps(arguments))
            except SlurmRefusedError as error:
                said = f"Slurm: {error}"
                continue
            place = self._places[name] = _Place(constraints, job, loop.time(), asked=True)
            await self._wait_for(name, place, began_s + (until_s - began_s) * number / len(ways))
            if place.ranks or place.wrong or number == len(ways):
                return place
            del self._places[name]
            await self._let_go(place)
        return Refusal(said)

    async def _wait_for(self, name: UnitName, place: _Place, until_s: float) -> None:
        """Until the job runs and holds its nodes, cannot, or the time is over."""
        while True:
            asked_s = asyncio.get_running_loop().time()
            try:
                # Units that wait at the same time share the answer; one from before the job was there says nothing of it.
                await self._cluster.look_at_jobs(max(asked_s - LOOK_EVERY_S, place.since_s))
                await self._take_up(name, place)
            except SlurmSilentError as error:
                _log.warning("%s", error.detail)
            if place.ranks or place.wrong or self._hopeless(place):
                return
            if asyncio.get_running_loop().time() + LOOK_EVERY_S > until_s:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take_up(self, name: UnitName, place: _Place) -> None:
        """Read what a job that has begun was given."""
        job = self._cluster.jobs.get(place.job)
        if job is None and self._cluster.jobs_at_s > place.since_s:
            place.wrong = f"Slurm does not know job {place.job} any more"
        if job is None or job.waits or place.ranks:
            return
        if job.ended:
            place.wrong = f"Slurm ended job {place.job}: {job.state}{f' ({job.reason})' if job.reason else ''}"
            return
        held = folder.read_json(self._cluster.place_of(name, place.job) / folder.HELD)
        if held is None:
            return
        try:
            given = await self._cluster.given(place.job)
            nodes, tasks = hosts_of(held["nodes"]), words.tasks_of(held["tasks"])
            place.ranks = rank_places(place.constraints, nodes, tasks, given, self._cluster.node_id, self._taken())
        except SlurmSilentError as error:
            _log.warning("%s", error.detail)
            return
        except (PlacesError, ValueError, KeyError) as error:
            place.wrong = f"what Slurm gave as job {place.job} cannot be used: {error}"
            return
        place.ready_at_s = asyncio.get_running_loop().time()

    def _hopeless(self, place: _Place) -> bool:
        job = self._cluster.jobs.get(place.job)
        return job is not None and job.hopeless

    async def _why(self, place: _Place) -> str:
        """Why the unit waits in Slurm's queue, and until when."""
        job = self._cluster.jobs.get(place.job)
        if job is None:
            return f"Slurm does not show job {place.job} in its queue"
        if job.hopeless:
            return f"Slurm would never begin it as it is asked for: {job.reason}"
        if job.waits:
            start = f", expected to begin at {job.starts_at:%Y-%m-%dT%H:%M:%SZ}" if job.starts_at else ""
            return f"Slurm: job {place.job} waits for {job.reason or 'its turn'}{start}"
        return f"Slurm began job {place.job}, but its batch step has not told so on {self._cluster.settings.shared_dir}"

    async def _look_after(self, name: UnitName, place: _Place) -> None:
        if not place.ranks and not place.wrong:
            await self._take_up(name, place)
            if not self._waits(name, place):
                return
            # Its nodes count as free from now on, as those may have that they were before: that is no other room.
            self._turns += bool(place.ranks)
            job = self._cluster.jobs.get(place.job)
            if job is not None and job.hopeless:
                place.wrong = f"it waits for {job.reason}"
        waited_s = 0.0 if place.ready_at_s is None else asyncio.get_running_loop().time() - place.ready_at_s
        if place.wrong or waited_s > self._rules.claim_s:
            self._forget(name, place)
            _log.info("job %d of %s is given back: %s", place.job, name.job_id, place.wrong or "nobody asked for it")
            await self._let_go(place)

    async def _cancel_stray(self) -> None:
        found = [job.number for job in self._cluster.jobs.values() if not job.ended and self._is_stray(job)]
        for number in self._strayed(found, self._rules.stray_s):
            _log.warning("job %d is held for nobody; it is cancelled", number)
            await self._cluster.cancel(number)

    def _is_stray(self, job: words.QueuedJob) -> bool:
        name = self._cluster.unit_of(job)
        place = None if name is None else self._places.get(name)
        # Of two jobs of one unit that were there when the agent started, the run may be in either.
        return name is not None and (place is None or (place.job != job.number and math.isfinite(place.since_s)))

    async def _let_go(self, place: _Place) -> None:
        job = self._cluster.jobs.get(place.job)
        if job is None or not job.ended:
            await self._cluster.cancel(place.job)

    async def _sweep(self) -> None:
        """Remove what allocations left that have ended some time ago; what runs left is removed with their end."""
        jobs = [job for job in self._cluster.jobs.values() if not job.ended]
        names = {*self._places, *(name for name in map(self._cluster.unit_of, jobs) if name is not None)}
        wanted = {self._cluster.folder_name(name) for name in names}
        live = {job.number for job in jobs}
        await asyncio.to_thread(remove_old, self._cluster.settings.shared_dir, wanted, live)

    async def _look_until_heard(self) -> None:
        while True:
            try:
                await self._cluster.look()
                return
            except SlurmSilentError as error:
                _log.warning("waiting for Slurm: %s", error.detail)
                await asyncio.sleep(self._cluster.settings.poll_s)


def remove_old(shared_dir: Path, wanted: set[str], live: set[int]) -> None:
    """Remove folders of allocations, what their batch steps printed, and the folders of units in which nothing is left: older than
    `OLD_S`, of none of the ``wanted`` units (names of folders) and none of the ``live`` jobs. Blocking."""
    oldest = time.time() - OLD_S
    for place in shared_dir.glob("*/*"):
        number = place.name.removeprefix("out.").removesuffix(".txt")
        ended = not number.isdecimal() or int(number) not in live
        with contextlib.suppress(OSError):  # a run has just ended and tidies up
            if place.parent.name in wanted or not ended or place.stat().st_mtime >= oldest:
                continue
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            elif place.name == f"out.{number}.txt":
                place.unlink()
            else:
                continue
            os.utime(place.parent, (oldest, oldest))
    for unit in shared_dir.glob("*.*.*"):
        with contextlib.suppress(OSError):  # something is left in it
            if unit.name not in wanted and unit.stat().st_mtime <= oldest:
                unit.rmdir()


def _busy(node: words.SlurmNode, kinds: tuple[DeviceKind, ...]) -> frozenset[int]:
    """Accelerators in use; where Slurm does not number them, the first ones stand for as many."""
    count = sum(node.used.values())
    return node.indices_in_use if len(node.indices_in_use) == count else frozenset(range(min(count, len(kinds))))
