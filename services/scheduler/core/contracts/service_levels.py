"""Service levels of the live network: what happens to units, as observations, and the accounts of those to whom something was
promised.

| observation | what happened | what it tells |
|---|---|---|
| ``queued`` | the unit waits, at first or again | the wait begins |
| ``started`` | it got nodes | average wait |
| ``responded`` | the program of its first run runs | response time: since the unit could have been placed |
| ``recovered`` | the program runs again after its run was lost | recovery time: since the loss was known |
| ``finished`` | it has done its work | throughput |
| ``withdrawn`` | it was cancelled or failed for good | nothing more is promised |

`seen` reads them off a draft, before and after it is written, alike; `ServiceLevels.observe` takes them in. A preemption is no
loss. An objective of a queue with tenants below it counts the units of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Protocol

from services.scheduler.core.records import Records
from services.scheduler.core.selection.objectives_sla import SlaAccounts, SlaRow
from services.scheduler.core.sla_values import Objective
from services.scheduler.core.state import FINAL_UNIT_STATES, Demand, Job, Run, Unit, UnitKey, UnitState
from services.scheduler.core.waiting_unit import INFINITE, PendingUnit

QUEUED, STARTED, RESPONDED, RECOVERED = "queued", "started", "responded", "recovered"
FINISHED, WITHDRAWN, LOST = "finished", "withdrawn", "lost"
_NO_DEMAND = Demand(1)


@dataclass(frozen=True, slots=True)
class Observation:
    """Something happened to a unit of ``tenant_id``. ``value_s``: of ``responded`` how long it took, of ``queued`` how long the
    unit may run (0: unknown). ``deadline_s`` of ``queued``: when it is to have finished (0: no deadline)."""

    kind: str
    tenant_id: str
    key: UnitKey
    at_s: float
    value_s: float = 0.0
    deadline_s: float = 0.0

    def as_row(self) -> list[Any]:
        """As JSON types."""
        return [
            self.kind,
            self.tenant_id,
            self.key.job_id,
            self.key.unit_index,
            self.at_s,
            self.value_s,
            self.deadline_s,
        ]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Observation:
        """What `as_row` gave."""
        kind, tenant_id, job_id, unit_index, *numbers = row
        return cls(kind, tenant_id, UnitKey(job_id, unit_index), *numbers)


class Changes(Protocol):
    """What is read of a draft (book.py): units and runs that are to be written over those of its book, and when."""

    at_s: float
    units: dict[UnitKey, Unit]
    runs: dict[str, Run]

    @property
    def book(self) -> Records:
        """Everything as it was before."""
        ...

    def job(self, job_id: str) -> Job | None:
        """The job as it is to be written, else as it was."""
        ...


def seen(draft: Changes, counts: Callable[[str], bool]) -> list[Observation]:
    """What a draft that is not merged yet does to units of the tenants that count, in the order in which it happened."""
    found: list[Observation] = []
    for run in draft.runs.values():
        if counts(run.tenant_id):
            found += _of_run(draft, run)
    for unit in draft.units.values():
        job = draft.job(unit.key.job_id)
        if job is not None and counts(job.tenant_id):
            found += _of_unit(draft, unit, job)
    return found


def _of_run(draft: Changes, run: Run) -> Iterator[Observation]:
    before = draft.book.runs.get(run.run_id)
    if not run.started_at_s or (before is not None and before.started_at_s):
        return
    unit = draft.book.units.get(run.key)
    at_s = min(run.started_at_s, draft.at_s)
    if run.epoch == 1 and unit is not None:
        yield Observation(RESPONDED, run.tenant_id, run.key, at_s, max(at_s - unit.queued_at_s, 0.0))
    yield Observation(RECOVERED, run.tenant_id, run.key, at_s)


def _of_unit(draft: Changes, unit: Unit, job: Job) -> Iterator[Observation]:
    tenant_id, spec = job.tenant_id, job.spec
    before = draft.book.units.get(unit.key)
    waited = before is not None and before.state is UnitState.QUEUED
    at_s = draft.at_s
    if before is not None and _lost(before, unit):
        yield Observation(LOST, tenant_id, unit.key, at_s)
    if unit.state is UnitState.QUEUED and not waited:
        # What came while nobody listened has waited since it was submitted.
        since_s = min(unit.queued_at_s, at_s) if before is None else at_s
        yield Observation(QUEUED, tenant_id, unit.key, since_s, spec.max_run_time_s, spec.deadline_s)
    elif unit.state is UnitState.RUNNING and waited:
        yield Observation(STARTED, tenant_id, unit.key, at_s)
    elif unit.state is UnitState.SUCCEEDED and before is not None:
        yield Observation(FINISHED, tenant_id, unit.key, at_s)
    elif unit.state in FINAL_UNIT_STATES and before is not None and before.state not in FINAL_UNIT_STATES:
        yield Observation(WITHDRAWN, tenant_id, unit.key, at_s)


def _lost(before: Unit, after: Unit) -> bool:
    """Whether this is when the unit's run is known to be lost."""
    if after.recoveries > before.recoveries or (after.state is UnitState.RECOVERING is not before.state):
        return not before.recovery_due_s
    return bool(after.recovery_due_s and not before.recovery_due_s and after.state is UnitState.RUNNING)


