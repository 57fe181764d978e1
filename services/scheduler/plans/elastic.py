"""Elastic jobs: which configuration (devices of one type) each has, decided anew every round.

`SiaPlanner` is the published integer program; `MarginalPlanner` takes configurations by gain per device; `ExactPlanner` (ours) is a
dynamic program over the free devices of all types, which needs no solver. All three see the same: goodputs by configuration
in the phase in which a job is, its age, starts and the most devices that it had. None knows how much work is left.

What comes free between rounds stays free until the next (60 s), as in Sia.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.options import numbers_of
from services.scheduler.core.planning import Target
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.waiting_unit import OrderContext
from services.scheduler.planners.elastic import marginal_gain_allocation, pollux_utility
from services.scheduler.planners.elastic_exact import exact_choice, is_small
from services.scheduler.planners.mixed_integer import Limits
from services.scheduler.planners.sia import (
    Configurations,
    SiaPlan,
    alike_jobs,
    greatest_scale_up,
    greatest_value,
    greedy_allocation,
    restart_factor,
    sia_allocation,
)
from services.scheduler.plans.kept_round import Kept, Lasting, keep, kept_targets, outlook_of, settles
from services.scheduler.plans.looking_ahead import looked_ahead
from services.scheduler.plans.offers import offers_of
from services.scheduler.plans.rigid import RigidRound, rigid_round
from services.scheduler.plans.service import service_of
from services.scheduler.plans.state import Jobs, jobs_of, others

_SIA, _EXACT = "Sia's round", "greatest worth of all types"
BOUNDED = Limits(nodes=1000, jumps=False)
"""Of the solver's search, so that a round ends. Programs of 150 jobs on five types took one node each; the same bound gives the same
plan everywhere, which one of time would not. Without jumps 1,458 recorded programs had the same solution in 60 to 75 % of the time."""
_UNPROVEN = " (the best plan found: the search ended at its bound)"
_SLACK_S = 1e-3
"""Times are sums, and not exact: a round is made anew so much too early."""


@dataclass(frozen=True, slots=True)
class Round:
    """What every elastic planner gets: jobs, configurations (C), and per job and configuration (J, C) the goodput, 0 where it
    does not run or is not offered; ``current`` (J) configuration or -1, ``factor`` (J) of any other, ``starting`` (J). It is
    the same until ``until_s`` if nobody comes, begins or ends; where that is not known, until ``later_s`` but for ``factor``.
    ``restarts`` (J) are those so far."""

    jobs: Jobs
    offered: Configurations
    goodput: Floats
    current: Ints
    factor: Floats
    starting: Bools
    restarts: Ints
    until_s: float = -np.inf
    later_s: float = -np.inf

    def at(self, later_s: float) -> Round:
        """The round as it will be then, at the latest at ``Round.later_s``; as of runs of any age where that is infinite."""
        jobs = self.jobs
        if later_s == np.inf:
            return replace(self, factor=np.ones_like(self.factor))
        return replace(self, factor=restart_factor(jobs.age_s + later_s - jobs.now_s, self.restarts, jobs.restart_s))


def round_of(
    cluster: Cluster, now_s: float, jobs: Jobs | None = None, *, every_count: bool = False, growth: float = 2.0
) -> Round:
    """Gather a round; ``jobs`` as they are now, where they are known. ``every_count`` offers every number of devices
    instead of Sia's. Jobs with ``min_ranks`` 0 are rigid: offered what they ask for, on every type.

    Configurations are Sia's (powers of two within a node, then whole nodes) by the greatest node of each type; a job may at
    most get ``growth`` (0: any) times what it ran with so far, and then starts with its least.
    """
    jobs = jobs_of(cluster, now_s) if jobs is None else jobs
    service = service_of(cluster)
    offers = offers_of(cluster, jobs, every_count=every_count)
    offered, goodput = offers.configurations, offers.goodput(cluster, jobs)
    each, least, most = jobs.each, jobs.least_ranks, jobs.most_ranks
    grown = np.maximum(greatest_scale_up(service.most_ranks(jobs.keys), factor=max(int(growth), 1)), least)
    if growth > 0:
        most = np.where(jobs.elastic, np.minimum(most, grown), most)
    ranks = offered.devices / each[:, None]
    allowed = (ranks >= least[:, None]) & (ranks <= most[:, None]) & (ranks == np.rint(ranks))
    same = (offered.kind == jobs.kind[:, None]) & (offered.devices == (jobs.held * each)[:, None])
    holds = same.any(axis=1) & (jobs.kind >= 0)
    current = np.where(holds, same.argmax(axis=1), -1) if offered.kind.size else np.full(len(jobs.units), -1)
    allowed |= same
    goodput = np.where(allowed, goodput, 0.0)
    restarts = np.maximum(service.starts(jobs.keys) - 1, 0)
    cost = jobs.restart_s
    since = np.where(np.isfinite(jobs.since_s), now_s - jobs.since_s, np.inf)
    later_s = -np.inf if hasattr(cluster.view.facts.get("throughputs"), "rate_in") else rest_until_s(cluster, jobs)
    chooses = bool(((current >= 0) & ((goodput > 0).sum(axis=1) > 1)).any())
    return Round(
        jobs,
        offered,
        goodput,
        current,
        restart_factor(jobs.age_s, restarts, cost),
        ((current >= 0) & (since < cost)) | (jobs.fixed & (current >= 0)),
        restarts,
        # What a restart costs a run changes with its age, which is the same to one without a choice.
        -np.inf if chooses else later_s,
        later_s,
    )


def rest_until_s(cluster: Cluster, jobs: Jobs) -> float:
    """When the next run has made its start, or may be taken off: until then nothing but the restart factor changes, if nobody comes,
    begins or ends and rates do not change as jobs go on."""
    since = jobs.now_s - jobs.since_s
    later = np.concatenate([jobs.restart_s - since, cluster.policy.restarts.least_run_s - since])
    later = later[(later > 0) & np.isfinite(later)]
    return jobs.now_s + float(later.min(initial=np.inf)) - _SLACK_S


def _keep_round(cluster: Cluster, this: Round, targets: Sequence[Target]) -> Sequence[Target]:
    return keep(cluster, Kept(this.jobs, this.until_s, targets), this.jobs)


def _keep_best(
    cluster: Cluster, this: Round, choice: Ints, targets: Sequence[Target], choose: Callable[[Round], Ints | None]
) -> Sequence[Target]:
    """As `_keep_round`, of a planner whose ``choice`` has the greatest sum, as ``choose`` gives it for a round (None: not proven)."""
    runs = this.current >= 0
    if this.until_s > -np.inf or (choice[runs] != this.current[runs]).any():
        return _keep_round(cluster, this, targets)
    jobs = this.jobs
    outlook = looked_ahead(
        choice,
        lambda later_s: choose(this.at(later_s)),
        jobs.now_s,
        this.later_s,
        cluster.policy.interval_s,
        outlook_of(cluster, jobs),
    )
    return keep(cluster, Kept(jobs, outlook.until_s, targets, outlook=outlook), jobs)


def targets_of(this: Round, choice: Ints, reason: str) -> list[Target]:
    """A choice (J) of configurations as targets: those that stay first, then the large before the small, so that gangs
    find whole nodes."""
    jobs, offered = this.jobs, this.offered
    size = np.where(choice >= 0, offered.devices[choice], 0)
    order = np.lexsort((np.arange(choice.size), -size, choice != this.current))
    picked = choice.tolist()
    kinds, devices, each = offered.kind.tolist(), offered.devices.tolist(), jobs.each.tolist()
    return [
        jobs.target(job, kinds[picked[job]], devices[picked[job]] // each[job], reason)
        for job in order.tolist()
        if picked[job] >= 0
    ]


class SiaPlanner(Lasting):
    """Sia's integer program (`sia_allocation`) with the authors' parameters; options ``power`` (negated: 0.5 is p = -0.5),
    ``queue_penalty``, and ``growth`` (a job gets at most so many times what it ran with; 0: no bound)."""

    name = "sia"

    def __init__(self, power: float = 0.5, queue_penalty: float = 1.1, growth: float = 2.0) -> None:
        self._power, self._penalty, self._growth = power, queue_penalty, growth

    def configured(self, options: Mapping[str, Any]) -> SiaPlanner:
        """With options; PolicyError names the wrong one."""
        return SiaPlanner(**numbers_of(self.name, options, power=0.01, queue_penalty=0.0, growth=0.0))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next round."""
        jobs = jobs_of(cluster, context.now_s)
        same = kept_targets(cluster, jobs)
        if same is not None:
            return same
        rigid = rigid_round(cluster, jobs) if jobs.keys else None
        if rigid is not None:
            return self._plan_rigid(cluster, rigid)
        this = round_of(cluster, context.now_s, jobs, growth=self._growth)
        if not this.offered.kind.size or not this.jobs.units:
            return others(cluster)
        plan = self._allocation(this)
        targets = targets_of(this, plan.choice, _SIA if plan.proven else _SIA + _UNPROVEN)
        return _keep_best(cluster, this, plan.choice, targets, self._proven_choice)

    def _proven_choice(self, this: Round) -> Ints | None:
        plan = self._allocation(this)
        return plan.choice if plan.proven else None

    def _allocation(self, this: Round) -> SiaPlan:
        return sia_allocation(
            this.goodput,
            this.offered,
            capacity_of(this),
            current=this.current,
            factor=this.factor,
            fixed=this.starting,
            power=-self._power,
            queue_penalty=self._penalty,
            limits=BOUNDED,
        )

    def _plan_rigid(self, cluster: Cluster, rigid: RigidRound) -> Sequence[Target]:
        """As by tables: every job's only size is worth 1 to the power, whatever the power is, and waiting ``queue_penalty``."""
        jobs, worth = rigid.jobs, self._penalty - 1.0
        targets = rigid.targets(lambda devices, free: alike_jobs(worth, devices, free), _SIA)
        until_s = rest_until_s(cluster, jobs)
        settled = not rigid.held.any() and settles(cluster, jobs)
        return keep(cluster, Kept(jobs, until_s, targets, settles=settled), jobs)


