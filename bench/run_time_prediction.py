"""Run times predicted on line, method by method: `python bench/run_time_prediction.py [--data DIR] [--json OUT]`.

Recorded jobs are replayed in the order of time (setting "offline"): a job is predicted when it is submitted, from the jobs
that have ended by then; it is learnt from when it ends. Constants were chosen on the first half (in time) of each
trace with `--half first`; what is printed by default is the second half, and methods go on learning there. The second half
is not untouched: that bands move by steps, and that no expert follows the last two jobs, was reconsidered after a look
at it (and then chosen by the first half). Where the log has no wait (Philly, Chronus), jobs start when submitted.

Measures (intervals: 95 %, bootstrap over blocks of consecutive jobs): MAE; median relative error |p - t| / t; share of
jobs predicted too short; accuracy min(p, t) / max(p, t)
(Tsafrir, Etsion, Feitelson, IEEE TPDS 18(6), 2007); for methods that give bands, the share of jobs within the 80 % band and
the pinball loss at 0.1, 0.5 and 0.9; order: share of pairs that waited at the same time (where the log has no
waits: submitted within an hour) whose predictions are in the order of the run times, ties counting half. Then what
happens when a job outlives its prediction, and mean completion times of preemptive schedules of the Philly jobs where
the order is by predictions or by attained service; FIFO lets a later job start where the first does not fit. Speed is
processor time on this machine.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import math
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.public_data import add_data_option
from bench.result import DataSource, Row, Setting, command_line, print_table, write
from services.scheduler.core.prediction import SHORTEST_S, Features, Prediction, RunTimePredictor

Array = NDArray[np.float64]
Band = tuple[float, float]
PAIRS_PER_JOB = 64
MINUTE_S = 60.0
TSAFRIR_EXTENSIONS_S = (60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000)
QUANTUM_S = 300.0
LOAD = 0.9
BLOCK = 50
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job as a log has it; times in s."""

    features: Features
    start_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Log:
    """Jobs by submission; ``waits``: whether starts are recorded."""

    name: str
    path: Path
    jobs: list[Recorded]
    waits: bool


def read_swf(path: Path) -> Log:
    """Jobs of a Standard Workload Format log that ran (run time > 0)."""
    jobs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith(";"):
            continue
        field = [float(text) for text in line.split()]
        submit, wait, run, used, asked, estimate, user = (field[i] for i in (1, 2, 3, 4, 7, 8, 11))
        if run <= 0:
            continue
        features = Features(
            user=str(int(user)),
            ranks=int(asked if asked > 0 else used),
            cpus=1.0,
            estimate_s=estimate if estimate > 0 else math.nan,
            submit_s=submit,
        )
        jobs.append(Recorded(features, submit + max(wait, 0.0), run))
    return Log("hpc2n", path, sorted(jobs, key=lambda job: job.features.submit_s), waits=True)


def read_philly(path: Path) -> Log:
    """Jobs of the Philly table: the virtual cluster is the tenant."""
    rows = []
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            moment = datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp()
            rows.append((moment, float(row["duration"]), int(row["num_gpus"]), row["cluster"]))
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    jobs = [
        Recorded(Features(tenant=cluster, accelerators=devices, submit_s=at - first), at - first, run)
        for at, run, devices, cluster in rows
    ]
    return Log("philly", path, jobs, waits=False)


def read_chronus(path: Path) -> Log:
    """Jobs of a Chronus workload, whose times are minutes: model name as the job's name."""
    with path.open(newline="") as stream:
        jobs = [
            Recorded(
                Features(
                    user=row["user"],
                    name=row["model_name"],
                    accelerators=int(row["num_gpu"]),
                    submit_s=MINUTE_S * float(row["submit_time"]),
                ),
                MINUTE_S * float(row["submit_time"]),
                MINUTE_S * float(row["duration"]),
            )
            for row in csv.DictReader(stream)
        ]
    return Log("chronus-mix1", path, sorted(jobs, key=lambda job: job.features.submit_s), waits=False)


