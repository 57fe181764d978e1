"""The watch: feeds heartbeats to the detector, ticks it while this instance leads, and carries out what it declares.

1. Wait for leadership, begin a new term in the database: every transaction of an older term fails from then on.
2. Restore the detector from the database (unless nobody led in between), with a grace period.
3. Tick. What changed is queued and carried out in order by a task of its own, so a slow database delays no judgement;
   passing errors are repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import asyncpg
import sqlalchemy as sa

from meridian.codec import Envelope
from meridian.contracts.resource.v1.resource_pb2 import Heartbeat
from meridian.database import is_passing
from meridian.errors import MeridianError
from meridian.leadership import AdvisoryLock
from meridian.service import Kernel
from services.failover.beliefs import KnownDomain, KnownNode, Summary, domain_state_of, node_state_of
from services.failover.declarations import Declarations, TimeBase
from services.failover.detector import Detector
from services.failover.events import summary_of
from services.failover.metrics import FailoverMetrics
from services.failover.settings import FailoverSettings
from services.failover.store import Store
from services.failover.transitions import Transition

log = logging.getLogger(__name__)

_RETRY_S = 0.5
MOST_UNTOLD = 1000
"""Of what an instance that stands by has heard and nobody takes from it."""
# Transitions carried out in one transaction.
_TOGETHER = 200


class NotLeaderError(MeridianError):
    """Another instance has begun a newer term."""

    code = "NOT_LEADER"
    status = 503
    title = "Not the leader"


class Watch:
    """The detector of this instance and its place among the instances."""

    def __init__(self, kernel: Kernel, settings: FailoverSettings, metrics: FailoverMetrics) -> None:
        self._kernel = kernel
        self._settings = settings
        self._metrics = metrics
        self._term: int | None = None
        self._undone: deque[Transition] = deque()
        # Of this detector's transitions; the database has it too, in the transaction of each.
        self._carried_out = 0
        self._work = asyncio.Event()
        self._stands_by = True
        self._seldom: dict[str, float] = {}
        """Domains whose agents beat too seldom, and the interval that was told."""
        self.active = False
        self.detector = Detector(settings.thresholds(), kernel.clock.monotonic_s())

    async def hear(self, envelopes: Sequence[Envelope]) -> None:
        """Take heartbeats; their time of arrival is now."""
        now_s = self._kernel.clock.monotonic_s()
        for envelope in envelopes:
            if not isinstance(envelope.data, Heartbeat):
                continue
            summary = summary_of(envelope.data)
            if summary is None or not self.detector.observe(summary, now_s):
                self._metrics.passed_over.inc()
            else:
                self._tell_seldom(summary)
            if self._stands_by and self.detector.untold > MOST_UNTOLD:
                # Another instance tells them. Should this one lead again, it begins with what that one kept.
                self.detector.drop_untold()
                self._term = None

    def _tell_seldom(self, summary: Summary) -> None:
        """Warn once of an agent whose nodes are suspected whenever a heartbeat is late or lost."""
        needed_s = self._settings.suspect_after_s / 2
        if summary.interval_s <= needed_s:
            self._seldom.pop(summary.domain_id, None)
        elif self._seldom.get(summary.domain_id) != summary.interval_s:
            self._seldom[summary.domain_id] = summary.interval_s
            log.warning(
                "heartbeat_hz: the agent of domain %s sends %g heartbeats a second; with suspect_after_s %g at least %g are needed",
                summary.domain_id,
                1 / summary.interval_s,
                self._settings.suspect_after_s,
                1 / needed_s,
            )

    async def run(self) -> None:
        """Lead whenever this instance may, until cancelled."""
        while True:
            try:
                async with AdvisoryLock(self._kernel.database, "leader") as lock:
                    self._stands_by = False
                    await self._lead(lock)
            except* (
                OSError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                sa.exc.DBAPIError,
                NotLeaderError,
            ) as errors:
                for error in errors.exceptions:
                    if isinstance(error, sa.exc.DBAPIError) and not is_passing(error):
                        raise
                log.warning("leadership was interrupted", extra={"errors": [repr(item) for item in errors.exceptions]})
            finally:
                self.active, self._stands_by = False, True
                self._metrics.active.set(0)
            await asyncio.sleep(_RETRY_S)

    async def _lead(self, lock: AdvisoryLock) -> None:
        await self._begin_term()
        self.active = True
        self._metrics.active.set(1)
        log.info("this instance declares from now on", extra={"term": self._term})
        async with asyncio.TaskGroup() as group:
            group.create_task(lock.keep())
            group.create_task(self._tick())
            group.create_task(self._carry_out())

    async def _begin_term(self) -> None:
        async with self._kernel.database.transaction() as connection:
            store = Store(connection)
            term, carried_out = await store.begin_term()
            if self._term is not None and term == self._term + 1:
                self._term = term
                # Committed, though the connection was lost before anybody could say so.
                for _ in range(carried_out - self._carried_out):
                    self._undone.popleft()
                self._carried_out = carried_out
                return
            await store.note_carried_out(term, 0)
            now, now_s = self._kernel.clock.now(), self._kernel.clock.monotonic_s()
            domains = [
                KnownDomain(
                    row.domain_id,
                    domain_state_of(row.state, lease_ran_out=row.lease_ran_out),
                    row.lease_s,
                    row.lease_ran_out,
                    (now - row.changed_at).total_seconds(),
                )
                for row in await store.load_domains()
            ]
            nodes = [
                KnownNode(
                    row.node_id,
                    row.domain_id,
                    row.incarnation,
                    node_state_of(row.state),
                    row.quarantined,
                    tuple((now - at).total_seconds() for at in row.failures),
                    (now - row.changed_at).total_seconds(),
                )
                for row in await store.load_nodes()
            ]
        # Only now: should nobody know whether this was committed, the next term is no continuation of the former detector.
        self._term = term
        self._undone.clear()
        self._carried_out = 0
        self.detector = Detector(self._settings.thresholds(), now_s, domains=domains, nodes=nodes)

    async def _tick(self) -> None:
        while True:
            now_s = self._kernel.clock.monotonic_s()
            transitions = self.detector.tick(now_s)
            self._metrics.holding.set(1 if self.detector.held(now_s) else 0)
            if transitions:
                self._undone.extend(transitions)
                self._work.set()
            await asyncio.sleep(self._settings.tick_s)

    async def _carry_out(self) -> None:
        while True:
            if not self._undone:
                self._work.clear()
                await self._work.wait()
            transitions = [self._undone[index] for index in range(min(len(self._undone), _TOGETHER))]
            await self._carry_out_together(transitions)
            for _ in transitions:
                self._undone.popleft()
            self._carried_out += len(transitions)
            await self._measure()
            for transition in transitions:
                log.info("state changed", extra={"transition": type(transition).__name__, "what": str(transition)})

    async def _carry_out_together(self, transitions: Sequence[Transition]) -> None:
        assert self._term is not None
        times = TimeBase(self._kernel.clock.now(), self._kernel.clock.monotonic_s())
        async with self._kernel.outbox.transaction() as transaction:
            done = self._carried_out + len(transitions)
            if not await Store(transaction.connection).note_carried_out(self._term, done):
                raise NotLeaderError("another instance leads")
            window_s = self._settings.flap_window_s
            declared = Declarations(transaction, times, self._kernel.new_id, self._metrics, flap_window_s=window_s)
            await declared.carry_out(transitions)

    async def _measure(self) -> None:
        async with self._kernel.database.reading() as connection:
            counts = await Store(connection).count_open_incidents()
        for kind in ("node_suspected", "node_failed", "domain_unreachable", "run_lost"):
            self._metrics.open_incidents.labels(kind).set(counts.get(kind, 0))
