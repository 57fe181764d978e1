"""One supervised process: the task that starts it, watches it and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psutil

from meridian.embedded import leftovers, log_files
from meridian.embedded.process import ProcessSpec, Restart, log_tail
from meridian.embedded.state import Failure, ProcessRecord, ProcessState
from meridian.errors import MeridianError

PROBE_INTERVAL_S = 0.05
LOG_CHECK_S = 2.0


class StackStartError(MeridianError):
    """A process of the stack did not become ready; everything that had been started is stopped again."""

    code = "STACK_START_FAILED"
    status = 503
    title = "The stack did not start"

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.process}: {failure.reason}\n{failure.log_tail}".rstrip())
        self.failure = failure


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long to wait before a restart, and how many failures in a row a first start may have."""

    first_s: float = 0.1
    limit_s: float = 10.0
    stable_s: float = 10.0
    start_attempts: int = 4

    def delay_s(self, failures: int) -> float:
        """The wait after the ``failures``-th failure in a row (1, 2, ...)."""
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, 30))

    def failures_after(self, failures: int, ready_for_s: float) -> int:
        """The new count of failures in a row, when a process ended after it had been ready for ``ready_for_s`` seconds."""
        return 1 if ready_for_s >= self.stable_s else failures + 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How one life of a process ended. ``final`` means that another try would not help."""

    reason: str
    ready_for_s: float = 0.0
    done: bool = False
    final: bool = False


class Child:
    """Keeps one process alive from ``launch`` to ``stop``; ``ready`` is done when it is ready for the first time.

    A restart ends what remains of the process's own session. Descendants in sessions of their own (the jobs of an agent)
    live on, so that the new process can take them over; only ``stop`` ends them too.
    """

    def __init__(self, spec: ProcessSpec, stack_id: str, back_off: BackOff, changed: Callable[[], None]) -> None:
        self.spec = replace(spec, env={**spec.env, leftovers.MARK: stack_id})
        self.record = ProcessRecord(spec.name, ProcessState.WAITING, str(spec.log_path))
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._stack_id = stack_id
        self._back_off = back_off
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._shortening: asyncio.Task[None] | None = None
        self._log_start_bytes = 0
        """Where the log of this life begins."""
        self._log_trouble = ""
        self._log_lock = asyncio.Lock()

    def launch(self, needed: Sequence[asyncio.Future[None]]) -> None:
        """Start as soon as all of ``needed`` are done, and never if one of them fails."""
        self._keeping = asyncio.create_task(self._keep(needed), name=f"keep {self.spec.name}")
        self._shortening = asyncio.create_task(self._keep_log_short(), name=f"shorten the log of {self.spec.name}")

    async def stop(self) -> None:
        """Ask the process to end; kill it and all that descends from it when it has not after ``stop_timeout_s``."""
        for task in (self._keeping, self._shortening):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        process = self._process
        if process is not None and process.returncode is None:
            descendants = leftovers.descendants(process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.spec.stop_signal)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self.spec.stop_timeout_s)
            await self._kill(descendants)
        if self.record.state not in {ProcessState.DONE, ProcessState.EXITED}:
            self._note(ProcessState.STOPPED)

    async def _keep(self, needed: Sequence[asyncio.Future[None]]) -> None:
        if needed:
            await asyncio.wait(needed)
            if any(future.cancelled() or future.exception() for future in needed):
                return
        failures = 0
        while True:
            await self._shorten_log()
            self._log_start_bytes = log_files.size_bytes(self.spec.log_path)
            ending = await self._live_once()
            if ending.done:
                self._note(ProcessState.DONE, last_exit=ending.reason)
                self._now_ready()
                return
            failures = self._back_off.failures_after(failures, ending.ready_for_s)
            never = self.spec.restart is Restart.NEVER
            if not self.ready.done() and (never or ending.final or failures >= self._back_off.start_attempts):
                self._note(ProcessState.EXITED, last_exit=ending.reason)
                tail = log_tail(self.spec.log_path, from_byte=self._log_start_bytes)
                self.ready.set_exception(StackStartError(Failure(self.spec.name, ending.reason, tail)))
                return
            if never:
                self._note(ProcessState.EXITED, last_exit=ending.reason)
                return
            self._note(ProcessState.BACK_OFF, last_exit=ending.reason, ready_at=None)
            await asyncio.sleep(self._back_off.delay_s(failures))
            self.record = replace(self.record, restarts=self.record.restarts + 1)

    async def _live_once(self) -> Ending:
        """Start the process and wait for its end."""
        spec = self.spec
        self._note(ProcessState.STARTING, pid=None, create_time=None, started_at=_now(), ready_at=None)
        try:
            if spec.before_start is not None:
                await spec.before_start()
            process = await self._spawn()
        except (MeridianError, OSError, subprocess.SubprocessError) as error:
            return Ending(f"could not be started: {error}")
        ended = asyncio.create_task(process.wait())
        answered = asyncio.create_task(self._until_ready())
        try:
            watched = {ended} if spec.one_shot else {ended, answered}
            await asyncio.wait(watched, timeout=spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not answered.done():
                await self._kill()
                return Ending(f"not ready after {spec.ready_timeout_s:g} s", final=True)
            ready_since_s = time.monotonic()
            if not ended.done():
                self._note(ProcessState.READY, ready_at=_now())
                self._now_ready()
            code = await ended
        finally:
            ended.cancel()
            answered.cancel()
        await self._kill()
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Ending(reason, ready_for_s=time.monotonic() - ready_since_s, done=spec.one_shot and code == 0)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with log_files.open_log(self.spec.log_path) as log:
            process = await asyncio.create_subprocess_exec(
                *self.spec.argv, stdout=log, stderr=log, **self.spec.popen_arguments()
            )
        self._process = process
        with contextlib.suppress(psutil.NoSuchProcess):
            self._note(ProcessState.STARTING, pid=process.pid, create_time=psutil.Process(process.pid).create_time())
        return process

    async def _keep_log_short(self) -> None:
        """Also while the process is away: what it left behind may write on."""
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            await self._shorten_log()

    async def _shorten_log(self) -> None:
        path, trouble = self.spec.log_path, ""
        try:
            async with self._log_lock:
                if log_files.size_bytes(path) > self.spec.log_limit_bytes:
                    gone_bytes = await asyncio.to_thread(log_files.shorten, path, self.spec.log_limit_bytes)
                    self._log_start_bytes = max(0, self._log_start_bytes - gone_bytes)
        except OSError as error:
            trouble = f"{path} could not be shortened: {error}"
        if trouble and trouble != self._log_trouble:
            print(trouble, file=sys.stderr, flush=True)
        self._log_trouble = trouble

    async def _until_ready(self) -> None:
        if self.spec.one_shot:
            await asyncio.Event().wait()
        while self.spec.ready is not None and not await self.spec.ready():  # noqa: ASYNC110 - asks another process
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def _kill(self, descendants: Sequence[psutil.Process] = ()) -> None:
        """End what still runs of ``descendants``, of the process and of its session."""
        process = self._process
        if process is None:
            return
        found = [*descendants]
        if process.returncode is None:
            found += leftovers.descendants(process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        found += await asyncio.to_thread(leftovers.session, process.pid, self._stack_id)
        await asyncio.to_thread(leftovers.end, found, grace_s=0.0)

    def _now_ready(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def _note(self, state: ProcessState, **changes: object) -> None:
        self.record = replace(self.record, state=state, **changes)  # type: ignore[arg-type]
        self._changed()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
