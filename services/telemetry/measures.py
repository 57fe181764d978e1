"""What telemetry counts for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class TelemetryMeasures:
    """Metrics named ``meridian_telemetry_*``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter(
            "meridian_telemetry_reports_total", "Reports by outcome", ["domain", "outcome"], registry=registry
        )
        self.readings = Counter(
            "meridian_telemetry_readings_total", "Readings that stand", ["domain"], registry=registry
        )
        self.issues = Counter(
            "meridian_telemetry_issues_total", "Things set aside, by kind", ["domain", "kind"], registry=registry
        )
        self.silence = Gauge(
            "meridian_telemetry_report_age_seconds", "Time since a domain reported last", ["domain"], registry=registry
        )
