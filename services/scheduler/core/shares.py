"""Parts of accelerators that move between the runs that share them: replicas that need more get it from training beside them.

A service with ``scaling`` and ``most_milli`` may have a larger part of its accelerator than it asked for, while its load asks for
it. It comes from what is free on the device, then from runs there whose job names ``least_milli``: they shrink, never below that,
and get theirs back when the replica needs it no more and the limits of the policy let them have it. Runs of one rank only; nothing is stopped or moved for it. Agents tell the
programs (docs/services.md).

On two levels a shard says which parts its replicas would like to have (`wish`), and the decider of their domain moves them, as runs of
several shards may share an accelerator (apart/parts.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from services.scheduler.core.admission import PartsGate
from services.scheduler.core.book import Draft
from services.scheduler.core.effects import Adjust, DecisionRecord
from services.scheduler.core.replica_loads import FRESH_S, Replicas
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.scaling import Scaler, Scaling
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Job, JobState, Run, RunState
from services.scheduler.core.waiting_unit import OrderContext

_ROUNDING = 1e-9
Device = tuple[str, int]


def wanted_milli(rules: Scaling, milli: int, load: float, least: int, most: int) -> int:
    """The part (thousandths) with which a replica of ``milli`` would have the load that is its target: in proportion, rounded up,
    within bounds; the same within the tolerance."""
    ratio = load / rules.target
    if abs(ratio - 1.0) <= rules.tolerance:
        return milli
    return min(max(math.ceil(milli * ratio - _ROUNDING), least), most)


@dataclass(slots=True)
class _Shared:
    """A run that holds a part of one device, with its bounds; ``milli`` is what it is to have."""

    run: Run
    job: Job
    milli: int

    @property
    def device(self) -> Device:
        rank = self.run.ranks[0]
        return rank.node_id, rank.devices[0]

    @property
    def asked(self) -> int:
        return self.job.spec.demand.device_milli

    @property
    def least(self) -> int:
        return self.job.spec.least_milli or self.asked


class PartLimits:
    """What the policy's limits let parts grow to: those that count parts (admission.py) know of every change of one draft."""

    def __init__(self, draft: Draft, now_s: float) -> None:
        cluster = draft.book.cluster
        self._running = cluster.running
        self._gates: list[PartsGate] = []
        limits = [limit for limit in stages_of(cluster.policy).limits if getattr(limit, "counts_parts", False)]
        if limits:
            order = cluster.pending.order
            facts = {**cluster.view.facts, "running": cluster.running, "order": order, "cluster": cluster}
            context = OrderContext(cluster.shares(), now_s, facts)
            self._gates = [cast("PartsGate", limit.open(context)) for limit in limits]
        for name, run in draft.runs.items():
            before, running = draft.book.runs.get(name), self._running.get(run.key)
            if before is not None and running is not None and len(run.ranks) == len(before.ranks) == 1:
                self._count(running, before.ranks[0].device_milli, run.ranks[0].device_milli)

    def resize(self, item: _Shared, milli: int) -> None:
        """The run has another part."""
        running = self._running.get(item.run.key)
        if running is not None:
            self._count(running, item.milli, milli)
        item.milli = milli

    def _count(self, running: RunningUnit, before: int, after: int) -> None:
        if before != after:
            for gate in self._gates:
                gate.resize(running, before, after)

    def most(self, item: _Shared, more: int, donor: _Shared | None = None) -> int:
        """The most that it may have in addition, at most ``more``; with a ``donor``, which has so much less then."""
        running = self._running.get(item.run.key)
        if not self._gates or running is None or self._may(running, item, more, donor):
            return more
        low, high = 0, more
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._may(running, item, middle, donor) else (low, middle)
        return low

    def _may(self, running: RunningUnit, item: _Shared, more: int, donor: _Shared | None) -> bool:
        if donor is not None:
            before = donor.milli
            self.resize(donor, before - more)
        found = all(gate.grows(running, item.milli, more) for gate in self._gates)
        if donor is not None:
            self.resize(donor, before)
        return found


