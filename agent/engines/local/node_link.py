"""The agent's side of one node process: start it, talk to it, notice its death at once, leave nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.node import proc, wire

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30.0
"""So long what was killed is waited for."""


class NodeLink(asyncio.Protocol):
    """One incarnation of a node. ``on_message`` gets what it says, ``on_lost`` is called once when it is gone.

    When ``on_lost`` is called, nothing of the node's session lives any more, or only what hangs in the kernel: it was killed
    ``PATIENCE_S`` ago and executes nothing of its program.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        on_message: Callable[[NodeLink, wire.Message], None],
        on_lost: Callable[[NodeLink, str], None],
    ) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.heard_at = 0.0
        self.ready = False
        self.gone = False
        self.settled = asyncio.Event()
        self.lost = asyncio.Event()
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = wire.LineDecoder()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process number, also the number of the node's session."""
        assert self._process is not None
        return self._process.pid

    async def start(self, environment: Mapping[str, str], beat_s: float, silence_s: float) -> None:
        """Start the process; it says ``hello`` when it is ready. OSError: there is none."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        arguments = {
            "fd": theirs.fileno(),
            "node": self.node_id,
            "incarnation": self.incarnation,
            "beat_s": beat_s,
            "silence_s": silence_s,
        }
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            # A few milliseconds (vfork): asyncio's own subprocesses would reap the leader before its session is searched.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-S", "-E", "-m", "agent.node", json.dumps(arguments)],
                cwd=_PACKAGE_ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            unless_started.pop_all()
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        await loop.create_unix_connection(lambda: self, sock=ours)

    def send(self, message: wire.Message) -> None:
        """Pass an order on; to a node that is gone it is not."""
        if self._transport is not None and not self.gone:
            self._transport.write(wire.encode(message))

    def kill(self) -> None:
        """The machine dies: ``SIGKILL`` to the node and everything in its session; `lost` says when nothing of it lives any more."""
        if self._ending is None:
            self._kill_all()
            self._ending = asyncio.get_running_loop().create_task(self._end())
            # What ``on_lost`` raises is told by the loop at once.
            self._ending.add_done_callback(lambda task: task.cancelled() or task.result())

    def silence_s(self) -> float:
        """Time since the node was last heard."""
        return asyncio.get_running_loop().time() - self.heard_at

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            messages = self._decoder.feed(data)
        except wire.WireError:
            self.kill()
            return
        for message in messages:
            if message["ev"] == "hello":
                self.ready = True
                self.settled.set()
            if message["ev"] != "beat":
                self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.gone:
            return
        self.gone = True
        self.ready = False
        self.settled.set()
        self._closed.set()
        self.kill()

    # ending

    def _kill_all(self) -> bool:
        """``SIGKILL`` to what lives of the session; whether anything did."""
        left = proc.session_members(self.pid)
        for pid in left:
            proc.kill_process(pid, signal.SIGKILL)
        return bool(left)

    async def _end(self) -> None:
        """Kill until nothing is left: processes fork meanwhile, and one that was killed lives until it gets the processor to end
        with, or the kernel lets go of it."""
        loop = asyncio.get_running_loop()
        ends_at, pause_s = loop.time() + PATIENCE_S, 0.0
        while (left := self._kill_all()) and loop.time() < ends_at:
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s + 0.001, 0.5)
        if left and self._transport is not None:
            self._transport.abort()
        await self._closed.wait()
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            how = "does not end"
        else:
            how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hangs = f"; what was killed {PATIENCE_S:g} s ago hangs in the kernel" if left else ""
        self.lost.set()
        self._on_lost(self, f"process of node {self.node_id} {how}{hangs}")

    def process_mark(self) -> tuple[int, int]:
        """Process number and start time (clock ticks since boot; 0 when it is gone already)."""
        return self.pid, proc.start_ticks(self.pid) or 0
