"""Gavel: heterogeneity-aware time shares by linear programming, and the rounds that realise them.

Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia: Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads, OSDI 2020. Over J jobs and T accelerator types an allocation X (J, T) is the share of time that a job spends on
each type, so that (section 3.1)

    X >= 0;  sum_t X[j, t] <= 1;  sum_j X[j, t] scale[j] <= capacity[t].

Every policy is a function of ``throughput`` (J, T; work per second of the whole job on its devices, 0 where it does not
run), ``scale`` (J; devices, all of one type) and ``capacity`` (T; devices), and gives X. A job that can run nowhere
(no throughput, or larger than every type that it runs on) gets 0 and does not hold the others back. Left out: space sharing
(two jobs on one device) and the hierarchical policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from services.scheduler.planners.checks import FloatArray, IntArray, numbers
from services.scheduler.planners.shares_program import SharesProgram, alone_on_fastest

_ROOM = 1e-7
_NEWTON_STEPS = 60
_NEWTON_GAP = 1e-4


@dataclass(frozen=True, slots=True)
class _Cluster:
    throughput: FloatArray
    scale: FloatArray
    capacity: FloatArray
    runs: FloatArray

    @property
    def active(self) -> IntArray:
        """Jobs that can run somewhere."""
        return np.flatnonzero(self.runs.any(axis=1))


def equal_share(scale: ArrayLike, capacity: ArrayLike) -> FloatArray:
    """X (J, T) when every job gets 1/J of every type's devices, at most all of its time: the paper's isolated share."""
    scale_of = numbers("scale", scale, (None,), low=np.finfo(float).tiny)
    size = numbers("capacity", capacity, (None,), low=0.0)
    if not scale_of.size:
        return np.zeros((0, size.size))
    share = size / (scale_of.size * scale_of[:, None])
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1.0), dtype=np.float64)


def max_min_fairness(
    throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, weight: ArrayLike | None = None, *, fill: bool = True
) -> FloatArray:
    """Heterogeneity-aware least attained service (section 4.1): maximise min_j scale_j thr_j(X) / (weight_j thr_j(equal)).

    ``weight`` (J) is the share that a job deserves. "Equal" spreads a job's time over the types by their number of devices.
    With ``fill`` a second program maximises the sum of the throughputs, each relative to the job's fastest type, without
    lowering the least term: what the bottleneck leaves does not stay idle.
    """
    cluster = _cluster(throughput, scale, capacity)
    worth = _weights(weight, cluster)
    active = cluster.active
    if not active.size:
        return np.zeros_like(cluster.throughput)
    runs = cluster.runs[active]
    reference = (runs * (cluster.capacity / cluster.capacity.sum())).sum(axis=1)
    gain = runs * (cluster.scale[active] / (worth[active] * reference))[:, None]
    return _max_min(cluster, active, gain, fill=fill)


def min_makespan(throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, steps: ArrayLike) -> FloatArray:
    """Minimise the time at which the last job ends (section 4.2): max of theta, thr_j(X) >= theta steps_j.

    ``steps`` (J) is the remaining work in units of ``throughput``; jobs with none get 0.
    """
    cluster = _cluster(throughput, scale, capacity)
    left = numbers("steps", steps, (cluster.scale.size,), low=0.0)
    active = cluster.active[left[cluster.active] > 0]
    if not active.size:
        return np.zeros_like(cluster.throughput)
    return _max_min(cluster, active, cluster.runs[active] / left[active, None], fill=True)


def finish_time_fairness(
    throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, steps: ArrayLike, elapsed_s: ArrayLike
) -> FloatArray:
    """Minimise the greatest finish-time ratio rho (section 4.2, after Themis): time with X over time alone on 1/J.

    rho_j = (elapsed_j + steps_j / thr_j(X)) / (elapsed_j + steps_j / thr_j(1/J of the cluster)). Not an LP in X and rho together: a
    given rho asks for throughputs need_j(rho), convex and falling in rho. Newton's method on the program:

    1. rho = 1, the ratio of the equal share.
    2. The least rho of the LP with need_j replaced by its tangent at the present rho: never above the true least. Where it is
       below what any allocation can reach (every job alone on its fastest type), that.
    3. Repeat until rho moves by less than 1e-4 of itself (few steps, the convergence is quadratic).
    4. The LP max theta, thr_j >= theta need_j(rho); what it leaves goes to the sum of throughputs (`max_min_fairness`).
    """
    cluster = _cluster(throughput, scale, capacity)
    jobs = cluster.scale.size
    left = numbers("steps", steps, (jobs,), low=0.0)
    elapsed = numbers("elapsed_s", elapsed_s, (jobs,), low=0.0)
    active = cluster.active[left[cluster.active] > 0]
    if not active.size:
        return np.zeros_like(cluster.throughput)
    everyone = _all_on_fastest(cluster, active)
    if everyone is not None:
        return everyone
    runs, left, elapsed = cluster.runs[active], left[active], elapsed[active]
    shared = equal_share(cluster.scale, cluster.capacity)[active]
    alone = elapsed + left / (runs * shared).sum(axis=1)
    # Nobody ends before its time so far and the time that it needs alone on its fastest type.
    floor = float(((elapsed + left / runs.max(axis=1)) / alone).max())
    rho = 1.0
    program = SharesProgram(cluster.scale[active], cluster.capacity)
    for _ in range(_NEWTON_STEPS):
        tangent = _least_ratio(program, runs, left, alone, rho, elapsed)
        following = max(tangent, floor)
        if abs(following - rho) <= _NEWTON_GAP * rho:
            break
        rho = following
    need = left / (rho * alone - elapsed)
    return _max_min(cluster, active, runs / need[:, None], fill=True)


def _least_ratio(
    program: SharesProgram, runs: FloatArray, left: FloatArray, alone: FloatArray, rho: float, elapsed: FloatArray
) -> float:
    """The least rho for which some X gives every job thr_j >= the tangent of need_j at ``rho``, each row over need_j."""
    slack = rho * alone - elapsed
    rise = alone / slack
    return program.least(runs * (slack / left)[:, None], rise, 1.0 + rise * rho)


def max_throughput(
    throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, weight: ArrayLike | None = None
) -> FloatArray:
    """Maximise the sum of weight_j thr_j(X) / thr_j(fastest type); for the plain sum pass the fastest throughputs as weight."""
    cluster = _cluster(throughput, scale, capacity)
    return _max_sum(cluster, _weights(weight, cluster))


def fifo(throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, arrival: ArrayLike | None = None) -> FloatArray:
    """First in, first out (section 4.2): maximise sum_j (J - position_j) thr_j(X) / thr_j(fastest type).

    ``arrival`` (J) orders the jobs, ties by index; default: by index.
    """
    cluster = _cluster(throughput, scale, capacity)
    jobs = cluster.scale.size
    came = np.arange(jobs, dtype=np.float64) if arrival is None else numbers("arrival", arrival, (jobs,))
    return _max_sum(cluster, _positions(came))


def shortest_job_first(throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike, steps: ArrayLike) -> FloatArray:
    """The paper's shortest job first, with an order for all jobs: as `fifo`, by remaining time on the fastest type.

    The paper's objective (minimise the time of the shortest job) says nothing of the others; position weights extend it, as
    they do for FIFO. This is the policy for a low average completion time.
    """
    cluster = _cluster(throughput, scale, capacity)
    left = numbers("steps", steps, (cluster.scale.size,), low=0.0)
    fastest = cluster.runs.max(axis=1, initial=0.0)
    remaining = np.divide(left, fastest, out=np.full(left.shape, np.inf), where=fastest > 0)
    return _max_sum(cluster, _positions(remaining))


def round_priorities(allocation: ArrayLike, time_received: ArrayLike) -> FloatArray:
    """Priorities (J, T) of a round: X / time received, element by element; infinite where X > 0 and none was received."""
    target = numbers("allocation", allocation, (None, None), low=0.0, high=1.0 + _ROOM)
    received = numbers("time_received", time_received, target.shape, low=0.0)
    unserved = np.where(target > 0, np.inf, 0.0)
    return np.divide(target, received, out=unserved, where=received > 0)


def round_selection(allocation: ArrayLike, time_received: ArrayLike, scale: ArrayLike, capacity: ArrayLike) -> IntArray:
    """The jobs of the next round (section 5, algorithm 1): (J) of type index, -1 for a job that does not run.

    1. Priority of every (job, type): `round_priorities`.
    2. In descending order of priority (ties: larger X, lower job, lower type) give the job its devices on that type, if it
       has none yet and they are free; a pair with X = 0 is never taken.
    """
    target = numbers("allocation", allocation, (None, None), low=0.0, high=1.0 + _ROOM)
    jobs, types = target.shape
    scale_of = numbers("scale", scale, (jobs,), low=np.finfo(float).tiny)
    free: list[float] = numbers("capacity", capacity, (types,), low=0.0).tolist()
    chosen = np.full(jobs, -1, dtype=np.int64)
    if not target.size:
        return chosen
    priority = round_priorities(target, time_received).ravel()
    order = np.lexsort((np.arange(target.size), -target.ravel(), -priority))
    pairs = order[priority[order] > 0]
    needs, kinds, least = scale_of.tolist(), chosen.tolist(), float(scale_of.min())
    for pair in pairs.tolist():
        job, kind = divmod(pair, types)
        if kinds[job] < 0 and needs[job] <= free[kind] + _ROOM:
            kinds[job] = kind
            free[kind] -= needs[job]
            if least > max(free) + _ROOM:
                break
    chosen[:] = kinds
    return chosen


def _cluster(throughput: ArrayLike, scale: ArrayLike, capacity: ArrayLike) -> _Cluster:
    size = numbers("capacity", capacity, (None,), low=0.0)
    scale_of = numbers("scale", scale, (None,), low=np.finfo(float).tiny)
    rates = numbers("throughput", throughput, (scale_of.size, size.size), low=0.0)
    return _Cluster(rates, scale_of, size, np.where(scale_of[:, None] <= size, rates, 0.0))


def _weights(weight: ArrayLike | None, cluster: _Cluster) -> FloatArray:
    jobs = cluster.scale.size
    return np.ones(jobs) if weight is None else numbers("weight", weight, (jobs,), low=np.finfo(float).tiny)


def _positions(key: FloatArray) -> FloatArray:
    """J for the least key down to 1 for the greatest; ties by index."""
    positions = np.empty(key.size)
    positions[np.argsort(key, kind="stable")] = np.arange(key.size, 0, -1)
    return positions


def _all_on_fastest(cluster: _Cluster, jobs: IntArray) -> FloatArray | None:
    """X (J, T) with each of ``jobs`` all of its time on its fastest type, where that is one and there is room for all.

    Then no program need be solved: it is the only X with the greatest sum of relative throughputs, by any positive weights,
    and none gives any job more.
    """
    allocation = np.zeros_like(cluster.throughput)
    if not jobs.size:
        return allocation
    fastest = alone_on_fastest(cluster.runs[jobs], cluster.scale[jobs], cluster.capacity)
    if fastest is None:
        return None
    allocation[jobs, fastest] = 1.0
    return allocation


def _max_sum(cluster: _Cluster, weight: FloatArray) -> FloatArray:
    active = cluster.active
    everyone = _all_on_fastest(cluster, active)
    if everyone is not None:
        return everyone
    runs = cluster.runs[active]
    allocation = np.zeros_like(cluster.throughput)
    program = SharesProgram(cluster.scale[active], cluster.capacity)
    allocation[active] = program.greatest_sum(weight[active, None] * runs / runs.max(axis=1, keepdims=True))
    return allocation


def _max_min(cluster: _Cluster, jobs: IntArray, gain: FloatArray, *, fill: bool) -> FloatArray:
    """X (J, T) that maximises the least of sum_t gain[i, t] X[jobs[i], t]; then, with ``fill``, their sum."""
    everyone = _all_on_fastest(cluster, jobs) if fill else None
    if everyone is not None:
        return everyone
    # Terms of very different size make a badly scaled program: the unit is the best that a job could have alone.
    gain = gain / gain.max(axis=1).min()
    program = SharesProgram(cluster.scale[jobs], cluster.capacity)
    shares, least = program.greatest_least(gain)
    if fill:
        # Unweighted by scale: what is left goes where it gives most relative to the best that the job could have.
        relative = gain / gain.max(axis=1, keepdims=True)
        shares = program.greatest_sum(relative, gain, least * (1.0 - 1e-6))
    allocation = np.zeros_like(cluster.throughput)
    allocation[jobs] = shares
    return allocation
