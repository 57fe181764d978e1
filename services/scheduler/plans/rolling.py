"""The rolling mixed-integer baseline as a plugin: the first jobs of the queue solved exactly over a short horizon, again and again.

Nothing that runs is taken off. Every other policy may know as much: run times on each type, and until when what runs will run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.options import numbers_of
from services.scheduler.core.planning import Target
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners.alike_window import place_behind, window_starts
from services.scheduler.planners.milp import free_devices, rolling_plan, room_beside
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.plans.service import service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

_SOME = 50
"""Of so many jobs behind the window it is asked at a time how long they run."""

_EXACT_S = 1e-3
"""By so much sooner a slot is said to be over: sums of seconds are not exact."""


class RollingPlanner:
    """Steps of a round: what runs stays; the queue by submission; `rolling_plan` over ``slots`` of ``slot_s`` seconds for the
    first ``first`` jobs, the rest greedily; those that begin in slot 0 begin. The solver stops after ``nodes`` nodes. While
    nobody could begin in slot 0 nothing is planned, and no round is asked for."""

    name = "rolling-milp"

    def __init__(self, first: float = 20, slots: float = 24, slot_s: float = 3600.0, nodes: float = 50) -> None:
        self._first, self._slots, self._slot_s, self._nodes = int(first), int(slots), slot_s, int(nodes)

    def configured(self, options: Mapping[str, Any]) -> RollingPlanner:
        """With ``first`` (jobs that are solved together: the window), ``slots`` of ``slot_s`` seconds each (the horizon) and ``nodes``
        of the solver's search; they bound what a round takes."""
        return RollingPlanner(**numbers_of(self.name, options, first=1.0, slots=1.0, slot_s=1.0, nodes=1.0))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """What runs, and the jobs that begin now."""
        jobs = jobs_of(cluster, context.now_s)
        kept = service_of(cluster).plan
        kept[self.name] = None
        if not jobs.rows or not jobs.models:
            return others(cluster)
        kept[self.name] = queue = _Queue(jobs)
        kind = jobs.kind.copy()
        if queue.could_begin(queue.free).any():
            queue.begins = self._begin(jobs, queue)
            kind[queue.waits] = queue.begins
        order = np.concatenate([np.flatnonzero(jobs.kind >= 0), queue.waits[queue.begins >= 0]])
        return [*jobs.targets(kind, order, "begins now in the best schedule of the next jobs"), *others(cluster, jobs)]

    def same_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See services/scheduler/core/planning.py: as long as nobody could begin, else until less of what runs is left by a slot."""
        found: _Queue | None = service_of(cluster).plan.get(self.name)
        if found is None or not found.stands(cluster, now_s):
            return -math.inf
        return math.inf if found.rests(cluster) else found.same_until_s

    def settled_until_s(self, cluster: Cluster, now_s: float) -> float:
        """See services/scheduler/core/planning.py: where nobody who still waits could begin beside those who began."""
        found: _Queue | None = service_of(cluster).plan.get(self.name)
        return math.inf if found is not None and found.stands(cluster, now_s) and found.rests(cluster) else -math.inf

    def _begin(self, jobs: Jobs, queue: _Queue) -> Ints:
        """The type of each job of the queue that begins now, -1 for the others."""
        run = np.flatnonzero(jobs.kind >= 0)
        kind = self._begin_alike(jobs, queue, run) if queue.alike else None
        return self._begin_apart(jobs, queue, run) if kind is None else kind

    def _begin_alike(self, jobs: Jobs, queue: _Queue, run: Ints) -> Ints | None:
        """`_begin` on one type in whole numbers, where `rolling_plan` would search; None where the search does not end."""
        seconds = jobs.seconds_of(np.concatenate([run, queue.waits[: self._first]]))[:, 0]
        left_s = np.where(queue.runs_there, seconds[: run.size], 0.0)
        room = room_beside(queue.capacity, jobs.kind[run], jobs.devices[run], left_s, self._slots, self._slot_s)
        if (jobs.throughput[run] == 1.0).all():
            queue.same_until_s = jobs.now_s + self._slot_less_s(left_s)
        free = np.floor(room[0] + 1e-9).astype(np.int64).tolist()
        devices = queue.devices.astype(np.int64)
        kind = np.full(queue.waits.size, -1, dtype=np.int64)
        starts = window_starts(devices[: self._first].tolist(), self._lasts(seconds[run.size :]).tolist(), free)
        if starts is None:
            return None
        kind[[job for job, slot in enumerate(starts) if not slot]] = 0
        done = seen = min(self._first, queue.waits.size)
        least = min(devices[seen:].tolist(), default=0)
        while True:
            # Who is behind the window begins where all of its slots have room, and all before it are placed.
            could = seen + np.flatnonzero(devices[seen:] <= free[0])
            if not could.size:
                return kind
            some = could[:_SOME]
            lasts = self._lasts(jobs.seconds_of(queue.waits[some])[:, 0])
            now = some[devices[some] <= np.minimum.accumulate(free)[lasts - 1]]
            seen = int(some[-1]) + 1
            if now.size:
                seen = int(now[-1]) + 1
                behind = slice(done, seen)
                lasts = self._lasts(jobs.seconds_of(queue.waits[behind])[:, 0])
                starts = place_behind(devices[behind].tolist(), lasts.tolist(), free, least)
                kind[[done + job for job, slot in enumerate(starts) if not slot]] = 0
                done = seen

    def _slot_less_s(self, left_s: Floats) -> float:
        """In how many seconds the first of the jobs, of which so much is left, holds its devices for a slot less, at the soonest."""
        slots = np.minimum(np.ceil(left_s / self._slot_s), self._slots) - 1.0
        less_s: Floats = (left_s - slots * self._slot_s)[slots > 0]
        return float(less_s.min(initial=math.inf)) - _EXACT_S

    def _lasts(self, seconds: Floats) -> Ints:
        """For how many slots, at most to the horizon, jobs hold their devices."""
        lasts: Ints = np.clip(np.ceil(seconds / self._slot_s - 1e-9), 1, self._slots).astype(np.int64)
        return lasts

    def _begin_apart(self, jobs: Jobs, queue: _Queue, run: Ints) -> Ints:
        left_s = jobs.seconds_of(run)[np.arange(run.size), jobs.kind[run]]
        # One that would not run there if it waited is over its time.
        left_s = np.where(np.isfinite(left_s) & queue.runs_there, left_s, 0.0)
        room = free_devices(queue.capacity, jobs.kind[run], jobs.devices[run], left_s, self._slots, self._slot_s)
        kind = self._now(jobs, queue, min(self._first, queue.waits.size), room)
        many = self._first
        while many < queue.waits.size:
            # Who is behind the window begins in what it leaves free now: they are planned as far as one may have room there.
            begun = kind >= 0
            used = np.bincount(kind[begun], queue.devices[begun], queue.free.size)
            behind = np.flatnonzero(queue.could_begin(queue.free - used)[many:])
            if not behind.size:
                break
            many = min(2 * many, many + int(behind[-1]) + 1)
            kind = self._now(jobs, queue, many, room)
        return kind

    def _now(self, jobs: Jobs, queue: _Queue, many: int, room: Floats) -> Ints:
        """The types (-1: waits) of the queue's jobs where the first ``many`` of them are planned."""
        seconds = np.where(queue.fits[:many], jobs.seconds_of(queue.waits[:many]), np.inf)
        plan = rolling_plan(
            seconds,
            queue.devices[:many],
            np.ones(many),
            room,
            self._slot_s,
            first=self._first,
            limits=Limits(nodes=self._nodes, gap=1e-3, jumps=False),
            now_only=True,
        )
        kind = np.full(queue.waits.size, -1, dtype=np.int64)
        kind[:many] = np.where(plan.slot == 0, plan.kind, -1)
        return kind