class Method(Protocol):
    """A predictor under comparison: seconds, and the band if it has one."""

    def predict(self, job: Features) -> tuple[float, Band | None]: ...

    def observe(self, job: Features, run_s: float) -> None: ...


def _capped(seconds: float, job: Features) -> float:
    limit_s = job.estimate_s if job.estimate_s > 0 else math.inf
    return max(min(seconds, limit_s), SHORTEST_S)


class UserEstimate:
    """What the user declared; an hour where nothing was."""

    def predict(self, job: Features) -> tuple[float, Band | None]:
        return (job.estimate_s if job.estimate_s > 0 else 3600.0), None

    def observe(self, job: Features, run_s: float) -> None:
        pass


class GlobalMean:
    """Mean of all jobs so far."""

    def __init__(self) -> None:
        self.total, self.n = 0.0, 0

    def predict(self, job: Features) -> tuple[float, Band | None]:
        return _capped(self.total / self.n if self.n else 3600.0, job), None

    def observe(self, job: Features, run_s: float) -> None:
        self.total, self.n = self.total + run_s, self.n + 1


class LastTwo:
    """Mean of the user's last two jobs, capped by the estimate (Tsafrir et al. 2007)."""

    def __init__(self) -> None:
        self.last: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=2))

    def predict(self, job: Features) -> tuple[float, Band | None]:
        last = self.last[job.tenant, job.user]
        if not last:
            return (job.estimate_s if job.estimate_s > 0 else 3600.0), None
        return _capped(sum(last) / len(last), job), None

    def observe(self, job: Features, run_s: float) -> None:
        self.last[job.tenant, job.user].append(run_s)


class GroupQuantile:
    """Quantiles 0.1, 0.5, 0.9 of the last jobs of the same user, name and size; else of the user; else of all."""

    def __init__(self, capacity: int = 50) -> None:
        self.runs: defaultdict[tuple[object, ...], deque[float]] = defaultdict(lambda: deque(maxlen=capacity))

    @staticmethod
    def keys(job: Features) -> list[tuple[object, ...]]:
        size = (job.ranks, job.accelerators)
        return [(job.tenant, job.user, job.name, size), (job.tenant, job.user), ()]

    def predict(self, job: Features) -> tuple[float, Band | None]:
        for key in self.keys(job):
            if runs := self.runs.get(key):
                low, median, high = np.quantile(runs, (0.1, 0.5, 0.9))
                return _capped(float(median), job), (_capped(float(low), job), _capped(float(high), job))
        return (job.estimate_s if job.estimate_s > 0 else 3600.0), None

    def observe(self, job: Features, run_s: float) -> None:
        for key in self.keys(job):
            self.runs[key].append(run_s)


class GroupMean:
    """Rolling part of QSSF (Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
    Datacenters", SC 2021): decayed mean of the user's jobs of that name and size, else of that size, else of all of that size."""

    DECAY = 0.9

    def __init__(self) -> None:
        self.sums: dict[tuple[object, ...], Band] = {}

    @staticmethod
    def keys(job: Features) -> list[tuple[object, ...]]:
        size = (job.ranks, job.accelerators)
        who = (job.tenant, job.user)
        return [(who, job.name, size), (who, size), (size,), ()]

    def predict(self, job: Features) -> tuple[float, Band | None]:
        for key in self.keys(job):
            if key in self.sums:
                total, weight = self.sums[key]
                return _capped(total / weight, job), None
        return (job.estimate_s if job.estimate_s > 0 else 3600.0), None

    def observe(self, job: Features, run_s: float) -> None:
        for key in self.keys(job):
            total, weight = self.sums.get(key, (0.0, 0.0))
            self.sums[key] = (self.DECAY * total + run_s, self.DECAY * weight + 1.0)


