"""What if: the same decisions on a copy, with one job more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from services.scheduler.collector import held_off
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.deciding.decisions import Decisions, Placement, Waiting
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.futures.kept_courses import KeptCourses
from services.scheduler.core.futures.prospect import Patience, Prospect, order_of, prospects
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import Estimate
from services.scheduler.core.state import JobSpec, UnitKey, UnitSpec
from services.scheduler.core.units import units_of
from services.scheduler.core.unlike import plans
from services.scheduler.core.waiting_unit import PendingUnit

_NAME = "what-if"
_JUDGED_UNITS = 1000
"""Units of the job that are judged; a larger array is answered by its first units."""
_SHOWN_UNITS = 100
_PREDICTED_UNITS = 20
_SHOWN_OTHERS = 20


@held_off()
def answer(
    state: Cluster | Snapshot,
    policy: Policy,
    spec: JobSpec,
    tenant_id: str,
    now_s: float,
    *,
    estimate: Callable[[UnitSpec], Estimate] | None = None,
    times: Callable[[float], str | None] | None = None,
    band: Callable[[Prospect], Prospect] | None = None,
    own: bool = False,
    kept: KeptCourses | None = None,
    patience: Patience | None = None,
    goes_on: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Where the units of ``spec`` would go if the job were submitted at ``now_s``; MalformedJobError when it is none.

    With ``times`` (a time in seconds as text) the answer has the predicted starts of the first units that wait, and what the
    job would displace; ``band`` moves the band of each. ``estimate`` says what is known of a unit's run time (default: the
    job's limit). With ``own`` a cluster is the question's: it is changed, not copied. ``kept`` holds courses of things between
    questions. ``position`` of a unit that waits is its place (from 1) among all that would wait, in the order of the policy as
    things are now; ``ahead_in_queue`` are those before the first unit of the job (0 when none of it waits).
    ``patience`` bounds how long futures are followed (prospect.py), ``goes_on`` how long is decided (`decide`); by default nothing
    does. GivenUpError when not even the first decision is made in time; without time for the one that says who is delayed, ``delayed`` is
    null, and ``note`` says why.
    """
    units = units_of(spec)
    # As a job that is submitted: replicas beyond those to begin with are parked.
    begun = len(units) if spec.scaling is None else spec.replicas
    pending = [
        _pending(unit, spec, tenant_id, now_s, estimate)
        for unit in units[:begun][:_JUDGED_UNITS]
        if not unit.depends_on
    ]
    cluster = state.cluster(policy) if isinstance(state, Snapshot) else state if own else state.copy()
    cluster.extend(pending)
    decisions = decide(cluster, policy, now_s, goes_on=goes_on)
    placed = {item.key.unit_index: item for item in decisions.placed if item.key.job_id == _NAME}
    waiting = {item.key.unit_index: item for item in decisions.waiting if item.key.job_id == _NAME}
    order = order_of(cluster, now_s) if waiting else []
    # The cycle may have looked at nothing but the new units: it does not say how many stand before them.
    begin = {item.key for item in decisions.placed}
    places = {unit.key: place for place, unit in enumerate([unit for unit in order if unit.key not in begin], 1)}
    own_places = [places[item.key] for item in waiting.values()]
    shown = []
    for unit in units[:_SHOWN_UNITS]:
        body: dict[str, Any] = {"unit_index": unit.index, "name": unit.name}
        if unit.index in placed:
            body.update(_placed(placed[unit.index]))
        elif unit.index in waiting:
            body.update(_waiting(waiting[unit.index], places[waiting[unit.index].key]))
        elif unit.index >= begun:
            body.update(placeable=False, reason="so many replicas are not asked for yet")
        else:
            names = ", ".join(units[index].name for index in unit.depends_on)
            body.update(placeable=False, reason=f"depends on {names}")
        shown.append(body)
    found = {
        "placeable": len(placed) == len(pending),
        "policy_version": decisions.policy_version,
        "units": len(units),
        "units_judged": len(pending),
        "placed_now": len(placed),
        "waiting": len(waiting),
        "ahead_in_queue": min(own_places, default=1) - 1,
        "items": shown,
    }
    if times is not None:
        _predict(cluster, policy, list(waiting), now_s, shown, times, band, kept, order, patience)
        found["displaces"] = _displaced(cluster, policy, now_s, decisions, goes_on)
    return found


