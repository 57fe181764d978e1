"""The cluster as the planners want it: arrays over jobs and accelerator types, and back to targets.

Planners of the literature see types (V100, P100, ...) as pools of like devices; so does `jobs_of`. What it leaves out, the core
decides when it places: which domain and node, and whether a gang finds room at all. Units without accelerators are no part of
a plan (`others` lets them run as they fit).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, filterfalse
from operator import attrgetter, is_

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.measured import Measured
from services.scheduler.core.planning import Target
from services.scheduler.core.running_unit import RunningUnit, model_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.plans.rates import Rates
from services.scheduler.plans.service import service_of

_UNKNOWN_S = 86_400.0
_NUMBERS = 11


@dataclass(frozen=True, eq=False)
class Jobs:
    """Units with accelerators that wait or run, by submission (ties: key). J jobs, T types.

    ``demands`` are those that they came with. ``throughput`` (J, T) is the rate of the whole job with the ranks that it asks
    for, 0 where it does not run; ``devices`` (J) those that it asks for; ``kind`` (J) the type that it holds, -1: it waits;
    ``held`` (J) the ranks that it holds. ``left`` (J) is the work left in units of ``throughput``; ``age_s`` (J) the time
    since submission. ``fixed`` (J): runs and may not be taken off, not at all or not yet (``least_run_s`` of the policy).
    ``capacity`` (T) are the devices of nodes that are up. ``restart_s`` (J) is what an interruption costs. ``runs`` (J) are the runs,
    None: it waits. ``since_s`` (J) is when the run began, infinite where it waits. ``cluster`` is as it was at ``now_s``: what is asked
    of it later is asked while it is planned.
    """

    rows: tuple[_Job, ...]
    keys: tuple[UnitKey, ...]
    rates: Rates
    cluster: Cluster
    now_s: float
    _table: Floats
    """`_Job.numbers` of each job (J, 11 + T)."""

    @cached_property
    def units(self) -> tuple[PendingUnit, ...]:
        """See the class."""
        return tuple([row.unit for row in self.rows])

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """See the class."""
        return tuple([row.demand for row in self.rows])

    @cached_property
    def runs(self) -> tuple[RunningUnit | None, ...]:
        """See the class."""
        return tuple([row.run for row in self.rows])

    @property
    def models(self) -> tuple[str, ...]:
        """See the class."""
        return self.rates.models

    @property
    def capacity(self) -> Floats:
        """See the class."""
        return self.rates.capacity

    @property
    def devices(self) -> Floats:
        """See the class."""
        devices: Floats = self._table[:, 0]
        return devices

    @cached_property
    def kind(self) -> Ints:
        """See the class."""
        kind: Ints = self._table[:, 1].astype(np.int64)
        return kind

    @cached_property
    def held(self) -> Ints:
        """See the class."""
        held: Ints = self._table[:, 2].astype(np.int64)
        return held

    @property
    def restart_s(self) -> Floats:
        """See the class."""
        restart_s: Floats = self._table[:, 3]
        return restart_s

    @property
    def since_s(self) -> Floats:
        """See the class."""
        since_s: Floats = self._table[:, 4]
        return since_s

    @cached_property
    def _sizes(self) -> Ints:
        sizes: Ints = self._table[:, 5:10].astype(np.int64)
        return sizes

    @property
    def throughput(self) -> Floats:
        """See the class."""
        throughput: Floats = self._table[:, _NUMBERS:]
        return throughput

    @cached_property
    def left(self) -> Floats:
        """See the class."""
        return self._left_of(np.arange(len(self.rows)))

    def _left_of(self, which: Ints) -> Floats:
        measured = self.rates.measured
        ask: Callable[[UnitKey], float] | None = self.cluster.view.facts.get("work_left")
        places = which.tolist()
        if ask is not None and not measured.rates and (self._table[which, 10] > 0).all():
            told = [self.rows[place].told(ask) for place in places]
            return np.array(told, dtype=np.float64)
        rows = [self.rows[place] for place in places]
        left = [
            _left(measured, ask, row.unit, row.run, rates, kind, self.now_s)
            for row, rates, kind in zip(rows, self.throughput[which], self.kind[which].tolist(), strict=True)
        ]
        return np.array(left, dtype=np.float64)

    @cached_property
    def age_s(self) -> Floats:
        """See the class."""
        return np.maximum(self.now_s - np.array([unit.submitted_at_s for unit in self.units], dtype=np.float64), 0.0)

    @cached_property
    def fixed(self) -> Bools:
        """See the class."""
        least_s = self.cluster.policy.restarts.least_run_s
        held: Bools = np.isfinite(self.since_s) & ((self._sizes[:, 4] == 0) | (self.now_s - self.since_s < least_s))
        return held

    @property
    def all_preemptible(self) -> bool:
        """Whether each job, once it runs, may be taken off at some time."""
        return bool(self._sizes[:, 4].all())

    @property
    def each(self) -> Ints:
        """Accelerators of a rank (J), at least 1."""
        each: Ints = self._sizes[:, 0]
        return each

    @property
    def least_ranks(self) -> Ints:
        """The fewest ranks (J) that it may have."""
        least: Ints = self._sizes[:, 1]
        return least

    @property
    def most_ranks(self) -> Ints:
        """The most ranks (J) that it may have."""
        most: Ints = self._sizes[:, 2]
        return most

    @property
    def elastic(self) -> Bools:
        """Whether its number of ranks (J) may change."""
        elastic: Bools = self._sizes[:, 3] != 0
        return elastic

    def assumed(self, job: int, unknown: str = "a day is assumed") -> str:
        """What nothing is known of, of a job, and what is taken instead (of its run time ``unknown``); empty: everything is known."""
        unit, demand = self.rows[job].unit, self.rows[job].demand
        notes = []
        if self.rates.measured.knows(unit.key.job_id):
            notes = [] if demand.profile else ["its rates are measured where it ran, other accelerators count alike"]
        elif not self.rates.known(demand):
            notes = ["its rates are not known, all accelerators count alike"]
        notes += [f"its run time is not known, {unknown}"] if self._endless(job) else []
        return f" ({'; '.join(notes)})" if notes else ""

    def _endless(self, job: int) -> bool:
        unit = self.rows[job].unit
        if unit.work <= 0 and unit.remaining_s == np.inf:
            return not np.isfinite(self.left[job])
        return False

    @property
    def fastest(self) -> Floats:
        """The greatest rate of each job (J) on a type that is large enough for it, 0 where it runs nowhere."""
        fits = self.devices[:, None] <= self.capacity
        rates: Floats = np.where(fits, self.throughput, 0.0).max(axis=1, initial=0.0)
        return rates

    @property
    def work(self) -> Floats:
        """Work left (J), a day's on its fastest type where nothing is known of it."""
        return np.where(np.isfinite(self.left), self.left, self.fastest * _UNKNOWN_S)

    @property
    def seconds(self) -> Floats:
        """Seconds that are left by type (J, T), infinite where the job does not run."""
        return _seconds(self.work, self.throughput)

    def seconds_of(self, which: Ints) -> Floats:
        """`seconds` of some jobs, of which alone it is asked."""
        throughput = self.throughput[which]
        left = self._left_of(which)
        if not np.isfinite(left).all():
            fastest = np.where(self.devices[which, None] <= self.capacity, throughput, 0.0).max(axis=1, initial=0.0)
            left = np.where(np.isfinite(left), left, fastest * _UNKNOWN_S)
        return _seconds(left, throughput)

    def at(self, now_s: float) -> Jobs:
        """The same jobs on the same nodes at another time."""
        return Jobs(self.rows, self.keys, self.rates, self.cluster, now_s, self._table)

    def targets(
        self, kind: Ints, order: Sequence[int] | Ints, reason: str, unknown: str = "a day is assumed"
    ) -> list[Target]:
        """The jobs with a type (``kind`` (J) >= 0), in this order, with the ranks that they ask for; ``unknown`` says what the planner
        takes for a run time that is not known."""
        kinds, rows = kind.tolist(), self.rows
        names = [(place, 0, reason) for place in range(len(self.models))]
        return [
            rows[job].targets.get(names[kinds[job]]) or self.target(job, kinds[job], 0, reason, unknown)
            for job in np.asarray(order).tolist()
            if kinds[job] >= 0
        ]

    def target(self, job: int, kind: int, ranks: int, reason: str, unknown: str = "a day is assumed") -> Target:
        """A job on a type, with ``ranks`` (0: those that it asks for)."""
        known = self.rows[job].targets
        made = known.get((kind, ranks, reason))
        if made is None:
            made = Target(self.keys[job], ranks, self.models[kind], reason=reason + self.assumed(job, unknown))
            unit = self.rows[job].unit
            if unit.work > 0 or unit.remaining_s != np.inf:
                # Of others it may be told later how much is left.
                known[kind, ranks, reason] = made
        return made