class Ridge:
    """Recursive ridge regression of the logarithm of the run time on estimate, size, hour, and the user's past."""

    def __init__(self, forget: float = 0.9995, penalty: float = 1.0) -> None:
        self.forget = forget
        self.theta = np.zeros(9)
        self.covariance = np.eye(9) / penalty
        self.levels: dict[tuple[object, ...], float] = {}
        self.mean = 6.0

    def _row(self, job: Features) -> Array:
        who = (job.tenant, job.user)
        size = (job.ranks, job.accelerators)
        user = self.levels.get(who, self.mean)
        same = self.levels.get((who, job.name, size), user)
        latest = self.levels.get((who, "latest"), user)
        known = job.estimate_s > 0
        angle = 2 * math.pi * (job.submit_s % 86_400) / 86_400
        return np.array(
            [
                1.0,
                math.log(job.estimate_s) - 8 if known else 0.0,
                float(known),
                math.log(max(job.ranks * max(job.accelerators, 1), 1)),
                user - self.mean,
                same - self.mean,
                latest - self.mean,
                math.sin(angle),
                math.cos(angle),
            ]
        )

    def predict(self, job: Features) -> tuple[float, Band | None]:
        return _capped(math.exp(min(self.mean + float(self._row(job) @ self.theta), 16.0)), job), None

    def observe(self, job: Features, run_s: float) -> None:
        row, target = self._row(job), math.log(max(run_s, SHORTEST_S))
        gain = self.covariance @ row
        gain /= self.forget + row @ gain
        self.theta += gain * (target - self.mean - row @ self.theta)
        self.covariance = (self.covariance - np.outer(gain, row @ self.covariance)) / self.forget
        self.mean += 0.002 * (target - self.mean)
        who = (job.tenant, job.user)
        for key, step in (((who), 0.1), ((who, job.name, (job.ranks, job.accelerators)), 0.3), ((who, "latest"), 0.7)):
            before = self.levels.get(key, target)
            self.levels[key] = before + step * (target - before)


class Experts:
    """`RunTimePredictor`: the median, or with ``mean`` the mean."""

    def __init__(self, mean: bool = False, predictor: RunTimePredictor | None = None) -> None:
        self.predictor, self.mean = predictor or RunTimePredictor(), mean
        self.said: dict[Features, list[Prediction]] = {}

    def predict(self, job: Features) -> tuple[float, Band | None]:
        found = self.predictor.predict(job)
        self.said.setdefault(job, []).append(found)
        return (found.mean_s if self.mean else found.median_s), ((found.low_s, found.high_s) if found.n else None)

    def observe(self, job: Features, run_s: float) -> None:
        said = self.said[job].pop(0)
        if not self.said[job]:
            del self.said[job]
        self.predictor.observe(job, run_s, said=said)


METHODS: dict[str, tuple[Callable[[], Method], bool]] = {
    "user estimate": (UserEstimate, True),
    "global mean": (GlobalMean, True),
    "last two of the user": (LastTwo, True),
    "quantile of the group": (GroupQuantile, True),
    "QSSF group mean": (GroupMean, True),
    "ridge on line": (Ridge, True),
    "weighted experts, median": (Experts, False),
    "weighted experts, mean": (lambda: Experts(mean=True), False),
}

_END, _SUBMIT = 0, 2


def in_order(jobs: list[Recorded]) -> Iterator[tuple[bool, int]]:
    """(has ended, number) for every end and submission in the order of time; ends first at the same moment."""
    events = [(job.features.submit_s, _SUBMIT, number) for number, job in enumerate(jobs)]
    events += [(job.start_s + job.run_s, _END, number) for number, job in enumerate(jobs)]
    for _, kind, number in sorted(events):
        yield kind == _END, number


def replay(jobs: list[Recorded], method: Method) -> tuple[Array, Array, Array]:
    """Predictions, lower and upper bounds (NaN where none), s, each of shape (jobs,)."""
    points, lows, highs = (np.full(len(jobs), np.nan) for _ in range(3))
    for ended, number in in_order(jobs):
        job = jobs[number]
        if ended:
            method.observe(job.features, job.run_s)
        else:
            points[number], band = method.predict(job.features)
            if band is not None:
                lows[number], highs[number] = band
    return points, lows, highs


