"""What failover measures about itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.25, 0.5, 1, 1.5, 2, 2.5, 3, 5, 10, 20, 30, 60, 150, 300, 600)


class FailoverMetrics:
    """The service's own metrics, on its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.detection = Histogram(
            "meridian_failover_detection_seconds",
            "Time from the last sign of life to the declaration",
            ("subject",),
            registry=registry,
            buckets=_SECONDS,
        )
        self.resumed = Histogram(
            "meridian_failover_resume_seconds",
            "Time from the declaration of a loss to the start of the run that takes over",
            registry=registry,
            buckets=_SECONDS,
        )
        self.open_incidents = Gauge(
            "meridian_failover_open_incidents", "Incidents that are open", ("kind",), registry=registry
        )
        self.suspicions = Counter("meridian_failover_suspicions_total", "Nodes suspected", registry=registry)
        self.false_suspicions = Counter(
            "meridian_failover_suspicions_recovered_total", "Suspicions that ended without a failure", registry=registry
        )
        self.failures = Counter(
            "meridian_failover_failures_total", "Nodes declared failed", ("evidence",), registry=registry
        )
        self.unreachable = Counter(
            "meridian_failover_domains_unreachable_total", "Domains declared unreachable", registry=registry
        )
        self.planned = Counter(
            "meridian_failover_recoveries_planned_total", "Runs planned for recovery", ("cause",), registry=registry
        )
        self.passed_over = Counter(
            "meridian_failover_heartbeats_passed_over_total",
            "Heartbeats that were duplicates, backlog or from an older agent",
            registry=registry,
        )
        self.active = Gauge(
            "meridian_failover_active", "1 where this instance declares, 0 on standby", registry=registry
        )
        self.holding = Gauge("meridian_failover_holding", "1 while no declarations are made", registry=registry)