def _seconds(work: Floats, throughput: Floats) -> Floats:
    endless = np.full(throughput.shape, np.inf)
    seconds: Floats = np.divide(work[:, None], throughput, out=endless, where=throughput > 0)
    return seconds


class _Job:
    """A unit as it waits or runs, with what `Jobs` says of it: the same as long as neither changes, on the same rates."""

    __slots__ = ("demand", "key", "numbers", "place", "run", "targets", "unit", "waits_left")

    def __init__(self, cluster: Cluster, rates: Rates, unit: PendingUnit, run: RunningUnit | None) -> None:
        self.unit, self.run = unit, run
        self.key = unit.key
        self.place = unit.submitted_at_s, unit.key
        self.demand = demand = service_of(cluster).waits(unit)
        self.numbers = (
            demand.ranks * demand.accelerators * demand.device_milli / 1000.0,
            -1 if run is None else rates.models.index(model_of(cluster.table, run)),
            0 if run is None else run.unit.demand.ranks,
            unit.restart_s or cluster.policy.restarts.restart_cost_s,
            math.inf if run is None else run.since_s,
            max(demand.accelerators, 1),
            unit.min_ranks or demand.ranks,
            unit.max_ranks or demand.ranks,
            unit.min_ranks > 0,
            unit.preemptible,
            unit.work,
            *rates.of(unit.key, demand).tolist(),
        )
        """A row of the table of `Jobs`: devices, kind, held, restart_s, since_s, the five sizes, work, throughput."""
        self.targets: dict[tuple[int, int, str], Target] = {}
        """By type, ranks and reason."""
        self.waits_left = -1.0
        """The work left that it was told of while it waits, which does none."""

    def told(self, ask: Callable[[UnitKey], float]) -> float:
        """The work left, as it is told."""
        if self.run is not None:
            return ask(self.key)
        if self.waits_left < 0:
            self.waits_left = ask(self.key)
        return self.waits_left