def waiting_pairs(log: Log) -> NDArray[np.int64]:
    """Pairs (later, earlier) of jobs that waited at the same time, the latest `PAIRS_PER_JOB` per job; shape (pairs, 2)."""
    pairs = []
    waiting: deque[int] = deque(maxlen=PAIRS_PER_JOB)
    for number, job in enumerate(log.jobs):
        now_s = job.features.submit_s
        for other in waiting:
            left_s = log.jobs[other].start_s if log.waits else log.jobs[other].features.submit_s + 3600.0
            if left_s > now_s:
                pairs.append((number, other))
        if job.start_s > now_s or not log.waits:
            waiting.append(number)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def concordance(points: Array, truth: Array, pairs: NDArray[np.int64]) -> tuple[float, int]:
    """Share of the pairs of unlike run times that are predicted in their order, ties half; and their number."""
    predicted = np.sign(points[pairs[:, 0]] - points[pairs[:, 1]])
    real = np.sign(truth[pairs[:, 0]] - truth[pairs[:, 1]])
    kept = real != 0
    return (float(np.mean(0.5 + 0.5 * predicted[kept] * real[kept])) if kept.any() else math.nan), int(kept.sum())


def pinball(truth: Array, predicted: Array, level: float) -> float:
    """Mean pinball loss, s."""
    gap = truth - predicted
    return float(np.mean(np.maximum(level * gap, (level - 1) * gap)))


def bootstrap(values: Array) -> Band:
    """95 % interval of the mean, by resampling blocks of `BLOCK` consecutive values (bursts are alike), seed 0."""
    blocks = [part for part in np.split(values, range(BLOCK, len(values), BLOCK)) if len(part)]
    sums = np.array([part.sum() for part in blocks])
    sizes = np.array([len(part) for part in blocks])
    drawn = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), (0.025, 0.975))
    return float(low), float(high)


def score(log: Log, name: str, baseline: bool, found: tuple[Array, Array, Array], chosen: slice) -> list[Row]:
    """Rows of one method on the jobs ``chosen`` of one log."""
    truth = np.array([max(job.run_s, SHORTEST_S) for job in log.jobs])[chosen]
    points, lows, highs = (values[chosen] for values in found)
    pairs = waiting_pairs(log)
    first, last, _ = chosen.indices(len(log.jobs))
    pairs = pairs[(pairs >= first).all(axis=1) & (pairs < last).all(axis=1)] - first
    order, order_n = concordance(points, truth, pairs)
    figures: dict[str, tuple[float, int]] = {
        "mae_s": (float(np.mean(np.abs(points - truth))), len(truth)),
        "relative_error_median_ratio": (float(np.median(np.abs(points - truth) / truth)), len(truth)),
        "too_short_share": (float(np.mean(points < truth)), len(truth)),
        "accuracy_ratio": (float(np.mean(np.minimum(points, truth) / np.maximum(points, truth))), len(truth)),
        "pairs_in_order_share": (order, order_n),
    }
    known = ~np.isnan(lows)
    if known.mean() > 0.5 and not name.endswith("mean"):
        figures["band_coverage_share"] = (
            float(np.mean((lows[known] <= truth[known]) & (truth[known] <= highs[known]))),
            int(known.sum()),
        )
        losses = [pinball(truth[known], v[known], q) for v, q in ((lows, 0.1), (points, 0.5), (highs, 0.9))]
        figures["pinball_s"] = (sum(losses) / 3, int(known.sum()))
    each = {
        "mae_s": np.abs(points - truth),
        "too_short_share": (points < truth).astype(np.float64),
        "accuracy_ratio": np.minimum(points, truth) / np.maximum(points, truth),
    }
    rows = []
    for measure, (value, n) in figures.items():
        low, high = bootstrap(each[measure]) if measure in each else (None, None)
        rows.append(Row(name, measure, value, f"data={log.name}", low, high, n=max(n, 1), baseline=baseline))
    return rows


