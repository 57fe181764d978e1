"""What the jobs that are known let expect of the demand of every subject: pure; it keeps what it learned in memory.

1. `learn`: how long runs lasted and what came, since last time.
2. `expect`: the units that hold or ask become items with an age, an expected start and, where steps or a job file tell,
   the time they will take; with the rates of arrivals they give the demand of domains, tenants, models of accelerators
   and jobs (`structure`).

A run time that the job file lets predict is asked of ``predict``: (file, model of accelerators) -> (seconds, spread of its
logarithm), None where nothing follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.forecast.arrivals import Arrivals
from services.forecast.ledger import Subject, SubjectKind, Unit, UnitState, asks
from services.forecast.past import Array
from services.forecast.progress import Progress
from services.forecast.run_times import Hazards, RunTimes
from services.forecast.structure import (
    Coming,
    Moments,
    Shares,
    Work,
    asking,
    demand_of_coming,
    demand_of_work,
    middle_of_one,
    starts,
)
from services.forecast.work_store import AskingJob, Learned

Predict = Callable[[bytes, str], tuple[float, float] | None]

# Runs with steps that stop before they are done, per second: one in ten days.
EARLY_RATE = 1 / (10 * 86_400.0)
# Of the units that wait, so many first ones of a place are put in order; those behind start later than any horizon.
_ORDERED = 2000
# Normal score of the bounds of an 80 % band.
_BOUND = 1.2816
_LATE_S = 30 * 86_400.0
# What is left is not known better than by this, in logarithms; nor is it worse known than this.
_SPREADS = (0.03, 2.0)


@dataclass(frozen=True, slots=True)
class Expected:
    """All [horizon, subject]: the middle, the bounds of the 80 % band, and the standard deviation."""

    middle: Array
    low: Array
    high: Array
    spread: Array


@dataclass(slots=True)
class _Items:
    """What becomes `Work` and `Shares`, as lists."""

    classes: list[int] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    remaining_s: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    subjects: list[int] = field(default_factory=list)
    amounts: list[float] = field(default_factory=list)

    def work(self) -> Work:
        """As arrays."""
        return Work(
            np.array(self.classes, np.intp),
            *(
                np.array(part, np.float64)
                for part in (self.ages_s, self.waits_s, self.remaining_s, self.spread, self.limits_s)
            ),
        )

    def shares(self) -> Shares:
        """As arrays."""
        return Shares(
            np.array(self.items, np.intp), np.array(self.subjects, np.intp), np.array(self.amounts, np.float64)
        )


class Expectation:
    """See the module. Times are in seconds since 1970."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._predicted: dict[tuple[str, str], tuple[float, float] | None] = {}
        self._times = RunTimes()
        self._arrivals = Arrivals()
        self._kinds: dict[tuple[Subject, int], int] = {}
        self._now_s: float | None = None

    def learn(self, learned: Learned, now_s: float) -> None:
        """Take in what came since it was last called."""
        if self._now_s is None:
            stamps = [item.at.timestamp() for item in learned.ended] + [item.at.timestamp() for item in learned.arrived]
            self._now_s = min([now_s, *stamps])
        passed_s = max(0.0, now_s - self._now_s)
        self._now_s = max(now_s, self._now_s)
        self._times.fade(passed_s)
        self._arrivals.advance(passed_s)
        if learned.ended:
            self._times.observe(
                np.array([self._times.class_of(item.owner, item.accelerators) for item in learned.ended], np.intp),
                np.zeros(len(learned.ended)),
                np.array([item.lasted_s for item in learned.ended]),
                np.array([item.by_itself for item in learned.ended]),
                np.array([max(0.0, now_s - item.at.timestamp()) for item in learned.ended]),
            )
        came = [item for item in learned.arrived if item.accelerators > 0]
        if came:
            kinds = [
                self._kinds.setdefault(
                    (item.subject, self._times.class_of(item.owner, item.accelerators)), len(self._kinds)
                )
                for item in came
            ]
            self._arrivals.count(
                np.array(kinds, np.intp),
                np.array([item.accelerators for item in came]),
                np.array([max(0.0, now_s - item.at.timestamp()) for item in came]),
            )

    def expect(
        self,
        jobs: Sequence[AskingJob],
        subjects: Sequence[Subject],
        capacity: Mapping[str, float],
        horizons_s: Sequence[float],
        window_s: float,
        now_s: float,
    ) -> Expected:
        """The demand of ``subjects`` in the windows that end ``horizons_s`` from now; ``capacity`` by domain."""
        rows = {subject: row for row, subject in enumerate(subjects)}
        found, held = self._held(jobs, rows, now_s)
        hazards = self._times.hazards(np.array(found.classes, np.intp), np.array(found.ages_s))
        waiting = self._waiting(jobs, rows, found, held, capacity, hazards)
        if waiting:
            # Classes may have been new.
            hazards = self._times.hazards(np.array(found.classes, np.intp), np.array(found.ages_s))
        work, shares = found.work(), found.shares()
        moments = demand_of_work(work, shares, len(rows), hazards, horizons_s, window_s, EARLY_RATE)
        coming = self._coming(rows, hazards, horizons_s, window_s)
        both = moments + coming
        # All or nothing, where a subject has one item and nothing comes.
        alone = (np.bincount(shares.subjects, minlength=len(rows)) == 1) & (coming.mean.sum(axis=0) == 0)
        amount = np.bincount(shares.subjects, shares.accelerators, len(rows)).astype(np.float64)
        p = moments.mean / np.maximum(amount, 1e-12)
        middle, low, high = (
            np.where(alone, middle_of_one(amount, p + shift), both.quantile(z))
            for shift, z in ((0.0, 0.0), (-0.4, -_BOUND), (0.4, _BOUND))
        )
        return Expected(middle, np.minimum(low, middle), np.maximum(high, middle), np.sqrt(both.variance))

    def _held(
        self, jobs: Sequence[AskingJob], rows: Mapping[Subject, int], now_s: float
    ) -> tuple[_Items, dict[str, list[tuple[int, float]]]]:
        """Items of units that hold something, and by domain which items hold how much there."""
        found, by_domain = _Items(), dict[str, list[tuple[int, float]]]()
        for asking_job in jobs:
            job = asking_job.job
            for unit in job.units.values():
                if unit.state is not UnitState.HELD or job.finished:
                    continue
                amount = sum(unit.held.values())
                age_s = max(0.0, now_s - unit.began_s) if unit.began_s else 0.0
                chips = {chip for parts in unit.chips_held.values() for chip in parts}
                remaining_s, spread = self._remaining(
                    asking_job,
                    asking_job.progress.get(unit.index),
                    next(iter(chips)) if len(chips) == 1 else "",
                    age_s,
                    now_s,
                )
                item = self._add(found, job.tenant_id, amount, age_s, 0.0, (remaining_s, spread), unit)
                for domain_id, part in unit.held.items():
                    by_domain.setdefault(domain_id, []).append((item, part))
                    _share(found, rows, Subject(SubjectKind.DOMAIN, domain_id), item, part)
                    for chip, count in unit.chips_held.get(domain_id, {}).items():
                        _share(found, rows, Subject(SubjectKind.CHIP, chip), item, count)
                _share(found, rows, Subject(SubjectKind.TENANT, job.tenant_id), item, amount)
                _share(found, rows, Subject(SubjectKind.JOB, job.job_id), item, amount)
        return found, by_domain

    def _waiting(
        self,
        jobs: Sequence[AskingJob],
        rows: Mapping[Subject, int],
        found: _Items,
        held: Mapping[str, list[tuple[int, float]]],
        capacity: Mapping[str, float],
        hazards: Hazards,
    ) -> int:
        """Add items of units that wait, with their expected starts; how many there are."""
        queues: dict[str, list[tuple[AskingJob, Unit]]] = {}
        for asking_job in jobs:
            for unit in asking_job.job.units.values():
                if asks(asking_job.job, unit) and unit.asked.accelerators > 0:
                    queues.setdefault(unit.only_domain, []).append((asking_job, unit))
        half = _half_lives(found.work(), hazards) if queues else np.zeros(0)
        count = 0
        for domain_id, queue in queues.items():
            domains = [domain_id] if domain_id else sorted({*capacity, *held})
            releases = [(float(half[item]), part) for domain in domains for item, part in held.get(domain, [])]
            free = sum(capacity.get(domain, 0.0) for domain in domains) - sum(part for _, part in releases)
            begin = starts(max(0.0, free), releases, [unit.asked.accelerators for _, unit in queue[:_ORDERED]], _LATE_S)
            begin += [_LATE_S] * (len(queue) - len(begin))
            for (asking_job, unit), wait_s in zip(queue, begin, strict=True):
                job, amount = asking_job.job, unit.asked.accelerators
                rest = self._remaining(asking_job, None, unit.only_chip, 0.0, 0.0)
                item = self._add(found, job.tenant_id, amount, 0.0, wait_s, rest, unit)
                for kind, subject_id in (
                    (SubjectKind.DOMAIN, unit.only_domain),
                    (SubjectKind.CHIP, unit.only_chip),
                    (SubjectKind.TENANT, job.tenant_id),
                    (SubjectKind.JOB, job.job_id),
                ):
                    _share(found, rows, Subject(kind, subject_id), item, amount)
                count += 1
        return count

    def _add(
        self,
        found: _Items,
        owner: str,
        amount: float,
        age_s: float,
        wait_s: float,
        rest: tuple[float, float],
        unit: Unit,
    ) -> int:
        found.classes.append(self._times.class_of(owner, amount))
        found.ages_s.append(age_s)
        found.waits_s.append(wait_s)
        found.remaining_s.append(rest[0])
        found.spread.append(rest[1])
        found.limits_s.append(unit.limit_s or np.inf)
        return len(found.classes) - 1

    def _remaining(
        self, asking_job: AskingJob, progress: Progress | None, chip: str, age_s: float, now_s: float
    ) -> tuple[float, float]:
        """What is left of a run and the spread of its logarithm; NaN where only its age speaks."""
        if progress is not None and progress.reports > 1:
            left_s = progress.remaining_s(now_s)
            if left_s == left_s:  # noqa: PLR0124
                return left_s, progress.spread
        predicted = self._prediction(asking_job, chip)
        if predicted is None or predicted[0] <= age_s:
            return np.nan, 1.0
        left_s = predicted[0] - age_s
        return left_s, float(np.clip(predicted[1] * predicted[0] / left_s, *_SPREADS))

    def _prediction(self, asking_job: AskingJob, chip: str) -> tuple[float, float] | None:
        if asking_job.spec is None or not chip:
            return None
        key = (asking_job.job.job_id, chip)
        if key not in self._predicted:
            self._predicted[key] = self._predict(asking_job.spec, chip)
        return self._predicted[key]

    def forget(self, jobs: Iterable[str]) -> None:
        """Keep predictions of these jobs only."""
        kept = set(jobs)
        self._predicted = {key: value for key, value in self._predicted.items() if key[0] in kept}

    def _coming(
        self, rows: Mapping[Subject, int], hazards: Hazards, horizons_s: Sequence[float], window_s: float
    ) -> Moments:
        rates, amounts = self._arrivals.rates()
        kinds = [(kind, of[1], rows[of[0]]) for of, kind in self._kinds.items() if of[0] in rows and rates[kind] > 0]
        if not kinds:
            return Moments(*np.zeros((3, len(horizons_s), len(rows))))
        place, classes, owners = (np.array(part, np.intp) for part in zip(*kinds, strict=True))
        coming = Coming(classes, amounts[place], rates[place])
        return demand_of_coming(coming, owners, len(rows), hazards, horizons_s, window_s)


def _share(found: _Items, rows: Mapping[Subject, int], subject: Subject, item: int, amount: float) -> None:
    row = rows.get(subject)
    if row is not None and amount:
        found.items.append(item)
        found.subjects.append(row)
        found.amounts.append(amount)


def _half_lives(work: Work, hazards: Hazards) -> Array:
    """When each item has ended as likely as not, in seconds from now, on a coarse scale."""
    result = np.full(len(work.classes), _LATE_S)
    if not len(result):
        return result
    for after_s in np.geomspace(60.0, _LATE_S, 24)[::-1]:
        result[asking(work, hazards, after_s) <= 0.5] = after_s
    return result
