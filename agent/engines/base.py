"""What an engine is asked for and what it reports. An engine knows nothing of the bus, of services or of tenants' rights.

A run here is the part of a run that lies in this domain: ``ranks`` are this domain's ranks of ``world_size``.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from agent.parts import Part
from meridian.errors import FieldError, InvalidArgumentError

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_LAST_PORT = 65_535
USUAL_GRACE_S = 5.0


def why_unsafe(name: str) -> str:
    """What is wrong with the id of a run or a job, of which files are named; empty: nothing."""
    return "" if _SAFE_NAME.fullmatch(name) else "letters, digits, dot, underscore and dash only, at most 200"


class RunFolders:
    """Where the files of runs are below a folder that the engine and all nodes of the domain see."""

    __slots__ = ()
    shared_dir: Path

    def log_path(self, run_id: str, rank: int) -> Path:
        """The log file of a rank; it does not exist while the rank has printed nothing."""
        return self.shared_dir / "logs" / run_id / f"rank-{rank}.log"

    def own_work_dir(self, run_id: str) -> Path:
        """The working directory of a run that names none."""
        return self.shared_dir / "work" / run_id


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Where one rank runs, and how many thousandths of each of its accelerators are its own."""

    rank: int
    node_id: str
    local_rank: int = 0
    accelerator_indices: tuple[int, ...] = ()
    accelerator_milli: int = 1000


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of each rank; zero means none. ``memory_bytes`` bounds the resident memory of the rank and its children."""

    cpus: float = 0
    memory_bytes: int = 0
    max_run_time_s: float = 0

    def wrongs(self) -> Iterator[FieldError]:
        """Each limit that is none: a rank under it would be ended at once, or never."""
        for name in ("cpus", "memory_bytes", "max_run_time_s"):
            if not 0 <= getattr(self, name) < math.inf:
                yield FieldError(f"/{name}", "is not a number from 0 (no limit) on")


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """An order to start a run.

    :raises InvalidArgumentError: a field that cannot be carried out; the error names it.
    """

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    tenant: str
    ranks: tuple[RankPlacement, ...]
    world_size: int
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    limits: RunLimits = field(default_factory=RunLimits)
    checkpoint_dir: str = ""
    restore_from: str = ""
    restore_step: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    array_index: int | None = None
    service_port: int = 0

    def __post_init__(self) -> None:
        errors: list[FieldError] = []
        for pointer, name in (("/run_id", self.run_id), ("/job_id", self.job_id)):
            if wrong := why_unsafe(name):
                errors.append(FieldError(pointer, wrong))
        if self.epoch < 1:
            errors.append(FieldError("/epoch", "starts at 1"))
        if not self.command or not self.command[0]:
            errors.append(FieldError("/command", "is empty"))
        if any("\0" in text for text in (*self.command, *self.env, *self.env.values(), self.working_dir)):
            errors.append(FieldError("/command", "a zero byte cannot be passed to a program"))
        if any(not name or "=" in name for name in self.env):
            errors.append(FieldError("/env", "a name is empty or holds '='"))
        if self.working_dir and not self.working_dir.startswith("/"):
            errors.append(FieldError("/working_dir", "is not absolute"))
        numbers = [placement.rank for placement in self.ranks]
        if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= self.world_size:
            errors.append(FieldError("/ranks", "must be distinct, from 0, below world_size, and at least one"))
        if any(not 1 <= placement.accelerator_milli <= 1000 for placement in self.ranks):
            errors.append(FieldError("/ranks", "accelerator_milli must be 1-1000"))
        if any(min((0, placement.local_rank, *placement.accelerator_indices)) < 0 for placement in self.ranks):
            errors.append(FieldError("/ranks", "local_rank and accelerator_indices are numbers from 0 on"))
        errors += [
            FieldError(f"/{name}", f"is no port: 0 (none) to {_LAST_PORT}")
            for name in ("master_port", "service_port")
            if not 0 <= getattr(self, name) <= _LAST_PORT
        ]
        if self.restore_step < 0:
            errors.append(FieldError("/restore_step", "is negative"))
        errors += self.limits.wrongs()
        if errors:
            raise InvalidArgumentError("the run cannot be started as ordered", errors=tuple(errors))


@dataclass(frozen=True, slots=True)
class StopRequest:
    """An order to end the named epoch of a unit and all older ones."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    grace_s: float = USUAL_GRACE_S
    reason: str = "stop was ordered"


@dataclass(frozen=True, slots=True)
class AdjustRequest:
    """An order that ranks of a run have other parts of their accelerators from now on."""

    run_id: str
    epoch: int
    ranks: tuple[RankPlacement, ...]


