"""A live decider of domains: what it granted, in memory and behind it in the database; one writer, fenced by its term.

Like the live scheduler: what a batch of events changes is written in its transaction, which holds the term against a new
one; when a commit failed or its fate is unknown, everything is read again before the next use. So a decider that lost its
lock without noticing cannot grant anything, and what it was asked stays for its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from meridian.bus import Bus
from meridian.codec import Envelope
from meridian.contracts.scheduler.v1 import scheduler_pb2
from meridian.database import is_passing
from meridian.leadership import AdvisoryLock
from meridian.outbox import Transaction
from meridian.service import Kernel
from meridian.sharding import shard_of
from services.scheduler import events, store
from services.scheduler.core.apart.grants import DomainGrants, GrantChanges
from services.scheduler.core.book import Book
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.domains import store as grants_store
from services.scheduler.domains.settings import DomainSettings
from services.scheduler.errors import LeadershipLostError
from services.scheduler.shards.wire import answer_message, request_from, summary_message

log = logging.getLogger(__name__)

_FLEET = ("graph", "incidents", "identities")
"""Purposes of the scheduler's subscriptions that tell of domains and nodes."""


class DomainDecider:
    """Owns the domains of its part; see the module."""

    def __init__(self, kernel: Kernel, settings: DomainSettings, policy: Policy) -> None:
        self.domains: dict[str, DomainGrants] = {}
        self.term = 0
        self._kernel, self._settings, self._policy = kernel, settings, policy
        self._leadership = AdvisoryLock(kernel.database, "leader")
        self._fleet = Fleet()
        self._writer = asyncio.Lock()
        self._doubtful = False
        self._to_tell: dict[str, None] = {}
        self._told = asyncio.Event()

    def subscribe(self, bus: Bus) -> None:
        """Hear of the fleet and of what shards want."""
        for purpose in _FLEET:
            bus.subscribe_batch(purpose, tuple(events.SUBSCRIPTIONS[purpose]), self._fleet_changed)
        bus.subscribe_batch("requests", (scheduler_pb2.PlacementRequest,), self._asked)

    def owns(self, domain_id: str) -> bool:
        """Whether this part decides for the domain."""
        return shard_of(domain_id, self._settings.parts) == self._settings.part

    def _answers_itself(self, request: scheduler_pb2.PlacementRequest) -> bool:
        """Whether the domain's agent answers, by what the shard or this decider knows of the domain."""
        return request.own_scheduler or self._fleet.schedules_itself(request.domain_id)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become the one that decides for these domains, and read what was granted."""
        await self._leadership.take()
        async with self._kernel.database.transaction() as connection:
            self.term = await store.begin_term(connection)
            await self._load(connection)
        grants = sum(len(domain.grants) for domain in self.domains.values())
        log.info("deciding", extra={"term": self.term, "domains": len(self.domains), "grants": grants})

    async def keep_leading(self) -> None:
        """Ends with an error when another decider may have taken over."""
        try:
            await self._leadership.keep()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise LeadershipLostError(f"the connection that holds the lock is gone: {error!r}") from error

    async def stop(self) -> None:
        """Let another one decide."""
        await self._leadership.release()

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
        touched: dict[str, DomainGrants] = {}
        for message in wanted:
            domain = touched[message.domain_id] = self._domain(message.domain_id)
            reply = domain.handle(request_from(message), now_s)
            if reply is not None:
                transaction.publish(answer_message(reply, now_s))
        await self._write(transaction, touched.values())

    async def _fleet_changed(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        ours = [item for item in envelopes if self._concerns(item.data)]
        if not ours:
            return
        await self._begin(transaction)
        draft = Book().draft()
        draft.fleet = draft.fleet_before = self._fleet
        events.apply(events.Batch(draft, self._now_s(), self._policy.restarts, set()), ours)
        if draft.fleet is self._fleet:
            return
        await store.save_fleet(transaction.connection, self._fleet, draft.fleet)
        self._fleet = draft.fleet
        for name in [name for name in self.domains if self._fleet.schedules_itself(name)]:
            del self.domains[name]
        names = dict.fromkeys(getattr(item.data, "domain_id", "") for item in ours)
        touched = [self._domain(name) for name in names if name and not self._fleet.schedules_itself(name)]
        changed = [domain for domain in touched if domain.refit(self._fleet) or not domain.sessions]
        await self._write(transaction, changed)

    def _concerns(self, message: Any) -> bool:
        domain_id = str(getattr(message, "domain_id", ""))
        return bool(domain_id) and self.owns(domain_id)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _begin(self, transaction: Transaction) -> None:
        """Nobody else writes until the transaction ends. LeadershipLostError in an older term."""
        await self._writer.acquire()
        transaction.on_end(self._ended)
        if await store.current_term(transaction.connection) != self.term:
            raise LeadershipLostError("another decider leads in a newer term")
        if self._doubtful:
            await self._load(transaction.connection)

    async def _write(self, transaction: Transaction, domains: Iterable[DomainGrants]) -> None:
        """Write what changed, and tell the shards that wait where there is more room."""
        changes: dict[str, GrantChanges] = {}
        now_s = self._now_s()
        for domain in domains:
            for reply in domain.news():
                transaction.publish(answer_message(reply, now_s))
            changes[domain.domain_id] = domain.take_changes()
            self._tell(domain.domain_id)
        await grants_store.save(transaction.connection, changes)

    async def _load(self, connection: Any) -> None:
        self._fleet = await store.load_fleet(connection)
        grants = await grants_store.load_grants(connection)
        sessions = await grants_store.load_sessions(connection)
        self.domains = {
            name: DomainGrants(
                name, self._fleet, self._policy, self.term, grants.get(name, ()), sessions.get(name, {}).items()
            )
            for name in sorted({*self._fleet.domains, *grants, *sessions})
            if not self._fleet.schedules_itself(name)
        }
        self._doubtful = False
        for name in self.domains:
            self._tell(name)

    def _domain(self, domain_id: str) -> DomainGrants:
        domain = self.domains.get(domain_id)
        if domain is None:
            domain = self.domains[domain_id] = DomainGrants(domain_id, self._fleet, self._policy, self.term)
        return domain

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
