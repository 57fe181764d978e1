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
import contextlib
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.engines.base import (
    Delivery,
    FailureKind,
    LaunchRequest,
    NodeState,
    NodeStatus,
    RunFinished,
    RunStarted,
    RunState,
)
from agent.engines.launching import launch_message
from agent.engines.local.gang import Cause, Gang, RankEnd, Turn
from agent.engines.own_scheduler import UnitName
from agent.engines.recorded_runs import RecordedRuns, identity
from agent.engines.slurm import folder
from agent.engines.slurm.cluster import Cluster, SlurmSilentError
from agent.engines.slurm.following import FollowedRun, News, launch_record, request_of, stand_in, stop_record
from agent.engines.slurm.last_signs import nothing_runs, reaches, silence_limit_s
from agent.engines.slurm.verdict import cause_of, cause_of_silence
from agent.engines.slurm.words import QueuedJob
from agent.node import wire
from agent.run_book import BegunRun, RunBook
from meridian.clock import Clock
from meridian.errors import MeridianError

_log = logging.getLogger(__name__)

READ_EVERY_S = 0.2
LEASE_EVERY_S = 0.5
ENDING_POLL_S = 0.5
_AT_ONCE = frozenset({"hello", "started", "start_failed", "gone"})
LAST_WORDS_S = 2.0
"""After Slurm says that a job has ended, its files are read for so long before ranks that said nothing count as lost."""
END_PATIENCE_S = 60.0
"""A run whose ranks have all told their end is over after this, though Slurm still tidies up; so is, with a word about it, one that Slurm
has ended and that runs on."""
CANCEL_AFTER_S = 3.0
"""So long after the grace of a stop that is not carried out the job is cancelled in Slurm."""
CANCEL_AGAIN_S = 30.0
"""So often is a job cancelled once more that has not ended: longer than a call of Slurm's programs takes."""


@dataclass(frozen=True, slots=True)
class SlurmEngineSettings:
    """How the engine behaves; see `LocalEngineSettings` for what concerns programs. Times in seconds."""

    domain_id: str
    shared_dir: Path
    node_ids: tuple[str, ...]
    agent_silence_s: float = 6.0
    start_timeout_s: float = 60.0
    gang_grace_s: float = 1.0
    time_limit_grace_s: float = 5.0
    log_bytes: int = 16 * 1024 * 1024
    rank_nice: int = 0
    bound_address_space: bool = False
    device_variables: Mapping[str, str] = field(default_factory=dict)
    mps_nodes: frozenset[str] = frozenset()
    device_memory_bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def log_path(self, run_id: str, rank: int) -> Path:
        """The log file of a rank; it does not exist while the rank has printed nothing."""
        return self.shared_dir / "logs" / run_id / f"rank-{rank}.log"

    def own_work_dir(self, run_id: str) -> Path:
        """The working directory of a run that names none."""
        return self.shared_dir / "work" / run_id