def outlived(log: Log, chosen: slice) -> list[Row]:
    """What happens after a job outlives its prediction: corrections by `RunTimePredictor.remaining` and by Tsafrir's list.

    Counted are corrections per job that needed one, and the accuracy of the last predicted end.
    """
    rows = []
    first, last, _ = chosen.indices(len(log.jobs))
    for conditional in (False, True):
        predictor = RunTimePredictor()
        events = [(job.features.submit_s, _SUBMIT, n, 0, 0.0) for n, job in enumerate(log.jobs)]
        events += [(job.start_s + job.run_s, _END, n, 0, 0.0) for n, job in enumerate(log.jobs)]
        heapq.heapify(events)
        said: dict[int, Prediction] = {}
        corrections: list[int] = []
        accuracies: list[float] = []
        while events:
            _, kind, number, count, total_s = heapq.heappop(events)
            job = log.jobs[number]
            if kind == _END:
                predictor.observe(job.features, job.run_s, said=said.pop(number))
                continue
            if kind == _SUBMIT:
                said[number] = predictor.predict(job.features)
                total_s = said[number].median_s
            else:
                count += 1
                if conditional:
                    total_s += predictor.remaining(job.features, total_s).median_s
                else:
                    total_s += TSAFRIR_EXTENSIONS_S[min(count, len(TSAFRIR_EXTENSIONS_S)) - 1]
            if total_s < job.run_s:
                heapq.heappush(events, (job.start_s + total_s, 1, number, count, total_s))
            elif count and first <= number < last:
                corrections.append(count)
                accuracies.append(job.run_s / total_s)
        name = "corrected by the remaining time" if conditional else "corrected by Tsafrir's list"
        for measure, values in (("corrections_mean_count", corrections), ("last_accuracy_ratio", accuracies)):
            mean = float(np.mean(values)) if values else math.nan
            rows.append(Row(name, measure, mean, f"data={log.name}", n=max(len(values), 1), baseline=not conditional))
    return rows


Order = Callable[[RunTimePredictor, Recorded, float], float]
ORDERS: dict[str, tuple[Order, bool]] = {
    "FIFO": (lambda _p, job, got_s: job.features.submit_s - 1e12 * (got_s > 0), True),
    "least attained service": (lambda _p, job, got_s: got_s * job.features.accelerators, True),
    "predicted mean, fixed": (lambda p, job, _: p.predict(job.features).mean_s * job.features.accelerators, False),
    "predicted mean remaining": (
        lambda p, job, got_s: p.remaining(job.features, got_s).mean_s * job.features.accelerators,
        False,
    ),
    "predicted median remaining": (
        lambda p, job, got_s: p.remaining(job.features, got_s).median_s * job.features.accelerators,
        False,
    ),
    "service index": (lambda p, job, got_s: -p.service_index(job.features, got_s) / job.features.accelerators, False),
    "oracle: shortest remaining": (lambda _p, job, got_s: (job.run_s - got_s) * job.features.accelerators, True),
}
"""Order of service (smallest first), per device, and whether it is a baseline."""


def preemptive(log: Log, chosen: slice) -> list[Row]:
    """Mean and median completion time (end - submission) of preemptive orders on one pool of devices, no cost of moving.

    Every `QUANTUM_S` the jobs present are sorted by the order and served as they fit. The pool is so large that the jobs
    ``chosen`` ask for `LOAD` of it on average. Predictors start with the earlier jobs that ended before, and then learn
    from those that end in that schedule. FIFO does not preempt.
    """
    jobs = log.jobs[chosen]
    from_s, to_s = jobs[0].features.submit_s, jobs[-1].features.submit_s
    work = sum(job.run_s * job.features.accelerators for job in jobs)
    devices = math.ceil(work / (to_s - from_s) / LOAD)
    earlier = sorted(
        (job for job in log.jobs if job.start_s + job.run_s < from_s), key=lambda job: job.start_s + job.run_s
    )
    rows = []
    for name, (order, baseline) in ORDERS.items():
        predictor = RunTimePredictor()
        for job in earlier:
            predictor.observe(job.features, job.run_s)
        delays = _served(jobs, devices, order, predictor)
        place = f"data={log.name} devices={devices}"
        rows += [
            Row(name, "completion_mean_s", float(np.mean(delays)), place, n=len(delays), baseline=baseline),
            Row(name, "completion_p50_s", float(np.median(delays)), place, n=len(delays), baseline=baseline),
            Row(name, "completion_p99_s", float(np.quantile(delays, 0.99)), place, n=len(delays), baseline=baseline),
        ]
    return rows


