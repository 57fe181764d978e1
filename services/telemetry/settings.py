"""Settings of telemetry (``MERIDIAN_TELEMETRY_*``)."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class TelemetrySettings(HttpSettings):
    """Limits of validation and how long values are kept."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_TELEMETRY_", extra="ignore")

    # How far an agent's clock may be ahead of ours.
    clock_skew_s: float = Field(default=5.0, ge=0)
    # Reports in a row with the same value before a counter of a working device counts as frozen.
    frozen_after_reports: int = Field(default=3, ge=2)
    # ... and for how long: exporters collect every 30 s and are asked more often.
    frozen_after_s: float = Field(default=75.0, ge=0)
    # A series that is silent for longer than this is no longer missed.
    forget_series_after_s: float = Field(default=600.0, gt=0)
    # A node id seen in another domain within this time is not accepted from a second one.
    node_claim_s: float = Field(default=300.0, gt=0)
    # At most one value of a series enters the history in this time.
    history_interval_s: float = Field(default=15.0, ge=0)
    history_retention_s: float = Field(default=86_400.0, gt=0)
    quality_retention_s: float = Field(default=7 * 86_400.0, gt=0)
    upkeep_interval_s: float = Field(default=30.0, gt=0)
