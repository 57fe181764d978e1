"""A live decider of domains: what it granted, in memory and behind it in the database; one writer, fenced by its term.

Like the live scheduler: what a batch of events changes is written in its transaction, which holds the term against a new
one; when a commit failed or its fate is unknown, everything is read again before the next use. So a decider that lost its
lock without noticing cannot grant anything, and what it was asked stays for its successor.

What is decided stands in deciding.py; what was done in which order goes into a journal (journal.py), for replay.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg
import sqlalchemy as sa

from meridian.bus import Bus
from meridian.codec import Envelope
from meridian.contracts.scheduler.v1 import scheduler_pb2
from meridian.database import is_passing
from meridian.leadership import AdvisoryLock
from meridian.outbox import Transaction
from meridian.service import Kernel
from meridian.sharding import shard_of
from services.scheduler import events, store, store_journal
from services.scheduler.core.apart.granted import GrantChanges
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import Reply
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.sleeping import pause_s
from services.scheduler.domains import store as grants_store
from services.scheduler.domains.deciding import Deciding, domain_of
from services.scheduler.domains.journal import DeciderJournal
from services.scheduler.domains.settings import DomainSettings
from services.scheduler.errors import LeadershipLostError
from services.scheduler.journal import FLUSH_S, KEPT_DAYS, WHOLE_BOOK_EVERY_S
from services.scheduler.leading import keep_leading
from services.scheduler.shards.wire import answer_message, request_from, summary_message, woken_message
from services.scheduler.wire import message_of

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 3600.0
_FLEET = ("graph", "incidents", "identities", "forecasts")
"""Purposes of the scheduler's subscriptions that tell of domains and nodes."""