def worth(this: Round, power: float, penalty: float) -> Floats:
    """What a configuration is worth over waiting (J, C): penalty - relative^-power, 0 where it is not offered.

    ``relative`` is the goodput over the job's least one; that of other configurations than the current is lowered by the
    restart factor. Sia's objective as a gain.
    """
    allowed = this.goodput > 0
    least = np.where(allowed, this.goodput, np.inf).min(axis=1, initial=np.inf)
    relative = np.divide(
        this.goodput, least[:, None], out=np.zeros_like(this.goodput), where=allowed & np.isfinite(least)[:, None]
    )
    other = (this.current[:, None] >= 0) & (np.arange(this.offered.kind.size) != this.current[:, None])
    relative = np.where(other, relative * np.maximum(this.factor, 1e-3)[:, None], relative)
    gain = np.where(allowed, penalty - np.where(allowed, np.maximum(relative, 1e-9), 1.0) ** -power, 0.0)
    return np.maximum(gain, 0.0)


def capacity_of(this: Round) -> Floats:
    """Devices (T) to plan with: those of nodes that are up, and never fewer than fixed jobs are counted for. A run that is ending and
    the unit that its devices are kept for both are; jobs that share a device count for a whole one each; nodes may go down."""
    kept = this.current[this.starting]
    used = np.bincount(this.offered.kind[kept], this.offered.devices[kept], this.jobs.capacity.size)
    return np.maximum(this.jobs.capacity, used)


