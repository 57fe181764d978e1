"""What if: the same decisions as a trial, with one job more; what is kept of the cluster stays as it was."""

from __future__ import annotations

from typing import Any

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Placement, Snapshot, Waiting, decide
from services.scheduler.core.kept import trial
from services.scheduler.core.policy import Policy
from services.scheduler.core.queue import PendingUnit
from services.scheduler.core.state import JobSpec, UnitKey
from services.scheduler.core.units import units_of

_NAME = "what-if"
_JUDGED_UNITS = 1000
"""Units of the job that are judged; a larger array is answered by its first units."""
_SHOWN_UNITS = 100


def answer(state: Cluster | Snapshot, policy: Policy, spec: JobSpec, tenant_id: str, now_s: float) -> dict[str, Any]:
    """Where the units of ``spec`` would go if the job were submitted at ``now_s``; MalformedJobError when it is none."""
    units = units_of(spec)
    pending = [
        PendingUnit(UnitKey(_NAME, unit.index), tenant_id, spec.priority, now_s, unit.demand)
        for unit in units[:_JUDGED_UNITS]
        if not unit.depends_on
    ]
    cluster = state.cluster(policy) if isinstance(state, Snapshot) else state
    ahead = len(cluster.pending)
    decisions = trial(cluster, pending, lambda other: decide(other, policy, now_s))
    placed = {item.key.unit_index: item for item in decisions.placed if item.key.job_id == _NAME}
    waiting = {item.key.unit_index: item for item in decisions.waiting if item.key.job_id == _NAME}
    shown = []
    for unit in units[:_SHOWN_UNITS]:
        body: dict[str, Any] = {"unit_index": unit.index, "name": unit.name}
        if unit.index in placed:
            body.update(_placed(placed[unit.index]))
        elif unit.index in waiting:
            body.update(_waiting(waiting[unit.index]))
        else:
            names = ", ".join(units[index].name for index in unit.depends_on)
            body.update(placeable=False, reason=f"depends on {names}")
        shown.append(body)
    return {
        "placeable": len(placed) == len(pending),
        "policy_version": decisions.policy_version,
        "units": len(units),
        "units_judged": len(pending),
        "placed_now": len(placed),
        "waiting": len(waiting),
        "ahead_in_queue": ahead,
        "items": shown,
    }


def _placed(item: Placement) -> dict[str, Any]:
    assert item.explanation is not None
    return {
        "placeable": True,
        "reason": item.explanation.reason,
        "ranks": [
            {"rank": rank.rank, "domain_id": rank.domain_id, "node_id": rank.node_id, "accelerators": rank.devices}
            for rank in item.ranks
        ],
        "explanation": item.explanation.as_json(),
    }


def _waiting(item: Waiting) -> dict[str, Any]:
    return {
        "placeable": False,
        "reason": item.explanation.reason,
        "position": item.position,
        "explanation": item.explanation.as_json(),
    }