def _served(jobs: list[Recorded], devices: int, order: Order, predictor: RunTimePredictor) -> Array:
    delays = np.full(len(jobs), np.nan)
    got: dict[int, float] = {}
    keys: dict[int, float] = {}
    arrived, now_s = 0, 0.0
    while got or arrived < len(jobs):
        if not got:
            now_s = max(now_s, jobs[arrived].features.submit_s)
        while arrived < len(jobs) and jobs[arrived].features.submit_s <= now_s:
            got[arrived] = 0.0
            keys[arrived] = order(predictor, jobs[arrived], 0.0)
            arrived += 1
        free = devices
        ended = []
        for number in sorted(got, key=lambda number: (keys[number], number)):
            asked = jobs[number].features.accelerators
            if asked > free:
                continue
            free -= asked
            run_s = jobs[number].run_s
            if run_s - got[number] <= QUANTUM_S:
                ended.append((now_s + run_s - got[number], number))
            else:
                got[number] += QUANTUM_S
                keys[number] = order(predictor, jobs[number], got[number])
            if free == 0:
                break
        for end_s, number in sorted(ended):
            delays[number] = end_s - jobs[number].features.submit_s
            predictor.observe(jobs[number].features, jobs[number].run_s)
            del got[number], keys[number]
        now_s += QUANTUM_S
    return delays


def speed(log: Log) -> list[Row]:
    """Mean processor time of a prediction and of an observation over a whole log, microseconds."""
    predictor = RunTimePredictor()
    said: dict[int, Prediction] = {}
    spent = {False: 0, True: 0}
    for ended, number in in_order(log.jobs):
        job = log.jobs[number]
        began = time.process_time_ns()
        if ended:
            predictor.observe(job.features, job.run_s, said=said.pop(number))
        else:
            said[number] = predictor.predict(job.features)
        spent[ended] += time.process_time_ns() - began
    n = len(log.jobs)
    asked = log.jobs[-2000:]
    began = time.process_time_ns()
    for job in asked:
        predictor.remaining(job.features, 0.5 * job.run_s)
    rest = time.process_time_ns() - began
    costs = {"predict": (spent[False], n), "observe": (spent[True], n), "remaining": (rest, len(asked))}
    return [
        Row("weighted experts", f"{what}_mean_us", total / count / 1000, f"data={log.name}", n=count)
        for what, (total, count) in costs.items()
    ]


def read_logs(folder: Path) -> list[Log]:
    """The development logs found under ``folder``."""
    readers: list[tuple[str, Callable[[Path], Log]]] = [
        ("swf/hpc2n.swf", read_swf),
        ("philly/october_5_clusters.csv", read_philly),
        ("chronus/MIX1.csv", read_chronus),
    ]
    return [read(folder / place) for place, read in readers if (folder / place).exists()]


def halves(log: Log, which: str) -> slice:
    """Jobs submitted in the first or second half of the time of the log."""
    times = np.array([job.features.submit_s for job in log.jobs])
    middle = int(np.searchsorted(times, 0.5 * (times[0] + times[-1])))
    return slice(0, middle) if which == "first" else slice(middle, len(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--half", choices=("first", "second"), default="second", help="the part in time that is scored")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    logs = read_logs(arguments.data)
    if not logs:
        parser.error(f"--data: no known log under {arguments.data} (set MERIDIAN_DATA)")
    rows: list[Row] = []
    for log in logs:
        chosen = halves(log, arguments.half)
        for name, (make, baseline) in METHODS.items():
            if name == "user estimate" and all(math.isnan(job.features.estimate_s) for job in log.jobs):
                continue
            rows += score(log, name, baseline, replay(log.jobs, make()), chosen)
        rows += outlived(log, chosen)
        if log.name == "philly":
            rows += preemptive(log, chosen)
        rows += speed(log)
    print_table(rows)
    if arguments.json:
        sources = [DataSource.of(log.path) for log in logs]
        command = command_line("bench.run_time_prediction")
        write(arguments.json, command, sources, 0, Setting.OFFLINE, rows)
        print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
