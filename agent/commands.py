"""Runs a small command with limits: time, output, processor, memory, no shell, none of the agent's environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = ("/bin/sh", "-c")
LEFTOVERS_S = 10.0
"""How long the output of a command that has ended is waited for, after all that it left in its session was killed."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of one run. ``memory_bytes`` bounds the address space."""

    time_s: float = 5.0
    output_bytes: int = 16_384
    memory_bytes: int = 1 << 30
    processes: int = 64


class CommandError(Exception):
    """The command gave no usable answer; the text says why."""


async def run_command(
    argv: Sequence[str],
    limits: CommandLimits,
    working_dir: Path,
    environment: Mapping[str, str] | None = None,
    *,
    shell: bool = False,
) -> str:
    """What the command printed. It gets ``PATH``, ``LANG`` and ``environment``, nothing of ours.

    The answer is what stands there when the command itself ends, or its output; what it left running ends with it.

    :param shell: the words are one line for /bin/sh.
    :raises CommandError: it cannot be started, ran too long, printed too much or no UTF-8, or failed.
    """
    words = [*SHELL, " ".join(argv)] if shell else list(argv)
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=working_dir,
            env={"PATH": SAFE_PATH, "LANG": "C.UTF-8", **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: _confine(limits),
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot be started: {getattr(error, 'strerror', None) or error}") from None
    answer = asyncio.create_task(_answer(process, limits.output_bytes))
    try:
        await asyncio.wait({answer}, timeout=limits.time_s)
        if not answer.done():
            if not _has_ended(process):
                raise CommandError(f"ran longer than {limits.time_s:g} s")
            _kill(process)  # a child of its holds its output open, or we were late ourselves
            await asyncio.wait({answer}, timeout=LEFTOVERS_S)
            if not answer.done():
                raise CommandError("left a process behind that holds its output open")
        output, complaint, status = answer.result()
    finally:
        answer.cancel()
        await _end(process)
    if output is None:
        raise CommandError(f"printed more than {limits.output_bytes} bytes")
    if status != 0:
        words_of_it = (complaint or b"").decode(errors="replace").strip().splitlines()
        reason = f": {words_of_it[-1][:200]}" if words_of_it else ""
        raise CommandError(f"ended with status {status}{reason}")
    try:
        return output.decode()
    except UnicodeDecodeError:
        raise CommandError("printed no UTF-8") from None


async def _answer(process: asyncio.subprocess.Process, most: int) -> tuple[bytes | None, bytes | None, int]:
    assert process.stdout is not None
    assert process.stderr is not None
    output, complaint = await asyncio.gather(_read(process, process.stdout, most), _read(process, process.stderr, most))
    return output, complaint, await process.wait()


def _has_ended(process: asyncio.subprocess.Process) -> bool:
    if process.returncode is not None:
        return True
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # collected already
        return True
    return ended is not None


async def _read(process: asyncio.subprocess.Process, stream: asyncio.StreamReader, most: int) -> bytes | None:
    """Everything up to the end of the stream; None when it is more than ``most``: then the command ends, and what it printed by then is
    read on, since a stream that nobody empties keeps the process from counting as ended."""
    body: bytearray | None = bytearray()
    while chunk := await stream.read(65_536):
        if body is not None:
            body += chunk
            if len(body) > most:
                body = None
                _kill(process)
    return None if body is None else bytes(body)


async def _end(process: asyncio.subprocess.Process) -> None:
    _kill(process)
    if process.returncode is None:
        await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Whatever is left of the command's session ends, its children with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _confine(limits: CommandLimits) -> None:
    seconds = max(1, int(limits.time_s) + 1)
    for kind, bound in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(kind, (bound, bound))