def held_and_free(this: Round) -> tuple[Ints, Floats]:
    """The configurations (J) that are fixed in this round (-1: open), and the devices (T) that they leave."""
    kept = np.where(this.starting, this.current, -1)
    free = this.jobs.capacity.copy()
    held = kept[kept >= 0]
    np.subtract.at(free, this.offered.kind[held], this.offered.devices[held].astype(np.float64))
    return kept, np.maximum(free, 0.0)


class MarginalPlanner(Lasting):
    """Configurations by worth per device, then upgrades within a type (`greedy_allocation`); options as Sia's.

    It takes one device of any type for everyone first and never exchanges types: jobs that gain most from the fast type come
    too late. Kept as the baseline of a fast plan.
    """

    name = "greedy-elastic"

    def __init__(self, power: float = 0.5, queue_penalty: float = 1.1) -> None:
        self._power, self._penalty = power, queue_penalty

    def configured(self, options: Mapping[str, Any]) -> MarginalPlanner:
        """With options; PolicyError names the wrong one."""
        return MarginalPlanner(**numbers_of(self.name, options, power=0.01, queue_penalty=0.0))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next round."""
        jobs = jobs_of(cluster, context.now_s)
        same = kept_targets(cluster, jobs)
        if same is not None:
            return same
        this = round_of(cluster, context.now_s, jobs)
        if not this.offered.kind.size or not this.jobs.units:
            return others(cluster)
        kept, free = held_and_free(this)
        value = np.where(this.starting[:, None], 0.0, worth(this, self._power, self._penalty))
        greedy = greedy_allocation(value, this.offered, free)
        return _keep_round(cluster, this, targets_of(this, np.where(kept >= 0, kept, greedy), "gain per device"))


class PolluxPlanner(Lasting):
    """Pollux's fitness without its search over placements (`pollux_utility`), blind to types as the original.

    Steps: 1. goodput by number of devices, the mean over types by their size; 2. numbers by marginal gain over the whole pool;
    3. jobs of the present number stay, the others, large before small, to the type with most free devices of those on which
    they run, with as many as it has.
    """

    name = "pollux-lite"

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next round."""
        jobs = jobs_of(cluster, context.now_s)
        same = kept_targets(cluster, jobs)
        if same is not None:
            return same
        this = round_of(cluster, context.now_s, jobs, every_count=True, growth=0.0)
        jobs, offered = this.jobs, this.offered
        if not jobs.units or not offered.kind.size:
            return others(cluster)
        column = {
            (int(k), int(d)): place for place, (k, d) in enumerate(zip(offered.kind, offered.devices, strict=True))
        }
        pool = int(jobs.capacity.sum())
        goodput = np.zeros((len(jobs.units), int(offered.devices.max())))
        for place, devices in enumerate(offered.devices.tolist()):
            goodput[:, devices - 1] += this.goodput[:, place] * jobs.capacity[offered.kind[place]] / pool
        now = np.where(this.current >= 0, offered.devices[this.current], 0)
        utility, idle = pollux_utility(goodput, pool, current=now, restart_factor=this.factor)
        wanted = np.where(this.starting, now, marginal_gain_allocation(utility, pool, idle))
        choice = np.where((wanted == now) & (now > 0), this.current, -1)
        kept = choice[choice >= 0]
        free = jobs.capacity - np.bincount(offered.kind[kept], offered.devices[kept], jobs.capacity.size)
        for job in np.lexsort((np.arange(wanted.size), -wanted)).tolist():
            if choice[job] < 0 < wanted[job]:
                for kind in np.argsort(-free, kind="stable").tolist():
                    devices = min(int(wanted[job]), int(free[kind]))
                    place = column.get((kind, devices), -1)
                    if place >= 0 and this.goodput[job, place] > 0:
                        choice[job] = place
                        free[kind] -= devices
                        break
        return _keep_round(cluster, this, targets_of(this, choice, "Pollux's fitness"))


