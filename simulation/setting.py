"""How a policy is run in a simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.sla_values import Objective


@dataclass(frozen=True, slots=True)
class Suits:
    """Names of the settings that serve workloads of elastic jobs, and of jobs with other rates on other accelerators (suited.py)."""

    elastic: str
    unlike: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How a policy is run: ``knowledge`` is "exact", "declared", "predicted" or "none" (see estimates.py); ``isolated``
    keeps every job in its home domain; ``interval_s`` of the policy gives the ticks. ``sleep_after_s`` puts idle nodes to
    sleep after that time. ``refresh`` asks the estimates anew about running jobs at each tick. ``objectives`` are what tenants
    were promised (tenant, objectives): their accounts are kept, and are what the order `sla` reads. ``suits`` are other settings for
    workloads that this one does not suit, ``follows`` the one of them whose policy and knowledge it has."""

    name: str
    policy: Policy
    knowledge: str = "none"
    isolated: bool = False
    baseline: bool = True
    sleep_after_s: float = math.inf
    refresh: bool = False
    about: str = ""
    objectives: tuple[tuple[str, tuple[Objective, ...]], ...] = ()
    suits: Suits | None = None
    follows: str = ""


def with_policy(setting: Setting, **changes: object) -> Setting:
    """The setting with other fields of its policy."""
    return replace(setting, policy=replace(setting.policy, **changes))  # type: ignore[arg-type]


def named(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Settings by their names, in order; PolicyError when two have the same."""
    found: dict[str, Setting] = {}
    for setting in settings:
        if setting.name in found:
            raise PolicyError(f"a policy {setting.name!r} exists already")
        found[setting.name] = setting
    return found
