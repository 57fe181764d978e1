"""Settings of failover (``MERIDIAN_FAILOVER_*``); the defaults are those of `beliefs.Thresholds`."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings
from services.failover.beliefs import Thresholds

_DEFAULT = Thresholds()


class FailoverSettings(HttpSettings):
    """When silence becomes a declaration, and how often it is looked at."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_FAILOVER_", extra="ignore")

    http_port: int = 4106
    tick_s: float = Field(0.1, gt=0, le=0.5)
    suspect_after_s: float = Field(_DEFAULT.suspect_after_s, gt=0)
    failed_after_s: float = Field(_DEFAULT.failed_after_s, gt=0)
    exit_confirmation_s: float = Field(_DEFAULT.exit_confirmation_s, ge=0)
    unreachable_after_s: float = Field(_DEFAULT.unreachable_after_s, gt=0)
    lease_margin_s: float = Field(_DEFAULT.lease_margin_s, ge=0)
    start_grace_s: float = Field(_DEFAULT.start_grace_s, ge=0)
    agent_grace_s: float = Field(_DEFAULT.agent_grace_s, ge=0)
    hold_s: float = Field(_DEFAULT.hold_s, ge=0)
    steady_s: float = Field(_DEFAULT.steady_s, ge=0)
    flap_failures: int = Field(_DEFAULT.flap_failures, ge=2)
    flap_window_s: float = Field(_DEFAULT.flap_window_s, gt=0)
    quarantine_s: float = Field(_DEFAULT.quarantine_s, ge=0)
    # A failed node that its agent does not name any more is forgotten after this time.
    forget_node_after_s: float = Field(_DEFAULT.forget_after_s, gt=0)
    # A domain whose agent has been silent for this time is forgotten, with its nodes.
    forget_domain_after_s: float = Field(_DEFAULT.forget_domain_after_s, gt=0)
    # Ended runs and closed incidents are kept this long.
    keep_days: int = Field(30, ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> FailoverSettings:
        if not self.suspect_after_s < self.failed_after_s:
            raise ValueError("suspect_after_s must be smaller than failed_after_s")
        return self

    def thresholds(self) -> Thresholds:
        """The detector's part of the settings."""
        return Thresholds(
            suspect_after_s=self.suspect_after_s,
            failed_after_s=self.failed_after_s,
            exit_confirmation_s=self.exit_confirmation_s,
            unreachable_after_s=self.unreachable_after_s,
            lease_margin_s=self.lease_margin_s,
            start_grace_s=self.start_grace_s,
            agent_grace_s=self.agent_grace_s,
            hold_s=self.hold_s,
            steady_s=self.steady_s,
            flap_failures=self.flap_failures,
            flap_window_s=self.flap_window_s,
            quarantine_s=self.quarantine_s,
            forget_after_s=self.forget_node_after_s,
            forget_domain_after_s=self.forget_domain_after_s,
        )
