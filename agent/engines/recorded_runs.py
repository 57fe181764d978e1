"""What engines that keep a run book have in common: orders are admitted by the book, one run of a unit at a time, and every end is
recorded before it is told, and told until acknowledged."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from agent.engines.base import (
    Checkpoint,
    Delivery,
    Engine,
    FailureKind,
    LaunchRequest,
    Progress,
    RankExited,
    RunEvent,
    RunFailed,
    RunRefused,
    RunStarted,
    RunState,
    RunStatus,
    StopRequest,
)
from agent.engines.event_stream import EventStream
from agent.engines.local.gang import Cause, Gang, RankEnd
from agent.run_book import Admission, BegunRun, RunBook, RunKey, UnitKey
from meridian.clock import Clock


@dataclass(slots=True)
class Run:
    """A run that has not ended; ``ended`` is done when it has."""

    gang: Gang
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), kw_only=True
    )

    @property
    def key(self) -> RunKey:
        """Run id and epoch."""
        return self.gang.request.run_id, self.gang.request.epoch

    @property
    def unit(self) -> UnitKey:
        """Job id and unit index."""
        return self.gang.request.job_id, self.gang.request.unit_index


R = TypeVar("R", bound=Run)


def identity(run: LaunchRequest | BegunRun | StopRequest) -> tuple[str, str, int, int]:
    """Run, job, unit and epoch: the first four fields of every event of a run."""
    return run.run_id, run.job_id, run.unit_index, run.epoch


class RecordedRuns(Engine, Generic[R]):
    """See the module. What differs is how a run is started (`_start`) and how it is told to end (`_stop_run`).

    ``grace_s`` is how long programs have to end when nobody says how long.
    """

    def __init__(self, book: RunBook, clock: Clock, grace_s: float) -> None:
        self._book = book
        self._clock = clock
        self._grace_s = grace_s
        self._stream = EventStream()
        self._runs: dict[RunKey, R] = {}
        self._waiting: dict[UnitKey, LaunchRequest] = {}
        self._unit_locks: WeakValueDictionary[UnitKey, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease_held = True
        self._closing = False
        self.power_changed = asyncio.Event()
        self.malformed_count = 0

    # --- what differs ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def _start(self, request: LaunchRequest) -> None:
        """Start a run that stands in the book, nothing of its unit runs; or report why it cannot be."""

    @abstractmethod
    async def _stop_run(self, run: R, cause: Cause, grace_s: float) -> None:
        """Tell a run to end, which is done when it has; one that is ending already goes on so."""

    # --- what happens ----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Delivery]:
        while True:
            delivery, record_number = await self._stream.take()
            if record_number is not None:
                await self._book.durable(record_number)
            yield delivery

    # --- orders ----------------------------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest) -> None:
        unit = (request.job_id, request.unit_index)
        async with self._lock(unit):
            admission = self._book.admit(request)
            if admission is Admission.ACCEPTED:
                await self._begin(request)
            elif admission is Admission.KNOWN_RUNNING:
                run = self._runs.get((request.run_id, request.epoch))
                if run is not None and run.gang.state is RunState.RUNNING:
                    self._emit(RunStarted(*identity(request), self._clock.now(), run.gang.node_ids))
            elif admission is Admission.KNOWN_ENDED:
                end = self._book.units[unit].end
                assert end is not None
                self._emit(end)
            else:
                highest = self._book.highest_epoch(*unit)
                reason = f"epoch {request.epoch} is stale: {highest} was seen"
                self._emit(RunRefused(*identity(request), self._clock.now(), highest, reason))

    async def stop(self, request: StopRequest) -> None:
        unit = (request.job_id, request.unit_index)
        async with self._lock(unit):
            if request.epoch > self._book.highest_epoch(*unit):
                await self._book.durable(self._book.fence(*unit, request.epoch, self._clock.now()))
                self._emit(self._failed(request, Cause(FailureKind.STOPPED, f"never started here: {request.reason}")))
            waiting = self._waiting.get(unit)
            if waiting is not None and waiting.epoch <= request.epoch:
                del self._waiting[unit]
                self._emit(self._failed(waiting, Cause(FailureKind.STOPPED, request.reason)))
            for run in self._runs_of(unit):
                if run.gang.request.epoch <= request.epoch:
                    await self._stop_run(run, Cause(FailureKind.STOPPED, request.reason), request.grace_s)

    async def lease_lost(self) -> None:
        self._lease_held = False
        await self._stop_all(Cause(FailureKind.LEASE_EXPIRED, "the domain has no contact to the bus"))

    # --- views and words -------------------------------------------------------------------------------------------

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

    # --- steps -----------------------------------------------------------------------------------------------------

    async def _begin(self, request: LaunchRequest) -> None:
        """Record the order durably, end older runs of the unit, then start; the start itself does not hold up others."""
        unit = (request.job_id, request.unit_index)
        record_number = self._book.begin(request, self._clock.now())
        superseded = Cause(FailureKind.STOPPED, f"superseded by epoch {request.epoch}")
        waiting = self._waiting.pop(unit, None)
        if waiting is not None:
            self._emit(self._failed(waiting, superseded))
        for run in self._runs_of(unit):
            await self._stop_run(run, superseded, 0)
        await self._book.durable(record_number)
        older = self._runs_of(unit)
        if older:
            self._waiting[unit] = request
            self._spawn(self._start_after(older, request))
        else:
            await self._start(request)

    async def _start_after(self, older: list[R], request: LaunchRequest) -> None:
        await asyncio.wait([run.ended for run in older])
        unit = (request.job_id, request.unit_index)
        if self._waiting.get(unit) is request:
            del self._waiting[unit]
            await self._start(request)

    async def _stop_all(self, cause: Cause) -> None:
        for run in list(self._runs.values()):
            await self._stop_run(run, cause, self._grace_s)

    def _tell_again(self) -> None:
        """The first thing of a start: what an earlier agent recorded, and nobody has acknowledged."""
        for number, event in sorted(self._book.pending.items()):
            self._stream.put(Delivery(number, event), None)

    def _why_not_now(self) -> Cause | None:
        """Why no run is started, whichever it is; None: they are."""
        if self._closing:
            return Cause(FailureKind.AGENT_RESTARTED, "the agent shuts down")
        if not self._lease_held:
            return Cause(FailureKind.LEASE_EXPIRED, "the domain has no contact to the bus")
        return None

    def _progress(self, request: LaunchRequest, message: dict[str, Any]) -> Progress:
        body = message["rank"], message["step"], message["total_steps"], message["metrics"]
        return Progress(*identity(request), self._clock.now(), *body)

    def _checkpoint(self, request: LaunchRequest, message: dict[str, Any]) -> Checkpoint:
        body = message["rank"], message["step"], message["path"], message["size_bytes"]
        return Checkpoint(*identity(request), self._clock.now(), *body)

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

    def _runs_of(self, unit: UnitKey) -> list[R]:
        return [run for run in self._runs.values() if run.unit == unit]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A part that fails fails the engine: whoever reads the events gets its error."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._stream.fail(error)
