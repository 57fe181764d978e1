"""Forecasts of tenants' demand among the facts of the fleet, for the limit "preallocation".

They are kept where the forecasts of domains are (``Fleet.expected_demand``), so they are stored, restored and replayed with
them, under names that no domain can have: ``tenant/TENANT/HORIZON_S/WHAT`` with ``expected`` and ``high`` of each horizon, and
``tenant/TENANT/0/at``, when the forecast was made. Only tenants that the policy holds capacity for are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.preallocation import FACT, Outlook, PreallocationLimit

_PREFIX = "tenant/"


def tenants_held_for(policy: Policy) -> frozenset[str]:
    """The tenants that a policy holds capacity for."""
    if PreallocationLimit.name not in policy.limits:
        return frozenset()
    return frozenset(policy.options_of(PreallocationLimit.name).get("tenants", ()))


def with_outlook(fleet: Fleet, tenant_id: str, made_at_s: float, points: Iterable[tuple[float, float, float]]) -> Fleet:
    """The fleet with a newer forecast of a tenant: (horizon s, expected, high), NaN without a band."""
    own = f"{_PREFIX}{tenant_id}/"
    kept = {name: value for name, value in fleet.expected_demand.items() if not _is_of(name, own)}
    told = {f"{own}0/at": made_at_s}
    for horizon_s, expected, high in points:
        told[f"{own}{horizon_s:g}/expected"] = expected
        if not math.isnan(high):
            told[f"{own}{horizon_s:g}/high"] = high
    return replace(fleet, expected_demand={**kept, **told})


def _is_of(name: str, own: str) -> bool:
    return name.startswith(own) and name.count("/", len(own)) == 1


def outlooks_of(expected_demand: Mapping[str, float]) -> dict[str, Outlook]:
    """The forecasts of tenants among the facts."""
    made: dict[str, float] = {}
    points: dict[str, dict[float, list[float]]] = {}
    for name, value in expected_demand.items():
        if not name.startswith(_PREFIX):
            continue
        tenant, horizon, what = name.removeprefix(_PREFIX).rsplit("/", 2)
        if what == "at":
            made[tenant] = value
        else:
            point = points.setdefault(tenant, {}).setdefault(float(horizon), [0.0, math.nan])
            point[what == "high"] = value
    return {
        tenant: Outlook(at_s, tuple((horizon, *found) for horizon, found in sorted(points.get(tenant, {}).items())))  # type: ignore[misc]
        for tenant, at_s in made.items()
    }


@dataclass(frozen=True, slots=True)
class FleetOutlooks:
    """The fact: what the fleet's facts say."""

    known: Mapping[str, Outlook] = field(default_factory=dict)

    def at(self, now_s: float) -> Mapping[str, Outlook]:
        """See `services.scheduler.core.preallocation.Outlooks`."""
        return self.known


def refitted(cluster: Cluster, before: Fleet, after: Fleet) -> None:
    """The fleet's facts are others: so may be the forecasts, and with them who may start."""
    if before.expected_demand is after.expected_demand:
        return
    known = outlooks_of(after.expected_demand)
    earlier = cluster.view.facts.get(FACT)
    if known or isinstance(earlier, FleetOutlooks):
        cluster.view.facts[FACT] = FleetOutlooks(known)
