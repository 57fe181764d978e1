"""Run times predicted on line from the jobs that have ended: backfill, predicted-SJF order and start times rest on them.

Users overestimate by an order of magnitude, and what predicts best differs by user and by site: some repeat the same job,
some are known only by the size they ask for. So several simple experts answer, each is scored on every job that ends, and
the weight of each follows its own past error, per user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.prediction.features import LONGEST_S, SHORTEST_S, Features, Prediction, finite_seconds
from services.scheduler.core.prediction.service_index import ServiceIndex
from services.scheduler.core.prediction.window import Window, quantile, tail_exponent

STATE_VERSION = 1
Key = tuple[str | int | float, ...]


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Constants of the predictor; the defaults were chosen on the first halves (in time) of the development traces.

    ``low_level`` and ``high_level`` bound the band; ``capacity`` jobs are remembered per group, ``max_groups`` groups;
    ``sharpness`` is how steeply weight falls with past error (0: all experts alike, large: only the best one speaks);
    ``memory`` is the number of jobs over which an error is averaged; ``prior`` how many jobs of a user weigh as much as
    the experience with all users; ``calibration`` the step by which the band moves (logarithm); ``overrun`` by how much a job may exceed
    its limit before it is stopped (ratio); ``default_s`` is the answer when nothing at all is known.
    """

    low_level: float = 0.1
    high_level: float = 0.9
    capacity: int = 64
    max_groups: int = 50_000
    sharpness: float = 16.0
    memory: float = 300.0
    prior: float = 20.0
    calibration: float = 0.02
    overrun: float = 0.02
    default_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0.0 < self.low_level < 0.5 < self.high_level < 1.0:
            raise PolicyError("low_level, high_level: needed is 0 < low_level < 0.5 < high_level < 1")
        lower_bounds = {"capacity": 1, "max_groups": 100, "memory": 1, "prior": 0.01, "default_s": SHORTEST_S}
        for field, least in lower_bounds.items():
            if not least <= getattr(self, field) < math.inf:
                raise PolicyError(f"{field}: {getattr(self, field)!r} is not a finite number >= {least}")
        for field in ("sharpness", "calibration", "overrun"):
            if not 0 <= getattr(self, field) < math.inf:
                raise PolicyError(f"{field}: {getattr(self, field)!r} is not a finite number >= 0")


EXPERTS = (
    "jobs of the same user, name, size and estimate",
    "jobs of the same user, name and size",
    "jobs of the same user",
    "jobs of the same tenant and size",
    "jobs of the same name and size",
    "all jobs",
    "share of the estimate that this user uses",
    "share of the estimate that all use",
    "jobs of the same tenant, size and place in a burst",
)
_EXACT, _SIZE, _USER, _TENANT, _NAME, _EVERYONE, _USER_SHARE, _SHARE, _PLACE = range(len(EXPERTS))
_ALL: Key = (_EVERYONE,)
_PLACES = 8
"""Places of a burst that are one group."""
_BUCKETS = 6
_MOST_IN, _MOST_OUT = 1.0, 5.0
_LEAST_WEIGHT = 1e-200
_NO_ERRORS = (0.0, 0.0) * len(EXPERTS)

Opinion = tuple[float, float, float, float, float, int, Window, float]
"""What an expert says: weight; low, median, high (logarithms of s); mean (s); its number, window and anchor (logarithm)."""