class ExactPlanner(Lasting):
    """Ours. Steps of a round:

    1. Worth of every configuration as in Sia's objective, with a smaller power (0.3: less weight on the worst served, more
       on progress). What is measured is known, so a job begins with what is best instead of doubling round by round, each
       time with a restart (``growth`` 0).
    2. The present configuration is worth ``keep`` more: no restart for a small gain.
    3. The choice of the greatest sum over all types at once (`exact_choice`); with so many types, devices and jobs that its table
       would not fit, or would take longer, by Sia's integer program (`greatest_value`).
    """

    name = "elastic-exact"

    def __init__(self, power: float = 0.3, queue_penalty: float = 1.1, keep: float = 0.03, growth: float = 0.0) -> None:
        self._power, self._penalty, self._keep, self._growth = power, queue_penalty, keep, growth

    def configured(self, options: Mapping[str, Any]) -> ExactPlanner:
        """With options; PolicyError names the wrong one."""
        least = {"power": 0.01, "queue_penalty": 0.0, "keep": 0.0, "growth": 0.0}
        return ExactPlanner(**numbers_of(self.name, options, **least))

    def plan(self, cluster: Cluster, context: OrderContext) -> Sequence[Target]:
        """The jobs of the next round."""
        jobs = jobs_of(cluster, context.now_s)
        same = kept_targets(cluster, jobs)
        if same is not None:
            return same
        this = round_of(cluster, context.now_s, jobs, growth=self._growth)
        if not this.offered.kind.size or not this.jobs.units:
            return others(cluster)
        choice, proven = self._choice(this)
        targets = targets_of(this, choice, _EXACT if proven else _EXACT + _UNPROVEN)
        return _keep_best(cluster, this, choice, targets, self._proven_choice)

    def _choice(self, this: Round) -> tuple[Ints, bool]:
        """The choice (J), and whether it is proven."""
        value = worth(this, self._power, self._penalty)
        holds = np.arange(this.offered.kind.size) == this.current[:, None]
        value = np.where(holds & (value > 0), value * (1.0 + self._keep), value)
        kept, free = held_and_free(this)
        value = np.where(this.starting[:, None], 0.0, value)
        proven = True
        if is_small(value, free):
            choice = exact_choice(value, this.offered.kind, this.offered.devices, free)
        else:
            choice, proven = greatest_value(value, this.offered.kind, this.offered.devices, free, BOUNDED)
        return np.where(kept >= 0, kept, choice), proven

    def _proven_choice(self, this: Round) -> Ints | None:
        choice, proven = self._choice(this)
        return choice if proven else None
