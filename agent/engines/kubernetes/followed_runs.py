"""Runs in pods, followed: what pods and logs say is heard, their end is judged and told, and tidied up after.

A run's end is told when no pod of its Job is left: who hears it places the unit again. Only of a node that Kubernetes does not hear
nothing is known, and nothing can be ended there before it is heard again: a pod on it counts as gone ``lost_patience_s`` after it was
told to end, with a word about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from agent.engines.base import Delivery, FailureKind, RunFinished, RunStarted, RunState
from agent.engines.kubernetes.api import KubernetesRefusedError, KubernetesSilentError
from agent.engines.kubernetes.cluster import Cluster
from agent.engines.kubernetes.engine_settings import KubernetesEngineSettings
from agent.engines.kubernetes.following import READ, PodRun, write_launch, write_stop
from agent.engines.kubernetes.pod_log import PodLog, follow
from agent.engines.kubernetes.verdict import cause_of, never_began, not_startable, rank_end, taken_away
from agent.engines.kubernetes.words import Pod
from agent.engines.local.gang import Cause, Turn
from agent.engines.recorded_runs import RecordedRuns, identity
from agent.engines.slurm import folder
from agent.node.rank_log import RankLog
from agent.node.rank_output import Report
from agent.run_book import RunBook
from meridian.clock import Clock

_log = logging.getLogger(__name__)

LOOK_EVERY_S, LEAST_TURN_S = 0.5, 0.05
LOG_PATIENCE_S = 5.0
"""So long after a container's end the rest of its log is waited for."""
LOG_AGAIN_S, LOG_SILENT_S = 0.5, 2.0
DELETE_AFTER_S = 3.0
"""So long after the grace of a stop the Job itself is deleted."""
DELETE_AGAIN_S = 10.0


