"""Deadlines: admission by earliest deadline first, and a Chronus-type plan of leases by an integer program.

Gao, Ye, Sun, Wen, Zhang: Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs, SoCC 2021. Time is cut into
leases of equal length; a job holds all its devices for whole leases and may pause between them. A job is on time when
it has had ``leases`` of them by ``deadline`` (counted in leases from now; those before it are 0 .. deadline - 1). One pool of
like devices. Chronus also chooses nodes and keeps best-effort jobs in what is left; here the caller does both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from services.scheduler.planners.checks import BoolArray, FloatArray, IntArray, flags, number, numbers, whole_numbers
from services.scheduler.planners.mixed_integer import Limits, minimise

_FAR = 10**6


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """``accepted`` (J): will be on time; ``runs`` (J, S): holds its devices in that lease; ``proven``: the greatest value."""

    accepted: BoolArray
    runs: BoolArray
    value: float
    proven: bool


def leases_needed(duration_s: ArrayLike, deadline_s: ArrayLike, lease_s: float) -> tuple[IntArray, IntArray]:
    """(leases, deadline) of each job (J): duration rounded up to leases, time until the deadline rounded down.

    An infinite deadline, or one very far, becomes the greatest that the planners accept; one in the past 0.
    """
    length = number("lease_s", lease_s, low=1e-9)
    duration = numbers("duration_s", duration_s, (None,), low=0.0)
    until = numbers("deadline_s", deadline_s, (duration.size,), infinite=True)
    leases = np.maximum(np.ceil(duration / length - 1e-9), 1.0)
    deadline = np.clip(np.floor(until / length + 1e-9), 0.0, _FAR)
    return np.minimum(leases, _FAR).astype(np.int64), deadline.astype(np.int64)


def edf_schedule(leases: ArrayLike, devices: ArrayLike, deadline: ArrayLike, free: ArrayLike) -> LeasePlan:
    """Earliest deadline first over ``free`` (S) devices per lease: in each lease the jobs by deadline (ties: index) that fit.

    Jobs that cannot be on time any more are not favoured but not dropped either: this is the schedule without admission.
    """
    need, size, due, room = _inputs(leases, devices, deadline, free)
    return _edf(need, size, due, room, np.ones(need.size, dtype=np.bool_))


def edf_admission(
    leases: ArrayLike, devices: ArrayLike, deadline: ArrayLike, free: ArrayLike, promised: ArrayLike | None = None
) -> LeasePlan:
    """EDF with admission: in order of the queue, accept a job if it is on time and no promise that would be kept is broken.

    ``promised`` (J): accepted earlier, not up for decision; ``accepted`` of the result leaves out those that EDF cannot
    keep any more, though they still run. EDF of gangs is no exact test (a job that fits
    in no gap waits), so what it accepts is feasible but another order might have room for more.
    """
    need, size, due, room = _inputs(leases, devices, deadline, free)
    accepted = np.zeros(need.size, dtype=np.bool_) if promised is None else flags("promised", promised, (need.size,))
    plan = _edf(need, size, due, room, accepted)
    for job in np.flatnonzero(~accepted).tolist():
        accepted[job] = True
        trial = _edf(need, size, due, room, accepted)
        if trial.accepted[job] and trial.accepted[plan.accepted].all():
            plan = trial
        else:
            accepted[job] = False
    return plan


def chronus_plan(
    leases: ArrayLike,
    devices: ArrayLike,
    deadline: ArrayLike,
    free: ArrayLike,
    *,
    value: ArrayLike | None = None,
    promised: ArrayLike | None = None,
    limits: Limits | None = None,
) -> LeasePlan:
    """Accept the jobs of greatest total value (J; default 1 each) that can all be on time, and give their leases.

    1. Binary y[j]: accepted; x[j, s]: runs in lease s before its deadline. sum_s x[j, s] = leases_j y_j; devices of each lease
       within ``free``; y = 1 for the ``promised``. Maximise sum value_j y_j.
    2. Leases are moved to the earliest where the job fits and does not run yet, so that nothing waits for its deadline.
    3. When the solver ends without an answer: `edf_admission`. Raises `PolicyError` when the promises cannot be kept.
    """
    need, size, due, room = _inputs(leases, devices, deadline, free)
    jobs, slots = need.size, room.size
    worth = np.ones(jobs) if value is None else numbers("value", value, (jobs,), low=0.0)
    kept = np.zeros(jobs, dtype=np.bool_) if promised is None else flags("promised", promised, (jobs,))
    within = (np.arange(slots) < due[:, None]) & (size[:, None] <= room)
    job_of, slot_of = np.nonzero(within)
    cost = np.concatenate([-worth, np.zeros(job_of.size)])
    place = jobs + np.arange(job_of.size)
    rows = sparse.csr_array(
        (
            np.concatenate([-need.astype(np.float64), np.ones(job_of.size), size[job_of]]),
            (
                np.concatenate([np.arange(jobs), job_of, jobs + slot_of]),
                np.concatenate([np.arange(jobs), place, place]),
            ),
        ),
        shape=(jobs + slots, jobs + job_of.size),
    )
    promises = sparse.csr_array((np.ones(jobs), (np.arange(jobs), np.arange(jobs))), shape=(jobs, cost.size))
    low = np.concatenate([np.zeros(jobs), np.full(slots, -np.inf), kept.astype(np.float64)])
    high = np.concatenate([np.zeros(jobs), room, np.ones(jobs)])
    solution = minimise(cost, sparse.vstack([rows, promises], format="csr"), low, high, limits or Limits(gap=0.0))
    if solution.values is None:
        plan = edf_admission(need, size, due, room, kept)
        return LeasePlan(plan.accepted, plan.runs, float(worth[plan.accepted].sum()), False)
    accepted = solution.values[:jobs] > 0
    runs = np.zeros((jobs, slots), dtype=np.bool_)
    runs[job_of, slot_of] = solution.values[jobs:] > 0
    return LeasePlan(accepted, _earliest(runs, size, room, due), float(worth[accepted].sum()), solution.proven)


def _inputs(
    leases: ArrayLike, devices: ArrayLike, deadline: ArrayLike, free: ArrayLike
) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    need = whole_numbers("leases", leases, (None,), low=1, high=_FAR)
    size = numbers("devices", devices, (need.size,), low=np.finfo(float).tiny)
    due = whole_numbers("deadline", deadline, (need.size,), low=0, high=_FAR)
    return need, size, due, numbers("free", free, (None,), low=0.0)


def _edf(need: IntArray, size: FloatArray, due: IntArray, room: FloatArray, taking_part: BoolArray) -> LeasePlan:
    left = need.copy()
    last = np.full(need.size, -1, dtype=np.int64)
    runs = np.zeros((need.size, room.size), dtype=np.bool_)
    order = np.argsort(due, kind="stable")
    order = order[taking_part[order]]
    for slot in range(room.size):
        free = room[slot]
        for job in order[left[order] > 0].tolist():
            if size[job] <= free + 1e-9:
                free -= size[job]
                left[job] -= 1
                runs[job, slot] = True
                last[job] = slot
    on_time = taking_part & (left == 0) & (last < due)
    return LeasePlan(on_time, runs, float(on_time.sum()), True)


def _earliest(runs: BoolArray, size: FloatArray, room: FloatArray, due: IntArray) -> BoolArray:
    moved = runs.copy()
    free = room - size @ moved
    for job in np.argsort(due, kind="stable").tolist():
        for slot in np.flatnonzero(moved[job])[::-1].tolist():
            earlier = np.flatnonzero(~moved[job, :slot] & (free[:slot] + 1e-9 >= size[job]))
            if earlier.size:
                moved[job, slot], moved[job, earlier[0]] = False, True
                free[slot] += size[job]
                free[earlier[0]] -= size[job]
    return moved
