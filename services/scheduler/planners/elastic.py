"""Elastic allocation by marginal gain: how many devices each job gets, when more devices help each job less and less.

The alternative to an integer program for one pool of like devices. For concave utilities the greedy choice is optimal (Fox:
Discrete Optimization via Marginal Analysis, Management Science 13 (3), 1966). Inputs: ``utility`` (J, K), entry [j, k - 1] is the
value of k devices for job j, and 0 devices are worth 0 (or ``idle`` (J)).
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.checks import FloatArray, IntArray, number, numbers, whole_numbers


def marginal_gain_allocation(utility: ArrayLike, total: int, idle: ArrayLike | None = None) -> IntArray:
    """Devices (J) that (nearly) maximise the sum of utilities with at most ``total``; optimal where every row is concave.

    1. Replace each row by its least concave majorant; its corners are the counts worth having (so a job that gains only
       from pairs or whole nodes is offered those steps).
    2. All steps between corners by gain per device, descending; ties: lower job.
    3. Take steps in this order while they fit and gain. In a row the gains fall, so a job's steps come in order; after a
       step that does not fit none of the same job is taken.
    4. While devices are left: the change of one job to a greater count, affordable and with the greatest gain per device
       (never happens when all rows are concave).
    """
    table = _with_idle(utility, idle)
    left = int(whole_numbers("total", total, (), low=0, high=2**31))
    jobs = len(table)
    steps = [(job, *step) for job in range(jobs) for step in _corners(table[job])]
    steps.sort(key=lambda step: (-step[3], step[0], step[1]))
    devices = np.zeros(jobs, dtype=np.int64)
    for job, below, above, gain in steps:
        if gain > 0.0 and devices[job] == below and above - below <= left:
            devices[job] = above
            left -= above - below
    while left > 0 and jobs:
        more = np.arange(table.shape[1]) - devices[:, None]
        gains = table - np.take_along_axis(table, devices[:, None], axis=1)
        rate = np.where((more > 0) & (more <= left), gains / np.maximum(more, 1), 0.0)
        chosen, count = divmod(int(rate.argmax()), table.shape[1])
        if rate[chosen, count] <= 0.0:
            break
        left -= count - int(devices[chosen])
        devices[chosen] = count
    return devices


def pollux_utility(
    goodput: ArrayLike,
    total: int,
    *,
    fairness: float = -1.0,
    current: ArrayLike | None = None,
    restart_factor: ArrayLike | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Utilities (J, K) and of no devices (J) whose sum orders allocations as Pollux's fitness does (Qiao et al., OSDI 2021).

    Fitness = (mean of speedup^p)^(1/p), p = ``fairness`` (< 1, not 0), speedup = goodput / goodput with an equal share of
    ``total`` (at least one device), or with the count nearest below with which the job runs, else its least. ``goodput`` (J, K). A
    count other than ``current`` (J; 0: not running) is multiplied by ``restart_factor`` (J), the share of time left after the
    restart. Pollux searches placements by a genetic algorithm; this takes counts only, which is why it is called lite. For p < 0
    a job without devices would make the fitness 0 whatever the rest: it counts as a hundredth of its least speedup, so
    first every job gets its first device while there are enough.
    """
    table = numbers("goodput", goodput, (None, None), low=0.0)
    jobs, counts = table.shape
    power = number("fairness", fairness, high=1.0)
    if power == 0.0:
        raise PolicyError("fairness: 0 has no power mean; take a small negative number")
    pool = int(whole_numbers("total", total, (), low=0, high=2**31))
    if not jobs or not counts:
        return np.zeros((jobs, counts)), np.zeros(jobs)
    if restart_factor is not None:
        factor = numbers("restart_factor", restart_factor, (jobs,), low=0.0, high=1.0)
        now = np.zeros(jobs) if current is None else whole_numbers("current", current, (jobs,), low=0, high=2**31)
        changed = (np.arange(1, counts + 1) != now[:, None]) & (now[:, None] > 0)
        reached = np.where(changed, table * factor[:, None], table)
    else:
        reached = table
    share = min(max(pool // jobs, 1), counts)
    possible = table > 0
    last = share - 1 - possible[:, share - 1 :: -1].argmax(axis=1)
    at = np.where(possible[:, :share].any(axis=1), last, possible.argmax(axis=1))
    fair = np.take_along_axis(table, at[:, None], axis=1)[:, 0]
    runs = fair > 0
    speedup = np.divide(reached, fair[:, None], out=np.zeros_like(table), where=runs[:, None])
    least = np.where(speedup > 0, speedup, np.inf).min(axis=1)
    nothing = np.where(np.isfinite(least), least, 1.0) / 100.0
    sign = 1.0 if power > 0 else -1.0
    utility = sign * np.maximum(speedup, nothing[:, None]) ** power
    return utility, sign * nothing**power


def _with_idle(utility: ArrayLike, idle: ArrayLike | None) -> FloatArray:
    table = numbers("utility", utility, (None, None))
    nothing = np.zeros(len(table)) if idle is None else numbers("idle", idle, (len(table),))
    return np.concatenate([nothing[:, None], table], axis=1)


def _corners(row: FloatArray) -> list[tuple[int, int, float]]:
    """Steps (from count, to count, gain per device) of the least concave majorant of ``row`` over 0..K."""
    hull = [0]
    for count in range(1, row.size):
        while len(hull) > 1 and _slope(row, hull[-1], count) > _slope(row, hull[-2], hull[-1]):
            hull.pop()
        hull.append(count)
    return [(below, above, _slope(row, below, above)) for below, above in itertools.pairwise(hull)]


def _slope(row: FloatArray, below: int, above: int) -> float:
    return float((row[above] - row[below]) / (above - below))
