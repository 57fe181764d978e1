"""The live scheduler: the tasks that decide, keep deadlines and tidy up, over the book (live_book.py)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from meridian.codec import Envelope
from meridian.database import is_passing
from meridian.outbox import Transaction
from services.scheduler import store, store_journal, store_measured
from services.scheduler.collector import held_off
from services.scheduler.core import lifecycle, sleeping
from services.scheduler.core.cycle import Cycle, begin_cycle, carry_out
from services.scheduler.core.idle_nodes import idle_rules_of
from services.scheduler.core.loads import by_load
from services.scheduler.core.planning import Rounds
from services.scheduler.core.stages import stages_of
from services.scheduler.core.unlike import plans, stages_of_last
from services.scheduler.errors import LeadershipLostError
from services.scheduler.journal import FLUSH_S, KEPT_DAYS, WHOLE_BOOK_EVERY_S
from services.scheduler.live_book import LiveBook
from services.scheduler.steps_heard import pause_s

log = logging.getLogger(__name__)


class LiveScheduler(LiveBook):
    """See the module."""

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
        return bool(
            self.book.queued
            or self._doubtful
            or (self.book.runs and self._plans())
            or self.now_s() >= self._next_moves_s()
        )

    def _plans(self) -> bool:
        """Whether a planner decides now: it moves what runs, though nothing waits."""
        return plans(self.book.cluster, self.policy)

    def _again_in_s(self) -> float | None:
        """After which time a cycle is wanted though nothing happened: the policy's interval, its planner's next round, when a
        running unit falls behind one that waits, or when estimates about running units get old; None for never."""
        wanted = [self.policy.interval_s] if self.policy.interval_s else []
        planner = stages_of(self.policy).planner
        if isinstance(planner, Rounds) and self._wanted():
            due_s = planner.due_s(self.book.cluster)
            wanted = [min(max(due_s - self.now_s(), self._settings.cycle_pause_s), planner.interval_s)]
        for at_s in (
            self.book.next_fall_s(),
            self.book.next_renewal_s(),
            self._next_rest_s(),
            self._next_moves_s(),
            self._next_plan_s(),
        ):
            if at_s != float("inf"):
                wanted.append(max(at_s - self.now_s(), self._settings.cycle_pause_s))
        if self.book.squeezed:
            wanted.append(pause_s(self.book))
        return min(wanted, default=None)

    def _next_moves_s(self) -> float:
        """When it is looked next whether units must be moved for the plan of shares; infinite for never."""
        shares = self.book.promises.shares
        if shares is None or not shares.plan.move_every_s or not self.book.runs:
            return float("inf")
        return self._moves_looked_at_s + shares.plan.move_every_s

    def _next_plan_s(self) -> float:
        """When the planner that is followed while rates differ would plan anew though nothing happened; infinite: never."""
        stages = stages_of_last(self.book.cluster, self.policy)
        if not stages.follows or not self._wanted():
            return float("inf")
        ask = getattr(stages.planner, "due_s", None)
        return float("inf") if ask is None else float(ask(self.book.cluster))

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
            if now_s >= self._next_moves_s():
                self._moves_looked_at_s = now_s
            with held_off():
                cycle = begin_cycle(draft, self.policy, now_s, self._settings.cycle_placements)
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
        if cycle.decisions.cut:
            self._poked.set()
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
