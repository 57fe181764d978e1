"""Settings of the deciders of domains (``MERIDIAN_SCHEDULER_DOMAIN_*``)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings, load


class DomainSettings(HttpSettings):
    """What an operator may choose."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_SCHEDULER_DOMAIN_", extra="ignore")

    # The policy by which nodes are chosen; unset: the shipped policy "balanced". Of its scores those of nodes count.
    policy_file: Path | None = None
    # The domains are split over so many deciders; this is the one with this number, from 0.
    parts: int = Field(default=1, ge=1, le=1000)
    part: int = Field(default=0, ge=0)
    # A domain that changed tells everybody about itself at most so often.
    summary_every_s: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.part >= self.parts:
            raise ValueError(f"MERIDIAN_SCHEDULER_DOMAIN_PART is {self.part}, there are {self.parts} parts from 0")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parts: schemas, consumer groups and locks go by them."""
        if self.parts == 1:
            return ("scheduler_domain",)
        return tuple(f"scheduler_domain_{number}" for number in range(self.parts))


def prepared_schemas() -> dict[str, Path]:
    """The schemas of all parts, each with its migrations."""
    return dict.fromkeys(load(DomainSettings).names, Path(__file__).parent / "migrations")
