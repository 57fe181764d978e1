"""Settings of the scheduler (``MERIDIAN_SCHEDULER_*``)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
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
    # After so many placements a cycle ends, and the next one goes on: what is decided together stands in one transaction, and
    # events are heard in between. 0: no bound. The decisions are the same (README, A cycle).
    cycle_placements: int = Field(default=500, ge=0)
    # Finished jobs are kept this long, for explanations.
    keep_days: int = 30

    # One level: this process decides on all nodes. Two: it chooses domains, whose deciders (scheduler_domain) choose nodes.
    levels: Literal["one", "two"] = "one"
    # The tenants are split over so many schedulers on two levels; this is the one with this number, from 0.
    shards: int = Field(default=1, ge=1, le=1000)
    shard: int = Field(default=0, ge=0)
    # A domain whose decider has not answered for so long counts as full until it tells something.
    answer_limit_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.shards > 1 and self.levels != "two":
            raise ValueError("MERIDIAN_SCHEDULER_SHARDS above 1 needs MERIDIAN_SCHEDULER_LEVELS=two")
        if self.shard >= self.shards:
            raise ValueError(f"MERIDIAN_SCHEDULER_SHARD is {self.shard}, there are {self.shards} shards from 0")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all shards: schemas, consumer groups and locks go by them."""
        return ("scheduler",) if self.shards == 1 else tuple(f"scheduler_{number}" for number in range(self.shards))