class SlurmEngine(RecordedRuns[FollowedRun]):
    """See the module."""

    def __init__(self, settings: SlurmEngineSettings, cluster: Cluster, book: RunBook, clock: Clock) -> None:
        super().__init__(book, clock, settings.gang_grace_s)
        self._settings = settings
        self._cluster = cluster
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

    # --- ending a run ----------------------------------------------------------------------------------------------

    async def _stop_run(self, run: FollowedRun, cause: Cause, grace_s: float) -> None:
        if run.gang.stop(cause.kind, cause.reason).stop_the_rest:
            await self._order_stop(run, cause, grace_s)

    async def _order_stop(self, run: FollowedRun, cause: Cause, grace_s: float) -> None:
        run.stopping = True
        try:
            await asyncio.to_thread(folder.write_json, run.place / folder.STOP, stop_record(cause, grace_s))
        except OSError as error:
            _log.warning("run %s: %s; it is cancelled in Slurm", run.key[0], error)
            grace_s = -CANCEL_AFTER_S
        self._cancel_later(run, grace_s)

    def _cancel_later(self, run: FollowedRun, grace_s: float) -> None:
        self._spawn(self._cancel_after(run, max(grace_s + CANCEL_AFTER_S, 0.0)))

    async def _cancel_after(self, run: FollowedRun, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        while not run.ended.done():  # Slurm may be silent, and a step may not hear the agent
            run.cancelled = True
            await self._cluster.cancel(run.job)
            await asyncio.wait([run.ended], timeout=CANCEL_AGAIN_S)

    async def _turn(self, run: FollowedRun, turn: Turn, *, news: bool = True) -> None:
        if turn.started and news:
            self._emit(RunStarted(*identity(run.gang.request), self._clock.now(), run.gang.node_ids))
        if turn.stop_the_rest and not run.stopping:
            cause = run.gang.cause or Cause(FailureKind.STOPPED, "")
            await self._order_stop(run, cause, self._settings.gang_grace_s)
        if turn.ended:
            run.over_s = asyncio.get_running_loop().time()

    def _finish(self, run: FollowedRun) -> None:
        """Report the end: what Slurm did to the run stands above what its ranks said then."""
        del self._runs[run.key]
        request = run.gang.request
        job = self._cluster.jobs.get(run.job)
        cause = run.gang.cause
        # A program may answer Slurm's SIGTERM with any exit code, 0 too.
        theirs_counts = cause is None or run.gone or cause.kind in {FailureKind.PROGRAM, FailureKind.NODE_LOST}
        if not run.cancelled and theirs_counts:
            theirs = cause_of(run.job, job, request.limits.max_run_time_s)
            if theirs is not None:
                ranks = (cause.rank, cause.node_id, cause.exit_code, cause.signal, cause.log_tail) if cause else ()
                cause = Cause(theirs.kind, theirs.reason, *ranks)
        if cause is not None and run.unended:
            where = ", ".join(run.unended)
            cause = replace(
                cause,
                reason=f"{cause.reason}; ranks on {where} may run on: the step there answers and did not end them",
            )
        self._emit(
            RunFinished(*identity(request), self._clock.now()) if cause is None else self._failed(request, cause)
        )
        run.ended.set_result(None)
        self._spawn(self._tidy_after(run))

    async def _tidy_after(self, run: FollowedRun) -> None:
        """The folder is what the next agent would know the run by, so it goes after the end is on the disk."""
        await self._book.durable()
        await asyncio.to_thread(self._tidy, run)

    def _tidy(self, run: FollowedRun) -> None:
        shutil.rmtree(run.place, ignore_errors=True)
        (run.place.parent / f"out.{run.job}.txt").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another job of the unit has its folder there
            run.place.parent.rmdir()
        if not run.gang.request.working_dir:
            with contextlib.suppress(OSError):  # it holds what the run left there
                self._settings.own_work_dir(run.gang.request.run_id).rmdir()

    # --- following -------------------------------------------------------------------------------------------------

    async def _ask_slurm(self) -> None:
        """Keep the view of Slurm new; more often while a run waits for Slurm's last word."""
        poll_s = self._cluster.settings.poll_s
        loop = asyncio.get_running_loop()
        due_s = loop.time() + poll_s
        while True:
            ending = any(run.over_s is not None for run in self._runs.values())
            await asyncio.sleep(min(ENDING_POLL_S, poll_s) if ending else max(due_s - loop.time(), 0.0))
            try:
                if loop.time() >= due_s:
                    due_s = loop.time() + poll_s
                    await self._cluster.look()
                else:
                    await self._cluster.look_at_jobs()
            except SlurmSilentError as error:
                _log.warning("%s", error.detail)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            runs = list(self._runs.values())
            if not runs:
                continue
            found = await asyncio.to_thread(_read, runs)
            for run, news in zip(runs, found, strict=True):
                await self._hear(run, news)
                await self._judge(run, news)
            unsaved = [run for run in runs if run.unsaved and not run.held and not run.ended.done()]
            if unsaved:
                await self._book.durable()
                await asyncio.to_thread(_save, unsaved)

    async def _hear(self, run: FollowedRun, news: News) -> None:
        for node, data in news.events.items():
            try:
                messages = run.messages(node, data)
            except wire.WireError as error:
                _log.error("run %s: %s.events is damaged (%s); it is cancelled", run.key[0], node, error)
                await self._cluster.cancel(run.job)
                continue
            for message, is_new in messages:
                if message["ev"] in _AT_ONCE:
                    await self._heard(run, node, message, news=is_new)
                else:
                    run.held.append((node, message, is_new))
        # What ranks say comes after the word that all of them run, unless one has ended before that.
        early = any(message["ev"] == "exited" and message["code"] != 0 for _, message, _ in run.held)
        if run.gang.state is not RunState.STARTING or early:
            held, run.held = run.held, []
            for node, message, is_new in held:
                await self._heard(run, node, message, news=is_new)

    async def _heard(self, run: FollowedRun, node: str, message: wire.Message, *, news: bool) -> None:
        kind, gang = message["ev"], run.gang
        if kind == "progress" and news:
            self._stream.put_progress(self._progress(gang.request, message))
        elif kind == "checkpoint" and news:
            self._emit(self._checkpoint(gang.request, message))
        elif kind == "started":
            await self._turn(run, gang.rank_started(message["rank"]), news=news)
        elif kind == "start_failed":
            await self._turn(run, gang.rank_not_started(message["rank"], message["error"]))
        elif kind == "gone":
            run.gone = True
            reason = f"the ranks on {run.node_ids[node]} were ended: no sign of the agent for {self._settings.agent_silence_s:g} s"
            gang.stop(FailureKind.LEASE_EXPIRED, reason)
            await self._turn(run, gang.node_lost(run.node_ids[node], reason))
        elif kind == "exited":
            end = RankEnd(message["rank"], message["code"], message["signal"], message["why"], message["tail"])
            if news:
                self.malformed_count += message["malformed_count"]
                self._stream.put(Delivery(None, self._rank_exited(gang, end, message)), None)
            await self._turn(run, gang.rank_ended(end))

    async def _judge(self, run: FollowedRun, news: News) -> None:
        """Whether a run is over: by its ranks and Slurm, by Slurm alone, or by a node that is silent for too long."""
        now_s = asyncio.get_running_loop().time()
        job = self._cluster.jobs.get(run.job)
        asked_since = self._cluster.jobs_at_s > run.began_s
        slurm_over = (job is not None and job.ended) or (job is None and asked_since)
        if run.over_s is not None:
            forgotten = job is None and self._cluster.jobs_at_s > run.over_s
            if (job is not None and job.ended) or forgotten or now_s - run.over_s > END_PATIENCE_S:
                self._finish(run)
            return
        if slurm_over:
            run.slurm_over_s = run.slurm_over_s or now_s
            for node, beat in news.beats.items():
                run.silent_since_s(node, beat, now_s)
            if now_s - run.slurm_over_s > LAST_WORDS_S:
                await self._end_with_slurm(run, job, now_s)
            return
        await self._judge_silence(run, news, now_s)

    async def _judge_silence(self, run: FollowedRun, news: News, now_s: float) -> None:
        """A node whose step is silent for longer than its ranks live without it has none of them left."""
        for node, node_id in run.node_ids.items():
            since_s = run.silent_since_s(node, news.beats[node], now_s)
            limit_s = self._silence_limit_s if news.beats[node] else self._settings.start_timeout_s
            if now_s - since_s <= limit_s or node_id not in run.gang.live_nodes():
                continue
            if news.beats[node]:
                await self._turn(run, run.gang.node_lost(node_id, f"the step on {node_id} is silent for {limit_s:g} s"))
            elif not run.cancelled:
                said = folder.text_of(run.place.parent / f"out.{run.job}.txt")[-2000:].strip()
                run.gang.stop(FailureKind.NOT_STARTABLE, f"no step began on {node_id} within {limit_s:g} s: {said}")
                run.cancelled = run.stopping = True
                self._cancel_later(run, -CANCEL_AFTER_S)

    async def _end_with_slurm(self, run: FollowedRun, job: QueuedJob | None, now_s: float) -> None:
        """Slurm has ended the job: what runs on where it reaches nothing is told to end, and waited for."""
        assert run.slurm_over_s is not None
        said = folder.text_of(run.place.parent / f"out.{run.job}.txt")[-2000:].strip()
        cause = cause_of(run.job, job, run.gang.request.limits.max_run_time_s)
        cause = cause or cause_of_silence(run.job, job, said, began=bool(run.seen))
        run.gang.stop(cause.kind, cause.reason)
        run.stopping = True
        if not run.hastened:
            run.hastened = True
            with contextlib.suppress(OSError):  # then its silence says it
                await asyncio.to_thread(
                    folder.write_json, run.place / folder.STOP, stop_record(run.gang.cause or cause, 0)
                )
        overdue = now_s - run.slurm_over_s > self._silence_limit_s + END_PATIENCE_S
        for node, node_id in run.node_ids.items():
            if node_id not in run.gang.live_nodes():
                continue
            ended = self._nothing_runs(run, node, now_s)
            if ended or overdue:
                run.unended += () if ended else (node_id,)
                await self._turn(run, run.gang.node_lost(node_id, cause.reason))

    @property
    def _silence_limit_s(self) -> float:
        return silence_limit_s(self._settings.agent_silence_s)

    def _nothing_runs(self, run: FollowedRun, node: str, now_s: float) -> bool:
        """Whether no rank of a run is left on a node (Slurm's name), though none has told its end."""
        job = self._cluster.jobs.get(run.job)
        over_s = run.slurm_over_s
        asked_since = over_s is not None and self._cluster.heard_at_s > over_s
        confirmed = job is not None and job.ended and asked_since and reaches(self._cluster.nodes.get(node))
        return nothing_runs(run.sign_of(node, now_s, confirmed=confirmed), self._silence_limit_s)

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


def _read(runs: list[FollowedRun]) -> list[News]:
    return [run.read() for run in runs]


def _save(runs: list[FollowedRun]) -> None:
    for run in runs:
        with contextlib.suppress(OSError):  # the run has just ended, or events are passed on twice after a crash
            run.save()