class DomainDecider:
    """Owns the domains of its part; see the module."""

    def __init__(self, kernel: Kernel, settings: DomainSettings, policy: Policy) -> None:
        self.journal = DeciderJournal(kernel.database)
        self._kernel, self._settings, self._policy = kernel, settings, policy
        self._deciding = Deciding(Fleet(), policy, 0)
        self._rules = self._deciding.rules
        self._leadership = AdvisoryLock(kernel.database, "leader")
        self._writer = asyncio.Lock()
        self._doubtful = False
        self._to_tell: dict[str, None] = {}
        self._told = asyncio.Event()

    def subscribe(self, bus: Bus) -> None:
        """Hear of the fleet and of what shards want."""
        for purpose in _FLEET:
            bus.subscribe_batch(purpose, tuple(events.SUBSCRIPTIONS[purpose]), self._fleet_changed)
        bus.subscribe_batch("requests", (scheduler_pb2.PlacementRequest,), self._asked, keys=self.owns)

    @property
    def domains(self) -> dict[str, DomainGrants]:
        """The domains that it decides for."""
        return self._deciding.domains

    @property
    def puts_to_sleep(self) -> bool:
        """Whether its policy has rules about idle nodes."""
        return self._rules is not None

    @property
    def term(self) -> int:
        """Of its lock; grows with each holder."""
        return self._deciding.term

    def owns(self, domain_id: str) -> bool:
        """Whether this part decides for the domain."""
        return shard_of(domain_id, self._settings.parts) == self._settings.part

    def _answers_itself(self, request: scheduler_pb2.PlacementRequest) -> bool:
        """Whether the domain's agent answers, by what the shard or this decider knows of the domain."""
        return request.own_scheduler or self._deciding.fleet.schedules_itself(request.domain_id)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become the one that decides for these domains, and read what was granted."""
        await self._leadership.take()
        async with self._kernel.database.transaction() as connection:
            term = self.journal.term = await store.begin_term(connection)
            await self._load(connection, term)
        grants = sum(len(domain.grants) for domain in self.domains.values())
        log.info("deciding", extra={"term": self.term, "domains": len(self.domains), "grants": grants})

    async def keep_leading(self) -> None:
        """Ends with an error when another decider may have taken over."""
        await keep_leading(self._leadership)

    async def stop(self) -> None:
        """Let another one decide."""
        if self.term:
            try:
                await self.journal.flush()
            except (OSError, sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("the end of the journal was not written", extra={"error": repr(error)})
        await self._leadership.release()

    async def run_journal(self) -> None:
        """Write the journal now and then, and forget what is old."""
        forget_s = 0.0
        while True:
            await asyncio.sleep(FLUSH_S)
            now_s = self._now_s()
            if now_s - self.journal.begun_at_s > WHOLE_BOOK_EVERY_S:
                # The next batch reads everything again, so that a replay need not begin with the start of the process.
                self._doubtful = True
            try:
                await self.journal.flush()
                if now_s >= forget_s:
                    forget_s = now_s + _FORGET_EVERY_S
                    async with self._kernel.database.transaction() as connection:
                        await store_journal.forget_journal_before(connection, now_s - KEPT_DAYS * 86_400.0)
            except Exception as error:  # what does not pass ends the process, and a fresh one takes over
                if not is_passing(error):
                    raise
                log.warning("the journal is written later", extra={"error": repr(error)})

    async def run_summaries(self) -> None:
        """Tell everybody about domains that changed, now and then."""
        while True:
            await self._told.wait()
            self._told.clear()
            try:
                async with self._kernel.outbox.transaction() as transaction:
                    await self._begin(transaction)
                    # One that has a scheduler of its own by now tells of itself.
                    names, self._to_tell = [name for name in self._to_tell if name in self.domains], {}
                    for name in names:
                        message = summary_message(self.domains[name].summary(), self.term, self._now_s())
                        transaction.publish(message)
            except Exception as error:  # what does not pass ends the process, and a fresh one takes over
                if isinstance(error, LeadershipLostError) or not is_passing(error):
                    raise
                log.warning("summaries are told later", extra={"error": repr(error)})
                self._told.set()
            await asyncio.sleep(self._settings.summary_every_s)

    async def run_rest(self) -> None:
        """Put idle nodes to sleep, now and then, where the policy asks for it."""
        assert self._rules is not None
        while True:
            await asyncio.sleep(pause_s(self._rules))
            try:
                async with self._kernel.outbox.transaction() as transaction:
                    await self._rest(transaction)
            except Exception as error:  # what does not pass ends the process, and a fresh one takes over
                if isinstance(error, LeadershipLostError) or not is_passing(error):
                    raise
                log.warning("nodes are put to sleep later", extra={"error": repr(error)})

    async def _rest(self, transaction: Transaction) -> None:
        await self._begin(transaction)
        before, now_s = self._deciding.fleet, self._now_s()
        told, replies, changed = self._deciding.rest(now_s)
        if self._deciding.fleet is before:
            return
        for item in told:
            transaction.publish(message_of(item, now_s))
        await store.save_fleet(transaction.connection, before, self._deciding.fleet)
        await self._write(transaction, replies, changed, now_s)
        transaction.on_commit(lambda: self.journal.rest(now_s, told, replies, self._policy))

    # -- events --------------------------------------------------------------------------------------------------------

    async def _asked(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        wanted = [
            item.data
            for item in envelopes
            if isinstance(item.data, scheduler_pb2.PlacementRequest)
            and self.owns(item.data.domain_id)
            and not self._answers_itself(item.data)
        ]
        if not wanted:
            return
        await self._begin(transaction)
        now_s = self._now_s()
        replies, touched = self._deciding.asked(map(request_from, wanted), now_s)
        woken = self._deciding.take_woken()
        for item in woken:
            transaction.publish(woken_message(item, now_s))
        await self._write(transaction, replies, touched, now_s)
        transaction.on_commit(lambda: self.journal.requests(now_s, wanted, replies, self._policy, woken))

    async def _fleet_changed(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        ours = [item for item in envelopes if self._concerns(item.data)]
        if not ours:
            return
        await self._begin(transaction)
        before, now_s = self._deciding.fleet, self._now_s()
        found = self._deciding.learned(ours, now_s)
        if found is None:
            return
        replies, changed = found
        await store.save_fleet(transaction.connection, before, self._deciding.fleet)
        await self._write(transaction, replies, changed, now_s)
        names = [events.event_name(item) for item in ours]
        transaction.on_commit(lambda: self.journal.fleet(now_s, names, replies, self._policy))

    def _concerns(self, message: Any) -> bool:
        domain_id = domain_of(message)
        return bool(domain_id) and self.owns(domain_id)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _begin(self, transaction: Transaction) -> None:
        """Nobody else writes until the transaction ends. LeadershipLostError in an older term."""
        await self._writer.acquire()
        transaction.on_end(self._ended)
        if await store.current_term(transaction.connection) != self.term:
            raise LeadershipLostError("another decider leads in a newer term")
        if self._doubtful:
            await self._load(transaction.connection, self.term)

    async def _write(
        self, transaction: Transaction, replies: Iterable[Reply], domains: Iterable[DomainGrants], now_s: float
    ) -> None:
        """Write what changed, and send the answers."""
        for reply in replies:
            transaction.publish(answer_message(reply, now_s))
        changes: dict[str, GrantChanges] = {}
        for domain in domains:
            changes[domain.domain_id] = domain.take_changes()
            self._tell(domain.domain_id)
        await grants_store.save(transaction.connection, changes)

    async def _load(self, connection: Any, term: int) -> None:
        fleet = await store.load_fleet(connection)
        grants = await grants_store.load_grants(connection)
        sessions = await grants_store.load_sessions(connection)
        counted, now_s = self._deciding.next_count(), self._now_s()
        self.journal.begin(now_s, fleet, self._policy, grants, sessions, counted)
        self._deciding = Deciding(fleet, self._policy, term, grants, sessions, counted, now_s)
        self._doubtful = False
        for name in self.domains:
            self._tell(name)

    def _tell(self, domain_id: str) -> None:
        self._to_tell[domain_id] = None
        self._told.set()

    def _ended(self, committed: bool) -> None:
        if not committed:
            self._doubtful = True
            # Reads everything again, or finds out that another one decides; the bus only tries again.
            self._told.set()
        self._writer.release()

    def _now_s(self) -> float:
        return self._kernel.clock.now().timestamp()
