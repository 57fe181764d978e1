"""The live scheduler: the book in memory, the database behind it, and the tasks that decide.

Single writer: `draft` takes the writer's lock for the rest of a transaction. What the draft changed is written in that
transaction; the book takes it over when the commit is certain. When a commit failed or its fate is unknown, the book is
read from the database again before the next use, so memory is never ahead of it or behind.

What is done, in which order and at which times, goes into the journal (journal.py) so that it can be done again (replay.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg
import sqlalchemy as sa

from meridian.codec import Envelope
from meridian.database import is_passing
from meridian.errors import MeridianError, PreconditionFailedError
from meridian.leadership import AdvisoryLock
from meridian.observability import child_traceparent
from meridian.outbox import Outbox, Transaction
from meridian.service import Kernel
from services.scheduler import policy_changes, store, store_journal, store_measured
from services.scheduler.core import lifecycle, sleeping
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.cycle import Cycle, begin_cycle, carry_out
from services.scheduler.core.decide import Snapshot, Waiting, decide, snapshot_of
from services.scheduler.core.effects import Finished, Placed, Sleep
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.idle_nodes import idle_rules_of
from services.scheduler.core.loads import by_load
from services.scheduler.core.planning import Rounds
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting import WaitingUnits
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.errors import LeadershipLostError
from services.scheduler.journal import FLUSH_S, KEPT_DAYS, WHOLE_BOOK_EVERY_S, Journal
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.policy_changes import Outcome
from services.scheduler.promises_kept import PromisesKept
from services.scheduler.run_times_kept import RunTimesKept
from services.scheduler.settings import SchedulerSettings
from services.scheduler.shards.handing_over import refuse_misplaced
from services.scheduler.steps_heard import StepsHeard, pause_s
from services.scheduler.tenants import Tenants
from services.scheduler.wire import message_of

log = logging.getLogger(__name__)


class SeenPart(NamedTuple):
    """Where a scheduler sees a part only: among whose units places are counted, and what its answers take for granted."""

    among: str
    assumes: str


class LiveScheduler:
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

    async def keep_leading(self) -> None:
        """Ends with an error when another scheduler may have taken over."""
        try:
            await self._leadership.keep()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise LeadershipLostError(f"the connection that holds the lock is gone: {error!r}") from error

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

    def use(self, policy: Policy) -> None:
        """A policy that was written is in force from the next cycle on."""
        self._use(policy)

    def _use(self, policy: Policy) -> None:
        now_s = self.now_s()
        self.policy = policy
        self.book.use(policy, now_s)
        self.journal.policy(now_s, policy)
        self._poked.set()

    # -- cycles ------------------------------------------------------------------------------------------------------

    async def run_cycles(self) -> None:
        """Decide whenever something changed, and as often as the policy asks."""
        while True:
            try:
                async with asyncio.timeout(self._again_in_s()):
                    await self._poked.wait()
            except TimeoutError:
                if not (self._wanted() or self._rest_due() or self._steps.due(self.book, self.now_s(), deciding=False)):
                    continue
            self._poked.clear()
            if self._rest_due():
                await self._until_done(self._rest)
            if self._steps.due(self.book, self.now_s(), deciding=self._wanted()):
                await self._until_done(self._tell_steps)
            if self._wanted():
                await self._until_done(self._cycle)
                await asyncio.sleep(self._settings.cycle_pause_s)

    def _wanted(self) -> bool:
        """Whether a cycle has anything to decide on."""
        return bool(self.book.queued or self._doubtful or (self.policy.planner and self.book.runs))

    def _again_in_s(self) -> float | None:
        """After which time a cycle is wanted though nothing happened: the policy's interval, its planner's next round, when a
        running unit falls behind one that waits, or when estimates about running units get old; None for never."""
        wanted = [self.policy.interval_s] if self.policy.interval_s else []
        planner = stages_of(self.policy).planner
        if isinstance(planner, Rounds) and self._wanted():
            due_s = planner.due_s(self.book.cluster)
            wanted = [min(max(due_s - self.now_s(), self._settings.cycle_pause_s), planner.interval_s)]
        for at_s in (self.book.next_fall_s(), self.book.next_renewal_s(), self._next_rest_s()):
            if at_s != float("inf"):
                wanted.append(max(at_s - self.now_s(), self._settings.cycle_pause_s))
        if self.book.squeezed:
            wanted.append(pause_s(self.book))
        return min(wanted, default=None)

    def _next_rest_s(self) -> float:
        rules = idle_rules_of(self.policy)
        return float("inf") if rules is None else self._rested_at_s + sleeping.pause_s(rules)

    def _rest_due(self) -> bool:
        return self.now_s() >= self._next_rest_s()

    async def _rest(self) -> None:
        """Put idle nodes to sleep, by the policy's rules."""
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            now_s = draft.at_s = self.now_s()
            rules, idle = idle_rules_of(self.policy), self.book.idle
            before_s, self._rested_at_s = self._rested_at_s, now_s
            if rules is None or idle is None:
                return
            self._metrics.slept(self.book.fleet, now_s - before_s if before_s else 0.0)
            if sleeping.follow(draft, idle, rules, now_s):
                await self.write(transaction, draft)
                transaction.on_commit(lambda: self.journal.rest(now_s))

    async def _cycle(self) -> None:
        started_s = time.perf_counter()
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            before_s = time.perf_counter()
            now_s = draft.at_s = self.now_s()
            cycle = begin_cycle(draft, self.policy, now_s)
            self._metrics.deciding.observe(time.perf_counter() - before_s)
            carry_out(draft, cycle, self.policy, now_s, lambda: self._kernel.new_id("dec"))
            await self.write(transaction, draft)
            transaction.on_commit(lambda: self._carried_out(cycle, now_s))
        self._metrics.cycle.observe(time.perf_counter() - started_s)
        decisions = cycle.decisions
        self._metrics.decisions.labels("placed").inc(len(cycle.begun))
        self._metrics.decisions.labels("nominated").inc(len(cycle.nominated))
        self._metrics.decisions.labels("preempted").inc(len(cycle.preempted))
        self._metrics.decisions.labels("waiting").inc(sum(len(group.units) for group in decisions.blocked))

    def knows_job(self, job_id: str) -> bool:
        """Whether a job is in the book: reports of others' runs are not even decoded."""
        return job_id in self.book.jobs

    async def hear_steps(self, envelopes: Sequence[Envelope]) -> None:
        """Programs reported progress: the next cycles know it."""
        now_s = self.now_s()
        self._steps.hear(self.book, envelopes, now_s)
        if self._steps.due(self.book, now_s, deciding=False):
            self._poked.set()

    async def _tell_steps(self) -> None:
        """Tell the book what was measured; services get as many replicas as their loads ask for."""
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            now_s = draft.at_s = self.now_s()
            news = self._steps.news(self.book, now_s)
            if news:
                await store_measured.save(transaction.connection, news)
                self.book.learn(news, now_s)
            wishes = by_load(draft, news, now_s, self.policy.restarts)
            self.ask_for_parts(transaction, wishes, now_s)
            await self.write(transaction, draft)
            if news or draft.changed:
                transaction.on_commit(lambda: self.journal.steps(now_s, news))

    def ask_for_parts(self, transaction: Transaction, wishes: Mapping[str, int], now_s: float) -> None:
        """Runs would like to have other parts of their accelerators; where this scheduler sees all nodes itself it moves them."""

    def _carried_out(self, cycle: Cycle, now_s: float) -> None:
        self.book.remember(cycle.decisions)
        self._waiting.add(cycle.decisions)
        started_s = time.perf_counter()
        self.journal.cycle(now_s, cycle)
        self._metrics.recording.observe(time.perf_counter() - started_s)

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
            now_s = draft.at_s = self.now_s()
            due = self.book.due(now_s)
            lifecycle.tick(draft, due, now_s, self.policy.restarts)
            await self.write(transaction, draft)
            if due:
                transaction.on_commit(lambda: self.journal.tick(now_s))
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
            await store_journal.forget_journal_before(connection, self.now_s() - KEPT_DAYS * 86_400.0)
        if self.now_s() - self.journal.begun_at_s > WHOLE_BOOK_EVERY_S:
            self._doubtful = True
            self._poked.set()

    async def run_journal(self) -> None:
        """Write the journal and what was learned of run times, now and then."""
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.journal.pending:
                with self._metrics.journal.time():
                    await self._until_done(self.journal.flush)
            if self._run_times.due(self.book.run_times):
                await self._until_done(lambda: self._run_times.save(self.book.run_times))
            if self.accounts.due(self.book, self.now_s()):
                await self._until_done(lambda: self.accounts.save(self.book, self._term, self.now_s()))
