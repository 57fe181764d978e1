"""What engines that keep a run book have in common: every end is recorded before it is told, and told until acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from agent.engines.base import Delivery, Engine, LaunchRequest, RankExited, RunEvent, RunFailed, RunStatus, StopRequest
from agent.engines.event_stream import EventStream
from agent.engines.local.gang import Cause, Gang, RankEnd
from agent.run_book import BegunRun, RunBook, UnitKey
from meridian.clock import Clock


def identity(run: LaunchRequest | BegunRun | StopRequest) -> tuple[str, str, int, int]:
    """Run, job, unit and epoch: the first four fields of every event of a run."""
    return run.run_id, run.job_id, run.unit_index, run.epoch


class RecordedRuns(Engine):
    """Attributes that the engine sets: the book, the clock, the stream of events, what runs, and whether the lease is held."""

    _book: RunBook
    _clock: Clock
    _stream: EventStream
    _runs: Mapping[Any, Any]
    _unit_locks: WeakValueDictionary[UnitKey, asyncio.Lock]
    _lease_held: bool

    def report(self, event: RunEvent) -> None:
        self._emit(event)

    def lease_regained(self) -> None:
        self._lease_held = True

    def list_runs(self) -> tuple[RunStatus, ...]:
        return tuple(
            RunStatus(*identity(run.gang.request), run.gang.state, run.gang.node_ids) for run in self._runs.values()
        )

    def acknowledge(self, number: int) -> None:
        self._book.acknowledge(number)

    def unacknowledged(self) -> int:
        return len(self._book.pending)

    def _rank_exited(self, gang: Gang, end: RankEnd, message: dict[str, Any]) -> RankExited:
        return RankExited(
            *identity(gang.request),
            self._clock.now(),
            rank=end.rank,
            node_id=gang.node_of(end.rank),
            exit_code=end.exit_code,
            signal=end.signal,
            kind=gang.kind_of(end),
            wall_s=message["wall_s"],
            cpu_s=message["cpu_s"],
            max_resident_bytes=message["max_resident_bytes"],
            malformed_count=message["malformed_count"],
        )

    def _emit(self, event: RunEvent) -> None:
        number, record_number = self._book.record(event)
        self._stream.put(Delivery(number, event), record_number)

    def _failed(self, run: LaunchRequest | BegunRun | StopRequest, cause: Cause) -> RunFailed:
        return RunFailed(
            *identity(run),
            self._clock.now(),
            kind=cause.kind,
            reason=cause.reason,
            rank=cause.rank,
            node_id=cause.node_id,
            exit_code=cause.exit_code,
            signal=cause.signal,
            log_tail=cause.log_tail,
        )

    def _lock(self, unit: UnitKey) -> asyncio.Lock:
        lock = self._unit_locks.get(unit)
        if lock is None:
            lock = self._unit_locks[unit] = asyncio.Lock()
        return lock
