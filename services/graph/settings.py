"""Settings of graph (``MERIDIAN_GRAPH_*``)."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class GraphSettings(HttpSettings):
    """How often what is published, and how long the past is kept. Thresholds of states: `node_state.Thresholds`."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_GRAPH_", extra="ignore")

    # Metrics alone are published at most this often per domain, and only when one moved by more than the tolerance.
    metric_refresh_s: float = Field(default=2.0, ge=0)
    metric_tolerance: float = Field(default=0.01, ge=0)
    image_interval_s: float = Field(default=60.0, gt=0)
    # A value that is not refreshed for this long is no longer part of the graph.
    reading_ttl_s: float = Field(default=60.0, gt=0)
    # Without an observation for this long the nodes of a domain count as degraded: their readings are old.
    silent_after_s: float = Field(default=30.0, gt=0)
    # Without an observation for this long the nodes of a domain leave the graph.
    forget_domain_after_s: float = Field(default=7 * 86_400.0, gt=0)
    log_image_interval_s: float = Field(default=600.0, gt=0)
    log_retention_s: float = Field(default=86_400.0, gt=0)
    metric_log_retention_s: float = Field(default=3600.0, gt=0)
    # Path of a model of node states with its card beside it; empty: the one that is shipped; ``none``: rules only.
    model: str = ""
    # A model that took longer than this for a domain is left alone for a minute.
    model_slowest_s: float = Field(default=0.5, gt=0)
    tick_s: float = Field(default=1.0, gt=0)