def follow(draft: Draft, replicas: Replicas, now_s: float) -> set[str]:
    """Move parts by the loads that were reported, on a draft whose runs have not changed; returns the services all of whose
    replicas have the part that they want, so that more replicas are not needed.

    Steps:
    1. Replicas that want less have it, after the window of their rules (`Scaler.settle`).
    2. Those that want more get what is free on their device, then from shrinkable runs there, the one with most to give first; as
       much as the limits of the policy let them have (`PartLimits`).
    """
    runs = _shared_runs(draft)
    free = _free(draft, runs)
    limits = PartLimits(draft, now_s)
    growing: list[tuple[_Shared, int]] = []
    content: dict[str, bool] = {}
    for item in runs:
        wanted = _wanted(item, replicas, now_s)
        if wanted is None:
            continue
        content.setdefault(item.job.job_id, True)
        if wanted < item.milli:
            free[item.device] += item.milli - wanted
            limits.resize(item, wanted)
        elif wanted > item.milli:
            growing.append((item, wanted))
        elif item.milli >= item.job.spec.most_milli and _overloaded(item, replicas, now_s):
            content[item.job.job_id] = False
    for item, wanted in growing:
        if not _grow(item, wanted, free, runs, limits):
            content[item.job.job_id] = False
    _carry_out(draft, runs, now_s)
    return {job_id for job_id, enough in content.items() if enough}


def wish(draft: Draft, replicas: Replicas, now_s: float) -> tuple[dict[str, int], set[str]]:
    """Parts that replicas would like to have other than they have, by run, and the services that need no more replicas, as in `follow`:
    those of which every replica has what it wants, or may get it yet. A domain that gave less, or did not answer, gives no more; one with
    a scheduler of its own is not asked. Nobody wishes more than the limits of the policy let it have, whoever gives it."""
    wishes: dict[str, int] = {}
    content: dict[str, bool] = {}
    limits = PartLimits(draft, now_s)
    for item in _shared_runs(draft):
        wanted = _wanted(item, replicas, now_s)
        if wanted is None:
            continue
        run_id = item.run.run_id
        content.setdefault(item.job.job_id, True)
        fixed = draft.fleet.schedules_itself(item.run.ranks[0].domain_id)
        had, allowed = item.milli, wanted
        if wanted > item.milli:
            allowed = item.milli + limits.most(item, wanted - item.milli)
        if allowed != item.milli and not fixed:
            wishes[run_id] = allowed
            limits.resize(item, allowed)
        if wanted > had:
            enough = allowed == wanted and not fixed and run_id not in replicas.short and run_id not in replicas.wished
        else:
            enough = had < item.job.spec.most_milli or not _overloaded(item, replicas, now_s)
        content[item.job.job_id] = content[item.job.job_id] and enough
    replicas.wished.update(wishes)
    return wishes, {job_id for job_id, enough in content.items() if enough}


def adjust(draft: Draft, run_id: str, milli: int, now_s: float) -> None:
    """A run has another part of its accelerator from now on; one that is ending, or has it already, stays as it is."""
    run = draft.run(run_id)
    job = draft.job(run.key.job_id) if run is not None else None
    if run is None or job is None or run.state is not RunState.ACTIVE or len(run.ranks) != 1:
        return
    if run.ranks[0].device_milli != milli:
        _carry_out(draft, [_Shared(run, job, milli)], now_s)


def give_back(draft: Draft, now_s: float) -> None:
    """Runs that have less than they asked for get back what is free on their device, in the order of their names; as much as the
    limits of the policy let them have by now (`PartLimits`), as what they gave may be held by others of their queue. Nobody has less
    for it: what a run holds it keeps, whatever the limits are."""
    if not draft.book.squeezed:
        return
    runs = _shared_runs(draft)
    free = _free(draft, runs)
    limits = PartLimits(draft, now_s)
    for item in runs:
        more = min(free[item.device], item.asked - item.milli)
        if more > 0:
            given = limits.most(item, more)
            limits.resize(item, item.milli + given)
            free[item.device] -= given
    _carry_out(draft, runs, now_s)


