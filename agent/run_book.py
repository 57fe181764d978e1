"""What an agent must know after a crash: epochs seen, runs begun, processes started, events not yet delivered.

The book is a fold over journal records: each change is applied to memory and appended in the same step, and replaying
the file gives the same book. Decisions (`admit`, `admit_stop`) only read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from agent.engines import event_record
from agent.engines.base import LaunchRequest, RunEvent, RunFailed, RunFinished, RunRefused
from agent.journal import Journal, Record

UnitKey = tuple[str, int]
"""(job id, unit index)"""
RunKey = tuple[str, int]
"""(run id, epoch)"""

MEMORY_OF_UNITS = timedelta(days=7)
KEPT_UNITS = 10_000
"""The units that were seen last are known whatever the clock says: one that is wrong for a moment must make no epoch forgotten."""
SWEEP_EVERY = timedelta(hours=1)


class Admission(StrEnum):
    """The answer to a launch order."""

    ACCEPTED = "accepted"
    STALE = "stale"
    KNOWN_RUNNING = "known_running"
    KNOWN_ENDED = "known_ended"


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process by number and start time (clock ticks since boot): a later one with the same number does not match."""

    pid: int
    start_ticks: int


@dataclass(slots=True)
class BegunRun:
    """A run that was begun and of which no end is recorded."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    node_ids: tuple[str, ...]
    processes: list[ProcessMark] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """What is known of a unit: the highest epoch seen, and the newest run with its end."""

    highest_epoch: int
    seen_at: datetime
    run: RunKey | None = None
    end: RunEvent | None = None


@dataclass(slots=True)
class NodeMark:
    """The newest process of a node."""

    incarnation: int
    process: ProcessMark | None


def boot_id() -> str:
    """Names this boot of the machine: process numbers of an earlier boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def next_incarnation(former: int, now_s: float) -> int:
    """A number greater than ``former``, and, by the clock (seconds since 1970), than those of a journal that was lost."""
    return max(former + 1, int(now_s))


