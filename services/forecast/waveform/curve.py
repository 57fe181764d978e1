"""The waveform of a job set: accelerators held and money spent in each window, as quantiles over scenarios.

1. A scenario draws a run time for each job: a stratified sample of its distribution (Latin hypercube, McKay, Beckman and Conover,
   Technometrics 1979), the same draw for jobs whose errors are one.
2. A job starts at its declared time, and not before those that it follows have ended in that scenario.
3. A window's demand is the time-weighted mean of what is held in it; its cost is that of the accelerators held until its end.
4. The peak is the most that is held at once, at any moment.
Nothing waits for room: it is the demand that is asked, not what a full network would serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.forecast.waveform.durations import Array, RunTime

SCENARIOS = 256
_BAND = (0.1, 0.9)


@dataclass(frozen=True, slots=True)
class Planned:
    """A job of the plan: ``accelerators`` of all its ``copies`` units together, ``after`` names jobs that it follows."""

    name: str
    accelerators: float
    run_time: RunTime
    start_s: float = 0.0
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """The mean and the ends of the 80 % band over the scenarios; arrays [window] or single numbers."""

    expected: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Waveform:
    """Windows from 0 of ``window_s`` seconds each; ``cost`` counts from the start (money of one accelerator-hour = 1).

    ``peak`` accelerators, ``accelerator_hours`` and ``end_s`` of the whole plan [1]; ``ends_s`` by job [1].
    """

    window_s: float
    demand: Band
    cost: Band
    peak: Band
    accelerator_hours: Band
    end_s: Band
    ends_s: Mapping[str, Band] = field(default_factory=dict)


def in_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Names so that each comes behind those it follows; ValueError names one that is missing or follows itself."""
    done: list[str] = []
    entered: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"{name!r} follows itself")
        if name in entered:
            return
        for other in after[name]:
            if other not in after:
                raise ValueError(f"{name!r} follows {other!r}, which is not in the plan")
            visit(other, (*path, name))
        entered.add(name)
        done.append(name)

    for name in after:
        visit(name, ())
    return done


def waveform(plan: Sequence[Planned], *, window_s: float, windows: int, seed: int = 0) -> Waveform:
    """The waveform of ``plan`` over ``windows`` windows; ``seed`` shuffles the strata of the draws."""
    jobs = {job.name: job for job in plan}
    shares = (np.arange(SCENARIOS) + 0.5) / SCENARIOS
    source = np.random.default_rng(seed)
    drawn: dict[str, Array] = {}
    ends: dict[str, Array] = {}
    begun: dict[str, Array] = {}
    held = np.zeros((SCENARIOS, windows + 1))
    hours = np.zeros(SCENARIOS)
    for name in in_order({job.name: job.after for job in plan}):
        job = jobs[name]
        group = job.run_time.error_group
        if group not in drawn:
            drawn[group] = source.permutation(shares)
        took = job.run_time.quantiles(drawn[group])
        begins = np.max([np.full(SCENARIOS, job.start_s), *(ends[other] for other in job.after)], axis=0)
        begun[name], ends[name] = begins, begins + took
        hours += job.accelerators * took / 3600
        held += job.accelerators * _held_until(begins, ends[name], window_s, windows)
    spent = held[:, 1:] / 3600
    demand = np.diff(held, axis=1) / window_s
    last = np.max(list(ends.values()), axis=0) if ends else np.zeros(SCENARIOS)
    return Waveform(
        window_s,
        _band(demand),
        _band(spent),
        _band(_peaks([jobs[name].accelerators for name in ends], list(begun.values()), list(ends.values()))[:, None]),
        _band(hours[:, None]),
        _band(last[:, None]),
        {name: _band(item[:, None]) for name, item in ends.items()},
    )


def _peaks(amounts: Sequence[float], begins: Sequence[Array], ends: Sequence[Array]) -> Array:
    """The most accelerators held at once in each scenario; what ends makes room for what begins at the same moment."""
    if not amounts:
        return np.zeros(SCENARIOS)
    held = np.array(amounts)
    # Ends first: a stable order leaves them before what begins then.
    order = np.argsort(np.stack([*ends, *begins], axis=1), axis=1, kind="stable")
    peaks: Array = np.cumsum(np.concatenate([-held, held])[order], axis=1).max(axis=1)
    return peaks


def _held_until(begins: Array, ends: Array, window_s: float, windows: int) -> Array:
    """Seconds for which a job was held until the edge of each window, [scenario, edge]."""
    edges = np.arange(windows + 1) * window_s
    until: Array = np.clip(np.minimum(edges[None], ends[:, None]) - begins[:, None], 0.0, None)
    return until


def _band(values: Array) -> Band:
    low, high = np.quantile(values, _BAND, axis=0)
    return Band(values.mean(axis=0), low, high)