def jobs_of(cluster: Cluster, now_s: float) -> Jobs:
    """The arrays; see `Jobs`. A unit without a profile has rate 1 on every type that it accepts."""
    service = service_of(cluster)
    kept: _Kept = service.plan.setdefault("jobs", _Kept())
    rates = kept.rates_of(cluster)
    running, waiting = list(cluster.running.values()), cluster.pending.units()
    before = kept.jobs
    same = before is not None and before.rates is rates and kept.same(running, waiting)
    if not same:
        same = not kept.follow(cluster, rates, running, waiting)
    if same and before is not None:
        return before if before.now_s == now_s else before.at(now_s)
    kept.jobs = Jobs(*kept.rows(), rates, cluster, now_s, kept.table)
    service.forget_all_but(kept.jobs.keys)
    return kept.jobs


_place = attrgetter("place")
_unit: Callable[[RunningUnit], PendingUnit] = attrgetter("unit")


class _Kept:
    """What `jobs_of` made last, for which runs and waiting units in which order. A copy of the cluster makes it anew."""

    def __init__(self) -> None:
        self.jobs: Jobs | None = None
        self._held: list[RunningUnit | PendingUnit] = []
        """What ran and what waited, with or without accelerators."""
        self._run: list[PendingUnit] = []
        """The units of what ran."""
        self._rates: Rates | None = None
        self._of: Rates | None = None
        self._order: list[_Job] = []
        """By submission."""
        self._keys: list[UnitKey] = []
        """Their keys."""
        self._known: dict[int, _Job] = {}
        """By the ``id`` of their run, of a job that waits of its unit: both are held as long."""
        self._bare: dict[int, RunningUnit | PendingUnit] = {}
        """Those without accelerators, likewise."""
        self.table: Floats = np.zeros((0, 0))
        """Their numbers (J, 11 + T)."""

    def same(self, running: Sequence[RunningUnit], waiting: Sequence[PendingUnit]) -> bool:
        """Whether these are the very runs, units and order of the last time."""
        if len(running) != len(self._run) or len(running) + len(waiting) != len(self._held):
            return False
        return all(map(is_, chain(running, waiting), self._held)) and all(map(is_, map(_unit, running), self._run))

    def follow(self, cluster: Cluster, rates: Rates, running: list[RunningUnit], waiting: list[PendingUnit]) -> bool:
        """Take over what is ``running`` and ``waiting``; whether other jobs are there than before, or other rates."""
        anew = self._of is not rates
        if anew:
            self._known, self._order, self._keys = {}, [], []
            self.table = np.zeros((0, _NUMBERS + len(rates.models)))
        known, bare = self._known, self._bare
        held: list[RunningUnit | PendingUnit] = [*running, *waiting]
        names = list(map(id, held))
        fresh_names = [name for name in filterfalse(known.__contains__, names) if name not in bare]
        gone: list[_Job] = []
        if len(known) + len(bare) > len(names) - len(fresh_names):
            there = set(names)
            gone = [known.pop(name) for name in list(filterfalse(there.__contains__, known))]
            for name in list(filterfalse(there.__contains__, bare)):
                del bare[name]
        run = list(map(_unit, running))
        for name, unit in zip(names, run, strict=False):
            if name in known and known[name].unit is not unit:
                gone.append(known.pop(name))
                fresh_names.append(name)
        fresh: list[_Job] = []
        if fresh_names:
            by_name = dict(zip(names, held, strict=True))
            for name in fresh_names:
                item = by_name[name]
                unit, its_run = (item.unit, item) if isinstance(item, RunningUnit) else (item, None)
                if unit.demand.accelerators:
                    known[name] = job = _Job(cluster, rates, unit, its_run)
                    fresh.append(job)
                else:
                    bare[name] = item
        self._held, self._run, self._of = held, run, rates
        if not gone and not fresh:
            return anew
        self.table = self._change(gone, fresh)
        self.table.setflags(write=False)
        ended = {job.key for job in gone} - {job.key for job in fresh}
        service_of(cluster).forget(ended)
        return True

    def rows(self) -> tuple[tuple[_Job, ...], tuple[UnitKey, ...]]:
        """The jobs by submission, and their keys."""
        return tuple(self._order), tuple(self._keys)

    def _change(self, gone: Sequence[_Job], fresh: list[_Job]) -> Floats:
        """The table without the jobs that are gone and with the fresh ones; the order follows."""
        order, keys, table = self._order, self._keys, self.table
        if gone:
            stays = np.ones(len(order), dtype=np.bool_)
            for place in sorted([bisect_left(order, job.place, key=_place) for job in gone], reverse=True):
                stays[place] = False
                del order[place], keys[place]
            table = table[stays]
        fresh.sort(key=_place)
        places = [bisect_left(order, job.place, key=_place) for job in fresh]
        for already, (place, job) in enumerate(zip(places, fresh, strict=True)):
            order.insert(place + already, job)
            keys.insert(place + already, job.key)
        changed = np.empty((len(order), table.shape[1]))
        stays = np.ones(len(order), dtype=np.bool_)
        at = [place + already for already, place in enumerate(places)]
        stays[at] = False
        changed[stays] = table
        changed[at] = [job.numbers for job in fresh] or np.zeros((0, table.shape[1]))
        return changed

    def __deepcopy__(self, memo: dict[int, object]) -> _Kept:
        return _Kept()

    def rates_of(self, cluster: Cluster) -> Rates:
        """The rates as they are now."""
        if self._rates is None or not self._rates.hold(cluster):
            self._rates = Rates(cluster)
        return self._rates


