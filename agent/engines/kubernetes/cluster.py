"""The agent's view of one Kubernetes: jobs, pods and nodes, listed once and watched from then on; and the orders to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agent.engines.kubernetes.api import (
    CONFLICT,
    GONE,
    KubernetesApi,
    KubernetesRefusedError,
    KubernetesSilentError,
    Object,
)
from agent.engines.kubernetes.manifests import Manifest, pod_group, secret_name
from agent.engines.kubernetes.site import DOMAIN_LABEL, Site, job_name, label_value
from agent.engines.kubernetes.words import Job, Node, Pod, job_of, node_of, pod_of
from agent.engines.own_scheduler import UnitName

_log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""After a watch that broke it is begun anew so much later."""
T = TypeVar("T", Job, Pod, Node)


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """What is used of a cluster and how. ``node_names``: Kubernetes' name of each node by Meridian's. Times in seconds.

    ``whole_cluster``: pods of all namespaces are looked at, so that what others have is known; else only those of the domain's own.
    ``trust_s``: for so long what was said of nodes counts while the API server is silent.
    """

    domain_id: str
    site: Site
    node_names: Mapping[str, str]
    whole_cluster: bool = True
    poll_s: float = 2.0
    trust_s: float = 60.0


class _Collection(Generic[T]):
    """The objects of one collection by their keys, as last heard."""

    def __init__(self, path: str, query: Mapping[str, str], read: Callable[[Object], T]) -> None:
        self.path = path
        self.query = query
        self.read: Callable[[Object], T] = read
        self.known: dict[tuple[str, str], T] = {}
        self.listed = asyncio.Event()


