"""How sure a figure is, and what a policy gains over others: intervals, reductions, the share of the gap to an oracle closed.

Intervals are 95 % percentile bootstraps (Efron 1979). With one seed jobs are drawn, pairs of policies by the same jobs: this
tells how much the mix of jobs matters, but takes jobs of one queue as independent, so it is narrower than what other weeks of
the cluster would show. With several seeds the seeds are drawn, which is the interval to publish.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.experiment import Run
from simulation.measures import JobRecord

Floats = npt.NDArray[np.float64]
_OfMeans = Callable[[Floats], float]
DRAWS = 500
ORACLE = "srtf"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its interval, over ``n`` jobs or seeds; None with a reason where there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 1
    reason: str | None = None


def missing(reason: str) -> Figure:
    """A figure that cannot be computed."""
    return Figure(None, n=0, reason=reason)


def _bounds(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


# -- one policy ------------------------------------------------------------------------------------------------------

# Attribute of a job, quantile (None: the mean), unit.
_PER_JOB: dict[str, tuple[str, float | None, float]] = {
    "jct_mean_h": ("jct_s", None, 3600.0),
    "jct_p50_h": ("jct_s", 0.5, 3600.0),
    "jct_p99_h": ("jct_s", 0.99, 3600.0),
    "wait_mean_h": ("wait_s", None, 3600.0),
    "wait_p99_h": ("wait_s", 0.99, 3600.0),
    "slowdown_mean": ("slowdown", None, 1.0),
    "fairness_rho_mean": ("rho", None, 1.0),
    "fairness_rho_p99": ("rho", 0.99, 1.0),
}


def job_intervals(jobs: Sequence[JobRecord], seed: int, draws: int = DRAWS) -> dict[str, tuple[float, float]]:
    """Intervals of the figures that are a mean or quantile over jobs, by the figure's name. Empty for fewer than two jobs."""
    if len(jobs) < 2:
        return {}
    generator = np.random.default_rng([seed, 0xB007])
    arrays = {name: np.array([getattr(job, name) for job in jobs]) for name in ("jct_s", "wait_s", "slowdown", "rho")}
    if np.isnan(arrays["rho"]).any():
        del arrays["rho"]
    found: dict[str, list[float]] = {name: [] for name, how in _PER_JOB.items() if how[0] in arrays}
    for _ in range(draws):
        picked = generator.integers(0, len(jobs), len(jobs))
        sample = {name: values[picked] for name, values in arrays.items()}
        for name, results in found.items():
            source, statistic, unit = _PER_JOB[name]
            values = sample[source]
            result = values.mean() if statistic is None else np.quantile(values, statistic)
            results.append(float(result) / unit)
    return {name: _bounds(np.array(results)) for name, results in found.items()}


