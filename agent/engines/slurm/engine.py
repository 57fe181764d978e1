"""Runs in allocations of Slurm: they go on while the agent is away, and are taken up again when it is back.

A run's life here: (1) Slurm has given its nodes (`scheduler`), the batch step waits in them; (2) the order stands in the run book,
then in the allocation's folder, where the batch step finds it; (3) one step per node starts the ranks by the local engine's node
process, and writes down what they do; (4) the agent reads that and reports it; (5) the end is reported when Slurm says that the job
has ended: its verdict stands above the ranks' (`verdict`), and what they held is free then. Of nodes that Slurm does not reach its
word says nothing: there it is the ranks' own, or their step's silence (`last_signs`).

Fencing: one job of Slurm's per unit and epoch, never begun anew; the book refuses epochs that are not newer; ranks end by
themselves when the lease is not renewed for ``agent_silence_s``, and the agent renews it only after the bus took a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from agent.engines.base import FailureKind, LaunchRequest, NodeState, NodeStatus
from agent.engines.launching import launch_message
from agent.engines.local.gang import Cause, Gang
from agent.engines.own_scheduler import UnitName
from agent.engines.run_records import launch_record, request_of, stand_in
from agent.engines.slurm import folder
from agent.engines.slurm.cluster import Cluster, SlurmSilentError
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.engines.slurm.followed_runs import CANCEL_AFTER_S, FollowedRuns
from agent.engines.slurm.following import FollowedRun
from agent.node import wire
from agent.run_book import BegunRun, RunBook
from meridian.clock import Clock
from meridian.errors import MeridianError

_log = logging.getLogger(__name__)

LEASE_EVERY_S = 0.5


class SlurmEngine(FollowedRuns):
    """See the module."""

    def __init__(self, settings: SlurmEngineSettings, cluster: Cluster, book: RunBook, clock: Clock) -> None:
        super().__init__(settings, cluster, book, clock)
        self._contacts = self._contacts_told = 0

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._tell_again()
        self._cluster.settings.shared_dir.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                await self._cluster.look()
                break
            except SlurmSilentError as error:
                _log.warning("waiting for Slurm: %s", error.detail)
                await asyncio.sleep(self._cluster.settings.poll_s)
        for run in list(self._book.begun.values()):
            await self._take_up(run)
        self._spawn(self._ask_slurm())
        self._spawn(self._follow())
        self._spawn(self._renew_lease())

    async def close(self) -> None:
        self._closing = True
        await self._stop_all(Cause(FailureKind.AGENT_RESTARTED, "the agent shuts down"))
        waiting = [run.ended for run in self._runs.values()]
        if waiting:
            # One that Slurm has not ended by then is ended all the same; the next agent reports it.
            await asyncio.wait(waiting, timeout=self._settings.gang_grace_s + CANCEL_AFTER_S + 5)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._book.durable()

    # --- orders ----------------------------------------------------------------------------------------------------

    def in_contact(self) -> None:
        self._contacts += 1

    # --- views -----------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeStatus, ...]:
        runs_on: dict[str, list[FollowedRun]] = {}
        for run in self._runs.values():
            for node_id in run.gang.live_nodes():
                runs_on.setdefault(node_id, []).append(run)
        return tuple(self._node_status(node_id, runs_on.get(node_id, [])) for node_id in self._settings.node_ids)

    def _node_status(self, node_id: str, runs: list[FollowedRun]) -> NodeStatus:
        """A node by Slurm's last word, which counts for ``trust_s``: a controller that starts anew takes no node with it. One that
        Slurm has given up has not ended while ranks may run there: who hears that places them again."""
        name = self._cluster.settings.node_names[node_id]
        node = self._cluster.nodes.get(name)
        now_s = asyncio.get_running_loop().time()
        silence_s = now_s - self._cluster.heard_at_s
        run_ids = tuple(run.gang.request.run_id for run in runs)
        if node is None or (not node.lives and all(self._nothing_runs(run, name, now_s) for run in runs)):
            return NodeStatus(
                node_id, NodeState.EXITED, node.booted_at_s if node else 0, silence_s, run_ids, frozenset()
            )
        age_s = max(silence_s - self._cluster.settings.trust_s, 0.0)
        return NodeStatus(node_id, NodeState.RUNNING, node.booted_at_s, age_s, run_ids, node.indices_in_use)

    # --- starting a run --------------------------------------------------------------------------------------------

    async def _start(self, request: LaunchRequest) -> None:
        name = UnitName(request.job_id, request.unit_index, request.epoch)
        job = self._live_job(name)
        cause = self._obstacle(request, job)
        if cause is None:
            assert job is not None
            place = self._cluster.place_of(name, job)
            record = {
                "request": launch_record(request),
                "messages": self._messages(request),
                "agent_silence_s": self._settings.agent_silence_s,
            }
            try:
                await asyncio.to_thread(folder.write_json, place / folder.LAUNCH, record)
            except OSError as error:
                cause = Cause(FailureKind.NOT_STARTABLE, f"{place}: {error.strerror}")
            else:
                self._runs[request.run_id, request.epoch] = self._followed(request, name, job, place)
        if cause is not None:
            self._emit(self._failed(request, cause))

    def _live_job(self, name: UnitName) -> int | None:
        found = [
            job.number for job in self._cluster.jobs.values() if self._cluster.unit_of(job) == name and not job.ended
        ]
        return max(found, default=None)

    def _obstacle(self, request: LaunchRequest, job: int | None) -> Cause | None:
        cause = self._why_not_now()
        if cause is not None:
            return cause
        for placement in request.ranks:
            if placement.node_id not in self._cluster.settings.node_names:
                reason = f"no node {placement.node_id!r} in this domain"
                return Cause(FailureKind.NOT_STARTABLE, reason, placement.rank, placement.node_id)
        if job is None:
            return Cause(FailureKind.NODE_LOST, "Slurm does not hold nodes for this run any more")
        return None

    def _messages(self, request: LaunchRequest) -> dict[str, wire.Message]:
        """What each node starts, by Slurm's names; with the places of the ranks' devices among the run's on that node."""
        found = {}
        for node_id in dict.fromkeys(placement.node_id for placement in request.ranks):
            message = launch_message(self._settings, self._book.agent_mark, request, node_id)
            if message["argv"][0] == sys.executable:
                message["argv"][0] = self._cluster.settings.python
            here = {placement.rank: placement for placement in request.ranks if placement.node_id == node_id}
            devices = sorted({index for placement in here.values() for index in placement.accelerator_indices})
            for rank in message["ranks"]:
                rank["device_variable"] = self._settings.device_variables.get(node_id, "")
                rank["device_positions"] = [devices.index(i) for i in here[rank["rank"]].accelerator_indices]
            found[self._cluster.settings.node_names[node_id]] = message
        return found

    def _followed(self, request: LaunchRequest, name: UnitName, job: int, place: Path) -> FollowedRun:
        names = self._cluster.settings.node_names
        gang = Gang(request)
        nodes = {names.get(node_id, node_id): node_id for node_id in gang.node_ids}
        return FollowedRun(gang, name, job, place, nodes, asyncio.get_running_loop().time())

    async def _take_up(self, begun: BegunRun) -> None:
        """A run of the agent before: follow it on, or report that it is lost."""
        name = UnitName(begun.job_id, begun.unit_index, begun.epoch)
        places = (self._cluster.settings.shared_dir / self._cluster.folder_name(name)).glob(f"*/{folder.LAUNCH}")
        numbers = [int(path.parent.name) for path in places if path.parent.name.isdecimal()]
        record = None
        if numbers:
            record = folder.read_json(self._cluster.place_of(name, max(numbers)) / folder.LAUNCH)
        try:
            request = request_of(record["request"]) if record is not None else None
        except (KeyError, TypeError, MeridianError):
            request = None
        if request is None or request.run_id != begun.run_id:
            self._give_up(begun, name)
            return
        run = self._followed(request, name, max(numbers), self._cluster.place_of(name, max(numbers)))
        run.passed = {node: int(count) for node, count in (folder.read_json(run.place / folder.READ) or {}).items()}
        stopped = folder.read_json(run.place / folder.STOP)
        if stopped is not None:
            run.gang.stop(FailureKind(stopped["kind"]), stopped["reason"])
            run.stopping = True
            self._cancel_later(run, stopped["grace_s"])
        self._runs[run.key] = run
        _log.info("run %s goes on in Slurm's job %d", request.run_id, run.job)

    def _give_up(self, begun: BegunRun, name: UnitName) -> None:
        """End a run of which the order is not there, or cannot be read: then it may run for as long as Slurm holds its job."""
        cause = Cause(FailureKind.AGENT_RESTARTED, "the agent was restarted before it began")
        job = self._live_job(name)
        if job is None:
            self._emit(self._failed(begun, cause))
            return
        run = self._followed(stand_in(begun), name, job, self._cluster.place_of(name, job))
        run.gang.stop(cause.kind, cause.reason)
        run.stopping = True
        self._runs[run.key] = run
        self._cancel_later(run, -CANCEL_AFTER_S)

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _renew_lease(self) -> None:
        """Tell the steps that the agent lives and has contact: a heartbeat was taken since it was told last."""
        path = self._cluster.settings.shared_dir / folder.LEASE
        while True:
            if self._contacts != self._contacts_told and self._lease_held and not self._closing:
                self._contacts_told = self._contacts
                text = f"{self._book.agent_mark} {self._book.incarnation} {self._contacts}"
                try:
                    await asyncio.to_thread(folder.write_whole, path, text)
                except OSError as error:
                    _log.error("the lease cannot be renewed: %s", error)
            await asyncio.sleep(LEASE_EVERY_S)
