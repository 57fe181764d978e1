"""Settings of the gateway (``MERIDIAN_GATEWAY_*``)."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class GatewaySettings(HttpSettings):
    """Limits and addresses; every default suits one machine."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_GATEWAY_")

    http_port: int = Field(default=4100, ge=0, le=65535)
    # Shown to agents when logs are read or a node is killed.
    agent_token: str = ""
    audience: str = "meridian"
    # Signing keys are fetched again after this time, and at once for an unknown key id (but not more than once a second).
    jwks_max_age_s: float = Field(default=300.0, gt=0)
    revocation_poll_s: float = Field(default=0.5, gt=0, le=1.0)
    max_unfinished_jobs: int = Field(default=5000, ge=1)
    # In the notation of the package `limits`.
    rate_limit: str = "6000/minute"
    login_rate_limit: str = "300/minute"
    max_body_bytes: int = Field(default=1 << 20, ge=1024)
    max_batch_body_bytes: int = Field(default=8 << 20, ge=1024)
    # Jobs that ended and incidents that were closed are kept this long.
    keep_days: int = Field(default=90, ge=1, le=36_500)
    event_retention_s: float = Field(default=7 * 86400.0, gt=0)
    idempotency_retention_s: float = Field(default=86400.0, gt=0)
    upstream_timeout_s: float = Field(default=10.0, gt=0)
    # Newest events kept in memory for the streams; slower readers read from the database.
    feed_events: int = Field(default=4096, ge=1)