def others(cluster: Cluster, jobs: Jobs | None = None) -> list[Target]:
    """Units without accelerators: those that run stay, those that wait go where they fit. ``jobs`` are all others, where it is known."""
    if jobs is not None and len(jobs.keys) == len(cluster.running) + len(cluster.pending):
        return []
    keys = [item.unit.key for item in cluster.running.values() if not item.unit.demand.accelerators]
    keys += [unit.key for unit in cluster.pending if not unit.demand.accelerators]
    return [Target(key, reason="needs no accelerator") for key in sorted(keys)]


def _left(
    measured: Measured,
    ask: Callable[[UnitKey], float] | None,
    unit: PendingUnit,
    run: RunningUnit | None,
    rates: Floats,
    kind: int,
    now_s: float,
) -> float:
    """Work left: as reported (facts ``work_left`` and, where its rate is measured too, ``measured``), else from the rate and
    the time that it runs. Of a unit without work the predicted remaining seconds count, as if on its fastest type."""
    if measured.knows(unit.key.job_id) and (steps := measured.steps_left(unit.key)) is not None:
        if run is None or kind < 0:
            return steps
        return max(steps - max(now_s - max(measured.done[unit.key].at_s, run.since_s), 0.0) * float(rates[kind]), 0.0)
    if unit.work > 0 and ask is not None:
        return ask(unit.key)
    amount = unit.work if unit.work > 0 else unit.remaining_s * max(float(rates.max(initial=0.0)), 1e-300)
    if run is None or kind < 0:
        return amount
    return max(amount - (now_s - run.since_s) * float(rates[kind]), 0.0)
