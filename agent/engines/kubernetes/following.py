"""One run in the pods of its Job, as the agent follows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.base import LaunchRequest
from agent.engines.kubernetes.pod_log import PodLog
from agent.engines.local.gang import Cause
from agent.engines.own_scheduler import UnitName
from agent.engines.recorded_runs import Run
from agent.engines.run_records import launch_record, stop_record
from agent.engines.slurm import folder

LAUNCH, STOP, READ = "launch.json", "stop.json", "read.json"


@dataclass(slots=True)
class PodRun(Run):
    """A run and what has been done for it. ``record`` is its folder on the agent's disk. Times are the loop's.

    ``numbers`` are the pods' indices by rank. ``ordered_s``: since when the containers may begin.
    """

    name: UnitName
    job: str
    record: Path
    numbers: dict[int, int]
    began_s: float
    ordered_s: float | None = None
    logs: dict[int, PodLog] = field(default_factory=dict)
    followers: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    # Ranks whose start, whose end was told to the gang, and whose containers have ended since when.
    begun: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    ended_s: dict[int, float] = field(default_factory=dict)
    known_started: bool = False
    unsaved: bool = False
    stopping: bool = False
    stop_s: float | None = None
    deleted_s: float | None = None
    unended: tuple[str, ...] = ()
    # Why a pod was taken away that had not ended by itself; empty: none was.
    lost: str = ""
    renewed_s: float = float("-inf")

    def ranks(self) -> dict[int, int]:
        """Ranks by their pods' indices."""
        return {number: rank for rank, number in self.numbers.items()}

    def positions(self) -> dict[str, tuple[str, int]]:
        """How far the log of each rank was passed on, and the bytes of its file then."""
        return {str(rank): (log.position, log.log.written_bytes) for rank, log in self.logs.items() if log.position}


def numbers_of(request: LaunchRequest) -> dict[int, int]:
    """The pods' indices by rank: a domain's ranks need not begin with 0, its pods' do."""
    return {rank: number for number, rank in enumerate(sorted(placement.rank for placement in request.ranks))}


def write_launch(record: Path, request: LaunchRequest, *, started: bool) -> None:
    """Note what the next agent must know of a run. Blocking.

    :raises OSError: it cannot be written.
    """
    record.mkdir(parents=True, exist_ok=True)
    folder.write_json(record / LAUNCH, {"request": launch_record(request), "started": started})


def write_stop(record: Path, cause: Cause, grace_s: float) -> None:
    """Note that a run is to end, and why. Blocking.

    :raises OSError: it cannot be written.
    """
    folder.write_json(record / STOP, stop_record(cause, grace_s))
