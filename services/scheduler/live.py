"""The live scheduler: the book in memory, the database behind it, and the tasks that decide.

Single writer: `draft` takes the writer's lock for the rest of a transaction. What the draft changed is written in that
transaction; the book takes it over when the commit is certain. When a commit failed or its fate is unknown, the book is
read from the database again before the next use, so memory is never ahead of it or behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import asyncpg

from meridian.database import is_passing
from meridian.errors import MeridianError
from meridian.leadership import AdvisoryLock
from meridian.observability import child_traceparent
from meridian.outbox import Transaction
from meridian.service import Kernel
from services.scheduler import policy_changes, store
from services.scheduler.core import lifecycle
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.decide import Decisions, Snapshot, Waiting, decide, snapshot_of
from services.scheduler.core.effects import DecisionRecord, Finished, Placed
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.placement import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Table, table_of
from services.scheduler.errors import LeadershipLostError
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.policy_changes import Outcome, PreconditionFailedError
from services.scheduler.settings import SchedulerSettings
from services.scheduler.wire import message_of

log = logging.getLogger(__name__)


class LiveScheduler:
    """Owns the book; see the module."""

    def __init__(self, kernel: Kernel, settings: SchedulerSettings, policy: Policy) -> None:
        plugins_of(policy)
        self.policy = policy
        self.file_policy = policy
        self.book = Book()
        self.waiting: Mapping[UnitKey, Waiting] = {}
        self._kernel = kernel
        self._settings = settings
        self._metrics = SchedulerMetrics(kernel.registry)
        self._leadership = AdvisoryLock(kernel.database, "leader")
        self._term = 0
        self._writer = asyncio.Lock()
        self._doubtful = False
        self._poked = asyncio.Event()
        self._changed = asyncio.Event()
        self._table: tuple[Fleet, Table] | None = None

    def now_s(self) -> float:
        """The present time in seconds since 1970."""
        return self._kernel.clock.now().timestamp()

    def snapshot(self) -> Snapshot:
        """The book as a cycle would see it now."""
        fleet = self.book.fleet
        if self._table is None or self._table[0] is not fleet:
            self._table = (fleet, table_of(fleet))
        return snapshot_of(self.book, self.now_s(), self._table[1])

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become the one that decides, and read the state."""
        await self._leadership.take()
        async with self._kernel.database.transaction() as connection:
            self._term = await store.begin_term(connection)
            self.policy = await policy_changes.at_start(
                connection, self.file_policy, self.now_s(), from_file=self._settings.policy_from_file
            )
            self._rebuild(await store.load(connection))
        log.info(
            "leading",
            extra={
                "term": self._term,
                "jobs": len(self.book.jobs),
                "runs": len(self.book.runs),
                "policy_version": self.policy.version,
            },
        )

    async def keep_leading(self) -> None:
        """Ends with an error when another scheduler may have taken over."""
        try:
            await self._leadership.keep()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise LeadershipLostError(f"the connection that holds the lock is gone: {error!r}") from error

    async def stop(self) -> None:
        """Let another one lead."""
        await self._leadership.release()

    def _rebuild(self, loaded: store.Loaded) -> None:
        book = Book()
        draft = book.draft()
        draft.fleet = loaded.fleet
        draft.jobs = {item.job_id: item for item in loaded.jobs}
        draft.units = {item.key: item for item in loaded.units}
        draft.runs = {item.run_id: item for item in loaded.runs}
        book.merge(draft)
        self.book = book
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
            self.policy = await policy_changes.in_force(transaction.connection, self.policy, self.file_policy)
            self._rebuild(await store.load(transaction.connection))
        return self.book.draft()

    async def write(self, transaction: Transaction, draft: Draft, new_specs: Mapping[str, bytes] | None = None) -> None:
        """Write a draft and its events; the book takes it over at the commit."""
        if not draft.changed:
            return
        await store.save(transaction.connection, draft, new_specs or {})
        now_s = self.now_s()
        for effect in draft.effects:
            parent = effect.job.traceparent
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
        return before, outcome is Outcome.CHANGED

    def try_policy(self, policy: Policy) -> None:
        """One cycle by this policy that is not carried out, with a unit more; PolicyError when it fails.

        A policy whose cycles fail would end this process, and every one after it.
        """
        snapshot = self.snapshot()
        demand = Demand(1, cpus=1.0, accelerators=1)
        probe = PendingUnit(UnitKey("policy-probe", 0), "policy-probe", 0, snapshot.now_s, demand)
        try:
            decide(Snapshot(snapshot.table, snapshot.ledger, [*snapshot.pending, probe], snapshot.now_s), policy)
        except Exception as error:
            # Plugins may be anybody's code.
            why = error.detail if isinstance(error, MeridianError) else f"{type(error).__name__}: {error}"
            raise PolicyError(f"a cycle by the policy {policy.version} fails: {why}") from error

    def _use(self, policy: Policy) -> None:
        self.policy = policy
        self._poked.set()

    # -- cycles ------------------------------------------------------------------------------------------------------

    async def run_cycles(self) -> None:
        """Decide whenever something changed."""
        while True:
            await self._poked.wait()
            self._poked.clear()
            if self.book.queued or self._doubtful:
                await self._until_done(self._cycle)
                await asyncio.sleep(self._settings.cycle_pause_s)
            elif self.waiting:
                self.waiting = {}

    async def _cycle(self) -> None:
        started_s = time.perf_counter()
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            before_s = time.perf_counter()
            decisions = decide(self.snapshot(), self.policy)
            self._metrics.deciding.observe(time.perf_counter() - before_s)
            self._apply(draft, decisions)
            await self.write(transaction, draft)
        self.waiting = {item.key: item for item in decisions.waiting}
        self._metrics.cycle.observe(time.perf_counter() - started_s)
        self._metrics.decisions.labels("placed").inc(len(decisions.placed))
        self._metrics.decisions.labels("waiting").inc(len(decisions.waiting))

    def _apply(self, draft: Draft, decisions: Decisions) -> None:
        now_s = self.now_s()
        version = decisions.policy_version
        for placement in decisions.placed:
            decision_id = self._kernel.new_id("dec")
            assert placement.explanation is not None
            reason = placement.explanation.reason
            lifecycle.place(
                draft,
                placement.key,
                placement.ranks,
                now_s,
                decision_id=decision_id,
                policy_version=version,
                reason=reason,
            )
            explanation = placement.explanation.as_json()
            draft.record(DecisionRecord(decision_id, placement.key, "placed", now_s, version, explanation))

    # -- deadlines ---------------------------------------------------------------------------------------------------

    async def run_deadlines(self) -> None:
        """Carry out back-offs, recovery fall-backs and stop time-outs when they are due."""
        while True:
            self._changed.clear()
            next_s = self.book.next_deadline_s()
            wait_s = None if next_s is None else max(0.0, next_s - self.now_s())
            if wait_s is None or wait_s > 0:
                try:
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                except TimeoutError:
                    pass
                else:
                    continue
            await self._until_done(self.carry_out_deadlines)

    async def carry_out_deadlines(self) -> None:
        """Carry out what is due now."""
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            now_s = self.now_s()
            due = self.book.due(now_s)
            lifecycle.tick(draft, due, now_s, self.policy.restarts)
            await self.write(transaction, draft)
        if due:
            self._poked.set()

    async def _until_done(self, work: object) -> None:
        assert callable(work)
        delay_s = 0.1
        while True:
            try:
                await work()
            except Exception as error:  # what does not pass is raised: the process ends and a fresh one takes over
                if isinstance(error, LeadershipLostError) or not is_passing(error):
                    raise
                log.warning("tried again after a passing error", extra={"error": repr(error)})
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
            else:
                return

    # -- upkeep ------------------------------------------------------------------------------------------------------

    async def run_upkeep(self) -> None:
        """Forget jobs that finished long ago."""
        while True:
            await asyncio.sleep(3600.0)
            await self._until_done(self._forget)

    async def _forget(self) -> None:
        async with self._kernel.database.transaction() as connection:
            await store.forget_finished_before(connection, self.now_s() - self._settings.keep_days * 86_400.0)