class RunTimePredictor:
    """Weighted experts over groups of finished jobs. Causal: an answer depends only on jobs given to `observe` before.

    An expert is a group and an anchor. It remembers the ratio run time / anchor of the last finished jobs of its group;
    its distribution for a new job is that job's anchor times those ratios. The anchor is 1 s or the user's estimate (the
    expert then knows what share of it is used). Answers are bounded by the estimate, and grow when a job outlives them, as
    in Tsafrir, Etsion and Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime Estimates",
    IEEE TPDS 18(6), 2007; their own predictor, the mean of the user's last two jobs, gained nothing as a further expert.

    1. `predict`: each expert with history gives quantiles of the logarithm of the run time; the answer is their weighted
       mean, at most the estimate. Weights are exp(-sharpness x past error) (Littlestone and Warmuth, "The Weighted
       Majority Algorithm", 1994), where the error is the mean of the user's own jobs and, for users with few jobs, of all
       users' jobs at the same length of history.
    2. `observe`: each expert's error at the job's submission (sum of the pinball losses of its low, median and high, of the
       logarithm) is averaged; then the job joins its groups. Either end of the band moves out by a step after a job beyond
       it and in by a smaller one otherwise, so that in the long run the asked share lies within, whatever the experts say
       (Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021). By this it is never
       taken beyond the longest run time seen.
    3. `remaining`: the same under the condition that the job has outlived ``elapsed_s``: each expert's ratios are cut
       there, and its weight is multiplied by the share it had given to outliving it. Where no remembered job ran as long,
       the tail is Pareto's with the exponent of the longest jobs: the longer a job has run, the longer it will run on.
    """

    def __init__(self, settings: PredictorSettings | None = None) -> None:
        self.settings = settings or PredictorSettings()
        self._windows: dict[Key, Window] = {}
        self._user_errors: dict[Key, list[float]] = {}
        self._errors = [1.0, 0.0] * (len(EXPERTS) * _BUCKETS)
        self._offsets = [0.0, 0.0]
        self._longest_s = SHORTEST_S
        self._index = ServiceIndex()

    def predict(self, job: Features, now_s: float = math.nan) -> Prediction:
        """The run time of a job that has not started. ``now_s`` changes nothing: known is what was observed by then."""
        opinions = self._opinions(job)
        if not opinions:
            return self._uninformed(job)
        low, median, high, mean_s, leader = _pooled(opinions)
        limit_s = _limit_s(job) if job.estimate_s > 0 else math.inf
        median_s = max(min(math.exp(median), limit_s), SHORTEST_S)
        most_s = limit_s * (1.0 + self.settings.overrun)
        down, up = self._offsets
        high_s = min(math.exp(high + up), max(math.exp(high), self._longest_s), most_s)
        return Prediction(
            median_s,
            max(min(math.exp(low - down), median_s), SHORTEST_S),
            max(high_s, median_s),
            max(min(mean_s, limit_s), SHORTEST_S),
            EXPERTS[leader[5]],
            len(leader[6].ordered),
            tuple([(opinion[5], len(opinion[6].ordered), *opinion[1:4]) for opinion in opinions]),
        )

    def observe(
        self, job: Features, run_time_s: float, end_s: float = math.nan, said: Prediction | None = None
    ) -> None:
        """Learn from a job that has ended; to be called in the order of the ends, of which ``end_s`` is one.

        ``said`` is the answer of `predict` at the job's submission; without it the experts are scored on what they
        would say now, which flatters those that follow the latest jobs when many are submitted at once. Raises
        `PolicyError` for a run time that is negative or not finite; nothing is learnt then.
        """
        run_s = min(max(finite_seconds("run_time_s", run_time_s), SHORTEST_S), LONGEST_S)
        log_run = math.log(run_s)
        if said is None:
            said = self.predict(job)
        if said.votes:
            self._score((job.tenant, job.user), said, run_s, log_run)
        windows, settings = self._windows, self.settings
        for key, anchor in self._groups(job):
            window = windows.pop(key, None)
            if window is None:
                window = Window(settings.capacity)
                if len(windows) >= settings.max_groups:
                    del windows[next(iter(windows))]
            windows[key] = window
            window.add(log_run - anchor)
        self._index.observe(job, run_s)
        self._longest_s = max(self._longest_s, run_s)

    def remaining(self, job: Features, elapsed_s: float) -> Prediction:
        """How much longer a job runs that has run ``elapsed_s``: quantiles and mean of the rest, at least `SHORTEST_S`.

        A job past its estimate is no longer bounded by it. Raises `PolicyError` for a bad ``elapsed_s``.
        """
        elapsed_s = finite_seconds("elapsed_s", elapsed_s)
        if elapsed_s < SHORTEST_S:
            return self.predict(job)
        opinions = self._opinions(job)
        log_elapsed = math.log(elapsed_s)
        exponent = tail_exponent(self._windows[_ALL].ordered) if opinions else 1.0
        survivors = [self._outlived(opinion, elapsed_s, log_elapsed, exponent) for opinion in opinions]
        if not survivors:
            known = self._uninformed(job)
            alone = (1.0, 0.0, math.log(known.median_s), 0.0, 0.0, _EVERYONE, Window(1), 0.0)
            survivors = [self._outlived(alone, elapsed_s, log_elapsed, exponent)]
        low, median, high, mean_s, leader = _pooled(survivors)
        limit_s = most_s = math.inf
        if elapsed_s < job.estimate_s and elapsed_s < LONGEST_S:
            limit_s = _limit_s(job)
            most_s = limit_s * (1.0 + self.settings.overrun)
        down, up = (math.exp(offset) for offset in self._offsets)
        rest_s = max(min(math.exp(median), limit_s) - elapsed_s, SHORTEST_S)
        return Prediction(
            rest_s,
            min(max((math.exp(low) - elapsed_s) / down, SHORTEST_S), rest_s),
            max(min(elapsed_s + (math.exp(high) - elapsed_s) * up, most_s) - elapsed_s, rest_s),
            max(min(mean_s, limit_s) - elapsed_s, SHORTEST_S),
            EXPERTS[leader[5]] + ", outlived",
            len(leader[6].ordered),
        )

    def service_index(self, job: Features, attained_s: float) -> float:
        """Gittins index of a job after ``attained_s`` of service, per second of run time: greater runs first.

        See `ServiceIndex`. Divided by the job's devices it is per device-second.
        """
        return self._index.index(job, finite_seconds("attained_s", attained_s))

    def _groups(self, job: Features) -> list[tuple[Key, float]]:
        """The groups of a job with the logarithm of its anchor in each; the expert's number is the first of the key."""
        tenant, user, name = job.tenant, job.user, job.name
        size = (job.ranks, job.accelerators, job.cpus)
        groups: list[tuple[Key, float]] = [
            ((_SIZE, tenant, user, name, *size), 0.0),
            ((_USER, tenant, user), 0.0),
            (_ALL, 0.0),
        ]
        if user:
            groups.append(((_TENANT, tenant, *size), 0.0))
        if name:
            groups.append(((_NAME, name, *size), 0.0))
        if job.place >= 0:
            groups.append(((_PLACE, tenant, *size, job.place // _PLACES), 0.0))
        if job.estimate_s > 0:
            anchor = math.log(_limit_s(job))
            groups += [
                ((_EXACT, tenant, user, name, *size, job.estimate_s), 0.0),
                ((_USER_SHARE, tenant, user), anchor),
                ((_SHARE,), anchor),
            ]
        return groups

    def _opinions(self, job: Features) -> list[Opinion]:
        settings, windows = self.settings, self._windows
        low_level, high_level = settings.low_level, settings.high_level
        errors, exp = self._errors, math.exp
        user_errors = self._user_errors.get((job.tenant, job.user), _NO_ERRORS)
        prior, sharpness = settings.prior, settings.sharpness
        opinions: list[Opinion] = []
        for key, anchor in self._groups(job):
            window = windows.get(key)
            if window is None:
                continue
            n = len(window.ordered)
            expert: int = key[0]  # type: ignore[assignment]
            cell = 2 * (expert * _BUCKETS + min(n.bit_length(), _BUCKETS) - 1)
            seen = user_errors[2 * expert + 1]
            error = (seen * user_errors[2 * expert] + prior * errors[cell]) / (seen + prior)
            low, median, high = window.band(low_level, high_level)
            mean_s = window.total / n
            opinions.append(
                (
                    exp(-sharpness * error) + _LEAST_WEIGHT,
                    anchor + low,
                    anchor + median,
                    anchor + high,
                    exp(anchor) * mean_s if anchor else mean_s,
                    expert,
                    window,
                    anchor,
                )
            )
        return opinions

    def _score(self, user: Key, said: Prediction, run_s: float, log_run: float) -> None:
        settings = self.settings
        below, above = settings.low_level, settings.high_level
        user_errors = self._user_errors.pop(user, None)
        if user_errors is None:
            user_errors = list(_NO_ERRORS)
            if len(self._user_errors) >= settings.max_groups:
                del self._user_errors[next(iter(self._user_errors))]
        self._user_errors[user] = user_errors
        errors, memory = self._errors, settings.memory
        most = 10.0 * memory
        for expert, n, low, median, high in said.votes:
            loss = 0.5 * abs(log_run - median)
            loss += below * (log_run - low) if log_run >= low else (1.0 - below) * (low - log_run)
            loss += above * (log_run - high) if log_run >= high else (1.0 - above) * (high - log_run)
            cell = 2 * (expert * _BUCKETS + min(n.bit_length(), _BUCKETS) - 1)
            seen = errors[cell + 1]
            if seen < most:
                errors[cell + 1] = seen = seen + 1.0
            errors[cell] += (loss - errors[cell]) / seen
            seen = user_errors[2 * expert + 1]
            if seen < memory:
                user_errors[2 * expert + 1] = seen = seen + 1.0
            user_errors[2 * expert] += (loss - user_errors[2 * expert]) / seen
        step, offsets = settings.calibration, self._offsets
        offsets[0] = min(max(offsets[0] + step * ((run_s < said.low_s) - below), -_MOST_IN), _MOST_OUT)
        offsets[1] = min(max(offsets[1] + step * ((run_s > said.high_s) - (1.0 - above)), -_MOST_IN), _MOST_OUT)

    def _outlived(self, opinion: Opinion, elapsed_s: float, log_elapsed: float, exponent: float) -> Opinion:
        """The opinion on the whole run time, given that it exceeds ``elapsed_s``."""
        weight, *_, expert, window, anchor = opinion
        ordered = window.ordered
        first = window.above(log_elapsed - anchor)
        left = len(ordered) - first
        weight *= (left + 0.5) / (len(ordered) + 0.5)
        levels = (self.settings.low_level, 0.5, self.settings.high_level)
        if left:
            low, median, high = (anchor + quantile(ordered, level, first) for level in levels)
            mean_s = math.exp(anchor) * window.mean_from(first)
        else:
            low, median, high = (log_elapsed - math.log1p(-level) / exponent for level in levels)
            mean_s = elapsed_s * exponent / (exponent - 1.0) if exponent > 1.0 else math.exp(high)
        return weight, low, median, high, mean_s, expert, window, anchor

    def _uninformed(self, job: Features) -> Prediction:
        if job.estimate_s > 0:
            limit_s = _limit_s(job)
            return Prediction(limit_s, SHORTEST_S, limit_s, limit_s, "the estimate alone", 0)
        default_s = self.settings.default_s
        return Prediction(default_s, SHORTEST_S, 24 * default_s, default_s, "nothing known", 0)

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON types; `from_state` continues exactly where this stopped."""
        return {
            "version": STATE_VERSION,
            "settings": asdict(self.settings),
            "windows": [[list(key), list(window.recent), window.total] for key, window in self._windows.items()],
            "user_errors": [[list(key), list(values)] for key, values in self._user_errors.items()],
            "errors": list(self._errors),
            "offsets": list(self._offsets),
            "longest_s": self._longest_s,
            "index": self._index.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RunTimePredictor:
        """The predictor that `state` was taken from; raises `PolicyError` naming what is missing or of another version."""
        if state.get("version") != STATE_VERSION:
            raise PolicyError(f"version: {state.get('version')!r} of a predictor's state is not {STATE_VERSION}")
        try:
            made = cls(PredictorSettings(**state["settings"]))
            capacity = made.settings.capacity
            made._windows = {tuple(key): Window(capacity, logs, total) for key, logs, total in state["windows"]}
            # A state from before the last experts came: they begin as in a new predictor.
            made._user_errors = {tuple(key): _filled(values, _NO_ERRORS) for key, values in state["user_errors"]}
            made._errors = _filled(state["errors"], made._errors)
            made._offsets = list(state["offsets"])
            made._longest_s = float(state["longest_s"])
            made._index = ServiceIndex.from_state(state["index"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"predictor's state: {error!r}") from error
        return made


def _limit_s(job: Features) -> float:
    return min(max(job.estimate_s, SHORTEST_S), LONGEST_S)


def _filled(values: Sequence[float], initial: Sequence[float]) -> list[float]:
    return [*values, *initial[len(values) :]]


def _pooled(opinions: list[Opinion]) -> tuple[float, float, float, float, Opinion]:
    """Weighted means of low, median, high and mean, and the opinion that weighs most (the first of equals)."""
    total = low = median = high = mean_s = heaviest = 0.0
    leader = opinions[0]
    for opinion in opinions:
        weight, its_low, its_median, its_high, its_mean_s, _, _, _ = opinion
        total += weight
        low += weight * its_low
        median += weight * its_median
        high += weight * its_high
        mean_s += weight * its_mean_s
        if weight > heaviest:
            heaviest, leader = weight, opinion
    return low / total, median / total, high / total, mean_s / total, leader
