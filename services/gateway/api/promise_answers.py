"""Answers about what was promised and what tenants weigh, for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.gateway.api.answers import Money

ObjectiveName = Literal["completion", "idle", "transfer", "energy"]


class SharePlan(BaseModel):
    """What kind of shares domains are to give, per window."""

    kind: Literal["fraction", "accelerators"]
    window_s: float
    tolerance: float = Field(description="deviation that counts as kept")
    plan: Literal["standing", "per_window"] = Field(
        default="standing",
        description="standing: each window keeps the promise; per_window: each has a plan of its own",
    )


class DomainShare(BaseModel):
    """What a domain was to give in a window, and what it gave."""

    domain_id: str
    planned_share: float | None = Field(description="0-1, of what all domains of the plan give")
    promised_share: float | None = Field(description="the same by the standing promise")
    given_share: float | None = Field(description="0-1; null when nothing was given at all")
    planned_accelerator_s: float
    promised_accelerator_s: float
    given_accelerator_s: float
    deviation: float | None = Field(description="|given - planned| / planned")
    promise_deviation: float | None = Field(description="|given - promised| / promised")
    kept: bool | None = Field(description="null while the window is open, and when nobody could have kept it")
    infeasible: Literal["no demand", "capacity", "too coarse"] | None = Field(
        description="why no choice of domains could have kept the share"
    )


class ShareWindow(BaseModel):
    """A window (an hour) of the plan."""

    from_: datetime = Field(alias="from")
    until: datetime
    over: bool
    domains: list[DomainShare]


class PeriodShare(BaseModel):
    """What a domain was promised to give over the period, and what it gave."""

    domain_id: str
    promised_share: float | None
    given_share: float | None
    promised_accelerator_s: float
    given_accelerator_s: float
    deviation: float | None = Field(description="|given - promised| / promised")
    owed_accelerator_s: float = Field(
        description="promised and not given so far, to be made up for; below 0: given in advance; 0 with a standing plan"
    )


class SharePeriod(BaseModel):
    """The newest windows that are over, at most 24, as one: a day where they are hours."""

    from_: datetime = Field(alias="from")
    until: datetime
    domains: list[PeriodShare]


class Shares(BaseModel):
    """Planned and promised against given shares, the newest window first; without a plan there are none."""

    policy_version: str
    plan: SharePlan | None
    windows: list[ShareWindow]
    period: SharePeriod | None = Field(default=None, description="null while no window is over")


class ServiceLevel(BaseModel):
    """A promise and how it stands."""

    tenant_id: str = Field(description="the tenant, or the queue above several")
    kind: Literal["average_wait", "throughput", "recovery_time", "response_time", "deadline"]
    target: float = Field(description="seconds; for throughput, units per window")
    window_s: float
    value: float | None = Field(
        description="average wait in s, finished units, or the share of observations that kept it"
    )
    met: bool
    observations: int
    violations: int
    penalty: Money


class ServiceLevels(BaseModel):
    """The promises that the caller may see."""

    policy_version: str
    at: datetime | None
    items: list[ServiceLevel]


class FrontAnswer(BaseModel):
    """Points to pick from; none when nothing waits. ``weights``: those that stand for the point ``index``."""

    tenant: str
    policy_version: str
    waiting: int
    looked_at: int
    complete: bool = Field(default=True, description="false when the time was over before the search")
    objectives: list[dict[str, Any]]
    points: list[dict[str, Any]]
    knee: int | None
    choice: dict[str, Any] | None
    weights: dict[ObjectiveName, float] | None
    solves: int = 0


class TenantObjectives(BaseModel):
    """What a tenant weighs, as shares that sum to 1."""

    tenant_id: str
    own: bool = Field(description="whether the tenant says so itself")
    in_force: bool = Field(description="whether the policy weighs objectives by tenant at all")
    weights: dict[ObjectiveName, float]
    changed_by: str
    changed_at: datetime | None
    policy_version: str
    previous_version: str | None = None
