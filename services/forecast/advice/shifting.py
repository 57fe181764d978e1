"""Which flexible jobs should start later, so that a domain's load is level and within its capacity: resource levelling.

The aim is the least sum over windows of load^2, and first of all the least load above the capacity (`OVERFLOW` times its
accelerator-windows): squares level (Burgess and Killebrew, Journal of Industrial Engineering 1962), and what is above the
capacity waits or goes elsewhere.
1. All jobs at their earliest start: the baseline, "as submitted".
2. Each job in turn, the largest first, moves to the start within its limits that costs least given the others; the latest
   of equal ones. Repeated until no job moves (the same rule of Burgess and Killebrew).
3. Each job goes back to the earliest start that costs next to nothing more: work is not delayed for a rounding.
4. Where the result has a higher peak or more overflow than the baseline, the baseline stays.
It is a local optimum; for few jobs the tests compare it with all combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Weight of an accelerator-window above the capacity, relative to the greatest square of the load.
OVERFLOW = 10.0
_MOST_PASSES = 20
# A move must save this share of what the job's own load costs.
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Flexible:
    """A job that may start at any window in ``earliest``..``latest`` and then holds ``accelerators`` for ``length`` windows, of the last
    of which it needs the share ``last``.

    It is not moved to where it would end behind the last window, unless it does so anyhow: nothing is known of the load there.
    """

    name: str
    accelerators: float
    earliest: int
    latest: int
    length: int
    last: float = 1.0

    def hold(self, load: Array, start: int, times: float = 1.0) -> None:
        """Add what the job holds from window ``start`` on, so many ``times``, to ``load`` [window]."""
        load[start : start + self.length] += times * self.accelerators
        if start + self.length <= len(load):
            load[start + self.length - 1] -= times * self.accelerators * (1 - self.last)


@dataclass(frozen=True, slots=True)
class Shifted:
    """The start of each job [job], the load before and after [window]."""

    starts: tuple[int, ...]
    before: Array
    after: Array


def load_of(base: Array, jobs: Sequence[Flexible], starts: Sequence[int]) -> Array:
    """The load [window] of ``base`` and the jobs at these starts; what lies behind the last window is not seen."""
    load: Array = base.astype(np.float64).copy()
    for job, start in zip(jobs, starts, strict=True):
        job.hold(load, start)
    return load


def cost_of(load: Array, capacity: float) -> float:
    """What is made least."""
    top = max(capacity, 1.0)
    return float(np.sum((load / top) ** 2 + OVERFLOW * np.maximum(0.0, load - capacity) / top))


def shift(base: Array, jobs: Sequence[Flexible], capacity: float) -> Shifted:
    """Level the load of ``jobs`` over ``base`` [window]; see the module."""
    starts = [job.earliest for job in jobs]
    before = load_of(base, jobs, starts)
    load = before.copy()
    order = sorted(range(len(jobs)), key=lambda place: -jobs[place].accelerators * jobs[place].length)
    for _ in range(_MOST_PASSES):
        moved = False
        for place in order:
            job = jobs[place]
            job.hold(load, starts[place], -1.0)
            costs = _costs(load, job, capacity)
            least = float(costs.min())
            # The latest of equal ones makes room for others; what gains nothing by it is taken back.
            best = job.earliest + int(np.flatnonzero(costs <= least + 1e-9 * max(1.0, abs(least)))[-1])
            moved = moved or best != starts[place]
            starts[place] = best
            job.hold(load, starts[place])
        if not moved:
            break
    for place in reversed(order):
        job = jobs[place]
        if starts[place] == job.earliest:
            continue
        job.hold(load, starts[place], -1.0)
        costs = _costs(load, job, capacity)
        kept = costs[starts[place] - job.earliest]
        starts[place] = job.earliest + int(np.flatnonzero(costs - kept <= _WORTH * max(kept, 1e-12))[0])
        job.hold(load, starts[place])
    worse = load.max(initial=0.0) > before.max(initial=0.0) + 1e-9 or _above(load, capacity) > (
        _above(before, capacity) + 1e-9
    )
    if worse:
        return Shifted(tuple(job.earliest for job in jobs), before, before)
    return Shifted(tuple(starts), before, load_of(base, jobs, starts))


def _costs(load: Array, job: Flexible, capacity: float) -> Array:
    """What the job adds at each of its possible starts, by running sums."""
    adds = _added(load, job.accelerators, capacity)
    total = np.concatenate([[0.0], np.cumsum(adds)])
    latest = max(job.earliest, min(job.latest, len(load) - job.length))
    first = np.arange(job.earliest, latest + 1)
    end = np.minimum(first + job.length, len(load))
    costs: Array = total[end] - total[first]
    if job.last < 1:
        less = adds - _added(load, job.accelerators * job.last, capacity)
        costs -= np.where(first + job.length <= len(load), less[end - 1], 0.0)
    return costs


def _added(load: Array, accelerators: float, capacity: float) -> Array:
    """What so many more cost in each window."""
    top = max(capacity, 1.0)
    more = load + accelerators
    above = np.maximum(0.0, more - capacity) - np.maximum(0.0, load - capacity)
    added: Array = (more**2 - load**2) / top**2 + OVERFLOW * above / top
    return added


def _above(load: Array, capacity: float) -> float:
    return float(np.maximum(0.0, load - capacity).sum())


def above_capacity(load: Array, capacity: float, window_s: float) -> float:
    """Accelerator-hours above the capacity."""
    return _above(load, capacity) * window_s / 3600


@dataclass(frozen=True, slots=True)
class Stretch:
    """Windows ``first``..``end`` - 1 in which the load is high or low, with its mean."""

    first: int
    end: int
    load: float


def stretches_where(mask: NDArray[np.bool_], load: Array, least: int = 1) -> list[Stretch]:
    """The unbroken stretches of ``mask`` of at least ``least`` windows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [
        Stretch(int(first), int(end), float(load[first:end].mean()))
        for first, end in zip(edges[::2], edges[1::2], strict=True)
        if end - first >= least
    ]
