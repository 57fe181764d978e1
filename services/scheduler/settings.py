"""Settings of the scheduler (``MERIDIAN_SCHEDULER_*``)."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class SchedulerSettings(HttpSettings):
    """What an operator may choose."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_SCHEDULER_", extra="ignore")

    # A JSON object with any of the fields of services.scheduler.core.policy.Policy; unset: the defaults there.
    policy_file: Path | None = None
    # Pause after a cycle, so that events which come close together are decided together.
    cycle_pause_s: float = 0.01
    # Finished jobs are kept this long, for explanations.
    keep_days: int = 30