class _Queue:
    """Who waits in a round (W, of ``jobs``, as they were submitted), and what is free now.

    ``waits`` (W) are the places in ``jobs``, ``devices`` (W), ``fits`` (W, T): runs on the type and is not too large for it, which
    ``runs_there`` (R) says of those that run and the type that they hold; ``capacity`` (T) counts what is held on nodes that are down."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        fits = (jobs.throughput > 0) & (jobs.devices[:, None] <= jobs.capacity)
        self.waits: Ints = np.flatnonzero((jobs.kind < 0) & fits.any(axis=1))
        self.devices: Floats = jobs.devices[self.waits]
        self.fits: Bools = fits[self.waits]
        run = jobs.kind >= 0
        self.runs_there: Bools = np.asarray(fits[run, jobs.kind[run]])
        held = np.bincount(jobs.kind[run], jobs.devices[run], jobs.capacity.size)
        self.capacity: Floats = np.maximum(jobs.capacity, held)
        self.free: Floats = self.capacity - held
        self.alike = self.capacity.size == 1 and bool((self.devices == np.rint(self.devices)).all())
        self.begins: Ints = np.full(self.waits.size, -1, dtype=np.int64)
        """The types (W) of those that the plan lets begin, -1 for the others."""
        self.same_until_s = -math.inf
        """Until when the plan is the same if nothing happens; minus infinity: not known."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def could_begin(self, free: Floats) -> Bools:
        """Whether (W) each has room on one type now: what runs only gives back, so there is no less later."""
        found: Bools = np.asarray((self.fits & (self.devices[:, None] <= free + 1e-9)).any(axis=1))
        return found

    def stands(self, cluster: Cluster, now_s: float) -> bool:
        """Whether it is the queue of this round, with all units that are there, on the same nodes."""
        jobs = self._jobs
        same = now_s == jobs.now_s and len(cluster.running) + len(cluster.pending) == len(jobs.keys)
        return same and jobs.rates.hold(cluster)

    def rests(self, cluster: Cluster) -> bool:
        """Whether nobody of them could begin right after the round, beside those who began."""
        jobs = self._jobs
        planned = np.flatnonzero(self.begins >= 0)
        runs = np.array([jobs.keys[job] in cluster.running for job in self.waits[planned].tolist()], dtype=np.bool_)
        begun = planned[runs]
        free = self.free - np.bincount(self.begins[begun], self.devices[begun], self.free.size)
        could = self.could_begin(free)
        could[begun] = False
        return not could.any()