class RunState(StrEnum):
    """Life of a run in this domain."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class FailureKind(StrEnum):
    """Why a run ended without success."""

    PROGRAM = "program"
    NODE_LOST = "node_lost"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    STOPPED = "stopped"
    REFUSED = "refused"
    NOT_STARTABLE = "not_startable"
    AGENT_RESTARTED = "agent_restarted"
    LEASE_EXPIRED = "lease_expired"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """What every event about a run says."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    at: datetime


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """Every rank of the run in this domain is running."""

    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress(RunEvent):
    """The newest step a rank reported. Older ones that nobody has taken yet are replaced: it may be lost."""

    rank: int
    step: int
    total_steps: int | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Checkpoint(RunEvent):
    """A checkpoint to resume from. Never lost, never replaced. ``size_bytes`` is None when the path could not be read."""

    rank: int
    step: int
    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class RankExited(RunEvent):
    """One rank ended: with ``exit_code`` or by ``signal``; ``kind`` is None for a good end."""

    rank: int
    node_id: str
    exit_code: int | None
    signal: int | None
    kind: FailureKind | None
    wall_s: float
    cpu_s: float
    max_resident_bytes: int
    malformed_count: int


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """Every rank of the run in this domain ended with exit code 0."""


@dataclass(frozen=True, slots=True)
class RunFailed(RunEvent):
    """The run ended without success, and nothing of it runs here any more. The rank named is the first that failed."""

    kind: FailureKind
    reason: str
    rank: int | None = None
    node_id: str = ""
    exit_code: int | None = None
    signal: int | None = None
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class RunRefused(RunEvent):
    """The order was stale: ``highest_epoch`` of that unit was seen before. Nothing was started."""

    highest_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run the engine knows."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    state: RunState
    node_ids: tuple[str, ...]


class NodeState(StrEnum):
    """State of a node's process."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine. ``last_beat_age_s`` is the time since it was last heard; it grows while the node is gone."""

    node_id: str
    state: NodeState
    incarnation: int
    last_beat_age_s: float
    run_ids: tuple[str, ...]
    accelerators_in_use: frozenset[int]


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way out. ``number`` is None for what may be lost; else ``acknowledge`` it once it is published."""

    number: int | None
    event: RunEvent


class Engine(ABC):
    """Starts and stops runs. Every operation is idempotent: orders are delivered at least once."""

    @abstractmethod
    async def start(self) -> None:
        """Make the engine ready. Runs of an earlier incarnation are ended and reported as ``AGENT_RESTARTED``, or taken up again
        where they go on without the agent."""

    @abstractmethod
    async def close(self) -> None:
        """End all runs and release everything; what was reported and not acknowledged is kept for the next start."""

    @abstractmethod
    async def launch(self, request: LaunchRequest) -> None:
        """Start a run, or report what became of it when the order is known.

        Returns when the order is recorded durably and passed on; the outcome comes as events. A unit runs once: an
        older run of the unit is ended before the new one starts, and an order with an epoch that is not greater than
        every epoch seen for the unit is answered with ``RunRefused``.
        """

    @abstractmethod
    async def stop(self, request: StopRequest) -> None:
        """``SIGTERM`` to the named epoch of a unit and all older ones, after ``grace_s`` ``SIGKILL``.

        An epoch not seen yet is remembered, so that a start that comes late is refused, and reported as stopped.
        """

    async def adjust(self, request: AdjustRequest) -> bool:
        """Tell ranks that run what they have of their accelerators now; whether it was told. An engine that cannot does nothing:
        the program goes on with what it had."""
        return False

    async def wake(self, node_ids: Collection[str]) -> frozenset[str]:
        """Wake nodes that sleep; returns those that are waking now. Their power state in the inventory says when they are
        awake. An engine whose nodes do not sleep does nothing."""
        return frozenset()

    async def put_to_sleep(self, node_ids: Collection[str]) -> frozenset[str]:
        """Put nodes to sleep on which nothing runs, nor is going to; returns those that sleep now. An engine whose nodes cannot
        sleep does nothing."""
        return frozenset()

    def asleep(self) -> frozenset[str]:
        """Nodes that sleep, also those that are waking and not awake yet."""
        return frozenset()

    def know_parts(self, parts: Mapping[str, Mapping[int, Part]]) -> bool:
        """Parts of accelerators that take work, by node and number: what orders may name from now on. False from an engine that
        gives its programs whole accelerators only."""
        return not parts

    @abstractmethod
    def report(self, event: RunEvent) -> None:
        """Deliver an event about an order that never reached the engine, as lastingly as the engine's own."""

    @abstractmethod
    def list_runs(self) -> tuple[RunStatus, ...]:
        """Runs that have not ended."""

    @abstractmethod
    def nodes(self) -> tuple[NodeStatus, ...]:
        """The machines of the domain."""

    def in_contact(self) -> None:
        """The bus took a sign of life a moment ago. An engine whose runs outlive the agent lets them go on by this."""
        return

    @abstractmethod
    async def lease_lost(self) -> None:
        """The domain is out of contact: end every run, start none until ``lease_regained``."""

    @abstractmethod
    def lease_regained(self) -> None:
        """The domain is in contact again."""

    @abstractmethod
    def events(self) -> AsyncIterator[Delivery]:
        """Events in order, first those that an earlier incarnation left unacknowledged. For one reader."""

    @abstractmethod
    def acknowledge(self, number: int) -> None:
        """The event with this number is published and need not be kept."""

    @abstractmethod
    def unacknowledged(self) -> int:
        """How many events wait for their acknowledgement."""


class EmulatedMachines(ABC):
    """What only an engine can do whose machines are emulated."""

    @abstractmethod
    async def kill_node(self, node_id: str) -> None:
        """Let a machine die at once: ``SIGKILL`` to everything in its session. It comes back after its repair time.

        :raises NotFoundError: no such node.
        """
