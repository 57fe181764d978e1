"""Kubernetes as a domain's own scheduler: constraints become an Indexed Job, and where its pods are bound is the answer.

1. A unit is asked for as a Job (`manifests`), one pod per rank. What the API server does not take is refused with its reason.
2. All pods have nodes within ``answer_s``: the grant. Their containers wait for the order (a Secret), the nodes are theirs meanwhile.
3. Else it is refused for now, in the scheduler's own words (``0/3 nodes are available: ...``), a Job that waits for a queue's admission
   with its. Up to ``most_queued`` of them keep their Job; when its pods have nodes, the unit is asked for again and gets them. Nobody
   asks for ``claim_s``: it is given back. All others are deleted.
4. The truth is Kubernetes': Jobs are named by unit and epoch. After a start those that are in no grant are deleted; a Job that nobody
   renews is ended by its controller after ``abandon_s`` (``activeDeadlineSeconds``), whatever became of the agent.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from agent.engines.kubernetes.api import KubernetesRefusedError, KubernetesSilentError
from agent.engines.kubernetes.cluster import Cluster
from agent.engines.kubernetes.manifests import Manifest, job_manifests
from agent.engines.kubernetes.places import PlacesError, all_bound, rank_places, why_not_yet
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

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
STRAY_S = 15.0
"""A Job that nobody holds is deleted after this: until then it may be one whose creation is under way."""


@dataclass(frozen=True, slots=True)
class PodRules:
    """How long is waited for pods. ``most_queued`` 0: a unit whose pods have no nodes at once is withdrawn. Times in seconds.

    ``abandon_s``: a Job without a run ends by itself when the agent has been gone for so long. ``grace_s`` is what programs have to
    end when their Job ends.
    """

    answer_s: float = 3.0
    claim_s: float = 30.0
    most_queued: int = 0
    abandon_s: float = 120.0
    grace_s: float = 1.0


@dataclass(slots=True)
class _Place(QueuedPlace):
    """A Job, by its name."""

    job: str


class KubernetesScheduler(QueuedScheduler[_Place]):
    """See the module. ``devices`` are the accelerators of each node by index, as the domain declares them; ``in_runs`` the names of Jobs
    whose lease the engine renews."""

    def __init__(
        self,
        cluster: Cluster,
        rules: PodRules,
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
        self._renewed_s: dict[str, float] = {}
        self.in_runs: set[str] = set()

    # --- what is asked ---------------------------------------------------------------------------------------------

    async def restore(self, held: Mapping[UnitName, Held]) -> None:
        await self._cluster.until_listed()
        for job in self._cluster.jobs():
            assert job.unit is not None
            if job.unit in held:
                known = held[job.unit]
                self._places[job.unit] = _Place(known.constraints, job.name, ranks=known.ranks, given=True)
            elif not job.leaving:
                await self._delete(job.name)

    async def adopt(self, name: UnitName, held: Held) -> None:
        """A run that this domain did not give: where Kubernetes has no Job of it there is nothing to hold."""
        job = self._cluster.job(self._cluster.job_name(name))
        if job is not None and not job.leaving:
            self._places[name] = _Place(held.constraints, job.name, ranks=held.ranks, given=True)

    # --- what is told ----------------------------------------------------------------------------------------------

    def room(self) -> Room:
        """What nodes allow less what pods on them ask for, and what we hold for nobody yet. While fewer than ``most_queued`` units wait,
        all that is up counts as free: one more may wait for it."""
        may_queue = self._may_queue
        unclaimed = {place.job for place in self._places.values() if place.ranks and place.kept}
        used: dict[str, dict[str, float]] = {}
        for pod in self._cluster.pods():
            if pod.holds and not may_queue and not (pod.unit is not None and pod.job in unclaimed):
                mine = used.setdefault(pod.node, {})
                for resource, amount in pod.requests.items():
                    mine[resource] = mine.get(resource, 0.0) + amount
        site = self._cluster.settings.site
        total: dict[DeviceKind, int] = dict.fromkeys((kind for kinds in self._devices.values() for kind in kinds), 0)
        blocks: dict[DeviceKind, list[int]] = {kind: [] for kind in total}
        counted = dict.fromkeys(site.counted, 0.0)
        free_cpus = total_cpus = free_memory = 0.0
        tolerated = {str(item.get("key", "")) for item in site.tolerations}
        for node_id, kinds in self._devices.items():
            node = self._cluster.node(node_id)
            if node is None or not node.takes_pods or set(node.taints) - tolerated:
                continue
            taken = used.get(node.name, {})
            total_cpus += node.allocatable.get("cpu", 0.0)
            free_cpus += max(node.allocatable.get("cpu", 0.0) - taken.get("cpu", 0.0), 0.0)
            free_memory += max(node.allocatable.get("memory", 0.0) - taken.get("memory", 0.0), 0.0)
            for name, resource in site.counted.items():
                counted[name] += max(node.allocatable.get(resource, 0.0) - taken.get(resource, 0.0), 0.0)
            for resource in dict.fromkeys(map(site.resource_of, kinds)):
                there = int(node.allocatable.get(resource, 0.0))
                free = max(there - int(taken.get(resource, 0.0)), 0)
                for kind in dict.fromkeys(kind for kind in kinds if site.resource_of(kind) == resource):
                    count = min(kinds.count(kind), there)
                    total[kind] += count
                    blocks[kind].append(min(free, count))
                    free -= blocks[kind][-1]
        return Room(total, nodes_by_free(blocks), free_cpus, total_cpus, int(free_memory), counted, turns=self._turns)

    async def run(self) -> None:
        """Look after what waits, until cancelled: take it up when its pods have nodes, give it back when nobody wants it, renew what
        is held."""
        while True:
            await asyncio.sleep(self._cluster.settings.poll_s)
            for place in list(self._places.values()):
                if place.kept and not place.asked:
                    self._look_after(place)
            for name, place in list(self._places.items()):
                late = (
                    place.ready_at_s is not None
                    and asyncio.get_running_loop().time() - place.ready_at_s > self._rules.claim_s
                )
                if self._waits(name, place) and (place.wrong or late):
                    _log.info("Job %s: %s", place.job, place.wrong or "nobody asks for it any more; it is given back")
                    self._forget(name, place)
                    await self._delete(place.job)
            await self._renew()
            await self._delete_stray()

    # --- steps -----------------------------------------------------------------------------------------------------

    def _forget(self, name: UnitName, place: _Place) -> None:
        super()._forget(name, place)
        self._renewed_s.pop(place.job, None)

    async def _ask_for(self, name: UnitName, constraints: Constraints, until_s: float) -> _Place | Refusal:
        """Make a Job, way after way, and wait until its pods have nodes; the last one stays. What is there is looked at again."""
        known = self._places.get(name)
        if known is not None:
            known.asked = True
            if not known.ranks and not known.wrong:
                self._take_up(known)
            return known
        manifests = self._manifests(name, constraints)
        if isinstance(manifests, Refusal):
            return manifests
        job = self._cluster.job(self._cluster.job_name(name))
        if job is not None and job.ended:
            return Refusal("Kubernetes is still removing the Job of this unit and epoch")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        said = ""
        for number, manifest in enumerate(manifests, 1):
            place = self._places[name] = _Place(constraints, manifest["metadata"]["name"], asked=True)
            self._renewed_s[place.job] = began_s
            try:
                await self._cluster.make_job(manifest)
            except (KubernetesRefusedError, KubernetesSilentError) as error:
                self._forget(name, place)
                said = f"Kubernetes: {error}"
                if isinstance(error, KubernetesSilentError):
                    await self._delete(place.job)
                continue
            await self._wait_for(place, began_s + (until_s - began_s) * number / len(manifests))
            if place.ranks or number == len(manifests):
                return place
            self._forget(name, place)
            await self._delete(place.job)
            if not await self._gone(place.job, until_s):
                return Refusal(place.wrong or await self._why(place))
        return Refusal(said)

    def _manifests(self, name: UnitName, constraints: Constraints) -> tuple[Manifest, ...] | Refusal:
        asked = self._in_own_names(constraints)
        if isinstance(asked, Refusal):
            return asked
        settings = self._cluster.settings
        return job_manifests(
            settings.domain_id,
            name,
            asked,
            settings.site,
            {self._node_names[node_id]: kinds for node_id, kinds in self._devices.items()},
            hold_s=math.ceil(self._rules.abandon_s),
            grace_s=math.ceil(self._rules.grace_s),
        )

    async def _wait_for(self, place: _Place, until_s: float) -> None:
        """Until all pods have nodes, the Job has ended, or the time is over."""
        loop = asyncio.get_running_loop()
        while True:
            since = self._cluster.version
            self._take_up(place)
            left_s = until_s - loop.time()
            if place.ranks or place.wrong or left_s <= 0:
                return
            await self._cluster.changed(since, min(left_s, LOOK_EVERY_S))

    def _take_up(self, place: _Place) -> None:
        """Read where the pods of a Job are."""
        job = self._cluster.job(place.job)
        if job is None or place.ranks:
            return
        if job.ended:
            place.wrong = f"Kubernetes ended the Job: {job.failed[0]} {job.failed[1]}".rstrip()
            return
        pods = self._cluster.pods_of(place.job)
        if job.suspended or not all_bound(pods, place.constraints.ranks):
            return
        try:
            place.ranks = rank_places(place.constraints, pods, self._cluster.node_id, self._taken())
        except PlacesError as error:
            place.wrong = f"what Kubernetes gave cannot be used: {error}"
            return
        place.ready_at_s = asyncio.get_running_loop().time()

    def _hopeless(self, place: _Place) -> bool:
        return False  # kube-scheduler tries everything again

    async def _why(self, place: _Place) -> str:
        job, pods = self._cluster.job(place.job), self._cluster.pods_of(place.job)
        needs_word = job is not None and not job.suspended and len(pods) < job.ranks
        word = await self._cluster.complaint(place.job) if needs_word else ""
        return f"Kubernetes: {why_not_yet(job, pods, word)}"

    def _look_after(self, place: _Place) -> None:
        had = bool(place.ranks)
        self._take_up(place)
        if place.ranks and not had:
            self._turns += 1

    async def _renew(self) -> None:
        """Tell the Job controller that the Jobs which are held without a run are wanted; those with a run the engine renews."""
        now_s = asyncio.get_running_loop().time()
        for place in list(self._places.values()):
            job = self._cluster.job(place.job)
            if job is None or job.ended or place.job in self.in_runs:
                continue
            if now_s - self._renewed_s.get(place.job, -math.inf) < self._rules.abandon_s / 3:
                continue
            self._renewed_s[place.job] = now_s
            try:
                await self._cluster.renew(job, self._rules.abandon_s)
            except (KubernetesSilentError, KubernetesRefusedError) as error:
                _log.warning("Job %s is not renewed: %s", place.job, error)

    async def _delete_stray(self) -> None:
        held = {place.job for place in self._places.values()} | self.in_runs
        found = [job.name for job in self._cluster.jobs() if not job.leaving and job.name not in held]
        for name in self._strayed(found, STRAY_S):
            _log.warning("Job %s is held for nobody; it is deleted", name)
            await self._delete(name)

    async def _let_go(self, place: _Place) -> None:
        await self._delete(place.job)

    async def _delete(self, job: str) -> None:
        """One that is in a run the engine deletes at its end."""
        if job in self.in_runs:
            return
        try:
            await self._cluster.delete_job(job)
        except (KubernetesSilentError, KubernetesRefusedError) as error:
            _log.warning("Job %s is not deleted: %s", job, error)

    async def _gone(self, job: str, until_s: float) -> bool:
        loop = asyncio.get_running_loop()
        while self._cluster.job(job) is not None:
            if loop.time() >= until_s:
                return False
            await self._cluster.changed(self._cluster.version, min(until_s - loop.time(), LOOK_EVERY_S))
        return True
