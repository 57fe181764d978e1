"""The node's loop: commands from the agent, output of ranks, ended children, limits, beats.

Steps of one turn: (1) wait for bytes, a child's end or the next due time, (2) read, (3) reap, (4) enforce limits and
grace periods, (5) beat when due, (6) send what was gathered in one write.

A node that loses its agent (its socket ends, or no ``ping`` for ``silence_s``) kills its ranks and ends: nobody would
know of them, and another place may be told to run them.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent.node import proc, wire
from agent.node.rank import CHECKPOINT_BURST, OPEN_FILES, WHY_STOPPED, Key, Limits, Rank
from agent.node.rank_output import Report

PROGRESS_INTERVAL_S = 0.1
CHECKPOINTS_PER_S = 10.0
"""Of a rank, beyond its first burst; of more, the newest is passed on."""
ENFORCE_INTERVAL_S = 0.1
PIPE_PATIENCE_S = 1.0
MAX_UNSENT_FOR_BEAT_BYTES = 256 * 1024


class Machine:
    """One emulated machine, connected to its agent by ``link`` (a stream socket)."""

    def __init__(self, link: socket.socket, node_id: str, incarnation: int, beat_s: float, silence_s: float) -> None:
        self._link = link
        self._node_id = node_id
        self._incarnation = incarnation
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._selector = selectors.DefaultSelector()
        self._decoder = wire.LineDecoder()
        self._unsent = bytearray()
        self._awaits_room = False
        self._ranks: dict[Key, Rank] = {}
        self._by_pid: dict[int, Rank] = {}
        self._lingering: dict[Key, Rank] = {}
        self._beat_number = 0
        self._ending = False
        self._heard_at = time.monotonic()

    def run(self) -> None:
        """Serve until told to shut down or until the agent is lost; no rank outlives this call."""
        self._prepare()
        self._send({"ev": "hello", "node": self._node_id, "incarnation": self._incarnation, "pid": os.getpid()})
        now = time.monotonic()
        beat_at = enforce_at = now
        try:
            while not self._ending:
                self._flush()
                wait_s = max(0.0, min(beat_at, enforce_at) - time.monotonic())
                for key, _ in self._selector.select(wait_s):
                    handle: Callable[[], object] = key.data
                    handle()
                now = time.monotonic()
                if now >= enforce_at:
                    enforce_at = now + ENFORCE_INTERVAL_S
                    self._enforce(now)
                if now >= beat_at:
                    beat_at = max(beat_at + self._beat_s, now)
                    self._beat()
        finally:
            self._kill_everything()

    def _prepare(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._wake = (wake_read, wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._link.setblocking(False)
        self._selector.register(wake_read, selectors.EVENT_READ, self._woken)
        self._selector.register(self._link, selectors.EVENT_READ, self._hear)

    def _end(self, *_: object) -> None:
        self._ending = True

    # --- the agent -----------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._flush()
        try:
            data = self._link.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ending = True
            return
        self._heard_at = time.monotonic()
        for message in self._decoder.feed(data):
            self._obey(message)

    def _obey(self, message: wire.Message) -> None:
        operation = message["op"]
        if operation == "launch":
            for placement in message["ranks"]:
                self._launch(message, placement)
        elif operation == "stop":
            self._stop(message["run"], message["epoch"], float(message["grace_s"]))
        elif operation == "shutdown":
            self._ending = True

    def _send(self, message: wire.Message) -> None:
        self._unsent += wire.encode(message)

    def _flush(self) -> None:
        while self._unsent:
            try:
                count = self._link.send(self._unsent)
            except BlockingIOError:
                break
            except OSError:
                self._ending = True
                return
            del self._unsent[:count]
        if bool(self._unsent) != self._awaits_room:
            self._awaits_room = bool(self._unsent)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._awaits_room else 0)
            self._selector.modify(self._link, events, self._hear)

    def _beat(self) -> None:
        self._beat_number += 1
        if len(self._unsent) < MAX_UNSENT_FOR_BEAT_BYTES:
            self._send({"ev": "beat", "number": self._beat_number, "ranks": len(self._ranks)})

    # --- ranks ---------------------------------------------------------------------------------------------------

    def _launch(self, message: wire.Message, placement: dict[str, Any]) -> None:
        key: Key = (message["run"], message["epoch"], placement["rank"])
        if key in self._ranks:
            return
        env = {**message["env"], **placement["env"]}
        try:
            for folder in message["folders"]:
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            rank = Rank(
                key,
                argv=message["argv"],
                env=env,
                cwd=message["cwd"],
                log_path=placement["log"],
                limits=Limits(message["limits"]),
                now=time.monotonic(),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = _why_not_started(error, message["argv"][0], message["cwd"])
            self._send({"ev": "start_failed", "run": key[0], "epoch": key[1], "rank": key[2], "error": why})
            return
        self._ranks[key] = rank
        self._by_pid[rank.pid] = rank
        for pipe in rank.open_pipes:
            self._selector.register(pipe, selectors.EVENT_READ, lambda pipe=pipe: self._read(rank, pipe))
        started = {"ev": "started", "run": key[0], "epoch": key[1], "rank": key[2], "pid": rank.pid}
        self._send(started | {"start_ticks": proc.start_ticks(rank.pid)})

    def _stop(self, run: str, epoch: int, grace_s: float) -> None:
        now = time.monotonic()
        for key, rank in self._ranks.items():
            if key[:2] == (run, epoch):
                rank.stop(WHY_STOPPED, grace_s, now)

    def _read(self, rank: Rank, pipe: int) -> bool:
        """Read one pipe once; False when there was nothing to read or the pipe is closed."""
        if pipe not in rank.open_pipes:
            return False
        reports = rank.read(pipe)
        if reports is None:
            return False
        if pipe not in rank.open_pipes:
            self._selector.unregister(pipe)
        for report in reports:
            self._forward(rank, report)
        return True

    def _forward(self, rank: Rank, report: Report) -> None:
        run, epoch, number = rank.key
        message: wire.Message = {"ev": report.kind, "run": run, "epoch": epoch, "rank": number, **report.body}
        if report.kind == "checkpoint":
            rank.newest_checkpoint = message
            self._send_checkpoint(rank, time.monotonic())
            return
        rank.newest_progress = message
        self._send_progress(rank, time.monotonic())

    def _send_checkpoint(self, rank: Rank, now: float, *, last: bool = False) -> None:
        message = rank.newest_checkpoint
        if message is None:
            return
        earned = (now - rank.checkpoints_earned_at) * CHECKPOINTS_PER_S
        rank.checkpoints_left = min(float(CHECKPOINT_BURST), rank.checkpoints_left + earned)
        rank.checkpoints_earned_at = now
        if rank.checkpoints_left < 1.0 and not last:
            return
        rank.checkpoints_left -= 1.0
        rank.newest_checkpoint = None
        try:
            message["size_bytes"] = os.stat(message["path"]).st_size  # noqa: PTH116
        except OSError:
            message["size_bytes"] = None
        self._send(message)

    def _send_progress(self, rank: Rank, now: float, *, last: bool = False) -> None:
        if rank.newest_progress is not None and (last or now - rank.progress_sent_at >= PROGRESS_INTERVAL_S):
            self._send(rank.newest_progress)
            rank.newest_progress = None
            rank.progress_sent_at = now

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            self._wake[0].recv(4096)
        self._reap()

    def _reap(self) -> None:
        """Collect ended children: kill what is left of a group while its leader still holds the number, then wait."""
        now = time.monotonic()
        while self._by_pid:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            proc.kill_group(ended.si_pid, signal.SIGKILL)
            pid, status, usage = os.wait4(ended.si_pid, 0)
            rank = self._by_pid.pop(pid, None)
            if rank is not None:
                rank.reaped(status, usage, now)
                self._drain(rank)
                if rank.open_pipes:
                    self._lingering[rank.key] = rank
                else:
                    self._finish(rank)

    def _drain(self, rank: Rank) -> None:
        """Read what the pipes still hold. Bounded: a descendant may print on."""
        for pipe in list(rank.open_pipes):
            for _ in range(64):
                if not self._read(rank, pipe):
                    break

    def _finish(self, rank: Rank) -> None:
        rank.log.close()
        self._send_checkpoint(rank, time.monotonic(), last=True)
        self._send_progress(rank, 0.0, last=True)
        self._send(rank.report())
        del self._ranks[rank.key]
        self._lingering.pop(rank.key, None)

    def _enforce(self, now: float) -> None:
        for rank in list(self._ranks.values()):
            rank.enforce(now)
            self._send_checkpoint(rank, now)
            self._send_progress(rank, now)
        for rank in list(self._lingering.values()):
            self._let_go(rank, now)
        if self._by_pid:
            self._reap()
        if self._silence_s and now - self._heard_at > self._silence_s:
            self._ending = True

    def _let_go(self, rank: Rank, now: float) -> None:
        """End a rank whose pipes outlive it: a descendant that left the group holds them. It is found by its marks."""
        assert rank.exited_at is not None
        if rank.open_pipes and now - rank.exited_at < PIPE_PATIENCE_S:
            return
        if rank.open_pipes:
            run_mark = f"MERIDIAN_RUN_ID={rank.key[0]}".encode()
            rank_mark = f"RANK={rank.key[2]}".encode()
            proc.kill_until_gone(
                lambda: sorted(set(proc.marked_processes(run_mark)) & set(proc.marked_processes(rank_mark)))
            )
            self._drain(rank)
            for pipe in list(rank.open_pipes):
                self._selector.unregister(pipe)
                rank.close_pipe(pipe)
        self._finish(rank)

    def _kill_everything(self) -> None:
        for pid in list(self._by_pid):
            proc.kill_group(pid, signal.SIGKILL)
        if os.getsid(0) == os.getpid():
            own_session = os.getpid()
            proc.kill_until_gone(lambda: [pid for pid in proc.session_members(own_session) if pid != own_session])


def _why_not_started(error: Exception, program: str, folder: str) -> str:
    """Of program and folder the operating system names one, and does not say which of the two it is."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename == folder and not os.path.isdir(folder):  # noqa: PTH112
        return f"the working directory {folder!r} cannot be entered: {error.strerror}"
    if error.filename == program:
        return f"the program {program!r} cannot be started: {error.strerror}"
    return str(error)
