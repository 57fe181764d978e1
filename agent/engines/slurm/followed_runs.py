"""Runs in allocations of Slurm, followed: what their steps write down is heard, their end is judged, told, and tidied up after.

`last_signs` and `verdict` say when nothing of a run is left and how it ended; this asks and tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from dataclasses import replace

from agent.engines.base import Delivery, FailureKind, RunFinished, RunStarted, RunState
from agent.engines.local.gang import Cause, RankEnd, Turn
from agent.engines.recorded_runs import RecordedRuns, identity
from agent.engines.run_records import stop_record
from agent.engines.slurm import folder
from agent.engines.slurm.cluster import Cluster, SlurmSilentError
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.engines.slurm.following import FollowedRun, News
from agent.engines.slurm.last_signs import nothing_runs, reaches, silence_limit_s
from agent.engines.slurm.verdict import cause_of, cause_of_silence
from agent.engines.slurm.words import QueuedJob
from agent.node import wire
from agent.run_book import RunBook
from meridian.clock import Clock

_log = logging.getLogger(__name__)

READ_EVERY_S = 0.2
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


class FollowedRuns(RecordedRuns[FollowedRun]):
    """See the module. Who starts runs puts them in, and spawns `_ask_slurm` and `_follow`."""

    def __init__(self, settings: SlurmEngineSettings, cluster: Cluster, book: RunBook, clock: Clock) -> None:
        super().__init__(book, clock, settings.gang_grace_s)
        self._settings = settings
        self._cluster = cluster

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
            spoke = run.sign_of(node, now_s, confirmed=False).heard
            limit_s = self._silence_limit_s if spoke else self._settings.start_timeout_s
            if now_s - since_s <= limit_s or node_id not in run.gang.live_nodes():
                continue
            if spoke:
                await self._turn(run, run.gang.node_lost(node_id, f"the step on {node_id} is silent for {limit_s:g} s"))
            elif not run.cancelled:
                said = folder.text_of(run.place.parent / f"out.{run.job}.txt")[-2000:].strip()
                run.gang.stop(FailureKind.NOT_STARTABLE, f"no step began on {node_id} within {limit_s:g} s: {said}")
                run.cancelled = run.stopping = True
                self._cancel_later(run, -CANCEL_AFTER_S)

    async def _end_with_slurm(self, run: FollowedRun, job: QueuedJob | None, now_s: float) -> None:
        """Slurm has ended the job: what runs on where it reaches nothing is told to end, and waited for."""
        assert run.slurm_over_s is not None
        cause = run.slurm_cause
        if cause is None:
            out = await asyncio.to_thread(folder.text_of, run.place.parent / f"out.{run.job}.txt")
            cause = cause_of(run.job, job, run.gang.request.limits.max_run_time_s)
            cause = cause or cause_of_silence(run.job, job, out[-2000:].strip(), began=bool(run.seen))
            run.slurm_cause = cause
            run.gang.stop(cause.kind, cause.reason)
            run.stopping = True
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


def _read(runs: list[FollowedRun]) -> list[News]:
    return [run.read() for run in runs]


def _save(runs: list[FollowedRun]) -> None:
    for run in runs:
        with contextlib.suppress(OSError):  # the run has just ended, or events are passed on twice after a crash
            run.save()
