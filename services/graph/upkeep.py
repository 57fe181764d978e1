"""What time alone brings about: images that are due, domains that fell silent, old entries of the log, ages."""

from __future__ import annotations

from datetime import timedelta

from meridian.clock import Clock
from meridian.outbox import Outbox
from services.graph import change_log, store
from services.graph.measures import GraphMeasures
from services.graph.node_state import NodeState
from services.graph.publication import Publication
from services.graph.settings import GraphSettings

_FORGET_INTERVAL_S = 60.0


class Upkeep:
    """`tick` is called every ``tick_s``; several processes may, because a domain is locked while it is looked at."""

    def __init__(
        self, settings: GraphSettings, outbox: Outbox, clock: Clock, publication: Publication, measures: GraphMeasures
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._clock = clock
        self._publication = publication
        self._measures = measures
        self._forgotten_at_s = 0.0

    async def tick(self) -> None:
        """Look once."""
        now_s = self._clock.now().timestamp()
        async with self._outbox.database.reading() as connection:
            due = await store.domains_due(
                connection,
                now_s,
                image_interval_s=self._settings.image_interval_s,
                silent_after_s=self._settings.silent_after_s,
            )
        for domain_id in due:
            await self._publish(domain_id, now_s)
        if now_s - self._forgotten_at_s >= _FORGET_INTERVAL_S:
            await self._forget(now_s)
            self._forgotten_at_s = now_s
        await self._measure(now_s)

    async def _publish(self, domain_id: str, now_s: float) -> None:
        async with self._outbox.transaction() as transaction:
            await store.lock_domains(transaction.connection, [domain_id])
            domains = await store.load(transaction.connection, [domain_id], self._publication.recent)
            await self._publication.publish(transaction, list(domains.values()), now_s)

    async def _forget(self, now_s: float) -> None:
        now = self._clock.now()
        async with self._outbox.transaction() as transaction:
            await change_log.forget_log(
                transaction.connection,
                now - timedelta(seconds=self._settings.log_retention_s),
                now - timedelta(seconds=self._settings.metric_log_retention_s),
            )
            limit_s = now_s - self._settings.forget_domain_after_s
            silent = await store.domains_silent_since(transaction.connection, limit_s)
            await store.lock_domains(transaction.connection, silent)
            domains = await store.load(transaction.connection, silent)
            gone = [domain for domain in domains.values() if domain.facts.observed_at_s < limit_s]
            for domain in gone:
                if domain.facts.inventory is not None:
                    domain.facts.inventory.ClearField("nodes")
            if gone:
                await self._publication.publish(transaction, gone, now_s)

    async def _measure(self, now_s: float) -> None:
        async with self._outbox.database.reading() as connection:
            ages = await store.ages(connection)
            counts = await store.count_by_state(connection)
            version = await store.version(connection)
        self._measures.age.clear()
        for domain_id, oldest_s in ages:
            self._measures.age.labels(domain_id).set(max(0.0, now_s - oldest_s))
        self._measures.version.set(version)
        for state in NodeState:
            self._measures.nodes.labels(state.name.lower()).set(counts.get(state, 0))
