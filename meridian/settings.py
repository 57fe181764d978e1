"""Settings from the environment. Wrong or missing ones stop the process with the names of the variables."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from meridian.errors import ConfigurationError

SERVICES = ("identity", "telemetry", "graph", "forecast", "scheduler", "failover", "gateway")
PARTS = ("scheduler_domain",)
"""Processes of a service that is split over several, started by name where it is."""


class KernelSettings(BaseSettings):
    """What every service needs: where the bus, the database and its neighbours are (``MERIDIAN_*``)."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_", extra="ignore")

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    # Copies of each record; used when topics are created. The embedded broker keeps one.
    topic_replication: int = Field(default=1, ge=1)
    database_url: str = "postgresql+asyncpg://meridian:meridian@127.0.0.1:5432/meridian"
    redis_url: str = "redis://127.0.0.1:6379/0"
    data_dir: Path = Path("var")
    log_level: str = "INFO"
    database_pool_size: int = 5
    # Name of this replica, different in each and kept over restarts: a restarted one then goes on at once where it was.
    instance: str = ""
    # A consumer that has lag and does not move for this long makes the process not live.
    stall_after_s: float = 60.0
    # Records of one topic partition handled in one transaction.
    batch_records: int = 500

    identity_url: str = "http://127.0.0.1:4101"
    telemetry_url: str = "http://127.0.0.1:4102"
    graph_url: str = "http://127.0.0.1:4103"
    forecast_url: str = "http://127.0.0.1:4104"
    # For a scheduler in shards: the addresses of all of them, in their order, separated by commas.
    scheduler_url: str = "http://127.0.0.1:4105"
    failover_url: str = "http://127.0.0.1:4106"
    gateway_url: str = "http://127.0.0.1:4100"


class HttpSettings(BaseSettings):
    """Base of a service's own settings (``MERIDIAN_<SERVICE>_*``)."""

    http_host: str = "127.0.0.1"
    http_port: int = 0


S = TypeVar("S", bound=BaseSettings)


def load(kind: type[S], **overrides: object) -> S:
    """Read settings of a kind; ConfigurationError names each variable that is wrong."""
    try:
        return kind(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        prefix = str(kind.model_config.get("env_prefix", ""))
        problems = "; ".join(
            f"{prefix}{'_'.join(str(part) for part in item['loc'])}".upper() + f": {item['msg']}"
            for item in error.errors()
        )
        raise ConfigurationError(f"settings are wrong: {problems}") from None
