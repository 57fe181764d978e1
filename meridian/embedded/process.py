"""What the supervisor must know of one child process. It is plain data: launchers build it, the supervisor runs it."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from meridian.embedded.log_files import LIMIT_BYTES

Probe = Callable[[], Awaitable[bool]]
"""Answers whether the process may be used now; it is asked again until it says yes, and must not take longer than a second."""


PRIVATE_UMASK = 0o077
"""What a stack writes is its owner's: when PostgreSQL has an account of its own, that account passes the data directory."""


class Restart(StrEnum):
    """What follows when a process has ended by itself."""

    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class RunAs:
    """The unprivileged account under which a process runs when we are root."""

    name: str
    uid: int
    gid: int

    @classmethod
    def account(cls, *names: str) -> Self | None:
        """The first of ``names`` that the system knows."""
        for name in names:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, entry.pw_uid, entry.pw_gid)
        return None

    def popen_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``subprocess``: user, group and no further groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One child process.

    ``env`` is added to the supervisor's own environment. ``ready`` is absent where running means ready. A ``one_shot``
    is a step: it is ready when it has ended with exit code 0, and it is not started again after that.
    ``before_start`` runs before every start, also before a restart. A log that is longer than ``log_limit_bytes`` is
    shortened. ``ready_timeout_s`` only ends what hangs: a process that ends is noticed at once, and one that is ready
    is not waited for.
    """

    name: str
    argv: tuple[str, ...]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    ready: Probe | None = None
    ready_timeout_s: float = 120.0
    depends_on: tuple[str, ...] = ()
    restart: Restart = Restart.ALWAYS
    one_shot: bool = False
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    before_start: Callable[[], Awaitable[None]] | None = None
    run_as: RunAs | None = None
    log_limit_bytes: int = LIMIT_BYTES

    def popen_arguments(self) -> dict[str, Any]:
        """Everything ``subprocess`` needs beside ``argv`` and the output files: a session of its own, no input."""
        arguments: dict[str, Any] = {
            "env": {**os.environ, **self.env},
            "cwd": self.cwd,
            "stdin": asyncio.subprocess.DEVNULL,
            "start_new_session": True,
            "umask": PRIVATE_UMASK,
        }
        if self.run_as is not None:
            arguments |= self.run_as.popen_arguments()
        return arguments


def log_tail(path: Path, *, from_byte: int = 0, lines: int = 20) -> str:
    """The last ``lines`` lines that were written to ``path`` after ``from_byte``; empty if there are none."""
    try:
        with path.open("rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            log.seek(max(from_byte, size_bytes - 16_384))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
