"""The book in memory and the database behind it.

Single writer: `draft` takes the writer's lock for the rest of a transaction. What the draft changed is written in that
transaction; the book takes it over when the commit is certain. When a commit failed or its fate is unknown, the book is
read from the database again before the next use, so memory is never ahead of it or behind.

What is done, in which order and at which times, goes into the journal (journal.py) so that it can be done again (replay.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import asyncpg
import sqlalchemy as sa

from meridian.errors import MeridianError, PreconditionFailedError
from meridian.leadership import AdvisoryLock
from meridian.observability import child_traceparent
from meridian.outbox import Outbox, Transaction
from meridian.service import Kernel
from services.scheduler import store
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Snapshot, decide, snapshot_of
from services.scheduler.core.deciding.decisions import Waiting
from services.scheduler.core.effects import Finished, Placed, Sleep
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.unlike import MOST_UNITS, Unlike, said, unlike
from services.scheduler.core.waiting import WaitingUnits
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.errors import LeadershipLostError
from services.scheduler.journal import Journal
from services.scheduler.leading import keep_leading
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.policy import changes as policy_changes
from services.scheduler.policy.changes import Outcome
from services.scheduler.policy.warnings import warnings_of
from services.scheduler.promises_kept import PromisesKept
from services.scheduler.run_times_kept import RunTimesKept
from services.scheduler.settings import SchedulerSettings
from services.scheduler.shards.handing_over import refuse_misplaced
from services.scheduler.steps_heard import StepsHeard
from services.scheduler.tenants import Tenants
from services.scheduler.wire import message_of

log = logging.getLogger(__name__)


class SeenPart(NamedTuple):
    """Where a scheduler sees a part only: among whose units places are counted, and what its answers take for granted."""

    among: str
    assumes: str


def _why_not(found: Unlike) -> str:
    if found.units > MOST_UNITS:
        return f"{found.units} units with accelerators are more than the {MOST_UNITS} that are planned together"
    return "too few of them have rates that differ by accelerator"


class LiveBook:
    """Owns the book; see the module."""

    def __init__(self, kernel: Kernel, settings: SchedulerSettings, policy: Policy) -> None:
        plugins_of(policy)
        self.policy = policy
        self.file_policy = policy
        self.book = Book()
        self._kernel = kernel
        self._settings = settings
        self._metrics = SchedulerMetrics(kernel.registry)
        self._leadership = AdvisoryLock(kernel.database, "leader")
        self._term = 0
        self._writer = asyncio.Lock()
        self._doubtful = False
        self._poked = asyncio.Event()
        self._changed = asyncio.Event()
        self._waiting = WaitingUnits()
        self.journal = Journal(kernel.database)
        self.accounts = PromisesKept(kernel.database)
        self._run_times = RunTimesKept(kernel.database)
        self.tenants = Tenants()
        self._steps = StepsHeard()
        self._rested_at_s = 0.0
        self._moves_looked_at_s = 0.0

    @property
    def outbox(self) -> Outbox:
        """Where transactions begin that write something and tell of it."""
        return self._kernel.outbox

    def now_s(self) -> float:
        """The present time in seconds since 1970."""
        return self._kernel.clock.now().timestamp()

    def snapshot(self) -> Snapshot:
        """The book as a cycle would see it now, built anew."""
        return snapshot_of(self.book, self.now_s())

    @property
    def waiting(self) -> Mapping[UnitKey, Waiting]:
        """Why each unit waits that a cycle looked at, with its place in the queue."""
        return self._waiting.all(self.book.cluster, self.book.now_s)

    # -- questions ---------------------------------------------------------------------------------------------------

    def for_questions(self) -> Cluster:
        """A copy of the cluster that a question may change."""
        return self.book.cluster.copy()

    def known_of_domains(self, demand: Demand, key: UnitKey | None = None) -> list[dict[str, Any]]:
        """What domains told of themselves and how they stand for a demand, and for a unit that waits; empty where this
        scheduler sees all nodes itself."""
        return []

    @property
    def seen_part(self) -> SeenPart | None:
        """What answers leave out; None where this scheduler sees everything."""
        return None

    def follows(self) -> dict[str, Any] | None:
        """Whether the policy's planner for unlike rates decides now, and why; None where it has none."""
        if not self.policy.unlike_planner:
            return None
        found = unlike(self.book.cluster)
        return {
            "planner": self.policy.unlike_planner,
            "in_use": found.follows,
            "units_with_accelerators": found.units,
            "units_whose_rates_differ": found.differ,
            "reason": said(self.book.cluster, self.policy)
            if found.follows
            else f"each unit is placed in its turn: {_why_not(found)}",
        }

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become the one that decides, and read the state; ConfigurationError while jobs are with other shards than theirs."""
        log.info("standing by until this instance leads")
        await self._leadership.take()
        async with self._kernel.database.transaction() as connection:
            await refuse_misplaced(connection, self._settings.names)
            self._term = self.journal.term = await store.begin_term(connection)
            await self.tenants.load(connection)
            self.policy = await policy_changes.at_start(
                connection,
                self.tenants.over(self.file_policy),
                self.now_s(),
                from_file=self._settings.policy_from_file,
            )
            loaded = await store.load(connection)
            self._rebuild(loaded, await self._run_times.load(connection))
        log.info(
            "leading",
            extra={
                "term": self._term,
                "jobs": len(self.book.jobs),
                "runs": len(self.book.runs),
                "policy_version": self.policy.version,
            },
        )
        if self.book.fleet.domains:
            self._warn()

    async def keep_leading(self) -> None:
        """Ends with an error when another scheduler may have taken over."""
        await keep_leading(self._leadership)

    async def stop(self) -> None:
        """Let another one lead."""
        if self._term:
            try:
                await self.journal.flush()
                await self._run_times.save(self.book.run_times)
                await self.accounts.save(self.book, self._term, self.now_s())
            except (OSError, sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # Run times are learned again from history; the journal's end is missing.
                log.warning("the end of the journal was not written", extra={"error": repr(error)})
        await self._leadership.release()

    def _rebuild(self, loaded: store.Loaded, run_times: RunTimes) -> None:
        now_s = self.now_s()
        self.journal.begin(now_s, loaded, self.policy, run_times)
        self.book = Book.restored(
            loaded.fleet, loaded.jobs, loaded.units, loaded.runs, self.policy, run_times, loaded.measured
        )
        self._steps.begin()
        if loaded.saved is not None:
            self.book.promises.begin(loaded.saved, now_s)
        self.book.begin(now_s)
        self._waiting = WaitingUnits()
        self._doubtful = False
        self._poked.set()
        self._changed.set()
        self._gauge()

    # -- writing -----------------------------------------------------------------------------------------------------

    async def draft(self, transaction: Transaction) -> Draft:
        """An empty draft; nobody else writes until the transaction ends. LeadershipLostError in an older term."""
        await self._writer.acquire()
        transaction.on_end(self._ended)
        if await store.current_term(transaction.connection) != self._term:
            raise LeadershipLostError("another scheduler leads in a newer term")
        if self._doubtful:
            await self.tenants.load(transaction.connection)
            from_file = self.tenants.over(self.file_policy)
            self.policy = await policy_changes.in_force(transaction.connection, self.policy, from_file)
            loaded = await store.load(transaction.connection)
            self._rebuild(loaded, await self._run_times.load(transaction.connection))
        return self.book.draft()

    async def write(self, transaction: Transaction, draft: Draft, new_specs: Mapping[str, bytes] | None = None) -> None:
        """Write a draft and its events; the book takes it over at the commit."""
        if not draft.changed:
            return
        await store.save(transaction.connection, draft, new_specs or {})
        await self.accounts.note(transaction.connection, self.book, draft)
        now_s = self.now_s()
        for effect in draft.effects:
            parent = "" if isinstance(effect, Sleep) else effect.job.traceparent
            transaction.publish(message_of(effect, now_s), traceparent=child_traceparent(parent) if parent else None)
        transaction.on_commit(lambda: self._merge(draft))

    def _merge(self, draft: Draft) -> None:
        self.book.merge(draft)
        self._changed.set()
        for effect in draft.effects:
            if isinstance(effect, Placed) and effect.run.epoch == 1:
                self._metrics.placed_after.observe(max(0.0, effect.run.assigned_at_s - effect.job.submitted_at_s))
            elif isinstance(effect, Finished):
                self._metrics.finished.labels(str(effect.outcome)).inc()
        if draft.units or draft.runs or draft.fleet is not draft.fleet_before:
            self._poked.set()
        self._gauge()

    def _ended(self, committed: bool) -> None:
        if not committed:
            self._doubtful = True
            self._poked.set()
            self._changed.set()
        self._writer.release()

    def _gauge(self) -> None:
        self._metrics.pending.set(len(self.book.queued))
        self._metrics.running.set(len(self.book.runs))

    # -- the policy --------------------------------------------------------------------------------------------------

    async def change_policy(
        self, policy: Policy, *, changed_by: str, source: str = "", condition: str | None = None
    ) -> tuple[Policy, bool]:
        """Decide by another policy from the next cycle on; the file's policy without a ``source`` gives up what was set.

        Returns the policy before, and whether anything changed. PreconditionFailedError when ``condition`` (If-Match) does
        not hold. A cycle in progress ends by the policy it began with, as it holds the writer's lock.
        """
        policy = self.tenants.over(policy)
        origin = policy_changes.API if source else policy_changes.FILE
        change = policy_changes.change_to(policy, self.now_s(), origin=origin, changed_by=changed_by, source=source)
        async with self._kernel.outbox.transaction() as transaction:
            await self.draft(transaction)
            before = self.policy
            outcome = await policy_changes.put(transaction.connection, before, change, condition)
            if outcome is Outcome.CHANGED:
                transaction.on_commit(lambda: self._use(policy))
        if outcome is Outcome.REFUSED:
            # Not inside: a transaction that is rolled back makes the scheduler read its whole state again.
            raise PreconditionFailedError(f"the policy in force is {before.version}, not {condition}")
        if outcome is Outcome.CHANGED:
            extra = {"policy_version": policy.version, "before": before.version, "changed_by": changed_by}
            log.info("policy changed", extra=extra)
            self._warn()
        return before, outcome is Outcome.CHANGED

    def check_policy(self, policy: Policy) -> None:
        """PolicyError for a policy that this scheduler would not do what it says; where it sees all nodes it does whatever reads."""

    def try_policy(self, policy: Policy) -> None:
        """One cycle by this policy that is not carried out, with a unit more; PolicyError when it fails.

        A policy whose cycles fail would end this process, and every one after it.
        """
        snapshot = self.snapshot()
        demand = Demand(1, cpus=1.0, accelerators=1)
        probe = PendingUnit(UnitKey("policy-probe", 0), "policy-probe", 0, snapshot.now_s, demand)
        tried = Snapshot(snapshot.table, snapshot.ledger, [*snapshot.pending, probe], snapshot.now_s)
        try:
            decide(tried, policy)
            if policy.unlike_planner:
                decide(tried, replace(policy, planner=policy.unlike_planner, unlike_planner=""))
        except Exception as error:
            # Plugins may be anybody's code.
            why = error.detail if isinstance(error, MeridianError) else f"{type(error).__name__}: {error}"
            raise PolicyError(f"a cycle by the policy {policy.version} fails: {why}") from error

    def _warn(self) -> None:
        """Say what the policy in force names that the network does not have."""
        for item in warnings_of(self.policy, self.book.fleet.domains):
            log.warning("the policy names what is not there", extra={"policy_version": self.policy.version, **item})

    def use(self, policy: Policy) -> None:
        """A policy that was written is in force from the next cycle on."""
        self._use(policy)

    def _use(self, policy: Policy) -> None:
        now_s = self.now_s()
        self.policy = policy
        self.book.use(policy, now_s)
        self.journal.policy(now_s, policy)
        self._poked.set()