def _pending(
    unit: UnitSpec, spec: JobSpec, tenant_id: str, now_s: float, estimate: Callable[[UnitSpec], Estimate] | None
) -> PendingUnit:
    known = Estimate(spec.max_run_time_s or math.inf) if estimate is None else estimate(unit)
    return PendingUnit(
        UnitKey(_NAME, unit.index),
        tenant_id,
        spec.priority,
        now_s,
        unit.demand,
        submitted_at_s=now_s,
        limit_s=known.limit_s,
        expected_s=known.expected_s,
        low_s=known.low_s,
        high_s=known.high_s,
        service_index=known.service_index,
        deadline_s=spec.deadline_s or math.inf,
        min_ranks=spec.min_ranks if spec.elastic else 0,
        max_ranks=spec.max_ranks if spec.elastic else 0,
        work=float(spec.steps) if unit.demand.profile else 0.0,
    )


def _predict(
    cluster: Cluster,
    policy: Policy,
    waiting: Iterable[int],
    now_s: float,
    shown: list[dict[str, Any]],
    times: Callable[[float], str | None],
    band: Callable[[Prospect], Prospect] | None,
    kept: KeptCourses | None,
    order: Sequence[PendingUnit],
    patience: Patience | None,
) -> None:
    keys = [UnitKey(_NAME, index) for index in sorted(waiting)[:_PREDICTED_UNITS]]
    if not keys:
        return
    more: dict[str, Any] = {} if patience is None else {"patience": patience}
    if cluster.pending.settled:
        more["order"] = order
    found = prospects(cluster, policy, now_s, keys, kept=kept, **more)
    for body in shown:
        item = found.get(UnitKey(_NAME, body["unit_index"]))
        if item is not None:
            body["prediction"] = predicted(item if band is None else band(item), times)


def predicted(item: Prospect, times: Callable[[float], str | None]) -> dict[str, Any]:
    """A predicted start for people; null where nothing can be said."""

    def text(at_s: float) -> str | None:
        return times(at_s) if at_s < math.inf else None

    body: dict[str, Any] = {"start": text(item.start_s), "low": text(item.low_s), "high": text(item.high_s)}
    if item.start_s == math.inf:
        body.update(later_than=text(item.later_than_s), never=item.never)
        if item.note:
            body["note"] = item.note
    return body


def _displaced(
    cluster: Cluster, policy: Policy, now_s: float, decisions: Decisions, goes_on: Callable[[], bool] | None
) -> dict[str, Any]:
    """Units that would be taken off for the job, and those that would start now without it but would not with it."""
    off = [
        {"unit": str(item.key), "reason": item.reason}
        for item in decisions.preempted
        if item.beneficiary is not None and item.beneficiary.job_id == _NAME
    ]
    if not off and _stays_aside(cluster, policy, decisions):
        return {"preempted": [], "delayed": [], "delayed_units": 0}
    begin = {item.key for item in decisions.placed}
    other = cluster.copy()
    for key in [unit.key for unit in other.pending if unit.key.job_id == _NAME]:
        other.withdraw(key)
    try:
        if goes_on is not None and not goes_on():
            raise GivenUpError
        without = decide(other, policy, now_s, explain=False, goes_on=goes_on)
    except GivenUpError:
        note = "there was no time to decide without the job: who is delayed by it is not known"
        return {"preempted": off, "delayed": None, "delayed_units": None, "note": note}
    late = [str(item.key) for item in without.placed if item.key not in begin]
    return {"preempted": off, "delayed": late[:_SHOWN_OTHERS], "delayed_units": len(late)}


def _stays_aside(cluster: Cluster, policy: Policy, decisions: Decisions) -> bool:
    """Whether the job cannot have been in anybody's way: it takes nothing, and nothing is kept for it; or everybody else had his
    turn, and his reservation, before it. Where what waits holds back what is behind it (strict), a planner looks at all
    units, or placements change the order, that does not show so."""
    if plans(cluster, policy) or policy.discipline not in {"greedy", "easy", "conservative"}:
        return False
    if policy.discipline == "conservative":
        return not (policy.preemptions or policy.limits) and _comes_last(cluster)
    taking = [item.key for item in decisions.placed] + [item.key for item in decisions.reservations]
    return not any(key.job_id == _NAME for key in taking)


def _comes_last(cluster: Cluster) -> bool:
    """Whether all others stand before the job, in an order that depends on the units alone."""
    if not cluster.pending.settled:
        return False
    own = [unit.key.job_id == _NAME for unit in cluster.pending.in_order()]
    return all(own[own.index(True) :])


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


def _waiting(item: Waiting, position: int) -> dict[str, Any]:
    return {
        "placeable": False,
        "reason": item.explanation.reason,
        "position": position,
        "explanation": item.explanation.as_json(),
    }
