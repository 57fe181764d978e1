"""Settings of the scheduler (``MERIDIAN_SCHEDULER_*``)."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class SchedulerSettings(HttpSettings):
    """What an operator may choose."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_SCHEDULER_", extra="ignore")

    # A policy in YAML or JSON (docs/writing-a-policy.md); unset: the shipped policy "balanced". It applies until another
    # is set through the API, and again after that one was deleted.
    policy_file: Path | None = None
    # Start with the policy of the file even if another was set through the API; that one is given up.
    policy_from_file: bool = False
    # Pause after a cycle, so that events which come close together are decided together.
    cycle_pause_s: float = 0.01
    # Finished jobs are kept this long, for explanations.
    keep_days: int = 30
