"""Rows of a result for forecasts of replayed jobs: history alone, structure alone, both, and what any of them must beat.

Figures are sums over windows and domains. Intervals (95 %) are bootstrapped over days, which are taken as drawn
independently; with several seeds a day holds the sums of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meridian.result import Row
from services.forecast.arrivals import chosen
from services.forecast.demand_scoring import CHANGED
from services.forecast.job_replay import ColdJob, Replay
from services.forecast.past import Array

PERSISTENCE, LEVEL = "persistence", "level_stays"
# Bounds on what can be said of jobs without history, by those who know what nobody knows.
HINDSIGHT, STEPS_KNOWN = "user_and_size_in_hindsight", "steps_known_exactly"
_BASELINES = frozenset({PERSISTENCE, LEVEL, "history", "job_stays", HINDSIGHT, STEPS_KNOWN})
_DRAWS = 500
_TAIL = 0.1


@dataclass(slots=True)
class _Days:
    """Sums over windows, by day: the numerator and the denominator of a ratio."""

    top: Array
    bottom: Array
    n: int = 0

    def add(self, days: NDArray[np.intp], top: Array, bottom: Array) -> None:
        """Both are [domain, origin]; ``days`` [origin]."""
        count = len(self.top)
        self.top += np.bincount(days, np.nan_to_num(top).sum(axis=0), count)
        self.bottom += np.bincount(days, np.nan_to_num(bottom).sum(axis=0), count)
        self.n += int(np.count_nonzero(~np.isnan(top)))


class JobReport:
    """The figures of one way to show steps, summed over seeds."""

    def __init__(self, where: str, labels: Sequence[str], horizons: Sequence[int], window_s: float) -> None:
        self._where, self._labels = where, tuple(labels)
        self._horizons, self._window_s = tuple(horizons), window_s
        self._sums: dict[tuple[str, str, bool], _Days] = {}

    def add(self, found: Replay, first: int, last: int) -> None:
        """Score the forecasts made at origins from ``first`` on of windows up to ``last``."""
        per_day = max(1, round(86_400.0 / self._window_s))
        for place, (label, horizon) in enumerate(zip(self._labels, self._horizons, strict=True)):
            origins = np.arange(first, last - horizon)
            days = (origins // per_day).astype(np.intp)
            count = int(found.value.shape[1] // per_day) + 1
            value, stays = found.value[:, origins + horizon], found.value[:, origins]
            made = {
                "both": found.fused[place][:, origins],
                "structure": found.structure[place][:, origins],
                "history": found.history[place][:, origins],
                PERSISTENCE: stays,
                LEVEL: found.level[:, origins],
            }
            base = np.abs(value - stays)
            changed = base > CHANGED * np.maximum(stays, 1e-12)

            def note(
                subject: str,
                measure: str,
                top: Array,
                bottom: Array,
                *,
                rest: bool = False,
                label: str = label,
                days: NDArray[np.intp] = days,
                count: int = count,
            ) -> None:
                key = (subject, f"{measure}_{label}_ratio", rest)
                self._sums.setdefault(key, _Days(np.zeros(count), np.zeros(count))).add(days, top, bottom)

            for subject, forecast in made.items():
                missed = np.abs(value - forecast)
                note(subject, "accuracy", missed, value, rest=True)
                note(subject, "skill_over_persistence", missed, base, rest=True)
                note(
                    subject,
                    "wape_changed_to_persistence",
                    np.where(changed, missed, 0.0),
                    np.where(changed, base, 0.0),
                )
            note(PERSISTENCE, "changed_share", changed.astype(np.float64), np.ones_like(value))
            bands = {
                "both": (found.low, found.high, made["both"]),
                "history": (found.history_low, found.history_high, made["history"]),
            }
            for subject, (lows, highs, middle) in bands.items():
                low, high = lows[place][:, origins], highs[place][:, origins]
                inside = (value >= low - 1e-9) & (value <= high + 1e-9)
                known = (~np.isnan(low)).astype(np.float64)
                within = (value > low + 1e-9) & (value < high - 1e-9)
                note(subject, "coverage_80", inside * known, known)
                # A band of two quantiles holds its share between these two where targets are hit exactly.
                note(subject, "coverage_80_within_the_bounds", within * known, known)
                note(subject, "forecast_exactly", (np.abs(value - middle) <= 1e-9) * known, known)
                note(subject, "band_width_to_volume", high - low, value)
                note(subject, "pinball_to_volume", _pinball(value, low, middle, high), value)
            arrived, before = found.arrived[place][:, origins], found.arrived[place][:, origins - horizon]
            weighed = chosen(found.coming[place], found.arrived[place], horizon)
            for subject, coming in (("structure", found.coming[place]), ("arrivals_chosen", weighed)):
                missed = np.abs(arrived - coming[:, origins])
                bursts = np.where(np.isnan(missed), np.nan, np.abs(arrived - before))
                note(subject, "arrivals_skill_over_persistence", missed, bursts, rest=True)
            self._add_cold(found, label, horizon, (first, last - horizon), per_day, count)

    def _add_cold(
        self, found: Replay, label: str, horizon: int, within: tuple[int, int], per_day: int, count: int
    ) -> None:
        cold = [job for job in found.cold if job.horizon == horizon and within[0] <= job.window < within[1]]
        if not cold:
            return
        days = np.array([job.window // per_day for job in cold], np.intp)
        value, amount, expected, planned = (
            np.array([[getattr(job, name) for job in cold]])
            for name in ("value", "accelerators", "expected", "planned")
        )
        said = {"structure": expected, "job_stays": amount, HINDSIGHT: _in_hindsight(cold)}
        if not np.isnan(planned).any():
            said[STEPS_KNOWN] = planned
        for subject, forecast in said.items():
            missed = np.abs(value - forecast)
            key = (subject, f"cold_start_accuracy_{label}_ratio", True)
            self._sums.setdefault(key, _Days(np.zeros(count), np.zeros(count))).add(days, missed, value)

    def rows(self, draws: np.random.Generator, seeds: int) -> list[Row]:
        """All figures."""
        result = []
        for (subject, measure, rest), sums in sorted(self._sums.items()):
            total = float(sums.bottom.sum())
            baseline = subject in _BASELINES
            if total <= 0:
                row = Row(subject, measure, None, self._where, n=0, baseline=baseline, reason="nothing to compare")
            else:
                low, high = _interval(sums, draws, rest=rest)
                value = _ratio(float(sums.top.sum()), total, rest=rest)
                row = Row(subject, measure, value, self._where, low, high, n=sums.n // seeds, baseline=baseline)
            result.append(row)
        return result


def _in_hindsight(cold: Sequence[ColdJob]) -> Array:
    """For each job the share that jobs of its user and size in fact asked for, their median, times its accelerators, [1, job]."""
    shares: dict[int, list[float]] = {}
    for job in cold:
        shares.setdefault(job.kind, []).append(job.value / job.accelerators)
    middle = {kind: float(np.median(each)) for kind, each in shares.items()}
    return np.array([[middle[job.kind] * job.accelerators for job in cold]])


def _pinball(value: Array, low: Array, middle: Array, high: Array) -> Array:
    losses = [
        np.maximum(level * (value - bound), (level - 1) * (value - bound))
        for level, bound in ((_TAIL, low), (0.5, middle), (1 - _TAIL, high))
    ]
    mean: Array = np.mean(losses, axis=0)
    return mean


def _ratio(top: float, bottom: float, *, rest: bool) -> float:
    return 1 - top / bottom if rest else top / bottom


def _interval(sums: _Days, draws: np.random.Generator, *, rest: bool) -> tuple[float | None, float | None]:
    days = np.flatnonzero(sums.bottom > 0)
    if len(days) < 2:
        return None, None
    picked = days[draws.integers(0, len(days), (_DRAWS, len(days)))]
    ratios = sums.top[picked].sum(axis=1) / sums.bottom[picked].sum(axis=1)
    low, high = np.quantile(1 - ratios if rest else ratios, [0.025, 0.975])
    return float(low), float(high)
