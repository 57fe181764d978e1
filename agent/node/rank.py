"""One rank: a process in its own process group, with its pipes, log, limits and the way it is ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from typing import Any

from agent.node import proc
from agent.node.rank_log import RankLog
from agent.node.rank_output import OutputScanner, Report

MEMORY_CHECK_S = 0.5
OPEN_FILES = 65536
CHECKPOINT_BURST = 64
"""So many checkpoints of a rank are passed on at once, however fast it reports them."""

WHY_EXITED = "exited"
WHY_TIME_LIMIT = "time_limit"
WHY_OUT_OF_MEMORY = "out_of_memory"
WHY_STOPPED = "stopped"

Key = tuple[str, int, int]
"""(run id, epoch, rank)"""


class Limits:
    """What a rank may use. ``memory_bytes`` bounds its resident memory and that of its descendants; 0: no bound."""

    __slots__ = ("address_space_bytes", "grace_s", "log_bytes", "max_run_time_s", "memory_bytes", "nice")

    def __init__(self, message: dict[str, Any]) -> None:
        self.memory_bytes = int(message.get("memory_bytes", 0))
        self.address_space_bytes = int(message.get("address_space_bytes", 0))
        self.max_run_time_s = float(message.get("max_run_time_s", 0))
        self.grace_s = float(message.get("grace_s", 5))
        self.log_bytes = int(message.get("log_bytes", 16 * 1024 * 1024))
        self.nice = int(message.get("nice", 0))


class Rank:
    """A started rank. Every time is the node's monotonic clock, in seconds, handed in by the caller.

    :raises OSError: from the constructor, when the command cannot be started.
    """

    def __init__(
        self, key: Key, *, argv: list[str], env: dict[str, str], cwd: str, log_path: str, limits: Limits, now: float
    ) -> None:
        self.key = key
        self.limits = limits
        self.process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            bufsize=0,
        )
        self.pid = self.process.pid
        self.started_at = now
        self.log = RankLog(log_path, limits.log_bytes)
        self.scanner = OutputScanner()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout = self.process.stdout.fileno()
        self.stderr = self.process.stderr.fileno()
        self.open_pipes = {self.stdout, self.stderr}
        for pipe in self.open_pipes:
            os.set_blocking(pipe, False)
        self.why = WHY_EXITED
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self.exited_at: float | None = None
        self.newest_progress: dict[str, Any] | None = None
        self.progress_sent_at = float("-inf")
        self.newest_checkpoint: dict[str, Any] | None = None
        self.checkpoints_left = float(CHECKPOINT_BURST)
        self.checkpoints_earned_at = now
        self._kill_at: float | None = None
        self._memory_check_at = now + MEMORY_CHECK_S
        self._apply_limits()

    def _apply_limits(self) -> None:
        try:
            if self.limits.address_space_bytes:
                bound = (self.limits.address_space_bytes, self.limits.address_space_bytes)
                resource.prlimit(self.pid, resource.RLIMIT_AS, bound)
            if self.limits.nice:
                os.setpriority(os.PRIO_PROCESS, self.pid, self.limits.nice)
        except (OSError, ValueError):
            pass  # it has ended already, or this user may not; neither is a reason to fail the run

    def read(self, pipe: int, read_bytes: int = 65536) -> list[Report] | None:
        """Take what one pipe holds, None when it holds nothing at present; closes it at its end."""
        try:
            data = os.read(pipe, read_bytes)
        except BlockingIOError:
            return None
        if not data:
            self.close_pipe(pipe)
            return []
        if pipe == self.stderr:
            self.log.write(data)
            return []
        text, reports = self.scanner.feed(data)
        self.log.write(text)
        return reports

    def close_pipe(self, pipe: int) -> None:
        """Close one pipe; what stdout still held back becomes log text."""
        if pipe not in self.open_pipes:
            return
        self.open_pipes.discard(pipe)
        if pipe == self.stdout:
            self.log.write(self.scanner.finish())
        stream = self.process.stdout if pipe == self.stdout else self.process.stderr
        assert stream is not None
        stream.close()

    def stop(self, why: str, grace_s: float, now: float) -> None:
        """SIGTERM to the group now, SIGKILL after ``grace_s`` (0: SIGKILL now). Stopping again can only hasten it."""
        if self.status is not None:
            return
        if self.why == WHY_EXITED:
            self.why = why
        kill_at = now + grace_s
        if self._kill_at is None or kill_at < self._kill_at:
            self._kill_at = kill_at
        if grace_s <= 0:
            proc.kill_group(self.pid, signal.SIGKILL)
        else:
            proc.kill_group(self.pid, signal.SIGTERM)

    def enforce(self, now: float) -> None:
        """Apply the time limit, the memory limit and the end of a grace period."""
        if self.status is not None:
            return
        if self._kill_at is not None:
            if now >= self._kill_at:
                proc.kill_group(self.pid, signal.SIGKILL)
        elif self.limits.max_run_time_s and now - self.started_at >= self.limits.max_run_time_s:
            self.stop(WHY_TIME_LIMIT, self.limits.grace_s, now)
        elif self.limits.memory_bytes and now >= self._memory_check_at:
            self._memory_check_at = now + MEMORY_CHECK_S
            if proc.resident_bytes(self.pid) > self.limits.memory_bytes:
                self.stop(WHY_OUT_OF_MEMORY, 0, now)

    def reaped(self, status: int, usage: resource.struct_rusage, now: float) -> None:
        """The process has ended with the wait status ``status``."""
        self.status = status
        self.usage = usage
        self.exited_at = now
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.why == WHY_EXITED and self._looks_out_of_memory():
            self.why = WHY_OUT_OF_MEMORY

    def _looks_out_of_memory(self) -> bool:
        """A kill that nobody here sent near the memory limit, or Python's own words for an exhausted address space."""
        assert self.status is not None
        assert self.usage is not None
        if os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL:
            limit = self.limits.memory_bytes
            return bool(limit) and self.usage.ru_maxrss * 1024 >= 0.9 * limit
        return bool(self.limits.address_space_bytes) and self.status != 0 and "MemoryError" in self.log.tail()

    def report(self) -> dict[str, Any]:
        """How the rank ended, as the ``exited`` message."""
        assert self.status is not None
        assert self.usage is not None
        assert self.exited_at is not None
        signalled = os.WIFSIGNALED(self.status)
        run, epoch, rank = self.key
        return {
            "ev": "exited",
            "run": run,
            "epoch": epoch,
            "rank": rank,
            "code": None if signalled else os.WEXITSTATUS(self.status),
            "signal": os.WTERMSIG(self.status) if signalled else None,
            "why": self.why,
            "tail": self.log.tail(),
            "wall_s": round(self.exited_at - self.started_at, 6),
            "cpu_s": round(self.usage.ru_utime + self.usage.ru_stime, 6),
            "max_resident_bytes": self.usage.ru_maxrss * 1024,
            "log_bytes": self.log.written_bytes,
            "log_truncated": self.log.truncated,
            "malformed_count": self.scanner.malformed_count,
        }