class RunBook:
    """The agent's memory of runs, on a journal file. Call ``open`` first."""

    def __init__(
        self, path: Path, *, new_agent_mark: str, boot: str | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        self.agent_mark = new_agent_mark
        self.incarnation = 0
        self.units: dict[UnitKey, Unit] = {}
        self.begun: dict[RunKey, BegunRun] = {}
        self.nodes: dict[str, NodeMark] = {}
        self.pending: dict[int, RunEvent] = {}
        self.earlier_processes_live = False
        self._boot = boot or boot_id()
        self._now_s = now_s
        self._recorded_boot = ""
        self._event_number = 0
        self._swept_at: datetime | None = None
        self._journal = Journal(path, self._snapshot)

    def open(self) -> None:
        """Read the journal and begin a new incarnation of the agent, greater than all before.

        :raises JournalDamagedError: when the journal cannot be trusted.
        """
        self._journal.open(self._replay)
        self.earlier_processes_live = self._recorded_boot == self._boot
        self._apply_and_append(
            {
                "r": "agent",
                "mark": self.agent_mark,
                "incarnation": next_incarnation(self.incarnation, self._now_s()),
                "boot": self._boot,
            }
        )

    async def durable(self, number: int | None = None) -> None:
        """Wait until everything recorded so far (or journal record ``number``) is on the disk."""
        await self._journal.durable(number)

    async def close(self) -> None:
        """Write what is left."""
        await self._journal.close()

    # --- decisions -------------------------------------------------------------------------------------------------

    def admit(self, request: LaunchRequest) -> Admission:
        """Whether a run may start: a unit's epoch must be greater than every epoch seen."""
        unit = self.units.get((request.job_id, request.unit_index))
        if unit is None or request.epoch > unit.highest_epoch:
            return Admission.ACCEPTED
        key = (request.run_id, request.epoch)
        if key in self.begun:
            return Admission.KNOWN_RUNNING
        return Admission.KNOWN_ENDED if unit.run == key and unit.end is not None else Admission.STALE

    def highest_epoch(self, job_id: str, unit_index: int) -> int:
        """The highest epoch seen for a unit, 0 when it is not known."""
        unit = self.units.get((job_id, unit_index))
        return 0 if unit is None else unit.highest_epoch

    def knows_run(self, run_id: str) -> bool:
        """Whether the newest run of some unit has this id."""
        return any(unit.run is not None and unit.run[0] == run_id for unit in self.units.values())

    # --- changes ---------------------------------------------------------------------------------------------------

    def begin(self, request: LaunchRequest, at: datetime) -> int:
        """Record that a run is going to be started; nothing may be started before this is durable."""
        nodes = sorted({placement.node_id for placement in request.ranks})
        return self._apply_and_append(
            _begin_record(BegunRun(request.run_id, request.job_id, request.unit_index, request.epoch, tuple(nodes)), at)
        )

    def fence(self, job_id: str, unit_index: int, epoch: int, at: datetime) -> int:
        """Record that ``epoch`` and all older ones of a unit must not start any more."""
        return self._apply_and_append(
            {"r": "fence", "job": job_id, "unit": unit_index, "epoch": epoch, "at": at.isoformat()}
        )

    def process_started(self, run: RunKey, process: ProcessMark) -> None:
        """Record a rank's process."""
        self._apply_and_append(
            {"r": "process", "run": run[0], "epoch": run[1], "pid": process.pid, "ticks": process.start_ticks}
        )

    def node_started(self, node_id: str, incarnation: int, process: ProcessMark) -> None:
        """Record a node's process."""
        self._apply_and_append(
            {"r": "node", "node": node_id, "incarnation": incarnation, "pid": process.pid, "ticks": process.start_ticks}
        )

    def record(self, event: RunEvent) -> tuple[int, int]:
        """Record an event that must be delivered. Returns its number and the journal record to wait for."""
        number = self._event_number + 1
        return number, self._apply_and_append({"r": "event", "n": number, "body": event_record.to_record(event)})

    def acknowledge(self, number: int) -> None:
        """Forget a delivered event."""
        if number in self.pending:
            self._apply_and_append({"r": "ack", "n": number})

    # --- the fold --------------------------------------------------------------------------------------------------

    def _apply_and_append(self, record: Record) -> int:
        self._replay(record)
        return self._journal.append(record)

    def _replay(self, record: Record) -> None:
        kind = record["r"]
        if kind == "begin":
            run = BegunRun(record["run"], record["job"], record["unit"], record["epoch"], tuple(record["nodes"]))
            self.begun[run.run_id, run.epoch] = run
            self._see(record, (run.run_id, run.epoch))
        elif kind == "fence":
            self._see(record, None)
        elif kind == "end":
            self._see(record, (record["run"], record["epoch"]))
            self.units[record["job"], record["unit"]].end = event_record.from_record(record["body"])
        elif kind == "process":
            begun = self.begun.get((record["run"], record["epoch"]))
            if begun is not None:
                begun.processes.append(ProcessMark(record["pid"], record["ticks"]))
        elif kind == "node":
            self.nodes[record["node"]] = NodeMark(record["incarnation"], ProcessMark(record["pid"], record["ticks"]))
        elif kind == "event":
            self._event_number = max(self._event_number, record["n"])
            event = event_record.from_record(record["body"])
            self.pending[record["n"]] = event
            self._end(event)
        elif kind == "ack":
            self.pending.pop(record["n"], None)
        elif kind == "agent":
            self.agent_mark = record["mark"]
            self.incarnation = record["incarnation"]
            self._recorded_boot = record["boot"]
            self._event_number = max(self._event_number, record.get("n", 0))
        else:
            raise ValueError(f"journal record of unknown kind {kind!r}")

    def _see(self, record: dict[str, Any], run: RunKey | None) -> None:
        key = (record["job"], record["unit"])
        seen_at = datetime.fromisoformat(record["at"])
        self._forget_old_units(seen_at)
        unit = self.units.get(key)
        if (
            unit is None
            or record["epoch"] > unit.highest_epoch
            or (run is not None and record["epoch"] == unit.highest_epoch)
        ):
            self.units.pop(key, None)  # the newest stand last
            self.units[key] = Unit(record["epoch"], seen_at, run)

    def _forget_old_units(self, now: datetime) -> None:
        """Of an agent that runs for months too only the units of a week are kept, as in its journal."""
        if self._swept_at is not None and timedelta(0) <= now - self._swept_at < SWEEP_EVERY:
            return
        self._swept_at = now
        for key in self._old_units(now):
            del self.units[key]

    def _old_units(self, now: datetime) -> set[UnitKey]:
        active = {(run.job_id, run.unit_index) for run in self.begun.values()}
        first = islice(self.units.items(), max(len(self.units) - KEPT_UNITS, 0))
        return {key for key, unit in first if now - unit.seen_at > MEMORY_OF_UNITS and key not in active}

    def _end(self, event: RunEvent) -> None:
        if isinstance(event, RunRefused) or not isinstance(event, RunFailed | RunFinished):
            return
        key = (event.run_id, event.epoch)
        self.begun.pop(key, None)
        unit = self.units.get((event.job_id, event.unit_index))
        if unit is not None and unit.run == key:
            unit.end = event

    def _snapshot(self) -> Iterable[Record]:
        yield {
            "r": "agent",
            "mark": self.agent_mark,
            "incarnation": self.incarnation,
            "boot": self._recorded_boot,
            "n": self._event_number,
        }
        for node_id, node in self.nodes.items():
            if node.process is not None:
                yield {
                    "r": "node",
                    "node": node_id,
                    "incarnation": node.incarnation,
                    "pid": node.process.pid,
                    "ticks": node.process.start_ticks,
                }
        yield from self._unit_records()
        for number, event in self.pending.items():
            yield {"r": "event", "n": number, "body": event_record.to_record(event)}

    def _unit_records(self) -> Iterable[Record]:
        for run in self.begun.values():
            unit = self.units[run.job_id, run.unit_index]
            yield _begin_record(run, unit.seen_at)
            for process in run.processes:
                yield {
                    "r": "process",
                    "run": run.run_id,
                    "epoch": run.epoch,
                    "pid": process.pid,
                    "ticks": process.start_ticks,
                }
        newest = max((unit.seen_at for unit in self.units.values()), default=None)
        old = self._old_units(newest) if newest is not None else set()
        for (job_id, unit_index), unit in self.units.items():
            if (job_id, unit_index) in old:
                continue
            place = {"job": job_id, "unit": unit_index, "epoch": unit.highest_epoch, "at": unit.seen_at.isoformat()}
            if unit.end is not None and unit.run is not None:
                yield {"r": "end", "run": unit.run[0], "body": event_record.to_record(unit.end), **place}
            else:
                yield {"r": "fence", **place}


def _begin_record(run: BegunRun, at: datetime) -> Record:
    return {
        "r": "begin",
        "run": run.run_id,
        "job": run.job_id,
        "unit": run.unit_index,
        "epoch": run.epoch,
        "nodes": list(run.node_ids),
        "at": at.isoformat(),
    }
