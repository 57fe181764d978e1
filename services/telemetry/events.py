"""Reports in, observations out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.resource.v1.resource_pb2 import ResourceReported
from meridian.observability import traced
from meridian.outbox import Transaction
from services.telemetry import store
from services.telemetry.inventory_check import is_node_id
from services.telemetry.issues import Issue
from services.telemetry.known_series import DomainSeries, KnownSeries
from services.telemetry.measures import TelemetryMeasures
from services.telemetry.reading_check import HistoryRow, Limits
from services.telemetry.report_check import Verdict, check_report
from services.telemetry.settings import TelemetrySettings
from services.telemetry.user_resources import amounts_of, save_amounts, save_amounts_of

# Who lists a node is stored again when what is stored is so old: not with every report.
_LISTED_AGAIN_S = 10.0


class ReportIntake:
    """Validates a batch of reports: one read of what is known, the decisions in memory, one write of what changed."""

    def __init__(self, settings: TelemetrySettings, clock: Clock, measures: TelemetryMeasures) -> None:
        self._settings = settings
        self._clock = clock
        self._measures = measures
        self._held = KnownSeries()
        # Domains of which this process has stored amounts.
        self._with_amounts: set[str] = set()
        self._limits = Limits(
            clock_skew_s=settings.clock_skew_s,
            frozen_after_reports=settings.frozen_after_reports,
            forget_series_after_s=settings.forget_series_after_s,
            frozen_after_s=settings.frozen_after_s,
        )

    def drop_held(self) -> None:
        """Read what is known from the database again."""
        self._held.drop()

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Handle reports in their order; the events go out with the state."""
        connection, now = transaction.connection, self._clock.now()
        reports = [(envelope, cast("ResourceReported", envelope.data)) for envelope in envelopes]
        domain_ids = sorted({report.domain_id for _, report in reports})
        listed_ids = {node.node_id for _, report in reports for node in report.inventory.nodes}
        node_ids = sorted(node_id for node_id in listed_ids if is_node_id(node_id))
        await store.lock_domains(connection, domain_ids)
        again_s = min(_LISTED_AGAIN_S, self._settings.node_claim_s / 10)
        claim_since = now - timedelta(seconds=self._settings.node_claim_s + again_s)
        stored = await store.remembered(connection, domain_ids, node_ids, claim_since)
        versions, incarnations = stored.versions, stored.incarnations
        owners = {node_id: owner for node_id, (owner, _) in stored.owners.items()}
        known = self._held.take(domain_ids, versions)
        # Of others nobody here knows whether amounts are stored.
        followed = set(known)
        if len(known) < len(domain_ids):
            read = await store.newest_of_domains(connection, [name for name in domain_ids if name not in known])
            known.update((domain_id, DomainSeries(nodes)) for domain_id, nodes in read.items())

        changed: dict[str, set[str]] = {}
        history: list[tuple[str, tuple[HistoryRow, ...]]] = []
        issues: list[tuple[str, Issue]] = []
        reported: dict[tuple[str, str], int] = {}
        listed: dict[str, str] = {}
        amounts: dict[str, dict[str, dict[str, list[Any]]]] = {}
        # Of parts: they say nothing of the nodes of other parts.
        told_amounts: dict[str, dict[str, dict[str, list[Any]]]] = {}
        for envelope, report in reports:
            domain_id, agent = report.domain_id, (report.domain_id, report.agent_id)
            elsewhere = {
                node.node_id: owners[node.node_id]
                for node in report.inventory.nodes
                if owners.get(node.node_id, domain_id) != domain_id
            }
            verdict = check_report(
                report,
                known[domain_id].nodes,
                elsewhere,
                incarnations.get(agent),
                now.timestamp(),
                self._limits,
                self._settings.history_interval_s,
                known[domain_id].quiet_until_s,
            )
            issues += [(domain_id, issue) for issue in verdict.issues]
            transaction.on_commit(self._count_of(domain_id, verdict, whole=_ends(report)))
            if verdict.observation is None:
                continue
            incarnations[agent] = reported[agent] = report.incarnation
            owned = {node.node_id: domain_id for node in verdict.observation.inventory.nodes}
            owners.update(owned)
            listed.update(owned)
            known[domain_id].take(verdict.changed, verdict.quiet_until_s)
            changed.setdefault(domain_id, set()).update(verdict.changed)
            history.append((domain_id, verdict.history))
            said = {node.node_id: amounts_of(node) for node in verdict.observation.inventory.nodes}
            if report.HasField("part"):
                told_amounts.setdefault(domain_id, {}).update(said)
            else:
                amounts[domain_id] = {node_id: found for node_id, found in said.items() if found}
                told_amounts.pop(domain_id, None)
            with traced(envelope.traceparent):
                transaction.publish(verdict.observation)
        since_s = now.timestamp() - self._settings.history_retention_s
        listed = _not_as_stored(listed, stored.owners, now.timestamp() - again_s)
        series = {
            domain_id: {node_id: known[domain_id].nodes[node_id] for node_id in node_ids}
            for domain_id, node_ids in changed.items()
        }
        written = {domain_id: versions.get(domain_id, 0) + 1 for domain_id in changed}
        await store.save(connection, store.Batch(reported, listed, series, written), now, since_s)
        await store.add_history(connection, history)
        await store.add_issues(connection, issues, now)
        for domain_id, by_node in amounts.items():
            if by_node or domain_id in self._with_amounts or domain_id not in followed:
                await save_amounts(connection, domain_id, by_node, now)
        for domain_id, by_node in told_amounts.items():
            await save_amounts_of(connection, domain_id, by_node, now)
        with_amounts = {name for each in (amounts, told_amounts) for name, nodes in each.items() if any(nodes.values())}
        transaction.on_commit(lambda: self._with_amounts.update(with_amounts))
        versions |= written
        transaction.on_commit(lambda: self._held.put(known, versions))

    def _count_of(self, domain_id: str, verdict: Verdict, *, whole: bool) -> Callable[[], None]:
        def count() -> None:
            outcome = "refused" if verdict.observation is None else "accepted"
            if whole:
                self._measures.reports.labels(domain_id, outcome).inc()
            if verdict.observation is not None:
                self._measures.readings.labels(domain_id).inc(len(verdict.observation.readings))
            for issue in verdict.issues:
                self._measures.issues.labels(domain_id, issue.kind.name.lower()).inc()

        return count


def _not_as_stored(
    listed: Mapping[str, str], owners: Mapping[str, tuple[str, float]], since_s: float
) -> dict[str, str]:
    """Nodes with the domains that list them now, without those of which this was stored since ``since_s``."""
    return {
        node_id: domain_id
        for node_id, domain_id in listed.items()
        if (was := owners.get(node_id)) is None or was[0] != domain_id or was[1] < since_s
    }


def _ends(report: ResourceReported) -> bool:
    """The report is whole, or this is its last part."""
    return not report.HasField("part") or report.part.number >= report.part.of
