"""Whether promises hold while the load swings: share contracts of domains, and runs that are not interrupted.

`ContractSimulation` is a simulation whose policy has a share plan (`services/scheduler/core/contracts/contract.py`); `shares` tells what
was kept. `swinging` gives a trace whose arrival rate goes up and down; `stability` tells how many runs kept running.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meridian.errors import InvalidArgumentError
from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.contracts.contract import install, moves, tell
from services.scheduler.core.contracts.moves import repairs
from services.scheduler.core.contracts.plan import (
    SharePlan,
    apart,
    committed,
    deviations,
    infeasible,
    plan_of,
    promised,
)
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.table import Floats
from simulation.engine import Simulation
from simulation.measures import Measures
from simulation.model import Network, Trace
from simulation.setting import Setting


class ContractSimulation(Simulation):
    """A simulation that counts what domains give against ``plan`` (default: the policy's own), and tells the scores.

    ``move_every_s`` > 0 takes units off for the contract about so often (`moves`, with ``again_first``); their work so far is kept.
    With ``sparse`` only those without which a plan would be broken (`repairs`): so it is too where the plan itself says how often.
    """

    def __init__(
        self,
        network: Network,
        trace: Trace,
        setting: Setting,
        plan: SharePlan | None = None,
        *,
        move_every_s: float = 0.0,
        again_first: bool = False,
        sparse: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(network, trace, setting, **more)
        found = plan or plan_of(setting.policy)
        if found is None:
            raise PolicyError("options.share_deficit.shares: missing")
        self._move_every_s, self._next_move_s = move_every_s or found.move_every_s, 0.0
        self._again_first, self._sparse = again_first, sparse or found.move_every_s > 0
        start_s = trace.jobs[0].submit_s if trace.jobs else 0.0
        # A whole number of windows before the first job: the first one counted is whole.
        start_s = math.floor(start_s / found.window_s) * found.window_s
        self.account: ShareAccount = install(self.cluster, found, start_s, kept=1_000_000, pieces=True)

    def _decide(self) -> None:
        tell(self.cluster, self.account, max(self.now_s, self.account.now_s))
        if self._move_every_s and self.now_s >= self._next_move_s:
            self._next_move_s = (self.now_s // self._move_every_s + 1) * self._move_every_s
            self._move()
        super()._decide()

    def _move(self) -> None:
        if len(self.cluster.pending):
            return  # somebody waits already: what comes free goes where it is needed
        running, free = self.cluster.running.values(), self.cluster.view.domain_free_devices
        if self._sparse:
            keys = repairs(self.account, running, free)
        else:
            keys = moves(self.account, running, free, again_first=self._again_first)
        for key in keys:
            item = self._jobs[key]
            self._stop(item, graceful=True)
            self._wait(item)
        tell(self.cluster, self.account, self.account.now_s)


@dataclass(frozen=True, slots=True)
class ShareReport:
    """Windows of domains: how many there were, how many were left out and why, and the deviations of the others.

    ``lost`` says for each deviation whether the window could not be kept any more when it began, without moving what ran.
    """

    windows: int
    left_out: dict[str, int]
    deviations: tuple[float, ...]
    lost: tuple[bool, ...]
    tolerance: float

    @property
    def kept(self) -> float:
        """Share of the windows that count whose deviation is tolerated; NaN when none counts."""
        if not self.deviations:
            return math.nan
        return float((np.array(self.deviations) <= self.tolerance + 1e-9).mean())

    @property
    def kept_of_all(self) -> float:
        """The same with those that were left out counted as broken."""
        return self.kept * len(self.deviations) / self.windows if self.deviations else 0.0

    @property
    def kept_where_open(self) -> float:
        """Share of those kept among the windows that were not lost when they began: what the choice of domains was worth."""
        values = np.array(self.deviations)[~np.array(self.lost, dtype=np.bool_)]
        return float((values <= self.tolerance + 1e-9).mean()) if len(values) else math.nan

    def quantile(self, share: float) -> float:
        """A quantile of the deviations."""
        return float(np.quantile(self.deviations, share)) if self.deviations else math.nan


def shares(account: ShareAccount, from_s: float, until_s: float) -> ShareReport:
    """What was kept in the windows that lie wholly between the two times."""
    plan, names = account.plan, account.domain_ids
    found: list[float] = []
    lost: list[bool] = []
    left_out: Counter[str] = Counter()
    count = 0
    for window in account.windows:
        begin_s = window.number * plan.window_s
        if begin_s < from_s or begin_s + plan.window_s > until_s:
            continue
        values = deviations(plan, window, names).tolist()
        for value, reason, gone in zip(
            values, infeasible(plan, window, names), committed(plan, window, names), strict=True
        ):
            if math.isnan(value) and not reason:
                continue
            count += 1
            if reason:
                left_out[reason] += 1
            else:
                found.append(value)
                lost.append(gone)
    return ShareReport(count, dict(left_out), tuple(found), tuple(lost), plan.tolerance)


@dataclass(frozen=True, slots=True)
class PromiseReport:
    """How the standing promise was kept, whatever the plans of windows were: deviations of domains in windows (W * D) and in days,
    and ``owed`` (days * D), what was promised and not given from the first day to the end of each, as a part of what is promised
    in a day."""

    windows: tuple[float, ...]
    days: tuple[float, ...]
    owed: tuple[float, ...]
    tolerance: float

    @property
    def kept(self) -> float:
        """Share of the windows within what is tolerated, infeasible ones too; NaN without any."""
        return _within(self.windows, self.tolerance)

    @property
    def kept_days(self) -> float:
        """The same of days."""
        return _within(self.days, self.tolerance)


def promise(account: ShareAccount, from_s: float, until_s: float, *, day_s: float = 86_400.0) -> PromiseReport:
    """What became of the standing promise in the windows and days that lie wholly between the two times."""
    plan, names = account.plan, account.domain_ids
    days: dict[int, list[tuple[Floats, Floats]]] = {}
    windows: list[float] = []
    for window in account.windows:
        begin_s = window.number * plan.window_s
        if begin_s < from_s or begin_s + plan.window_s > until_s:
            continue
        asked = promised(plan, window, names)
        windows += apart(window.given, asked).tolist()
        days.setdefault(int(begin_s // day_s), []).append((window.given, asked))
    whole = [rows for rows in days.values() if len(rows) * plan.window_s >= day_s]
    given = np.array([np.sum([item for item, _ in rows], axis=0) for rows in whole])
    asked = np.array([np.sum([item for _, item in rows], axis=0) for rows in whole])
    if not whole:
        return PromiseReport(_known(windows), (), (), plan.tolerance)
    owed = np.abs(np.cumsum(asked - given, axis=0)) / np.maximum(asked.mean(axis=0), 1e-9)
    by_day = apart(given, asked).ravel().tolist()
    return PromiseReport(_known(windows), _known(by_day), _known(owed.ravel().tolist()), plan.tolerance)


class HeldAt:
    """What the domains held when each window began, (D) accelerators by the window's number: an observer of the cluster of ``run``."""

    def __init__(self, run: ContractSimulation) -> None:
        self._window_s, names = run.account.plan.window_s, run.account.domain_ids
        self._index = {name: place for place, name in enumerate(names)}
        self._level: Floats = np.zeros(len(names))
        self._number = run.account.number
        self.levels: dict[int, Floats] = {}
        run.cluster.watch("held at", None, lambda: self)

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        self._change(running, running.since_s, 1.0)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more."""
        self._change(running, now_s, -1.0)

    def _change(self, running: RunningUnit, at_s: float, sign: float) -> None:
        while (self._number + 1) * self._window_s <= at_s:
            self._number += 1
            self.levels[self._number] = self._level.copy()
        demand = running.unit.demand
        for rank in running.ranks:
            self._level[self._index[rank.domain_id]] += sign * demand.accelerators * demand.device_milli / 1000.0


def kept_against(
    account: ShareAccount, amounts: Mapping[int, Floats], from_s: float, until_s: float
) -> tuple[float, int]:
    """Share of the windows of domains that lie wholly between the two times and are within what is tolerated of other plans than
    those that were steered at: ``amounts`` (D) by window, in any unit; and how many windows there are. A domain that is planned
    nothing and gives something is not within it."""
    plan = account.plan
    found: list[Floats] = []
    for window in account.windows:
        begin_s, amount = window.number * plan.window_s, amounts.get(window.number)
        if begin_s < from_s or begin_s + plan.window_s > until_s or amount is None or amount.sum() <= 0:
            continue
        wanted = amount / amount.sum() * window.given.sum()
        found.append(np.abs(window.given - wanted) <= plan.tolerance * wanted + 1e-9)
    return (float(np.mean(found)) if found else math.nan), int(np.size(found))


def _known(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(value for value in values if not math.isnan(value))


def _within(values: Sequence[float], tolerance: float) -> float:
    return float((np.array(values) <= tolerance + 1e-9).mean()) if values else math.nan


def swinging(trace: Trace, swing: float = 0.2, period_s: float = 86_400.0) -> Trace:
    """The trace with its arrival rate ``1 + swing`` and ``1 - swing`` times what it was, half a period each, in turn.

    Raises InvalidArgumentError: the swing is not in 0-1 or the period is not positive.
    """
    if not (0 <= swing < 1 and 0 < period_s < math.inf):
        raise InvalidArgumentError(f"swing must be in 0-1 and period_s above 0, not {swing} and {period_s}")
    if not trace.jobs:
        return trace
    first = trace.jobs[0].submit_s
    submitted = np.array([job.submit_s for job in trace.jobs]) - first
    # In half a period of (1 + swing) passes what was submitted in (1 + swing) halves before; then in (1 - swing) halves.
    turns, rest = np.divmod(submitted, period_s)
    early = (1 + swing) * period_s / 2
    moved = turns * period_s + np.where(rest <= early, rest / (1 + swing), period_s / 2 + (rest - early) / (1 - swing))
    jobs = []
    for job, submit_s in zip(trace.jobs, (moved + first).tolist(), strict=True):
        jobs.append(replace(job, submit_s=submit_s, deadline_s=submit_s + (job.deadline_s - job.submit_s)))
    return replace(trace, jobs=jobs)


def overlaid(trace: Trace, copies: int) -> Trace:
    """So many copies of the trace at the same time, each turned by its part of the span (what passes the end begins anew):
    the same kind of load for a network that is so many times larger. Raises InvalidArgumentError for fewer than one."""
    if copies < 1:
        raise InvalidArgumentError(f"copies: must be at least 1, not {copies}")
    if copies == 1 or not trace.jobs:
        return trace
    first, last = trace.jobs[0].submit_s, trace.jobs[-1].submit_s
    jobs = []
    for copy in range(copies):
        for job in trace.jobs:
            turned = job.submit_s + (last - first) * copy / copies
            submit_s = turned if turned <= last else turned - (last - first)
            deadline_s = submit_s + (job.deadline_s - job.submit_s)
            jobs.append(replace(job, job_id=f"{job.job_id}+{copy}", submit_s=submit_s, deadline_s=deadline_s))
    jobs.sort(key=lambda job: job.submit_s)
    return replace(trace, name=f"{trace.name}x{copies}", jobs=jobs)


@dataclass(frozen=True, slots=True)
class Stability:
    """Jobs that ran, and those of them that were interrupted at least once; ``interruptions`` counts all."""

    ran: int
    interrupted: int
    interruptions: int

    @property
    def share(self) -> float:
        """Share of the jobs whose progress was not interrupted; 1 when none ran."""
        return 1.0 - self.interrupted / self.ran if self.ran else 1.0


def stability(measures: Sequence[Measures] | Measures) -> Stability:
    """Over the finished jobs of one run or several. A job that never ran was not running."""
    runs = [measures] if isinstance(measures, Measures) else measures
    counts = [job.interruptions for run in runs for job in run.jobs]
    return Stability(len(counts), sum(count > 0 for count in counts), sum(counts))
