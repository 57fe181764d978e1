"""What is thought out when somebody asks: predicted starts, what blocks a unit, what would have to be otherwise, what if.

All of it works on copies of the kept cluster: the copy is made in the event loop, the thinking is done in a thread, and
nothing a cycle reads is changed.
"""

from __future__ import annotations

import asyncio
import math
from threading import Lock
from typing import Any

from meridian.errors import FieldError, UnavailableError
from services.scheduler.answer_time import DECIDED_S, AnswerTime
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import GivenUpError, PolicyError
from services.scheduler.core.explaining.allowance import Allowance
from services.scheduler.core.explaining.blockers import Holder, blockers
from services.scheduler.core.explaining.counterfactual import search
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.futures.kept_courses import KeptCourses, Said
from services.scheduler.core.futures.prospect import Prospect, ahead_of, order_of, prospects
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.placement import would_do
from services.scheduler.core.policy import Policy
from services.scheduler.core.profile import Reservation
from services.scheduler.core.state import Job, JobSpec, UnitKey
from services.scheduler.core.units import units_of
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.hypothesis import as_it_would_be, hypothesis
from services.scheduler.live import LiveScheduler
from services.scheduler.live_book import SeenPart
from services.scheduler.times import rfc3339
from services.scheduler.what_if import answer, predicted

Json = dict[str, Any]

_MOST_PREDICTED = 20
"""Waiting units of a job whose starts are predicted in one answer."""
_MOST_FLIPPED = 3
"""Units of a job for which counterfactuals are looked for in one answer."""


class CoursesInTurn(KeptCourses):
    """Kept courses for questions that are thought out in threads: they are asked one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = Lock()

    def ask(self, *args: Any, **more: Any) -> Said | None:
        """See `KeptCourses.ask`."""
        with self._turn:
            return super().ask(*args, **more)


async def add(live: LiveScheduler, job_id: str, bodies: list[Json], record: TrackRecord, *, flips: bool) -> None:
    """Add to the units of an explanation what is thought about them now; ``record`` moves the bands of predicted starts."""
    left, cluster, policy, now_s = AnswerTime(), live.book.cluster, live.policy, live.now_s()
    by_key = {UnitKey(job_id, body["unit_index"]): body for body in bodies}
    waiting = [key for key in by_key if key in cluster.pending][:_MOST_PREDICTED]
    asked = [key for key in by_key if key in cluster.pending or key in cluster.running][:_MOST_FLIPPED] if flips else []
    if not waiting and not asked:
        return
    for key in waiting:
        unit = cluster.pending.get(key)
        if unit is not None and (rows := live.known_of_domains(unit.demand, key)):
            by_key[key].setdefault("waiting", {})["domains"] = rows
    found = live.for_questions()
    starts = {}
    if waiting:
        starts = await asyncio.to_thread(prospects, found, policy, now_s, waiting, patience=left.to_follow)
    banded = {key: record.band(item, now_s) for key, item in starts.items()}
    await asyncio.to_thread(_add, found, policy, now_s, by_key, banded, waiting, asked, live.seen_part, left)


def _add(
    cluster: Cluster,
    policy: Policy,
    now_s: float,
    by_key: dict[UnitKey, Json],
    starts: dict[UnitKey, Prospect],
    waiting: list[UnitKey],
    asked: list[UnitKey],
    part: SeenPart | None,
    left: AnswerTime,
) -> None:
    reserved = reserved_in(cluster)
    order = order_of(cluster, now_s) if waiting else []
    for key in waiting:
        body = by_key[key].setdefault("waiting", {})
        ahead = ahead_of(order, key)
        body["ahead"] = {"units": ahead.units, "accelerators": ahead.accelerators}
        if key in starts:
            body["prediction"] = predicted(starts[key], rfc3339)
        if part is not None:
            body["ahead"]["among"] = part.among
            _qualify(body.get("prediction"), part)
            unit = cluster.pending.get(key)
            if unit is not None and (text := _too_large(cluster, unit)):
                body["too_large"] = text
        body["blocked_by"] = blocked_by(cluster, key, now_s, reserved)
    for number, key in enumerate(asked):
        allowance = Allowance(goes_on=left.shared(number, len(asked)))
        searched = search(cluster, policy, key, now_s, allowance)
        by_key[key]["counterfactuals"] = [item.as_json() for item in searched.found]
        by_key[key]["counterfactuals_search"] = searched.as_json()


def _too_large(cluster: Cluster, unit: PendingUnit) -> str:
    """Why all nodes that are known could not hold a unit if they were empty; "" where they could."""
    group = cluster.candidates(unit.demand)
    chosen = would_do(group) if group else None
    if chosen is None or chosen.could_fit():
        return ""
    found = chosen.explain_waiting()
    return found.reason if found.stage == "size" else ""


def reserved_in(cluster: Cluster) -> tuple[Reservation, ...]:
    """What the last cycle reserved: with easy backfilling it stands beside the profile, which is made anew in each cycle."""
    memory = cluster.memory
    if memory is None:
        return ()
    beside = tuple([item for item in memory.reserved if isinstance(item, Reservation)])
    return beside or (memory.profile.reservations if memory.profile is not None else ())


def blocked_by(cluster: Cluster, key: UnitKey, now_s: float, reserved: tuple[Reservation, ...]) -> Json:
    """What a waiting unit lacks, who holds it, and for whom else nodes are reserved."""
    unit = cluster.pending.get(key)
    assert unit is not None
    found = blockers(cluster, unit, now_s)
    return {
        "shortages": [
            {
                "domain_id": item.domain_id,
                "nodes_that_qualify": item.nodes,
                "ranks_that_fit": item.ranks,
                "accelerators_free": item.accelerators,
                "nodes_short_of": dict(item.short),
            }
            for item in found.shortages
        ],
        "holders": [{"unit": item.name, "tenant_id": item.tenant_id, **_held(item)} for item in found.holders],
        "tenants": [{"tenant_id": item.tenant_id, **_held(item)} for item in found.tenants],
        "reservations": [
            {"unit": str(item.key), "from": rfc3339(item.start_s)}
            for item in reserved[:_MOST_FLIPPED]
            if item.key != key
        ],
    }


def _qualify(prediction: Json | None, part: SeenPart) -> None:
    """Say what a prediction takes for granted; that something never fits cannot be known from a part."""
    if prediction is not None:
        prediction["assumes"] = part.assumes
        if prediction.get("never"):
            prediction["never"] = False


def _held(item: Holder) -> Json:
    until = rfc3339(item.end_s) if item.end_s < math.inf else None
    return {"accelerators": item.accelerators, "cpus": item.cpus, "until": until}


def _changed(change: Json, cluster: Cluster, fleet: Fleet, policy: Policy) -> tuple[Cluster, Policy]:
    """The question's cluster and policy with the change. A large document or many nodes take a while."""
    changed = hypothesis(change, fleet, policy)
    return as_it_would_be(cluster, fleet, changed), changed.policy


