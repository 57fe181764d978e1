"""The live scheduler on two levels: it keeps the book of its tenants and asks the deciders of domains for nodes.

All of `LiveScheduler` holds here too: one writer, a term, a book that is read again when a commit is doubtful. Every reading
begins a new session with the domains (core/apart/dispatching.py), so that nothing from before it counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meridian.bus import Bus
from meridian.codec import Envelope
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.scheduler.v1 import scheduler_pb2
from meridian.errors import ConfigurationError
from meridian.outbox import Transaction
from meridian.service import Kernel
from meridian.sharding import shard_of_tenant
from services.scheduler import store
from services.scheduler.core.apart.carrying import ports_of
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Session
from services.scheduler.core.apart.others import lay_over
from services.scheduler.core.apart.quotas import check_shards
from services.scheduler.core.apart.rounds import Step
from services.scheduler.core.apart.shares import check_shares, shares_of
from services.scheduler.core.apart.turns import take_answers, turn
from services.scheduler.core.book import Draft
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.deciding.decisions import Blocked, Decisions
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.explaining.explanation import NO_RANKING, Explanation
from services.scheduler.core.idle_nodes import IDLE_NODES, idle_rules_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.two_level import DomainSummary, check_policy
from services.scheduler.core.unlike import IN_TURN
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.events import Events
from services.scheduler.live import LiveScheduler
from services.scheduler.live_book import SeenPart
from services.scheduler.settings import SchedulerSettings
from services.scheduler.shards.journal import Heard, ShardJournal
from services.scheduler.shards.wire import answer_from, request_message, shares_from, shares_message, summary_from

_SHARES_PAUSE_S = 1.0
_SHARES_EVERY_S = 30.0
"""So often a shard tells what its tenants hold though they hold the same: what is thought of their ends may have changed."""


class TwoLevelScheduler(LiveScheduler):
    """A shard; see the module."""

    def __init__(self, kernel: Kernel, settings: SchedulerSettings, policy: Policy) -> None:
        _check(policy, settings.shards)
        super().__init__(kernel, settings, policy)
        self.journal = self._notes = ShardJournal(kernel.database)
        self._name = kernel.name
        self._others = frozenset(settings.names) - {kernel.name}
        self._unheard = Heard()
        self._shares_told: tuple[float, int, list[float]] | None = None
        self._sessions = 0
        self._ports = ports_of(settings.shard, settings.shards)
        self._dispatcher = self._new_dispatcher({})

    def follows(self) -> dict[str, Any] | None:
        """See `LiveBook.follows`."""
        if not self.policy.unlike_planner:
            return None
        why = "planners look at all nodes at once, which two levels do not: each unit is placed in its turn"
        return {"planner": self.policy.unlike_planner, "in_use": False, "reason": why}

    def _plans(self) -> bool:
        return False

    def subscribe(self, bus: Bus) -> None:
        """Hear what domains say."""
        for_this = (lambda shard: shard not in self._others) if self._others else None
        bus.subscribe_batch("answers", (scheduler_pb2.PlacementAnswer,), self._answered, keys=for_this)
        bus.stream("summaries", (scheduler_pb2.DomainSummary,), self._summarised, replay=True, group=False)
        if self._settings.shards > 1:
            bus.stream("shares", (scheduler_pb2.ShardShares,), self._shared, replay=True, group=False)

    async def start(self) -> None:
        """See `LiveScheduler.start`; ConfigurationError for a policy that two levels, or several shards, do not take."""
        await super().start()
        try:
            _check(self.policy, self._settings.shards)
        except PolicyError as error:
            raise ConfigurationError(f"the policy {self.policy.version} in force: {error.detail}") from None

    def _new_dispatcher(self, told: Mapping[str, DomainSummary]) -> Dispatcher:
        session, limit_s = Session(self._term, self._sessions), self._settings.answer_limit_s
        others = self._dispatcher.others if self._sessions else {}
        return Dispatcher(self._name, session, self.policy, told, others, answer_limit_s=limit_s)

    def _rebuild(self, loaded: store.Loaded, run_times: RunTimes) -> None:
        super()._rebuild(replace(loaded, fleet=replace(loaded.fleet, asks_domains=True)), run_times)
        self._sessions += 1
        # Rooms of classes were told to the session before.
        self._dispatcher = self._new_dispatcher(self._dispatcher.public())
        self._notes.session(self.now_s(), self._dispatcher, self._ports, self._settings.answer_limit_s)

    # -- questions ---------------------------------------------------------------------------------------------------

    def for_questions(self) -> Cluster:
        """See `LiveScheduler.for_questions`; what domains tell to be taken by others is taken, and no planner is followed."""
        cluster = super().for_questions()
        cluster.view.facts[IN_TURN] = True
        lay_over(cluster, self._dispatcher.told_whole, self.now_s())
        return cluster

    def known_of_domains(self, demand: Demand, key: UnitKey | None = None) -> list[dict[str, Any]]:
        """See `LiveScheduler.known_of_domains`."""
        return [item.as_json() for item in self._dispatcher.known(demand, key)]

    @property
    def seen_part(self) -> SeenPart | None:
        """See `LiveScheduler.seen_part`."""
        others = "units of other shards" if self._others else "what domains hold besides"
        return SeenPart(
            f"tenants of {self._name}", f"{others} stay as domains told them last; their ends are not known"
        )

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write(self, transaction: Transaction, draft: Draft, new_specs: Mapping[str, bytes] | None = None) -> None:
        """See `LiveScheduler.write`; what runs held that ended is given back in the same transaction."""
        now_s = self.now_s()
        for request in self._dispatcher.released(draft):
            transaction.publish(request_message(request, now_s))
        await super().write(transaction, draft, new_specs)

    async def _answered(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        answers = [item.data for item in envelopes if isinstance(item.data, scheduler_pb2.PlacementAnswer)]
        messages = [message for message in answers if message.shard == self._name]
        if not messages:
            return
        replies = [answer_from(message) for message in messages]
        draft = await self.draft(transaction)
        now_s = draft.at_s = self.now_s()
        policy = self.policy
        taken = take_answers(
            draft, self._dispatcher, replies, policy, now_s, lambda: self._kernel.new_id("dec"), self._ports
        )
        for request in taken.requests:
            transaction.publish(request_message(request, now_s))
        await self.write(transaction, draft)
        transaction.on_commit(lambda: self._notes.answers(now_s, messages, taken, policy))
        transaction.on_commit(lambda: self._placed(len(taken.runs)))

    def ask_for_parts(self, transaction: Transaction, wishes: Mapping[str, int], now_s: float) -> None:
        """See `LiveScheduler.ask_for_parts`; here their domains are asked."""
        for request in self._dispatcher.wish(wishes, self.book):
            transaction.publish(request_message(request, now_s))

    def _placed(self, count: int) -> None:
        self._metrics.decisions.labels("placed").inc(count)
        self._poked.set()

    async def _summarised(self, envelopes: Sequence[Envelope]) -> None:
        messages = [item.data for item in envelopes if isinstance(item.data, scheduler_pb2.DomainSummary)]
        news = [message for message in messages if self._dispatcher.is_news(summary_from(message))]
        if news:
            # Heard in the next turn: between a decision and its commit nothing else is to happen.
            self._unheard.summaries += news
            self._poked.set()

    async def _shared(self, envelopes: Sequence[Envelope]) -> None:
        messages = [item.data for item in envelopes if isinstance(item.data, scheduler_pb2.ShardShares)]
        others = [message for message in messages if message.shard in self._others]
        self._unheard.shares += others

    # -- the policy --------------------------------------------------------------------------------------------------

    def check_policy(self, policy: Policy) -> None:
        """See `LiveScheduler.check_policy`; PolicyError for one that looks at all nodes at once, or at tenants of other shards, or that
        has nodes put to sleep, which are their domains' own."""
        _check(policy, self._settings.shards)

    def try_policy(self, policy: Policy) -> None:
        """See `LiveScheduler.try_policy`."""
        self.check_policy(policy)
        super().try_policy(policy)

    def _use(self, policy: Policy) -> None:
        super()._use(policy)
        self._dispatcher.use(policy)

    # -- cycles ------------------------------------------------------------------------------------------------------

    async def run_cycles(self) -> None:
        """Ask domains whenever something changed, and when the time of one that was asked is over; before that, take in what
        programs reported of their steps and loads."""
        while True:
            try:
                async with asyncio.timeout(self._again_in_s()):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()
            if self._steps.due(self.book, self.now_s(), deciding=self._wanted()):
                await self._until_done(self._tell_steps)
            await self._until_done(self._cycle)
            await asyncio.sleep(self._settings.cycle_pause_s)

    def _again_in_s(self) -> float | None:
        wanted = [self._dispatcher.due_s() - self.now_s(), self.policy.interval_s or float("inf")]
        least = min(wanted)
        return None if least == float("inf") else max(least, self._settings.cycle_pause_s)

    async def _cycle(self) -> None:
        started_s = time.perf_counter()
        async with self._kernel.outbox.transaction() as transaction:
            draft = await self.draft(transaction)
            now_s = draft.at_s = self.now_s()
            policy = self.policy
            heard, self._unheard = self._unheard, Heard()
            before_s = time.perf_counter()
            summaries, shares = map(summary_from, heard.summaries), map(shares_from, heard.shares)
            turned = turn(draft, self._dispatcher, summaries, shares, now_s, self._ports)
            self._metrics.deciding.observe(time.perf_counter() - before_s)
            await self.write(transaction, draft)
            for request in turned.step.requests:
                transaction.publish(request_message(request, now_s))
            transaction.on_commit(lambda: self._notes.turn(now_s, heard, turned, policy))
            transaction.on_commit(lambda: self._metrics.decisions.labels("placed").inc(len(turned.begun)))
            transaction.on_commit(lambda: self._stepped(turned.step))
        self._metrics.cycle.observe(time.perf_counter() - started_s)

    # -- share contracts over shards -----------------------------------------------------------------------------------

    async def run_shares(self) -> None:
        """Tell the other shards what domains give to the tenants of this one, whenever that changed, and now and then."""
        while True:
            await asyncio.sleep(_SHARES_PAUSE_S)
            if self._others and self._shares_due():
                await self._until_done(self._tell_shares)

    def _shares_due(self) -> bool:
        account, told = self.book.promises.shares, self._shares_told
        if account is None:
            return False
        if told is None:
            return True
        told_at_s, window, held = told
        late = self.now_s() >= told_at_s + _SHARES_EVERY_S
        return account.held.tolist() != held or (late and (any(held) or account.number != window))

    async def _tell_shares(self) -> None:
        async with self._kernel.outbox.transaction() as transaction:
            await self.draft(transaction)
            account = self.book.promises.shares
            if account is None:
                return
            copy = account.snapshot()
            copy.advance(max(self.now_s(), copy.now_s))
            transaction.publish(shares_message(shares_of(copy, self._name)))
            self._shares_told = copy.now_s, copy.number, copy.held.tolist()

    # -- why units wait --------------------------------------------------------------------------------------------------

    def _stepped(self, step: Step) -> None:
        if step.waiting is None:
            return
        groups: dict[str, list[PendingUnit]] = {}
        for key, reason in step.waiting.items():
            unit = self.book.cluster.pending.get(key)
            if unit is not None:
                groups.setdefault(reason, []).append(unit)
        blocked = tuple(Blocked(tuple(units), self._why(reason)) for reason, units in groups.items())
        self._waiting.add(Decisions(self.policy.version, blocked=blocked))
        self._metrics.decisions.labels("waiting").inc(len(step.waiting))

    def _why(self, reason: str) -> Explanation:
        return Explanation(
            self.policy.version, 0, (), (), NO_RANKING, blocked=reason, found=reason, found_stage="capacity"
        )


def _check(policy: Policy, shards: int) -> None:
    """PolicyError when a shard of so many would not do what the policy says."""
    check_policy(policy)
    check_shards(policy, shards, shard_of_tenant)
    check_shares(policy, shards)
    if idle_rules_of(policy) is not None:
        raise PolicyError(
            f"options.{IDLE_NODES}: on two levels the deciders of domains put nodes to sleep, by the policy in their "
            "MERIDIAN_SCHEDULER_DOMAIN_POLICY_FILE; a shard would never do it"
        )


class OwnTenants(Events):
    """Events for one of several shards: submissions of other shards' tenants are passed over, what is said of units and runs
    that the shard does not know changes nothing."""

    def __init__(self, live: LiveScheduler, shard: int, shards: int) -> None:
        super().__init__(live)
        self._shard, self._shards = shard, shards

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """See `Events.handle`."""
        own = [
            item
            for item in envelopes
            if not isinstance(item.data, job_pb2.JobSubmitted)
            or shard_of_tenant(item.data.tenant_id, self._shards) == self._shard
        ]
        if own:
            await super().handle(transaction, own)
