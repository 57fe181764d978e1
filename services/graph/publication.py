"""Publishes what is due of some domains: version, log, events and state in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from meridian.contracts.graph.v1 import graph_pb2
from meridian.outbox import Transaction
from services.graph import change_log, store
from services.graph.image import Judge
from services.graph.measures import GraphMeasures
from services.graph.node_state import Thresholds
from services.graph.recognition.judges import Heard, Standing
from services.graph.recognition.recogniser import Recogniser
from services.graph.settings import GraphSettings
from services.graph.update_plan import ChangeKind, Pace, PlannedUpdate, TrackedDomain, plan_updates


class Publication:
    """Turns tracked domains into versioned updates."""

    def __init__(self, settings: GraphSettings, measures: GraphMeasures, recogniser: Recogniser) -> None:
        self._measures = measures
        self._recogniser = recogniser
        self.recent = store.Recent()
        self._limits = Thresholds(silent_after_s=settings.silent_after_s)
        self._pace = Pace(
            metric_refresh_s=settings.metric_refresh_s,
            metric_tolerance=settings.metric_tolerance,
            image_interval_s=settings.image_interval_s,
            log_image_interval_s=settings.log_image_interval_s,
            reading_ttl_s=settings.reading_ttl_s,
        )

    async def publish(self, transaction: Transaction, domains: Sequence[TrackedDomain], now_s: float) -> None:
        """Publish what is due and store the domains; their locks must be held."""
        planned = [
            item
            for domain in domains
            for item in plan_updates(domain, now_s, self._pace, self._limits, judge_of(domain, self._recogniser))
        ]
        counted = sum(item.kind is not ChangeKind.IMAGE for item in planned)
        version = await store.save(transaction.connection, domains, now_s, counted if planned else None)
        self.recent.keep(domains)
        if not planned:
            return
        at = datetime.fromtimestamp(now_s, UTC)
        changes = []
        for item in planned:
            version += item.kind is not ChangeKind.IMAGE
            item.update.version = version
            transaction.publish(item.update)
            self._publish_states(transaction, item, version)
            if item.logged:
                changes.append(
                    change_log.LoggedChange(version, item.update.domain_id, at, item.kind.value, item.update)
                )
        await change_log.add_changes(transaction.connection, changes)
        transaction.on_commit(lambda: self._count(planned))

    @staticmethod
    def _publish_states(transaction: Transaction, item: PlannedUpdate, version: int) -> None:
        for change in item.states:
            event = graph_pb2.NodeStateChanged(
                domain_id=item.update.domain_id,
                node_id=change.node_id,
                previous=change.previous.value,
                state=change.state.value,
                reason=change.decided.reason,
                rule=change.decided.rule.value,
                version=version,
            )
            event.changed_at.CopyFrom(item.update.updated_at)
            transaction.publish(event)

    def _count(self, planned: Sequence[PlannedUpdate]) -> None:
        for item in planned:
            self._measures.updates.labels(item.update.domain_id, item.kind.value).inc()
            for change in item.states:
                self._measures.transitions.labels(change.state.name.lower(), change.decided.rule.value).inc()


def judge_of(domain: TrackedDomain, recogniser: Recogniser) -> Judge | None:
    """Who decides the states of its nodes now; None: the rules alone."""
    if not recogniser.name:
        return None
    if not domain.observed:
        # Nothing new was seen; only facts change what stands, whoever follows the windows of this domain.
        return Standing(domain.facts.decided, domain.published)
    followed = recogniser.look(domain.facts)
    if followed is None:
        return None
    if followed.begins:
        # After a start, or when another process followed this domain until now.
        return Standing(domain.facts.decided, domain.published)
    return Heard(followed, recogniser.name)
