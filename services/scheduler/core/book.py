"""The book: every unfinished job with its units and runs. A `Draft` collects changes; merged only once they are safe.

The live service writes a draft to the database and merges it after the commit; the simulator merges at once. Reading
through a draft shows the book with the draft's changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace

from services.scheduler.core.effects import DecisionRecord, Effect
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import (
    FINAL_JOB_STATES,
    Demand,
    Job,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitSpec,
    UnitState,
)

Deadline = tuple[float, str, UnitKey | str]


class Book:
    """Jobs, units and runs by id, and what is derived from them: the queue, the ledger, the next deadlines."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.units: dict[UnitKey, Unit] = {}
        self.runs: dict[str, Run] = {}
        self.fleet = Fleet()
        self.ledger = Ledger()
        self.queued: dict[UnitKey, None] = {}
        self.runs_of: dict[UnitKey, set[str]] = {}
        self._deadlines: list[tuple[float, int, str, UnitKey | str]] = []
        self._pushed = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def spec_of(self, key: UnitKey) -> UnitSpec:
        """The unchanging part of a unit."""
        return self.jobs[key.job_id].units[key.unit_index]

    def eligible(self, now_s: float) -> list[PendingUnit]:
        """Queued units that may be placed now: no back-off, no former run that is still ending."""
        pending = []
        for key in self.queued:
            unit = self.units[key]
            if unit.not_before_s > now_s or self.runs_of.get(key):
                continue
            job = self.jobs[key.job_id]
            demand = effective_demand(job.units[key.unit_index], unit, now_s)
            pending.append(PendingUnit(key, job.tenant_id, job.spec.priority, unit.queued_at_s, demand))
        return pending

    def due(self, now_s: float) -> list[Deadline]:
        """Deadlines up to ``now_s``; each is given out once."""
        out: list[Deadline] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            due_s, _, kind, key = heapq.heappop(self._deadlines)
            out.append((due_s, kind, key))
        return out

    def next_deadline_s(self) -> float | None:
        """When `due` has something to give; None when there is nothing to wait for."""
        return self._deadlines[0][0] if self._deadlines else None

    # -- changing --------------------------------------------------------------------------------------------------

    def draft(self) -> Draft:
        """An empty draft on this book."""
        return Draft(self)

    def merge(self, draft: Draft) -> None:
        """Take over the changes of a draft that was made on this book and on nothing newer."""
        self.fleet = draft.fleet
        self.jobs.update(draft.jobs)
        for unit in draft.units.values():
            self._merge_unit(unit)
        for run in draft.runs.values():
            self._merge_run(run)
        for job in draft.jobs.values():
            if job.state in FINAL_JOB_STATES:
                self._forget(job)

    def _merge_unit(self, unit: Unit) -> None:
        self.units[unit.key] = unit
        if unit.state is UnitState.QUEUED:
            self.queued[unit.key] = None
        else:
            self.queued.pop(unit.key, None)
        if unit.recovery_due_s and unit.state in {UnitState.RUNNING, UnitState.RECOVERING}:
            self._push(unit.recovery_due_s, "recovery", unit.key)
        if unit.state is UnitState.QUEUED:
            for due_s in (unit.not_before_s, unit.excluded_until_s):
                if due_s:
                    self._push(due_s, "eligible", unit.key)

    def _merge_run(self, run: Run) -> None:
        self.ledger.move(self.runs.get(run.run_id), run)
        if run.state is RunState.ENDED:
            self.runs.pop(run.run_id, None)
            of_unit = self.runs_of.get(run.key)
            if of_unit is not None:
                of_unit.discard(run.run_id)
                if not of_unit:
                    del self.runs_of[run.key]
            return
        self.runs[run.run_id] = run
        self.runs_of.setdefault(run.key, set()).add(run.run_id)
        if run.state is RunState.STOPPING:
            self._push(run.stop_until_s, "stop", run.run_id)

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.job_id, None)
        for spec in job.units:
            key = UnitKey(job.job_id, spec.index)
            self.units.pop(key, None)
            self.queued.pop(key, None)

    def _push(self, due_s: float, kind: str, key: UnitKey | str) -> None:
        self._pushed += 1
        heapq.heappush(self._deadlines, (due_s, self._pushed, kind, key))


class Draft:
    """Changes to a book, the effects they have outside, and the decisions to be kept."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.fleet_before = book.fleet
        self.fleet = book.fleet
        self.jobs: dict[str, Job] = {}
        self.units: dict[UnitKey, Unit] = {}
        self.runs: dict[str, Run] = {}
        self.effects: list[Effect] = []
        self.records: list[DecisionRecord] = []
        self._ports: dict[str, set[int]] = {}
        self._runs_of: dict[UnitKey, set[str]] = {}

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.jobs or self.units or self.runs or self.effects or self.fleet is not self.fleet_before)

    def job(self, job_id: str) -> Job | None:
        """The job, unless it is unknown or was finished before this draft."""
        return self.jobs.get(job_id) or self._book.jobs.get(job_id)

    def unit(self, key: UnitKey) -> Unit | None:
        """The unit, if its job is in the book."""
        return self.units.get(key) or self._book.units.get(key)

    def run(self, run_id: str) -> Run | None:
        """The run, unless it ended before this draft."""
        return self.runs.get(run_id) or self._book.runs.get(run_id)

    def units_of(self, job: Job) -> Iterator[Unit]:
        """All units of a job, by index."""
        for spec in job.units:
            unit = self.unit(UnitKey(job.job_id, spec.index))
            assert unit is not None
            yield unit

    def runs_of(self, key: UnitKey) -> list[Run]:
        """The runs of a unit that have not ended."""
        names = self._book.runs_of.get(key, set()) | self._runs_of.get(key, set())
        runs = (self.run(name) for name in sorted(names))
        return [run for run in runs if run is not None and run.state is not RunState.ENDED]

    def open_runs(self) -> list[Run]:
        """All runs that have not ended."""
        runs: Iterable[Run] = {**self._book.runs, **self.runs}.values()
        return [run for run in runs if run.state is not RunState.ENDED]

    def queued_keys(self) -> list[UnitKey]:
        """Units that wait in the queue."""
        keys = [key for key in self._book.queued if key not in self.units]
        return keys + [key for key, unit in self.units.items() if unit.state is UnitState.QUEUED]

    def put_run(self, run: Run) -> None:
        """Write a run."""
        self.runs[run.run_id] = run
        self._runs_of.setdefault(run.key, set()).add(run.run_id)

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision; its job must be in the book."""
        self.records.append(record)
        job = self.job(record.key.job_id)
        assert job is not None
        self.jobs[job.job_id] = replace(job, decisions=job.decisions + 1)

    def ports(self, address: str) -> set[int]:
        """Ports taken on an address; the caller adds those it gives out."""
        if address not in self._ports:
            self._ports[address] = set(self._book.ledger.used_ports(address))
        return self._ports[address]


def effective_demand(spec: UnitSpec, unit: Unit, now_s: float) -> Demand:
    """What placing the unit asks for now: with the nodes it is to avoid and the place of its checkpoint."""
    demand = spec.demand
    if unit.excluded_nodes and unit.excluded_until_s > now_s:
        demand = replace(demand, excluded_nodes=unit.excluded_nodes)
    if unit.checkpoint is not None:
        demand = replace(
            demand, checkpoint_domain=unit.checkpoint.domain_id, checkpoint_bytes=unit.checkpoint.size_bytes
        )
    return demand