class FollowedPods(RecordedRuns[PodRun]):
    """See the module. Who starts runs puts them in, and spawns `_follow_all`."""

    def __init__(self, settings: KubernetesEngineSettings, cluster: Cluster, book: RunBook, clock: Clock) -> None:
        super().__init__(book, clock, settings.gang_grace_s)
        self._settings = settings
        self._cluster = cluster
        # Where programs keep checkpoints is gone with their pods.
        self._keeps_checkpoints = cluster.settings.site.volume is not None

    # --- ending a run ----------------------------------------------------------------------------------------------

    async def _stop_run(self, run: PodRun, cause: Cause, grace_s: float) -> None:
        if run.gang.stop(cause.kind, cause.reason).stop_the_rest:
            await self._order_stop(run, run.gang.cause or cause, grace_s)

    async def _order_stop(self, run: PodRun, cause: Cause, grace_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        due_s = now_s + grace_s + DELETE_AFTER_S
        run.stop_s = due_s if run.stop_s is None else min(run.stop_s, due_s)
        run.stopping = True
        with contextlib.suppress(OSError):  # then the next agent does not know why
            await asyncio.to_thread(write_stop, run.record, cause, grace_s)
        try:
            await self._cluster.end_pods(run.job, math.ceil(max(grace_s, 0.0)))
        except (KubernetesSilentError, KubernetesRefusedError) as error:
            _log.warning("run %s: %s; its Job is deleted", run.key[0], error)
            run.stop_s = now_s

    async def _delete_when_due(self, run: PodRun, now_s: float) -> None:
        """Delete the Job when a stop is not carried out by its pods, or nothing is left to wait for; again until it is gone."""
        over = run.gang.state is RunState.ENDED
        if not over and (run.stop_s is None or now_s < run.stop_s):
            return
        if run.deleted_s is not None and now_s - run.deleted_s < DELETE_AGAIN_S:
            return
        run.deleted_s = now_s
        try:
            await self._cluster.delete_job(run.job)
        except (KubernetesSilentError, KubernetesRefusedError) as error:
            _log.warning("run %s: %s", run.key[0], error)

    async def _turn(self, run: PodRun, turn: Turn) -> None:
        if turn.started and not run.known_started:
            run.known_started = True
            self._emit(RunStarted(*identity(run.gang.request), self._clock.now(), run.gang.node_ids))
            with contextlib.suppress(OSError):  # then it is told twice after a crash
                await asyncio.to_thread(write_launch, run.record, run.gang.request, started=True)
        if turn.stop_the_rest and not run.stopping:
            await self._order_stop(run, run.gang.cause or Cause(FailureKind.STOPPED, ""), self._settings.gang_grace_s)

    def _finish(self, run: PodRun) -> None:
        """Report the end."""
        del self._runs[run.key]
        request, cause = run.gang.request, run.gang.cause
        for follower in run.followers.values():
            follower.cancel()
        if cause is not None and run.lost and cause.kind is FailureKind.PROGRAM:
            # A program that loses its peers fails for that.
            cause = replace(cause, kind=FailureKind.NODE_LOST, reason=f"{run.lost}; {cause.reason}")
        if cause is not None and run.unended:
            where = ", ".join(run.unended)
            cause = replace(
                cause, reason=f"{cause.reason}; ranks on {where} may run on: Kubernetes does not hear the node"
            )
        self._emit(
            RunFinished(*identity(request), self._clock.now()) if cause is None else self._failed(request, cause)
        )
        run.ended.set_result(None)
        self._run_is_over(run)
        self._spawn(self._tidy_after(run))

    def _run_is_over(self, run: PodRun) -> None:
        """Nothing of a run is left."""

    async def _tidy_after(self, run: PodRun) -> None:
        """The record is what the next agent would know the run by, so it goes after the end is on the disk."""
        await self._book.durable()
        await asyncio.to_thread(shutil.rmtree, run.record, ignore_errors=True)
        if not run.gang.request.working_dir:
            with contextlib.suppress(OSError):  # it holds what the run left there, or pods alone see it
                self._settings.own_work_dir(run.gang.request.run_id).rmdir()

    # --- following -------------------------------------------------------------------------------------------------

    async def _follow_all(self) -> None:
        while True:
            since = self._cluster.version
            for run in list(self._runs.values()):
                await self._look_at(run)
            unsaved = [run for run in self._runs.values() if run.unsaved]
            # Events up to these positions are in the book now; later ones need not be on the disk when these are.
            positions = {run.record / READ: run.positions() for run in unsaved}
            for run in unsaved:
                run.unsaved = False
            if unsaved:
                await self._book.durable()
                await asyncio.to_thread(_save, positions)
            await asyncio.sleep(LEAST_TURN_S)
            await self._cluster.changed(since, LOOK_EVERY_S)

    async def _look_at(self, run: PodRun) -> None:
        now_s = asyncio.get_running_loop().time()
        pods = self._cluster.pods_of(run.job)
        ranks = run.ranks()
        known = [*self._cluster.departed(run.job), *pods]
        by_rank = {ranks[pod.rank]: pod for pod in known if pod.rank in ranks}
        for rank, pod in sorted(by_rank.items()):
            await self._look_at_rank(run, rank, pod, now_s)
        await self._look_at_job(run, by_rank)
        await self._keep_time_limit(run, by_rank)
        await self._give_up_unheard(run, by_rank, now_s)
        await self._delete_when_due(run, now_s)
        if run.gang.state is RunState.ENDED and run.stop_s is None:
            run.stop_s = now_s
        if run.gang.state is RunState.ENDED and self._nothing_left(run, pods, now_s):
            self._finish(run)

    async def _look_at_rank(self, run: PodRun, rank: int, pod: Pod, now_s: float) -> None:
        if rank in run.told:
            return
        if (pod.runs or pod.end is not None) and rank not in run.begun and not never_began(pod):
            run.begun.add(rank)
            run.followers[rank] = asyncio.get_running_loop().create_task(self._read_log(run, rank, pod))
            await self._turn(run, run.gang.rank_started(rank))
        if away := taken_away(pod):
            run.lost = run.lost or f"Kubernetes took a pod from {run.gang.node_of(rank)}: {away}"
            # Its program may have answered SIGTERM with any exit code.
            if run.gang.cause is None or not run.stopping:
                node_id = run.gang.node_of(rank)
                run.told |= {other for other in run.numbers if run.gang.node_of(other) == node_id}
                await self._turn(run, run.gang.node_lost(node_id, run.lost))
                return
            if pod.end is None and pod.phase == "Failed":
                run.told.add(rank)
                await self._turn(run, run.gang.rank_not_started(rank, away))
                return
        if pod.end is not None:
            await self._hear_end(run, rank, pod, now_s)
        elif pod.phase == "Failed":
            run.told.add(rank)
            await self._turn(run, run.gang.rank_not_started(rank, "the pod failed and its container tells nothing"))
        elif run.ordered_s is not None and not pod.runs and not run.stopping:
            limits = self._settings.image_patience_s, self._settings.start_timeout_s
            wrong = not_startable(
                pod, waited_s=now_s - run.ordered_s, image_patience_s=limits[0], start_timeout_s=limits[1]
            )
            if wrong:
                await self._stop_run(run, Cause(FailureKind.NOT_STARTABLE, wrong, rank, run.gang.node_of(rank)), 0)

    async def _hear_end(self, run: PodRun, rank: int, pod: Pod, now_s: float) -> None:
        """A container has ended; what it printed comes first."""
        assert pod.end is not None
        follower = run.followers.get(rank)
        since_s = run.ended_s.setdefault(rank, now_s)
        if follower is not None and not follower.done() and now_s - since_s < LOG_PATIENCE_S:
            return
        if follower is not None:
            follower.cancel()
        run.told.add(rank)
        if wrong := never_began(pod):
            await self._turn(run, run.gang.rank_not_started(rank, wrong))
            return
        log = run.logs.get(rank)
        end = rank_end(pod, rank, log.log.tail() if log is not None else "", stopped=run.stopping)
        wall_s = (
            (pod.end.finished_at - pod.end.started_at).total_seconds()
            if pod.end.finished_at and pod.end.started_at
            else 0.0
        )
        malformed = log.scanner.malformed_count if log is not None else 0
        self.malformed_count += malformed
        # Processor time and memory of a container that has ended are told by nobody.
        message = {"wall_s": wall_s, "cpu_s": 0.0, "max_resident_bytes": 0, "malformed_count": malformed}
        self._stream.put(Delivery(None, self._rank_exited(run.gang, end, message)), None)
        await self._turn(run, run.gang.rank_ended(end))

    async def _look_at_job(self, run: PodRun, by_rank: dict[int, Pod]) -> None:
        """What happened to the Job as a whole, and to pods that are not there any more."""
        job = self._cluster.job(run.job)
        if run.gang.state is RunState.ENDED:
            return
        cause = None if run.deleted_s is not None else cause_of(job, self._settings.agent_silence_s)
        if cause is not None and cause.kind is FailureKind.LEASE_EXPIRED:
            await self._stop_run(run, cause, 0)
        elif cause is not None:
            await self._stop_run(run, cause, self._settings.gang_grace_s)
        over = job is None or job.ended
        for rank in run.numbers:
            # A pod that was taken and is gone (deleted by somebody, its node removed) tells nothing any more.
            if rank not in run.told and rank not in by_rank and (over or rank in run.begun):
                run.told.add(rank)
                node_id = run.gang.node_of(rank)
                await self._turn(
                    run,
                    run.gang.rank_not_started(rank, f"its pod on {node_id} is gone")
                    if run.stopping
                    else run.gang.node_lost(node_id, f"a pod on {node_id} was deleted in Kubernetes"),
                )

    async def _keep_time_limit(self, run: PodRun, by_rank: dict[int, Pod]) -> None:
        limit_s = run.gang.request.limits.max_run_time_s
        if not limit_s or run.stopping:
            return
        began: list[datetime] = [pod.started_at for pod in by_rank.values() if pod.started_at is not None]
        if began and (self._cluster.api.now() - min(began)).total_seconds() > limit_s:
            reason = f"the run took longer than {limit_s:g} s"
            await self._stop_run(run, Cause(FailureKind.TIME_LIMIT, reason), self._settings.time_limit_grace_s)

    async def _give_up_unheard(self, run: PodRun, by_rank: dict[int, Pod], now_s: float) -> None:
        """Ranks on nodes that are not heard have had their time to end: nobody will tell how they did."""
        if run.stop_s is None or now_s - run.stop_s < self._settings.lost_patience_s:
            return
        for rank, pod in sorted(by_rank.items()):
            if rank not in run.told and pod.end is None and not self._is_heard(pod):
                node_id = run.gang.node_of(rank)
                run.told |= {other for other in run.numbers if run.gang.node_of(other) == node_id}
                run.lost = run.lost or f"Kubernetes does not hear {node_id}"
                await self._turn(run, run.gang.node_lost(node_id, run.lost))

    def _is_heard(self, pod: Pod) -> bool:
        node = self._cluster.node_called(pod.node)
        return node is not None and node.ready

    def _nothing_left(self, run: PodRun, pods: list[Pod], now_s: float) -> bool:
        """Whether no pod is left that may run on a node that is heard, and those on others have had their time."""
        left = [pod for pod in pods if pod.phase not in {"Succeeded", "Failed"}]
        if not left:
            return self._cluster.job(run.job) is None
        patience_s = self._settings.lost_patience_s
        if any(map(self._is_heard, left)) or run.stop_s is None or now_s - run.stop_s < patience_s:
            return False
        run.unended = tuple(sorted({self._cluster.node_id(pod.node) or pod.node for pod in left}))
        return True

    # --- logs ------------------------------------------------------------------------------------------------------

    async def _read_log(self, run: PodRun, rank: int, pod: Pod) -> None:
        request = run.gang.request
        path = self._settings.log_path(request.run_id, rank)
        known = run.logs.get(rank)
        if known is None:
            positions = await asyncio.to_thread(folder.read_json, run.record / READ) or {}
            position, size = positions.get(str(rank), ("", 0))
            log = RankLog(str(path), self._settings.log_bytes)
            with contextlib.suppress(OSError):  # it has printed nothing
                # What was written after that is read again.
                await asyncio.to_thread(os.truncate, path, min(size, path.stat().st_size))
                log.written_bytes = path.stat().st_size
            known = run.logs[rank] = PodLog(self._cluster.pod_log_path(pod.name), log, position)
        while True:
            try:
                async for reports in follow(self._cluster.api, known):
                    run.unsaved = True
                    self._pass_on(run, rank, reports)
                if rank in run.ended_s:
                    break
            except (KubernetesRefusedError, KubernetesSilentError) as error:
                _log.info("log of run %s, rank %d: %s", request.run_id, rank, error)
                await asyncio.sleep(LOG_SILENT_S)
                if rank in run.ended_s and isinstance(error, KubernetesRefusedError):
                    break
            await asyncio.sleep(LOG_AGAIN_S)
        self._pass_on(run, rank, known.finish())

    def _pass_on(self, run: PodRun, rank: int, reports: list[Report]) -> None:
        for report in reports:
            body = {"rank": rank, **report.body}
            if report.kind == "progress":
                self._stream.put_progress(self._progress(run.gang.request, body))
            elif self._keeps_checkpoints:
                self._emit(self._checkpoint(run.gang.request, {**body, "size_bytes": _size_of(body["path"])}))


def _size_of(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def _save(positions: Mapping[Path, Mapping[str, tuple[str, int]]]) -> None:
    for path, known in positions.items():
        with contextlib.suppress(OSError):  # the run has just ended, or events are passed on twice after a crash
            folder.write_json(path, known)