def _shared_runs(draft: Draft) -> list[_Shared]:
    found = []
    for name in sorted(draft.book.sharing):
        run = draft.run(name)
        job = draft.job(run.key.job_id) if run is not None else None
        if run is None or job is None or run.state is not RunState.ACTIVE or job.state is not JobState.RUNNING:
            continue
        if len(run.ranks) == 1 and len(run.ranks[0].devices) == 1:
            found.append(_Shared(run, job, run.ranks[0].device_milli))
    return found


def _free(draft: Draft, runs: Iterable[_Shared]) -> dict[Device, int]:
    """Thousandths that nobody holds, of the devices of these runs; nominations and runs that are ending hold theirs."""
    view = draft.book.cluster.view
    free: dict[Device, int] = {}
    for item in runs:
        node_id, index = item.device
        row = view.table.node_index.get(node_id)
        places = {} if row is None else {device: place for place, (device, _) in enumerate(view.table.devices_of[row])}
        held_back = row is None or index not in places
        free[item.device] = 0 if held_back else max(int(view.device_milli[row, places[index]]), 0)
    # What this draft has changed already, also of runs that it has told to stop since: those hold what they have until they ended.
    for name, run in draft.runs.items():
        before = draft.book.runs.get(name)
        if before is None or len(run.ranks) != 1 or len(run.ranks[0].devices) != 1:
            continue
        device = run.ranks[0].node_id, run.ranks[0].devices[0]
        if device in free:
            free[device] += before.ranks[0].device_milli - run.ranks[0].device_milli
    return free


def _wanted(item: _Shared, replicas: Replicas, now_s: float) -> int | None:
    """The part that a replica is to have; None for runs that are no replica with bounds, or say nothing."""
    spec = item.job.spec
    if spec.scaling is None or spec.most_milli <= item.asked:
        return None
    load = replicas.loads.get(item.run.key)
    if load is None or now_s - load.at_s > FRESH_S:
        return None
    wanted = wanted_milli(spec.scaling, item.milli, load.value, item.least, spec.most_milli)
    scaler = replicas.stretches.setdefault(item.run.run_id, Scaler())
    return scaler.settle(spec.scaling, item.milli, wanted, now_s)


def _overloaded(item: _Shared, replicas: Replicas, now_s: float) -> bool:
    rules, load = item.job.spec.scaling, replicas.loads.get(item.run.key)
    assert rules is not None
    return load is not None and load.value > rules.target * (1.0 + rules.tolerance)


def _grow(item: _Shared, wanted: int, free: dict[Device, int], runs: list[_Shared], limits: PartLimits) -> bool:
    """Whether it got all that it wanted."""
    missing = wanted - item.milli
    taken = limits.most(item, min(free[item.device], missing))
    limits.resize(item, item.milli + taken)
    free[item.device] -= taken
    donors = [other for other in runs if other is not item and other.device == item.device]
    donors.sort(key=lambda other: (other.least - other.milli, other.run.run_id))
    for other in donors:
        if other.job.spec.scaling is not None:
            continue
        part = limits.most(item, min(max(other.milli - other.least, 0), missing - taken), other)
        limits.resize(other, other.milli - part)
        limits.resize(item, item.milli + part)
        taken += part
    return taken == missing


def _carry_out(draft: Draft, runs: list[_Shared], now_s: float) -> None:
    """What shrinks is told first."""
    changed = [item for item in runs if item.milli != item.run.ranks[0].device_milli]
    for item in sorted(changed, key=lambda item: (item.milli > item.run.ranks[0].device_milli, item.run.run_id)):
        before = item.run.ranks[0].device_milli
        run = replace(item.run, ranks=(replace(item.run.ranks[0], device_milli=item.milli),))
        draft.put_run(run)
        job = draft.job(item.job.job_id)
        assert job is not None
        draft.effects.append(Adjust(job, run))
        body = {"run_id": run.run_id, "accelerator_milli": item.milli, "before": before}
        draft.record(DecisionRecord(f"{run.run_id}.share.{job.decisions}", run.key, "share", now_s, "", body))
