"""Runs in Jobs of Kubernetes: they go on while the agent is away, and are taken up again when it is back.

A run's life here: (1) Kubernetes has bound the pods of its Job (`scheduler`), their containers wait for a Secret; (2) the order stands in
the run book, then in a record on the agent's disk, then in the Secret, and the containers begin; (3) the agent watches the pods and
follows their logs; (4) the end is told when no pod is left.

Fencing: one Job per unit and epoch, by its name, which makes no second pod for a rank (``backoffLimit`` 0); the book refuses epochs that
are not newer; the Job controller ends a Job whose ``activeDeadlineSeconds`` the agent does not renew, and the agent renews it only
after the bus took a heartbeat. What runs on a node that Kubernetes does not hear is ended when the node is heard again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import PurePosixPath

from agent.engines.base import FailureKind, LaunchRequest, NodeState, NodeStatus
from agent.engines.kubernetes.api import CONFLICT, NOT_FOUND, KubernetesRefusedError, KubernetesSilentError
from agent.engines.kubernetes.cluster import Cluster
from agent.engines.kubernetes.engine_settings import KubernetesEngineSettings
from agent.engines.kubernetes.followed_runs import FollowedPods
from agent.engines.kubernetes.following import LAUNCH, STOP, PodRun, numbers_of, write_launch
from agent.engines.kubernetes.manifests import IMAGE_VARIABLE, Manifest, OrderError, order_secret, why_no_image
from agent.engines.kubernetes.scheduler import KubernetesScheduler
from agent.engines.local.gang import Cause, Gang
from agent.engines.own_scheduler import UnitName
from agent.engines.run_records import request_of, stand_in
from agent.engines.slurm import folder
from agent.run_book import BegunRun, RunBook
from meridian.clock import Clock
from meridian.errors import MeridianError

_log = logging.getLogger(__name__)

LEASE_EVERY_S = 0.5
AGAIN_S = 1.0


class KubernetesEngine(FollowedPods):
    """See the module. ``scheduler`` gives the Jobs in which runs begin."""

    def __init__(
        self,
        settings: KubernetesEngineSettings,
        cluster: Cluster,
        scheduler: KubernetesScheduler,
        book: RunBook,
        clock: Clock,
    ) -> None:
        super().__init__(settings, cluster, book, clock)
        self._scheduler = scheduler
        self._contacts = 0
        self._contacts_told: dict[str, int] = {}

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._tell_again()
        self._spawn(self._cluster.watch())
        while True:
            try:
                async with asyncio.timeout(10):
                    await self._cluster.until_listed()
                break
            except TimeoutError:
                _log.warning("waiting for Kubernetes: jobs, pods and nodes cannot be listed yet")
        for run in list(self._book.begun.values()):
            await self._take_up(run)
        self._spawn(self._follow_all())
        self._spawn(self._renew_leases())

    async def close(self) -> None:
        self._closing = True
        await self._stop_all(Cause(FailureKind.AGENT_RESTARTED, "the agent shuts down"))
        waiting = [run.ended for run in self._runs.values()]
        if waiting:
            # One that Kubernetes has not ended by then is ended all the same; the next agent reports it.
            await asyncio.wait(waiting, timeout=self._settings.gang_grace_s + 15)
        for task in [*self._tasks, *(task for run in self._runs.values() for task in run.followers.values())]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._book.durable()
        await self._cluster.api.close()

    # --- orders ----------------------------------------------------------------------------------------------------

    def in_contact(self) -> None:
        self._contacts += 1

    # --- views -----------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeStatus, ...]:
        runs_on: dict[str, list[PodRun]] = {}
        for run in self._runs.values():
            for node_id in run.gang.node_ids:
                runs_on.setdefault(node_id, []).append(run)
        return tuple(self._node_status(node_id, runs_on.get(node_id, [])) for node_id in self._settings.node_ids)

    def _node_status(self, node_id: str, runs: list[PodRun]) -> NodeStatus:
        """A node by Kubernetes' last word, which counts for ``trust_s``. One that is not heard has not ended while ranks may run there:
        who hears that places them again."""
        node = self._cluster.node(node_id)
        silence_s = asyncio.get_running_loop().time() - self._cluster.heard_at_s
        run_ids = tuple(run.gang.request.run_id for run in runs)
        if node is None or (not node.ready and not runs):
            return NodeStatus(
                node_id, NodeState.EXITED, node.begun_at_s if node else 0, silence_s, run_ids, frozenset()
            )
        age_s = max(silence_s - self._cluster.settings.trust_s, 0.0)
        in_use = frozenset(
            index
            for run in runs
            for placement in run.gang.request.ranks
            if placement.node_id == node_id
            for index in placement.accelerator_indices
        )
        return NodeStatus(node_id, NodeState.RUNNING, node.begun_at_s, age_s, run_ids, in_use)

    # --- starting a run --------------------------------------------------------------------------------------------

    async def _start(self, request: LaunchRequest) -> None:
        name = UnitName(request.job_id, request.unit_index, request.epoch)
        cause = self._obstacle(request, name)
        if cause is None:
            run = self._followed(request, name)
            try:
                await asyncio.to_thread(write_launch, run.record, request, started=False)
            except OSError as error:
                cause = Cause(FailureKind.NOT_STARTABLE, f"{run.record}: {error.strerror}")
            else:
                self._runs[run.key] = run
                self._spawn(self._order(run))
        if cause is not None:
            self._emit(self._failed(request, cause))

    def _obstacle(self, request: LaunchRequest, name: UnitName) -> Cause | None:
        cause = self._why_not_now()
        if cause is not None:
            return cause
        if wrong := why_no_image(request.env.get(IMAGE_VARIABLE, ""), self._settings.job_images):
            return Cause(FailureKind.NOT_STARTABLE, wrong)
        if len(request.ranks) < request.world_size and not self._cluster.settings.site.host_network:
            reason = "ranks of this run are in other domains too, which do not reach pods without host_network"
            return Cause(FailureKind.NOT_STARTABLE, reason)
        job = self._cluster.job(self._cluster.job_name(name))
        if job is None or job.ended:
            return Cause(FailureKind.NODE_LOST, "Kubernetes does not hold nodes for this run any more")
        return None

    def _followed(self, request: LaunchRequest, name: UnitName) -> PodRun:
        job = self._cluster.job_name(name)
        record = self._settings.records_dir / job
        self._scheduler.in_runs.add(job)
        began_s = asyncio.get_running_loop().time()
        return PodRun(Gang(request), name, job, record, numbers_of(request), began_s)

    async def _order(self, run: PodRun) -> None:
        """Give the containers their order, until it is taken or the run ends."""
        image = run.gang.request.env.get(IMAGE_VARIABLE, "")
        while not run.ended.done() and not run.stopping:
            since = self._cluster.version
            master = self._master_addr(run)
            if master:
                try:
                    job = dict(await self._cluster.get_job(run.job))
                    secret = self._secret(run, job, master)
                    if run.stopping:
                        return
                    await self._cluster.order(secret, image)
                except OrderError as error:
                    await self._stop_run(run, Cause(FailureKind.NOT_STARTABLE, str(error)), 0)
                    return
                except KubernetesRefusedError as error:
                    # A pod or the Job has just gone, which is told for itself.
                    if error.status not in {NOT_FOUND, CONFLICT}:
                        await self._stop_run(run, Cause(FailureKind.NOT_STARTABLE, f"Kubernetes: {error}"), 0)
                        return
                except KubernetesSilentError as error:
                    _log.warning("run %s: %s", run.key[0], error.detail)
                else:
                    run.ordered_s = asyncio.get_running_loop().time()
                    return
            elif asyncio.get_running_loop().time() - run.began_s > self._settings.start_timeout_s:
                cause = Cause(FailureKind.NOT_STARTABLE, f"no pod address within {self._settings.start_timeout_s:g} s")
                await self._stop_run(run, cause, 0)
                return
            await self._cluster.changed(since, AGAIN_S)

    def _secret(self, run: PodRun, job: Manifest, master_addr: str) -> Manifest:
        site, request = self._cluster.settings.site, run.gang.request
        work_dir = request.working_dir or str(self._settings.own_work_dir(request.run_id))
        if site.volume is None:
            # Nothing of the agent's is there: pods have folders of their own, which are gone with them.
            own = PurePosixPath("/tmp/meridian") / request.run_id  # noqa: S108
            work_dir = request.working_dir or str(own)
            request = replace(request, checkpoint_dir=str(own / "checkpoints") if request.checkpoint_dir else "")
        return order_secret(request, job, site, self._settings.domain_id, self._book.agent_mark, work_dir, master_addr)

    def _master_addr(self, run: PodRun) -> str:
        """Where the ranks meet: the address of the first pod; of a run of several domains what the order says. Empty: not known yet."""
        request = run.gang.request
        if len(request.ranks) < request.world_size:
            return request.master_addr
        return next((pod.ip for pod in self._cluster.pods_of(run.job) if pod.rank == 0), "")

    def _run_is_over(self, run: PodRun) -> None:
        self._scheduler.in_runs.discard(run.job)
        self._contacts_told.pop(run.job, None)
        self._cluster.forget(run.job)

    async def _take_up(self, begun: BegunRun) -> None:
        """A run of the agent before: follow it on, or report that it is lost."""
        name = UnitName(begun.job_id, begun.unit_index, begun.epoch)
        record = folder.read_json(self._settings.records_dir / self._cluster.job_name(name) / LAUNCH)
        request = None
        try:
            request = request_of(record["request"]) if record is not None else None
        except (KeyError, TypeError, MeridianError):
            _log.error("the record of run %s cannot be read", begun.run_id)
        job = self._cluster.job(self._cluster.job_name(name))
        if request is None or record is None or request.run_id != begun.run_id:
            cause = Cause(FailureKind.AGENT_RESTARTED, "the agent was restarted before it began")
            if job is None:
                self._emit(self._failed(begun, cause))
                return
            run = self._followed(stand_in(begun), name)
            self._runs[run.key] = run
            await self._stop_run(run, cause, 0)
            return
        run = self._followed(request, name)
        run.known_started = bool(record.get("started"))
        self._runs[run.key] = run
        stopped = folder.read_json(run.record / STOP)
        if stopped is not None:
            await self._stop_run(run, Cause(FailureKind(stopped["kind"]), stopped["reason"]), stopped["grace_s"])
        else:
            self._spawn(self._order(run))
        _log.info("run %s goes on in Job %s", request.run_id, run.job)

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        """Let Jobs live on while the agent has contact: a heartbeat was taken since it was told last."""
        every_s = max(self._lease_for_s / 3, LEASE_EVERY_S)
        while True:
            await asyncio.sleep(LEASE_EVERY_S)
            if not self._lease_held or self._closing:
                continue
            now_s = asyncio.get_running_loop().time()
            due = [
                run
                for run in self._runs.values()
                if now_s - run.renewed_s >= every_s
                and self._contacts_told.get(run.job, 0) != self._contacts
                and run.deleted_s is None
            ]
            await asyncio.gather(*(self._renew(run, now_s) for run in due))

    async def _renew(self, run: PodRun, now_s: float) -> None:
        job = self._cluster.job(run.job)
        if job is None or job.ended:
            return
        contacts = self._contacts
        try:
            await self._cluster.renew(job, self._lease_for_s)
        except (KubernetesSilentError, KubernetesRefusedError) as error:
            _log.warning("the lease of run %s is not renewed: %s", run.key[0], error)
        else:
            run.renewed_s = now_s
            self._contacts_told[run.job] = contacts

    @property
    def _lease_for_s(self) -> float:
        """What programs have to end at its end is part of the lease."""
        return max(self._settings.agent_silence_s - self._settings.gang_grace_s, 1.0)