class Cluster:
    """See the module. `watch` runs as parts of their own; until all is listed, `until_listed` waits.

    ``version`` grows with each change; `changed` waits for that.
    """

    def __init__(self, settings: KubernetesSettings, api: KubernetesApi) -> None:
        self.settings = settings
        self.api = api
        self.version = 0
        self.relists = 0
        self.heard_at_s = float("-inf")
        site, domain_id = settings.site, settings.domain_id
        self._space = f"/namespaces/{site.namespace}"
        mine = {"labelSelector": f"{DOMAIN_LABEL}={label_value(domain_id)}"}
        pods: tuple[str, Mapping[str, str]] = (
            ("/api/v1/pods", {}) if settings.whole_cluster else (f"/api/v1{self._space}/pods", mine)
        )
        self._jobs = _Collection(f"/apis/batch/v1{self._space}/jobs", mine, lambda found: job_of(found, domain_id))
        self._pods = _Collection(*pods, lambda found: pod_of(found, domain_id))
        self._nodes = _Collection("/api/v1/nodes", {}, node_of)
        self._node_of = {name: node_id for node_id, name in settings.node_names.items()}
        self._waiting: set[asyncio.Event] = set()
        self._pods_of: dict[str, dict[str, Pod]] = {}
        # Pods that are gone and whose container had told its end.
        self._departed: dict[str, dict[str, Pod]] = {}

    # --- what is known ---------------------------------------------------------------------------------------------

    def node_id(self, name: str) -> str | None:
        """Meridian's name of a node of Kubernetes'; None: the domain does not declare it."""
        return self._node_of.get(name)

    def node(self, node_id: str) -> Node | None:
        """A node by Meridian's name; None: Kubernetes does not have it."""
        return self._nodes.known.get(("", self.settings.node_names[node_id]))

    def node_called(self, name: str) -> Node | None:
        """A node by Kubernetes' name."""
        return self._nodes.known.get(("", name))

    def jobs(self) -> list[Job]:
        """All Jobs of this domain."""
        return [job for job in self._jobs.known.values() if job.unit is not None]

    def job(self, name: str) -> Job | None:
        """A Job of this domain by its name."""
        return self._jobs.known.get((self.settings.site.namespace, name))

    def pods(self) -> list[Pod]:
        """All pods that are known, of others too where the whole cluster is looked at."""
        return list(self._pods.known.values())

    def pods_of(self, job: str) -> list[Pod]:
        """The pods of a Job of this domain, also those that have ended."""
        return list(self._pods_of.get(job, {}).values())

    def departed(self, job: str) -> list[Pod]:
        """Pods of a Job that are gone, as they were at last, if their containers had told how they ended."""
        return list(self._departed.get(job, {}).values())

    def forget(self, job: str) -> None:
        """Nobody asks for departed pods of a Job any more."""
        self._departed.pop(job, None)

    def job_name(self, name: UnitName) -> str:
        """What a unit's Job is called."""
        return job_name(self.settings.domain_id, name)

    async def changed(self, since: int, patience_s: float) -> None:
        """Wait until something has changed since ``version`` was ``since``, at most so long."""
        if self.version != since:
            return
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(patience_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)

    # --- watching --------------------------------------------------------------------------------------------------

    async def until_listed(self) -> None:
        """Wait until all was heard once."""
        for collection in (self._jobs, self._pods, self._nodes):
            await collection.listed.wait()

    async def watch(self) -> None:
        """Keep the view new, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(self._jobs))
            group.create_task(self._follow(self._pods))
            group.create_task(self._follow(self._nodes))
            group.create_task(self._listen())

    async def _listen(self) -> None:
        """Whether the API server answers, as a watch in which nothing happens does not tell it."""
        while True:
            try:
                asked_s = asyncio.get_running_loop().time()
                await self.api.get("/version")
                self.heard_at_s = asked_s
            except (KubernetesSilentError, KubernetesRefusedError) as error:
                _log.warning("%s", error)
            await asyncio.sleep(self.settings.poll_s)

    async def _follow(self, collection: _Collection[T]) -> None:
        since = ""
        while True:
            try:
                if not since:
                    since = await self._list(collection)
                async for kind, content in self.api.watch(collection.path, since, **collection.query):
                    since = str(content["metadata"]["resourceVersion"])
                    if kind != "BOOKMARK":
                        self._take(collection, kind, content)
            except KubernetesRefusedError as error:
                # 410: what happened since is not kept any more. Of other reasons too a new list is the way back.
                if error.status != GONE:
                    _log.warning("%s: %s", collection.path, error)
                    await asyncio.sleep(AGAIN_S)
                since = ""
            except KubernetesSilentError as error:
                _log.warning("%s", error.detail)
                await asyncio.sleep(AGAIN_S)

    async def _list(self, collection: _Collection[T]) -> str:
        found, version = await self.api.list_all(collection.path, **collection.query)
        collection.known = {_key(content): collection.read(content) for content in found}
        if collection is self._pods:
            self._pods_of = {}
            for pod in self._pods.known.values():
                self._sort(pod)
        self.relists += collection.listed.is_set()
        collection.listed.set()
        self.heard_at_s = asyncio.get_running_loop().time()
        self._tell()
        return version

    def _take(self, collection: _Collection[T], kind: str, content: Object) -> None:
        key = _key(content)
        read = collection.read(content)
        if kind == "DELETED":
            collection.known.pop(key, None)
        else:
            collection.known[key] = read
        if isinstance(read, Pod):
            if kind == "DELETED":
                if read.unit is not None and read.end is not None:
                    self._departed.setdefault(read.job, {})[read.name] = read
                mine = self._pods_of.get(read.job, {})
                mine.pop(read.name, None)
                if not mine:
                    self._pods_of.pop(read.job, None)
            else:
                self._sort(read)
        self._tell()

    def _sort(self, pod: Pod) -> None:
        if pod.unit is not None and pod.job:
            self._pods_of.setdefault(pod.job, {})[pod.name] = pod

    def _tell(self) -> None:
        self.version += 1
        for event in self._waiting:
            event.set()

    # --- orders ----------------------------------------------------------------------------------------------------

    async def make_job(self, manifest: Manifest) -> None:
        """Make a Job, with its PodGroup where one is wanted. One that is there already is the same, as its name is its unit's.

        :raises KubernetesRefusedError: the API server does not take it; the text is its reason.
        :raises KubernetesSilentError: it may or may not be there.
        """
        group = pod_group(manifest, self.settings.site)
        if group is not None:
            await self._make(*group)
        await self._make(self._jobs.path, manifest)

    async def _make(self, path: str, manifest: Manifest) -> None:
        try:
            await self.api.create(path, manifest)
        except KubernetesRefusedError as error:
            if error.status != CONFLICT:
                raise

    async def order(self, secret: Manifest, image: str) -> None:
        """Give a Job's containers what they wait for; ``image`` empty: they keep theirs. Done again it changes nothing.

        :raises KubernetesRefusedError, KubernetesSilentError: see there.
        """
        job = secret["metadata"]["ownerReferences"][0]["name"]
        if image:
            for pod in self.pods_of(job):
                if pod.image != image:
                    await self.api.patch(
                        self._pod_path(pod.name),
                        {"spec": {"containers": [{**await self._container(pod), "image": image}]}},
                    )
        await self._make(f"/api/v1{self._space}/secrets", secret)
        for pod in self.pods_of(job):
            # A kubelet looks again at a pod that changes, else only from time to time.
            await self.api.patch(self._pod_path(pod.name), {"metadata": {"annotations": {"meridian/ordered": "true"}}})

    async def _container(self, pod: Pod) -> Mapping[str, Any]:
        """The one container as it is: a merge patch replaces lists as a whole."""
        found = await self.api.get(self._pod_path(pod.name))
        container: Mapping[str, Any] = found["spec"]["containers"][0]
        return container

    async def get_job(self, name: str) -> Object:
        """A Job as the API server has it now.

        :raises KubernetesRefusedError, KubernetesSilentError: see there.
        """
        return await self.api.get(f"{self._jobs.path}/{name}")

    async def renew(self, job: Job, for_s: float) -> None:
        """Let a Job live for so long from now on, by its controller's clock. One that waits for its admission has no clock yet.

        :raises KubernetesRefusedError, KubernetesSilentError: see there.
        """
        if job.started_at is None:
            return
        age_s = (self.api.now() - job.started_at).total_seconds()
        deadline_s = max(int(age_s + for_s), 1)
        await self.api.patch(f"{self._jobs.path}/{job.name}", {"spec": {"activeDeadlineSeconds": deadline_s}})

    async def end_pods(self, job: str, grace_s: int) -> None:
        """``SIGTERM`` to all ranks of a Job, after ``grace_s`` ``SIGKILL``.

        :raises KubernetesRefusedError, KubernetesSilentError: see there.
        """
        for pod in self.pods_of(job):
            if pod.phase not in {"Succeeded", "Failed"}:
                await self.api.delete(self._pod_path(pod.name), {"gracePeriodSeconds": grace_s})

    async def delete_job(self, name: str) -> None:
        """Delete a Job; it is there until its pods are gone. One that is gone changes nothing.

        :raises KubernetesRefusedError, KubernetesSilentError: see there.
        """
        await self.api.delete(f"{self._jobs.path}/{name}", {"propagationPolicy": "Foreground"})
        group = pod_group(
            {"metadata": {"name": name, "namespace": "", "labels": {}}, "spec": {"completions": 0}}, self.settings.site
        )
        if group is not None:
            await self.api.delete(f"{group[0]}/{name}")

    async def complaint(self, name: str) -> str:
        """What the Job controller could not do for a Job (a quota, an admission that refuses pods); empty: nothing is told."""
        selector = f"involvedObject.kind=Job,involvedObject.name={name},type=Warning"
        try:
            found, _ = await self.api.list_all(f"/api/v1{self._space}/events", fieldSelector=selector)
        except (KubernetesSilentError, KubernetesRefusedError):
            return ""
        return str(found[-1].get("message", "")) if found else ""

    def pod_log_path(self, pod: str) -> str:
        """Where a pod's log is."""
        return self._pod_path(pod)

    def _pod_path(self, pod: str) -> str:
        return f"/api/v1{self._space}/pods/{pod}"

    @staticmethod
    def secret_name(job: str) -> str:
        """The Secret that is a Job's order."""
        return secret_name(job)


def _key(content: Object) -> tuple[str, str]:
    about = content["metadata"]
    return str(about.get("namespace", "")), str(about["name"])