def over_seeds(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The interval of the mean over seeds; values of one seed each, at least two."""
    data = np.asarray(values)
    picked = np.random.default_rng([seed, 0x5EED]).integers(0, len(data), (4 * DRAWS, len(data)))
    return _bounds(data[picked].mean(axis=1))


# -- policies against each other -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class References:
    """Whom policies are compared with, by name; empty where there is none among the runs.

    ``blind`` is the pooled baseline with the lowest mean JCT among those that do not know true run times, ``unpredicted`` among
    those of them that use no predictor (what users declared, or nothing), ``best`` among all pooled baselines but the oracle,
    ``oracle`` pooled SRTF with true run times, ``isolated`` all single-domain ones."""

    isolated: tuple[str, ...]
    blind: str
    unpredicted: str
    best: str
    oracle: str


class Comparison:
    """Runs of several policies over the same seeds (and hence the same jobs)."""

    def __init__(self, runs: Sequence[Run], seed: int) -> None:
        self.seed = seed
        self.runs: dict[str, list[Run]] = {}
        for run in runs:
            self.runs.setdefault(run.setting.name, []).append(run)
        self._jct = {
            name: [{job.job_id: job.jct_s for job in run.measures.jobs} for run in each]
            for name, each in self.runs.items()
        }
        self.references = self._references()

    def _mean_jct(self, name: str) -> float:
        means = [sum(jct.values()) / len(jct) for jct in self._jct[name] if jct]
        return sum(means) / len(means) if means else math.inf

    def _references(self) -> References:
        settings = {name: each[0].setting for name, each in self.runs.items()}
        pooled = [name for name, item in settings.items() if item.baseline and not item.isolated]
        blind = [name for name in pooled if settings[name].knowledge != "exact"]
        unpredicted = [name for name in blind if settings[name].knowledge != "predicted"]
        others = [name for name in pooled if name != ORACLE]
        return References(
            tuple(name for name, item in settings.items() if item.isolated),
            min(blind, key=self._mean_jct, default=""),
            min(unpredicted, key=self._mean_jct, default=""),
            min(others, key=self._mean_jct, default=""),
            ORACLE if ORACLE in settings and not settings[ORACLE].isolated else "",
        )

    def jct_reduction(self, name: str, against: str) -> Figure:
        """1 - mean JCT / that of ``against``, over the jobs that both finished."""
        return self._paired((name, against), lambda means: 1.0 - means[0] / means[1] if means[1] > 0 else math.nan)

    def gap_closed(self, name: str, *, unpredicted: bool = False) -> Figure:
        """(reference - policy) / (reference - oracle) in mean JCT: 0 is the best pooled baseline without true run times
        (``unpredicted``: that uses no predictor either), 1 the oracle; below 0 is worse than the reference."""
        references, oracle = self.references, self.references.oracle
        reference = references.unpredicted if unpredicted else references.blind
        if not oracle:
            return missing(f"the oracle {ORACLE} is not among the policies")
        if not reference:
            what = "that uses neither true run times nor a predictor" if unpredicted else "without true run times"
            return missing(f"no pooled baseline {what} is among the policies")
        if self._mean_jct(reference) <= self._mean_jct(oracle):
            return missing(f"{reference} has a mean JCT no greater than {oracle}: there is no gap")
        return self._paired(
            (name, reference, oracle),
            lambda means: (means[1] - means[0]) / (means[1] - means[2]) if means[1] > means[2] else math.nan,
        )

    def _paired(self, names: tuple[str, ...], of_means: _OfMeans) -> Figure:
        per_seed: list[Floats] = []
        for each in zip(*(self._jct[name] for name in names), strict=True):
            common = [job_id for job_id in each[0] if all(job_id in other for other in each[1:])]
            per_seed.append(np.array([[jct[job_id] for job_id in common] for jct in each]))
        if any(not jct.size for jct in per_seed):
            return missing("no job was finished by all of " + ", ".join(dict.fromkeys(names)))
        values = [of_means(jct.mean(axis=1)) for jct in per_seed]
        if not all(math.isfinite(value) for value in values):
            return missing("the policies it is compared with do not differ" if len(names) > 2 else "the JCT is zero")
        if len(values) > 1:
            return Figure(float(np.mean(values)), *over_seeds(values, self.seed), n=len(values))
        count = per_seed[0].shape[1]
        if count < 2:
            return Figure(values[0], n=count)
        generator = np.random.default_rng([self.seed, 0xB007])
        drawn = np.empty(DRAWS)
        for place in range(DRAWS):
            drawn[place] = of_means(per_seed[0][:, generator.integers(0, count, count)].mean(axis=1))
        if np.isfinite(drawn).mean() < 0.975:
            # What it is divided by cannot be told from zero: the ratio has no bounds.
            return Figure(values[0], n=count)
        drawn = drawn[np.isfinite(drawn)]
        return Figure(values[0], *_bounds(drawn), n=count)

    def change(self, name: str, against: str, figure: str, *, gain: bool) -> Figure:
        """How much greater (``gain``) or smaller a figure of the whole run is than that of ``against``, as a ratio."""
        values = []
        for one, other in zip(self.runs[name], self.runs[against], strict=True):
            mine, theirs = one.measures.figures()[figure], other.measures.figures()[figure]
            if mine is None or not theirs or not math.isfinite(mine) or not math.isfinite(theirs):
                return missing(f"the value of {against} is zero, or one of the two is unknown")
            values.append(mine / theirs - 1.0 if gain else 1.0 - mine / theirs)
        if len(values) > 1:
            return Figure(float(np.mean(values)), *over_seeds(values, self.seed), n=len(values))
        return Figure(values[0])
