"""Recorded lists of jobs gone through window by window, with what was not known yet hidden: pure.

At the end of each window the forecasters see: the demand so far, which jobs run, since when and on how many accelerators,
how long the jobs lasted that have ended, and what came. Of a share of the jobs they also see a number of steps and the
steps done so far. When a job ends is hidden until it has ended.

Lists have no steps; those that are shown are made up, by the seed: the pace of a job drifts by `Steps.drift`, its step time
was predicted with an error of `Steps.prediction`, and `Steps.early` of the jobs end before their steps are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.forecast.arrivals import Arrivals, Memory
from services.forecast.backtest import standard_methods
from services.forecast.past import Array
from services.forecast.progress import Progress
from services.forecast.rolling import Policy, Rolling, Structural
from services.forecast.run_times import Hazards, Index, RunTimes, Trust
from services.forecast.structure import Coming, Moments, Shares, Work, demand_of_coming, demand_of_work, middle_of_one

# Waves of a job's pace over its life.
_WAVES = 3
_SEASONS_S = (3600.0, 86_400.0)
# A job that has done less of its steps at its end has ended early.
_DONE = 0.97


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs in the order of their starts, all [job]; ``users`` and ``domains`` are places in the lists of names."""

    start_s: Array
    duration_s: Array
    accelerators: Array
    users: Index
    domains: Index
    user_names: tuple[str, ...]
    domain_names: tuple[str, ...]

    @property
    def end_s(self) -> Array:
        """When each job ends."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Steps:
    """What is shown of steps; see the module. ``share`` of the jobs have them."""

    share: float = 0.0
    drift: float = 0.1
    prediction: float = 0.15
    early: float = 0.1


@dataclass(frozen=True, slots=True)
class Learning:
    """What was chosen on the part of the list that is not reported."""

    trust: Trust = field(default_factory=Trust)
    memory: Memory = field(default_factory=Memory)
    # Normal score of the quantile that is the forecast: 0 is the median.
    middle: float = 0.0
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class ColdJob:
    """A job at the end of its first window: what it was expected to ask for at a horizon, and what it asked for.

    ``kind`` is its user and size; ``planned`` is what it would have asked for had it done all its steps, at the pace that it really
    had (NaN where it shows none): who knows steps, step time and pace exactly, but not which jobs end early, can say no better.
    """

    job: int
    window: int
    horizon: int
    accelerators: float
    expected: float
    value: float
    kind: int = 0
    planned: float = np.nan


@dataclass(frozen=True, slots=True)
class Replay:
    """Forecasts by origin, all [horizon, domain, origin] but ``value`` [domain, window] and ``level`` [domain, origin].

    ``value`` is the mean over a window, ``level`` what runs at its end, ``spread`` the structure's standard deviation.
    ``coming`` is what was expected to be asked for by jobs that start within the horizon, ``arrived`` what was.
    """

    value: Array
    level: Array
    history: Array
    structure: Array
    spread: Array
    fused: Array
    low: Array
    high: Array
    history_low: Array
    history_high: Array
    coming: Array
    arrived: Array
    cold: list[ColdJob]

    @classmethod
    def empty(cls, value: Array, horizons: int) -> Replay:
        """Nothing forecast yet."""

        def blank() -> Array:
            return np.full((horizons, *value.shape), np.nan)

        return cls(
            value,
            np.zeros_like(value),
            history=blank(),
            structure=blank(),
            spread=blank(),
            fused=blank(),
            low=blank(),
            high=blank(),
            history_low=blank(),
            history_high=blank(),
            coming=blank(),
            arrived=blank(),
            cold=[],
        )


def demand_by_window(jobs: JobList, window_s: float, windows: int) -> Array:
    """Accelerators in demand, the mean over each window, [domain, window]; time begins at 0."""
    result = np.zeros((len(jobs.domain_names), windows))
    edges = np.arange(windows + 1, dtype=np.float64) * window_s
    for domain in range(len(jobs.domain_names)):
        own = jobs.domains == domain
        held = [
            _integral(times[own], jobs.accelerators[own], edges)
            for times in (jobs.start_s, jobs.start_s + jobs.duration_s)
        ]
        result[domain] = np.diff(held[0] - held[1]) / window_s
    return result


def _integral(times: Array, amounts: Array, edges: Array) -> Array:
    """The integral from 0 to each of ``edges`` of a level that rises by ``amounts`` at ``times``."""
    order = np.argsort(times)
    times, amounts = times[order], amounts[order]
    level = np.concatenate([[0.0], np.cumsum(amounts)])
    weighted = np.concatenate([[0.0], np.cumsum(amounts * times)])
    place = np.searchsorted(times, edges, side="left")
    result: Array = level[place] * edges - weighted[place]
    return result


class _Shown:
    """The steps that are shown of the jobs that have them, in shares of the whole job."""

    def __init__(self, jobs: JobList, steps: Steps, chance: np.random.Generator) -> None:
        count = len(jobs.start_s)
        self.has = chance.random(count) < steps.share
        early = self.has & (chance.random(count) < steps.early)
        # An early end: the whole job is so much longer.
        self.whole_s = jobs.duration_s / np.where(early, chance.uniform(0.1, 0.9, count), 1.0)
        self.predicted_s = self.whole_s * np.exp(chance.normal(0, steps.prediction, count))
        self._waves = np.clip(chance.normal(0, steps.drift, (count, _WAVES)), -0.3, 0.3)

    def done(self, jobs: Index, ages_s: Array) -> Array:
        """The shares of their steps that ``jobs`` have done at these ages."""
        u = ages_s / self.whole_s[jobs]
        k = np.arange(1, _WAVES + 1) * np.pi
        found: Array = u + np.sum(self._waves[jobs] * np.sin(k * u[:, None]) / k, axis=1)
        return found


def replay(
    jobs: JobList, horizons: Sequence[int], window_s: float, windows: int, steps: Steps, learning: Learning, seed: int
) -> Replay:
    """Go through ``windows`` windows; ``horizons`` in windows."""
    return _Replaying(jobs, horizons, window_s, windows, steps, learning, seed).run(windows)


class _Replaying:
    """The state at the end of a window."""

    def __init__(
        self,
        jobs: JobList,
        horizons: Sequence[int],
        window_s: float,
        windows: int,
        steps: Steps,
        learning: Learning,
        seed: int,
    ) -> None:
        self._jobs, self._horizons, self._window_s = jobs, tuple(horizons), window_s
        self._horizons_s = [horizon * window_s for horizon in horizons]
        self._learning = learning
        self._shown = _Shown(jobs, steps, np.random.default_rng(seed))
        self._domains = len(jobs.domain_names)
        self._times = RunTimes(learning.trust)
        self._arrivals = Arrivals(learning.memory)
        self._classes = np.array(
            [
                self._times.class_of(jobs.user_names[user], amount)
                for user, amount in zip(jobs.users, jobs.accelerators, strict=True)
            ],
            np.intp,
        )
        # A kind of arrivals is a class in a domain.
        pairs, self._kinds = np.unique(
            np.stack([self._classes, jobs.domains]) if len(jobs.start_s) else np.zeros((2, 0), np.intp),
            axis=1,
            return_inverse=True,
        )
        self._class_of_kind, self._domain_of_kind = pairs.astype(np.intp)
        methods = standard_methods(window_s, _SEASONS_S, windows)
        self._fused, self._alone = (Rolling(methods, horizons, learning.policy, self._domains) for _ in range(2))
        self._progress: dict[int, Progress] = {}
        self._early_events, self._early_s = 1.0, 10 * 86_400.0
        self._active = np.zeros(0, np.intp)
        self._started = 0

    def run(self, windows: int) -> Replay:
        """All windows."""
        result = Replay.empty(demand_by_window(self._jobs, self._window_s, windows), len(self._horizons))
        for window in range(windows):
            now_s = (window + 1) * self._window_s
            fresh = self._pass(now_s)
            self._forecast(result, window, now_s, fresh)
        return result

    def _pass(self, now_s: float) -> Index:
        """Take in the window that ends now; the jobs that came in it."""
        jobs, window_s = self._jobs, self._window_s
        last = int(np.searchsorted(jobs.start_s, now_s, side="right"))
        new = np.arange(self._started, last)
        active, self._started = np.concatenate([self._active, new]), last
        ended = jobs.end_s[active] <= now_s
        self._times.fade(window_s)
        self._times.observe(
            self._classes[active],
            np.maximum(0.0, now_s - window_s - jobs.start_s[active]),
            np.minimum(jobs.end_s[active], now_s) - jobs.start_s[active],
            ended,
        )
        self._arrivals.advance(window_s)
        self._arrivals.count(self._kinds[new], jobs.accelerators[new], now_s - jobs.start_s[new])
        has = self._shown.has
        over = active[ended & has[active]]
        for job in over.tolist():
            self._progress.pop(job, None)
        self._early_events += int(np.count_nonzero(self._shown.done(over, jobs.duration_s[over]) < _DONE))
        self._active = active[~ended]
        self._early_s += window_s * np.count_nonzero(has[self._active])
        return new

    def _forecast(self, result: Replay, window: int, now_s: float, new: Index) -> None:
        jobs, active, domains = self._jobs, self._active, self._domains
        remaining, spread = self._remaining(now_s)
        work = Work(
            self._classes[active],
            now_s - jobs.start_s[active],
            np.zeros(len(active)),
            remaining,
            spread,
            np.full(len(active), np.inf),
        )
        hazards, early_rate = self._times.hazards(), self._early_events / self._early_s
        shares = Shares(np.arange(len(active)), jobs.domains[active], jobs.accelerators[active])
        held = demand_of_work(work, shares, domains, hazards, self._horizons_s, self._window_s, early_rate)
        rate, amount = self._arrivals.rates()
        kinds = np.flatnonzero(rate > 0)
        rate, amount, where = rate[kinds], amount[kinds], self._domain_of_kind[kinds]
        coming = Coming(self._class_of_kind[kinds], amount, rate)
        both = held + demand_of_coming(coming, where, domains, hazards, self._horizons_s, self._window_s)
        level = np.bincount(jobs.domains[active], jobs.accelerators[active], domains).astype(np.float64)
        said = Structural(both.quantile(self._learning.middle), np.sqrt(both.variance), level)
        value = result.value[:, window]
        self._fused.advance(value, said)
        self._alone.advance(value)
        current, other = self._fused.current(), self._alone.current()
        result.level[:, window] = level
        for into, part in (
            (result.history, current.history),
            (result.structure, said.expected),
            (result.spread, said.spread),
            (result.fused, current.expected),
            (result.low, current.low),
            (result.high, current.high),
            (result.history_low, other.low),
            (result.history_high, other.high),
        ):
            into[:, :, window] = part
        for place, horizon_s in enumerate(self._horizons_s):
            count = rate * horizon_s
            mean, variance, third = (
                np.bincount(where, count * amount**power, domains).astype(np.float64) for power in (1, 2, 3)
            )
            result.coming[place, :, window] = Moments(mean, variance, third).quantile(self._learning.middle)
            later = slice(self._started, int(np.searchsorted(jobs.start_s, now_s + horizon_s, side="right")))
            result.arrived[place, :, window] = np.bincount(jobs.domains[later], jobs.accelerators[later], domains)
        fresh = np.flatnonzero(active >= new[0]) if len(new) else np.zeros(0, np.intp)
        if len(fresh):
            result.cold.extend(self._cold(work, fresh, hazards, window, early_rate))

    def _remaining(self, now_s: float) -> tuple[Array, Array]:
        """What is left of each active job by its steps, NaN without, and its spread."""
        shown, active = self._shown, self._active
        remaining, spread = np.full(len(active), np.nan), np.ones(len(active))
        places = np.flatnonzero(shown.has[active])
        of = active[places]
        starts = self._jobs.start_s[of]
        for place, job, start_s, done in zip(
            places.tolist(), of.tolist(), starts.tolist(), shown.done(of, now_s - starts).tolist(), strict=True
        ):
            before = self._progress.get(job) or Progress(start_s, 0.0, 1.0)
            after = before.reported(now_s, done, 1.0)
            self._progress[job] = after
            remaining[place] = after.remaining_s(now_s, 1 / shown.predicted_s[job])
            spread[place] = after.spread
        return remaining, spread

    def _cold(self, work: Work, fresh: Index, hazards: Hazards, window: int, early_rate: float) -> list[ColdJob]:
        """What each of the ``fresh`` items of ``work`` is expected to ask for by itself."""
        own = Work(*(getattr(work, name)[fresh] for name in Work.__slots__))
        of, each = self._active[fresh], np.arange(len(fresh))
        amount = self._jobs.accelerators[of]
        shares = Shares(each, each, amount)
        held = demand_of_work(own, shares, len(fresh), hazards, self._horizons_s, self._window_s, early_rate)
        result = []
        for place, horizon in enumerate(self._horizons):
            expected = middle_of_one(amount, held.mean[place] / amount)
            target_s = (window + horizon) * self._window_s
            there, whole = (
                np.clip((end_s - target_s) / self._window_s, 0.0, 1.0) * amount
                for end_s in (self._jobs.end_s[of], self._jobs.start_s[of] + self._shown.whole_s[of])
            )
            planned = np.where(self._shown.has[of], whole, np.nan)
            columns = (of, amount, expected, there, self._classes[of], planned)
            result += [
                ColdJob(job, window, horizon, size, said, value, kind, plan)
                for job, size, said, value, kind, plan in zip(*(column.tolist() for column in columns), strict=True)
            ]
        return result
