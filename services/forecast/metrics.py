"""What forecast measures about itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ForecastMetrics:
    """The service's own metrics, on its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.windows = Counter("meridian_forecast_windows_closed_total", "Windows closed", registry=registry)
        self.series = Gauge("meridian_forecast_series", "Domains and tenants with demand", registry=registry)
        self.published = Counter("meridian_forecast_published_total", "Forecasts published", registry=registry)
        self.seconds = Histogram("meridian_forecast_seconds", "Time to forecast all series once", registry=registry)
        self.skill = Gauge(
            "meridian_forecast_skill",
            "1 - error / error of persistence, median over the series with any",
            ("horizon_s",),
            registry=registry,
        )
        self.serving = Gauge(
            "meridian_forecast_serving", "Series served by each method", ("horizon_s", "method"), registry=registry
        )
        self.phases = Counter(
            "meridian_forecast_phase_changes_total",
            "Changes of phase told of training runs, by the phase that began",
            ("phase",),
            registry=registry,
        )
        self.requirements = Counter(
            "meridian_forecast_requirements_total",
            "Requirements of jobs by outcome (estimated, impossible)",
            ("outcome",),
            registry=registry,
        )
