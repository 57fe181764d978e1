"""The book: every unfinished job with its units and runs. A `Draft` collects changes; merged only once they are safe.

The live service writes a draft to the database and merges it after the commit; the simulator merges at once. Reading
through a draft shows the book with the draft's changes. The `Cluster` that decisions look at is kept up with each merge
(kept.py); `advance` brings what depends on the time alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.contracts.promises import Promises
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.effects import DecisionRecord, Effect
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.idle_nodes import IDLE_NODES, IdleNodes, idle_rules_of
from services.scheduler.core.kept import Kept, pending_unit
from services.scheduler.core.measured import News
from services.scheduler.core.policy import Policy
from services.scheduler.core.records import Records
from services.scheduler.core.renewal import Renewal, by_steps
from services.scheduler.core.replica_loads import Replicas
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import (
    FINAL_JOB_STATES,
    Job,
    Run,
    RunState,
    Unit,
    UnitKey,
    UnitState,
)
from services.scheduler.core.waiting_unit import PendingUnit

Deadline = tuple[float, str, UnitKey | str]


class Book(Records):
    """Jobs, units and runs by id, and what is derived from them: the queue, the ledger, the next deadlines."""

    def __init__(self, policy: Policy | None = None, run_times: RunTimes | None = None) -> None:
        super().__init__(run_times)
        self.queued: dict[UnitKey, None] = {}
        self.nominated: dict[UnitKey, None] = {}
        self._deadlines: list[tuple[float, int, str, UnitKey | str]] = []
        self._pushed = 0
        self._kept = Kept(self, policy or Policy())
        self._renewal = Renewal()
        self.replicas = Replicas()
        self.cluster.view.facts["measured"] = self.measured
        self.promises = Promises(self, self.cluster)
        self.idle: IdleNodes | None = None
        self.runs_on: dict[str, dict[str, None]] = {}
        """Open runs by node."""
        self.avoiding: dict[UnitKey, None] = {}
        """Units in the queue that are to avoid nodes."""
        self.sharing: dict[str, None] = {}
        """Active runs that hold a part of a device."""
        self.squeezed: dict[str, None] = {}
        """Those that have less than they asked for (shares.py)."""

    @classmethod
    def restored(
        cls,
        fleet: Fleet,
        jobs: Iterable[Job],
        units: Iterable[Unit],
        runs: Iterable[Run],
        policy: Policy | None = None,
        run_times: RunTimes | None = None,
        measured: News | None = None,
    ) -> Book:
        """A book with this content: unfinished jobs, all their units, open runs, what programs reported of them."""
        book = cls(policy, run_times)
        book.measured.learn(measured or News())
        draft = book.draft()
        draft.fleet = fleet
        draft.jobs = {item.job_id: item for item in jobs}
        draft.units = {item.key: item for item in units}
        draft.runs = {item.run_id: item for item in runs}
        book.merge(draft)
        return book

    @property
    def cluster(self) -> Cluster:
        """What the decisions look at; it is as of the last merge and the last `advance`."""
        return self._kept.cluster

    @property
    def now_s(self) -> float:
        """The time up to which `advance` came."""
        return self._kept.now_s

    # -- reading ---------------------------------------------------------------------------------------------------

    def eligible(self, now_s: float) -> list[PendingUnit]:
        """Queued units that may be placed now: no back-off, no former run that is still ending, no nodes kept for them."""
        pending: list[PendingUnit] = []
        for key in self.queued:
            unit = self.units[key]
            if unit.not_before_s > now_s or self.runs_of.get(key):
                continue
            if unit.nomination is None:
                pending.append(pending_unit(self.jobs[key.job_id], unit, now_s, self.run_times))
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
        self.promises.pass_time(draft.at_s)
        if self.idle is not None:
            self.idle.at_s = max(self.idle.at_s, self.now_s if math.isnan(draft.at_s) else draft.at_s)
            if draft.fleet is not self.fleet:
                self.idle.fleet_changed(self.fleet, draft.fleet)
        self._kept.changed_at_s = self.now_s if math.isnan(draft.at_s) else max(self.now_s, draft.at_s)
        observations = self.promises.seen(draft)
        before, self.fleet = self.fleet, draft.fleet
        self._kept.refit(before, self.fleet)
        self.jobs.update(draft.jobs)
        for unit in draft.units.values():
            self._merge_unit(unit)
        for run in draft.runs.values():
            self._merge_run(run)
        for key in dict.fromkeys([*draft.units, *(run.key for run in draft.runs.values())]):
            self._kept.sync(key)
        for job in draft.jobs.values():
            if job.state in FINAL_JOB_STATES:
                self._forget(job)
        self.promises.observe(observations)
        self.promises.pass_time(draft.at_s)

    def use(self, policy: Policy, now_s: float) -> None:
        """Another policy applies from now on, with its promises and its rules about idle nodes."""
        self.cluster.use(policy)
        self.promises.use(policy, now_s)
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """The book is used from ``now_s`` on: nodes that hold nothing are idle since then, where the policy asks for it."""
        if idle_rules_of(self.cluster.policy) is None:
            self.cluster.unwatch(IDLE_NODES)
            self.idle = None
        else:
            self.idle = self.cluster.watch(IDLE_NODES, None, lambda: IdleNodes(now_s))

    def advance(self, now_s: float) -> None:
        """Time has come to ``now_s``: back-offs and exclusions that are over, estimates that were outlived or got old."""
        self.promises.pass_time(now_s)
        self._kept.advance(now_s)
        for running in self._renewal.renewed(self.cluster, self, now_s):
            self._kept.restate(running)

    def next_renewal_s(self) -> float:
        """When estimates about running units are to be asked for again (`Renewal`); infinite: never."""
        return self._renewal.next_s(self.cluster)

    def next_fall_s(self) -> float:
        """When a cycle is wanted though nothing happens: a running unit falls behind others in the order; infinite: never."""
        return self._kept.next_fall_s(self._kept.now_s)

    def learn(self, news: News, now_s: float) -> None:
        """Programs reported steps and loads. Orders and reservations that rest on ends see those of units whose steps say when."""
        self.measured.learn(news)
        # A service may have finished since its replicas reported.
        self.replicas.learn([(key, load) for key, load in news.loads if key in self.units])
        for running in by_steps(self.cluster, self, [key for key, _ in news.done], now_s):
            self._kept.restate(running)

    def remember(self, decisions: Decisions) -> None:
        """The decisions were merged: the next cycle may rest on what they found."""
        self._kept.remember(decisions)

    @property
    def fixed_ports(self) -> Set[int]:
        """Ports that services ask for by number: no run is given one of them that did not ask for it."""
        return self._kept.fixed_ports

    def has_room(self, key: UnitKey) -> bool:
        """Whether the nodes kept for a nominated unit are there and free for it, but for runs that are ending."""
        return self._kept.has_room(key)

    def _merge_unit(self, unit: Unit) -> None:
        self.units[unit.key] = unit
        if unit.state is UnitState.QUEUED:
            self.queued[unit.key] = None
            self.measured.waits(unit.key, unit.checkpoint.step if unit.checkpoint is not None else 0)
        else:
            self.queued.pop(unit.key, None)
        if unit.state is UnitState.QUEUED and unit.excluded_nodes:
            self.avoiding[unit.key] = None
        else:
            self.avoiding.pop(unit.key, None)
        if unit.nomination is not None:
            self.nominated[unit.key] = None
            self._push(unit.nomination.until_s, "nomination", unit.key)
        else:
            self.nominated.pop(unit.key, None)
        if unit.recovery_due_s and unit.state in {UnitState.RUNNING, UnitState.RECOVERING}:
            self._push(unit.recovery_due_s, "recovery", unit.key)
        if unit.state is UnitState.QUEUED:
            for due_s in (unit.not_before_s, unit.excluded_until_s):
                if due_s:
                    self._push(due_s, "eligible", unit.key)

    def _merge_run(self, run: Run) -> None:
        before = self.runs.get(run.run_id)
        self.ledger.move(before, run)
        if run.state is RunState.ENDED:
            self.runs.pop(run.run_id, None)
            of_unit = self.runs_of.get(run.key)
            if of_unit is not None:
                of_unit.discard(run.run_id)
                if not of_unit:
                    del self.runs_of[run.key]
            for node_id in {rank.node_id for rank in run.ranks}:
                on_node = self.runs_on.get(node_id, {})
                on_node.pop(run.run_id, None)
                if not on_node:
                    self.runs_on.pop(node_id, None)
            self._learn(run)
        else:
            self.runs[run.run_id] = run
            self.runs_of.setdefault(run.key, set()).add(run.run_id)
            for rank in run.ranks:
                self.runs_on.setdefault(rank.node_id, {})[run.run_id] = None
            if run.state is RunState.STOPPING:
                self._push(run.stop_until_s, "stop", run.run_id)
        self._share(run)
        self._kept.run_changed(before, run)

    def _share(self, run: Run) -> None:
        rank = run.ranks[0] if run.ranks else None
        if run.state is not RunState.ACTIVE:
            if run.run_id in self.sharing:
                del self.sharing[run.run_id]
                self.squeezed.pop(run.run_id, None)
                self.replicas.ended(run.run_id)
        elif rank is not None and rank.devices and (rank.device_milli < 1000 or run.run_id in self.sharing):
            self.sharing[run.run_id] = None
            job = self.jobs.get(run.key.job_id)
            if job is not None and rank.device_milli < job.spec.demand.device_milli:
                self.squeezed[run.run_id] = None
            else:
                self.squeezed.pop(run.run_id, None)

    def _learn(self, run: Run) -> None:
        unit, job = self.units.get(run.key), self.jobs.get(run.key.job_id)
        if unit is None or job is None or unit.state is not UnitState.SUCCEEDED or unit.epoch != run.epoch:
            return
        ran_s = run.ended_at_s - (run.started_at_s or run.assigned_at_s)
        spec = job.units[run.key.unit_index]
        self.run_times.observe(job, spec, unit.attained_s + max(ran_s, 0.0), run.ended_at_s)

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.job_id, None)
        keys = [UnitKey(job.job_id, spec.index) for spec in job.units]
        self.measured.forget(job.job_id, keys)
        self.replicas.forget(job.job_id, keys)
        for key in keys:
            self.units.pop(key, None)
            self.queued.pop(key, None)
            self.avoiding.pop(key, None)
            self.nominated.pop(key, None)
            self._kept.sync(key)

    def _push(self, due_s: float, kind: str, key: UnitKey | str) -> None:
        self._pushed += 1
        heapq.heappush(self._deadlines, (due_s, self._pushed, kind, key))


class Draft:
    """Changes to a book, the effects they have outside, and the decisions to be kept. ``at_s`` is when they happened, NaN when
    nobody says."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.fleet_before = book.fleet
        self.fleet = book.fleet
        self.jobs: dict[str, Job] = {}
        self.units: dict[UnitKey, Unit] = {}
        self.runs: dict[str, Run] = {}
        self.effects: list[Effect] = []
        self.records: list[DecisionRecord] = []
        self.at_s = math.nan
        self._ports: dict[str, set[int]] = {}
        self._runs_of: dict[UnitKey, set[str]] = {}

    @property
    def book(self) -> Book:
        """The book without the draft's changes."""
        return self._book

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

    def open_runs_on(self, node_id: str) -> list[Run]:
        """Those with a rank on the node."""
        begun = (name for name, run in self.runs.items() if any(rank.node_id == node_id for rank in run.ranks))
        runs = (self.run(name) for name in dict.fromkeys([*self._book.runs_on.get(node_id, ()), *begun]))
        return [run for run in runs if run is not None and run.state is not RunState.ENDED]

    def units_avoiding(self, node_id: str) -> list[Unit]:
        """Units in the queue that are to avoid the node."""
        kept = (self._book.units[key] for key in self._book.avoiding if key not in self.units)
        units = [*kept, *(unit for unit in self.units.values() if unit.state is UnitState.QUEUED)]
        return [unit for unit in units if node_id in unit.excluded_nodes]

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
        """Ports on an address that may not be given out; the caller adds those it gives out."""
        if address not in self._ports:
            self._ports[address] = set(self._book.ledger.used_ports(address)) | self._book.fixed_ports
        return self._ports[address]