async def what_if(
    live: LiveScheduler, spec: JobSpec, tenant_id: str, change: Json, record: TrackRecord, kept: KeptCourses
) -> Json:
    """See `what_if.answer`; ``change`` as in hypothesis.py, ``record`` moves the bands of predicted starts. ``kept`` serves
    questions about things as they are, where all of them are seen: any other is about a state of its own."""
    left, now_s, book, part = AnswerTime(), live.now_s(), live.book, live.seen_part
    cluster, policy, fleet = live.for_questions(), live.policy, book.fleet
    job = Job("what-if", tenant_id, spec, units_of(spec), now_s)
    known = [book.run_times.estimate(job, unit, 0.0) for unit in job.units[:1000]]
    rows = live.known_of_domains(job.units[0].demand)
    if change:
        cluster, policy = await asyncio.to_thread(_changed, change, cluster, fleet, policy)
        try:
            live.check_policy(policy)
        except PolicyError as error:
            found_at = FieldError("/change/policy", error.detail)
            raise PolicyError(f"change.policy: {error.detail}", errors=(found_at,)) from None
    asking = asyncio.to_thread(
        answer,
        cluster,
        policy,
        spec,
        tenant_id,
        now_s,
        estimate=lambda unit: known[unit.index],
        times=rfc3339,
        band=lambda item: record.band(item, now_s),
        own=True,
        kept=None if change or part is not None else kept,
        patience=left.to_follow,
        goes_on=left.to_decide,
    )
    try:
        found = await asking
    except GivenUpError:
        count, seconds = len(cluster.pending), f"{DECIDED_S:g} s"
        raise UnavailableError(
            f"what would be decided takes longer than {seconds} ({count} units wait with it, discipline {policy.discipline})"
        ) from None
    if part is not None:
        found |= {"domains": rows, "among": part.among, "assumes": part.assumes}
        for item in found["items"]:
            _qualify(item.get("prediction"), part)
    return found
