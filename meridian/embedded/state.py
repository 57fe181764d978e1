"""What a running stack tells about itself: ``STATE_DIR/stack.json``, replaced atomically at every change.

It serves two readers: people and programs that ask where things are, and the next supervisor, which ends what a killed one left.
Times are ISO 8601 in UTC. ``create_time`` is what psutil reports (seconds since the epoch): together with the pid it names
a process for good, because a pid alone may belong to somebody else by the time it is read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from meridian.embedded.ports import write_atomically

FILE_NAME = "stack.json"


class StackPhase(StrEnum):
    """Where the whole stack is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ProcessState(StrEnum):
    """Where one process is.

    waiting (for what it depends on) -> starting -> ready; back_off between a death and the next start; done is a step that
    has ended well; exited one that ended and is not started again; stopped was ended by us.
    """

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACK_OFF = "back_off"
    DONE = "done"
    EXITED = "exited"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process, named so that another one with the same pid is not taken for it."""

    pid: int
    create_time: float


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One supervised process. ``last_exit`` says how it ended last time, for example "exit code 3" or "signal 9"."""

    name: str
    state: ProcessState
    log: str
    pid: int | None = None
    create_time: float | None = None
    restarts: int = 0
    started_at: str | None = None
    ready_at: str | None = None
    last_exit: str | None = None

    @property
    def ref(self) -> ProcessRef | None:
        """The process that runs, or ran last."""
        return None if self.pid is None or self.create_time is None else ProcessRef(self.pid, self.create_time)


@dataclass(frozen=True, slots=True)
class Failure:
    """The process that kept the stack from starting, and the end of its log."""

    process: str
    reason: str
    log_tail: str


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of ``stack.json``."""

    stack_id: str
    phase: StackPhase
    supervisor: ProcessRef
    started_at: str
    ports: dict[str, int] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    processes: tuple[ProcessRecord, ...] = ()
    failure: Failure | None = None

    def to_json(self) -> str:
        """As written to the file."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> StackState:
        """Read what ``to_json`` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["phase"] = StackPhase(data["phase"])
        data["supervisor"] = ProcessRef(**data["supervisor"])
        data["processes"] = tuple(ProcessRecord(**{**p, "state": ProcessState(p["state"])}) for p in data["processes"])
        data["failure"] = Failure(**data["failure"]) if data["failure"] else None
        return cls(**data)


def read_state(state_dir: Path) -> StackState | None:
    """The state last written below ``state_dir``, or None if no stack was ever started there."""
    try:
        return StackState.from_json((state_dir / FILE_NAME).read_text())
    except FileNotFoundError:
        return None


def write_state(state_dir: Path, state: StackState) -> None:
    """Replace the state; only we may read it, since its URLs hold passwords."""
    write_atomically(state_dir / FILE_NAME, state.to_json(), mode=0o600)