class ServiceLevels:
    """The accounts, fed with observations in the order of the commits. ``number`` counts those that were taken in."""

    def __init__(self, objectives: Mapping[str, Sequence[Objective]], parents: Mapping[str, str], now_s: float) -> None:
        self.accounts = SlaAccounts(objectives, now_s)
        self.parents = dict(parents)
        self.number = 0
        self.now_s = now_s
        self._lost_s: dict[UnitKey, float] = {}

    def counts(self, tenant_id: str) -> bool:
        """Whether anything was promised to the tenant, or to a queue above it."""
        return any(name in self.accounts.objectives for name in self._above(tenant_id))

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take them in. A time before the last one's counts as that; what does not fit a unit's state changes nothing."""
        for item in observations:
            self.number += 1
            at_s = self.now_s if isnan(item.at_s) else max(item.at_s, self.now_s)
            self.now_s = at_s
            if item.kind == LOST:
                self._lost_s.setdefault(item.key, at_s)
                continue
            for name in self._above(item.tenant_id):
                if name in self.accounts.objectives:
                    # What was promised anew counts from then on, though this happened before.
                    its_s = max(at_s, self.accounts.now_s(name))
                    self._apply(item, PendingUnit(item.key, name, 0, its_s, _NO_DEMAND), its_s)
            if item.kind in {RECOVERED, FINISHED, WITHDRAWN}:
                self._lost_s.pop(item.key, None)

    def align(self, book: Records, now_s: float) -> None:
        """Know each unfinished unit of the book: one that is not known yet waits, or runs, since now."""
        for unit in book.units.values():
            job = book.jobs[unit.key.job_id]
            for name in self._above(job.tenant_id) if unit.state not in FINAL_UNIT_STATES else ():
                known = PendingUnit(unit.key, name, 0, now_s, _NO_DEMAND)
                if name not in self.accounts.objectives or self.accounts.knows(known):
                    continue
                at_s = self.now_s = max(now_s, self.now_s)
                if unit.state is UnitState.QUEUED:
                    self.accounts.queued(known, at_s)
                elif unit.state is UnitState.RUNNING:
                    self.accounts.adopted(known, at_s)

    def rows(self, now_s: float) -> list[SlaRow]:
        """How every objective stands; on a copy, so that looking changes nothing."""
        return self.accounts.snapshot().rows(max(now_s, self.now_s))

    def state(self) -> dict[str, Any]:
        """Everything but what was promised, as JSON types."""
        return {
            "number": self.number,
            "now_s": self.now_s,
            "lost": [[key.job_id, key.unit_index, at_s] for key, at_s in self._lost_s.items()],
            **self.accounts.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as `state` had it, as far as what was promised is the same."""
        self.number, self.now_s = state["number"], state["now_s"]
        self._lost_s = {UnitKey(job_id, index): at_s for job_id, index, at_s in state["lost"]}
        self.accounts.load(state)

    def _above(self, tenant_id: str) -> Iterator[str]:
        name, seen_names = tenant_id, set[str]()
        while name and name not in seen_names:
            seen_names.add(name)
            yield name
            name = self.parents.get(name, "")

    def _apply(self, item: Observation, unit: PendingUnit, at_s: float) -> None:
        accounts, lost_s = self.accounts, self._lost_s.get(item.key)
        knows, waits = accounts.knows(unit), accounts.waits(unit)
        if item.kind == QUEUED and not waits:
            known = replace(unit, limit_s=item.value_s or INFINITE, deadline_s=item.deadline_s or INFINITE)
            accounts.queued(known, at_s, lost_s)
        elif item.kind == STARTED and waits:
            accounts.started(unit, at_s)
        elif item.kind == RESPONDED:
            accounts.responded(unit.tenant_id, at_s, item.value_s)
        elif item.kind == RECOVERED and lost_s is not None:
            accounts.recovered(unit, at_s, max(at_s - lost_s, 0.0))
        elif item.kind == FINISHED and knows and not waits:
            accounts.finished(unit, at_s)
        elif item.kind in {FINISHED, WITHDRAWN} and knows:
            accounts.withdrawn(unit, at_s)
