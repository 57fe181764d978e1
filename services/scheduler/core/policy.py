"""The policy: which plugins judge, with which weights, and the rules of restarts. A value, recorded in every decision."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any

from services.scheduler.core.errors import PolicyError


@dataclass(frozen=True, slots=True)
class RestartRules:
    """When a unit is tried again. Program failures wait ``backoff_s * 2^n``; lost runs do not wait but are counted."""

    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    max_recoveries: int = 50
    recovery_fallback_s: float = 10.0
    stop_grace_s: float = 5.0
    stop_timeout_s: float = 15.0
    exclusion_s: float = 60.0
    steady_after_s: float = 60.0

    def backoff(self, failures: int) -> float:
        """Seconds to wait before the attempt after ``failures`` >= 1 failures."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Policy:
    """Plugins by name (see filters.py, scores.py, queue.py) and weights. Scores are in 0-1, weights of any size."""

    name: str = "balanced"
    filters: tuple[str, ...] = (
        "up",
        "excluded_node",
        "domain",
        "security",
        "accelerator",
        "real_accelerator",
        "port",
        "capacity",
    )
    scores: tuple[tuple[str, float], ...] = (
        ("price", 1.0),
        ("carbon", 0.5),
        ("spread", 1.0),
        ("locality", 2.0),
        ("expected_demand", 0.25),
        ("rtt", 1.0),
        ("pack", 1.0),
        ("health", 0.5),
    )
    order: tuple[str, ...] = ("priority", "fair_share", "age")
    tenant_weights: tuple[tuple[str, float], ...] = ()
    one_accelerator_model_per_gang: bool = True
    shown_candidates: int = 5
    shown_nodes: int = 8
    restarts: RestartRules = field(default_factory=RestartRules)

    @property
    def version(self) -> str:
        """``name-`` and a digest of the content: equal versions decide equally."""
        return _version(self)

    def as_json(self) -> dict[str, Any]:
        """The policy as an object, with its version."""
        body = asdict(self)
        body["scores"] = dict(self.scores)
        body["tenant_weights"] = dict(self.tenant_weights)
        body["version"] = self.version
        return body


@cache
def _version(policy: Policy) -> str:
    content = json.dumps(asdict(policy), sort_keys=True)
    return f"{policy.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def policy_from_json(body: Mapping[str, Any]) -> Policy:
    """A policy from an object with any of the fields of `Policy`; PolicyError names the one that is wrong."""
    known = {item.name for item in fields(Policy)}
    unknown = set(body) - known - {"version"}
    if unknown:
        raise PolicyError(f"unknown field {min(unknown)!r}")
    changes: dict[str, Any] = {name: value for name, value in body.items() if name in known}
    try:
        for name in ("filters", "order"):
            if name in changes:
                changes[name] = tuple(str(item) for item in changes[name])
        for name in ("scores", "tenant_weights"):
            if name in changes:
                changes[name] = tuple((str(key), float(weight)) for key, weight in dict(changes[name]).items())
        if "restarts" in changes:
            changes["restarts"] = RestartRules(**changes["restarts"])
    except (TypeError, ValueError) as error:
        raise PolicyError(f"the policy does not read: {error}") from None
    policy = replace(Policy(), **changes)
    check_numbers(policy)
    return policy


def check_numbers(policy: Policy) -> None:
    """PolicyError when a weight is not a finite number, or a tenant's weight is not positive."""
    for name, weight in policy.scores:
        if not math.isfinite(weight):
            raise PolicyError(f"scores.{name}: the weight must be a finite number")
    for tenant, weight in policy.tenant_weights:
        if not (math.isfinite(weight) and weight > 0):
            raise PolicyError(f"tenant_weights.{tenant}: the weight must be positive")
