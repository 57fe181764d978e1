"""Sia: which configuration (number of devices of one type) each elastic job runs on, by an integer program every round.

Jayaram Subramanya, Arfeen, Lin, Qiao, Jia, Ganger: Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling, SOSP 2023.
The goodput of every job on every configuration is an input (J, C), from `goodput` or any estimate. What spans rounds (the age and
restarts of a job, the greatest count that it has run on) is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.alike import smallest_first
from services.scheduler.planners.checks import BoolArray, FloatArray, IntArray, flags, number, numbers, whole_numbers
from services.scheduler.planners.mixed_integer import Limits, Solution, minimise

# Under a power p < 0 a configuration that makes almost no progress would dominate the objective; it is not offered at all.
_LEAST_FACTOR = 1e-3
_FEWEST = 4
"""Jobs that there must be for `most_jobs`."""
_LEAST_TAKEN = 2
"""Jobs that there must be room for: one alone is the solver's choice."""
_KEPT_PAIRS = 512
"""Programs of more pairs are solved each time: they come back seldom, and thousands of them would take much memory."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """What a job may be given: per configuration (C) its type index, number of nodes and of devices."""

    kind: IntArray
    nodes: IntArray
    devices: IntArray


@dataclass(frozen=True, slots=True)
class SiaPlan:
    """``choice`` (J): index of a configuration, -1 for none; ``objective`` as minimised (p < 0) or maximised (p > 0);
    ``proven`` says that the solver finished, otherwise the plan is the best found, or the greedy one."""

    choice: IntArray
    objective: float
    proven: bool


def configurations(nodes: ArrayLike, devices_per_node: ArrayLike) -> Configurations:
    """The paper's set (section 3.3): powers of two up to a node, then whole nodes. ``nodes`` and ``devices_per_node`` (T).

    A node whose size is not a power of two is offered whole, too. N + log2 R configurations per type instead of N x R.
    """
    count = whole_numbers("nodes", nodes, (None,), low=0, high=2**20)
    size = whole_numbers("devices_per_node", devices_per_node, (count.size,), low=1, high=2**10)
    rows: list[tuple[int, int, int]] = []
    for kind, (many, each) in enumerate(zip(count.tolist(), size.tolist(), strict=True)):
        if many:
            rows += [(kind, 1, 1 << power) for power in range(each.bit_length()) if 1 << power < each]
            rows += [(kind, whole, whole * each) for whole in range(1, many + 1)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Configurations(table[:, 0], table[:, 1], table[:, 2])


def greatest_scale_up(most_devices: ArrayLike, *, factor: int = 2) -> IntArray:
    """Devices (J) that a job may get next: ``factor`` times the most it has run on, 1 before its first run (section 3.2)."""
    most = whole_numbers("most_devices", most_devices, (None,), low=0, high=2**30)
    return np.maximum(factor * most, 1)


def restart_factor(age_s: ArrayLike, restarts: ArrayLike, restart_s: ArrayLike) -> FloatArray:
    """What is left of a job's goodput (J) after one more restart, in [0, 1]: (age - restarts x cost) / (age + cost).

    ``age_s`` since submission. 1 for a job younger than its ``restart_s``: a start is no restart (section 3.4, after Pollux).
    """
    age = numbers("age_s", age_s, (None,), low=0.0)
    times = numbers("restarts", restarts, (age.size,), low=0.0)
    cost = numbers("restart_s", restart_s, (age.size,), low=0.0)
    left = np.maximum(age - times * cost, 0.0)
    factor = np.divide(left, age + cost, out=np.ones_like(age), where=age + cost > 0)
    return np.where(age < cost, 1.0, factor)


def sia_allocation(
    goodput: ArrayLike,
    offered: Configurations,
    capacity: ArrayLike,
    *,
    current: ArrayLike | None = None,
    factor: ArrayLike | None = None,
    least_devices: ArrayLike | None = None,
    most_devices: ArrayLike | None = None,
    fixed: ArrayLike | None = None,
    power: float = -0.5,
    queue_penalty: float = 1.1,
    limits: Limits | None = None,
) -> SiaPlan:
    """The allocation of a round (equation 1 to 4 of the paper).

    ``goodput`` (J, C), 0 where a job does not run; ``capacity`` (T) devices; ``current`` (J) index of the present configuration
    or -1; ``factor`` (J) from `restart_factor`; ``least_devices``, ``most_devices`` (J); ``fixed`` (J): keeps its current
    configuration (it is just restarting, or may not be preempted). ``power`` p and ``queue_penalty`` lambda: the authors use
    -0.5 and 1.1; lambda > 1, else a job on its least configuration is worth no more than a waiting one.

    1. Rows normalised by their least goodput above 0, so that every job's least configuration counts 1.
    2. Other configurations than the current one times ``factor``.
    3. Minimise sum of x[j, c] g[j, c]^p + lambda (jobs without a configuration), for p < 0; for p > 0 maximise the sum of the
       powers less the penalty. At most one configuration per job; devices of each type within ``capacity``.
    When the solver ends without an answer the greedy plan (`greedy_allocation`) is taken.
    Raises `PolicyError` for bad inputs, and when the fixed jobs alone exceed the capacity.
    """
    size = numbers("capacity", capacity, (None,), low=0.0)
    kind = whole_numbers("configurations.kind", offered.kind, (None,), low=0, high=max(size.size - 1, 0))
    devices = whole_numbers("configurations.devices", offered.devices, (kind.size,), low=1, high=2**30)
    table = numbers("goodput", goodput, (None, kind.size), low=0.0)
    jobs = len(table)
    now = (
        np.full(jobs, -1) if current is None else whole_numbers("current", current, (jobs,), low=-1, high=kind.size - 1)
    )
    held = np.zeros(jobs, dtype=np.bool_) if fixed is None else flags("fixed", fixed, (jobs,))
    if (held & (now < 0)).any():
        raise PolicyError(
            f"fixed[{int(np.flatnonzero(held & (now < 0))[0])}]: the job has no current configuration to keep"
        )
    penalty = number("queue_penalty", queue_penalty, low=0.0)
    if number("power", power, high=1.0) == 0.0:
        raise PolicyError("power: 0 makes all configurations equal")
    allowed = (table > 0) & (devices <= size[kind])
    if least_devices is not None:
        allowed &= devices >= numbers("least_devices", least_devices, (jobs,), low=0.0)[:, None]
    if most_devices is not None:
        allowed &= devices <= numbers("most_devices", most_devices, (jobs,), low=0.0)[:, None]
    least = np.where(allowed, table, np.inf).min(axis=1, initial=np.inf)
    relative = np.where(allowed, table / np.where(np.isfinite(least), least, 1.0)[:, None], 0.0)
    if factor is not None:
        left = np.maximum(numbers("factor", factor, (jobs,), low=0.0, high=1.0), _LEAST_FACTOR)
        other = (now[:, None] >= 0) & (np.arange(kind.size) != now[:, None])
        relative = np.where(other, relative * left[:, None], relative)
    stop = limits or Limits()
    stop.options()
    used = np.bincount(kind[now[held]], devices[now[held]], size.size)
    if (used > size).any():
        raise PolicyError(
            f"fixed: type {int(np.argmax(used > size))} has {size[used > size][0]:g} devices, the fixed jobs hold more"
        )
    return _solve(
        relative, allowed & ~held[:, None], kind, devices, size - used, np.where(held, now, -1), power, penalty, stop
    )


def best_of_all(value: FloatArray, kind: IntArray, devices: IntArray, free: FloatArray) -> IntArray | None:
    """Each job's configuration of the greatest ``value`` (J, C) above 0, -1 for none, where that is one and there is room for all:
    then it is the only choice of the greatest sum, and no program need be solved. Else None."""
    most = value.max(axis=1, initial=0.0)
    wants = most > 0
    if ((value == most[:, None]).sum(axis=1)[wants] != 1).any():
        return None
    choice: IntArray = np.where(wants, value.argmax(axis=1) if kind.size else -1, -1)
    taken = choice[wants]
    fits = np.bincount(kind[taken], devices[taken], free.size) <= free
    return choice if fits.all() else None


def most_jobs(value: FloatArray, kind: IntArray, devices: IntArray, free: FloatArray) -> IntArray | None:
    """Each job's configuration, -1 for none, where all configurations above 0 in ``value`` (J, C) are worth the same, each job
    has one at most, and all are of one type: then as many jobs as there is room for, the smallest first, the latest of equal ones.

    No choice has a greater sum. Where other sizes are as many it is mostly the solver's own choice (HiGHS 1.12), but not always. None
    where it is of so few jobs that the solver chooses otherwise among equal ones.
    """
    row, column = np.nonzero(value > 0)
    if row.size < _FEWEST or (row[1:] == row[:-1]).any():
        return None
    worth = value[row, column]
    if (kind[column] != kind[column[0]]).any() or (worth != worth[0]).any():
        return None
    taken = smallest_first(devices[column], float(free[kind[column[0]]]))
    if np.count_nonzero(taken) < _LEAST_TAKEN:
        return None
    choice = np.full(len(value), -1, dtype=np.int64)
    choice[row[taken]] = column[taken]
    return choice


def greatest_value(
    value: FloatArray, kind: IntArray, devices: IntArray, free: FloatArray, limits: Limits | None = None
) -> tuple[IntArray, bool]:
    """Each job's configuration (J), -1 for none, of the greatest sum of ``value`` (J, C; not above 0: not offered) within ``free`` (T),
    and whether that is proven. When the solver ends without an answer it is the greedy choice (`greedy_allocation`)."""
    best = best_of_all(value, kind, devices, free)
    if best is None:
        best = most_jobs(value, kind, devices, free)
    if best is not None:
        return best, True
    row, column = np.nonzero(value > 0)
    choice = np.full(len(value), -1, dtype=np.int64)
    if not row.size:
        return choice, True
    program = _Program(value[row, column], row, kind[column], devices[column], free)
    solution = program.solved(limits or Limits())
    if solution.values is None:
        return greedy_allocation(value, Configurations(kind, np.ones_like(kind), devices), free), solution.proven
    chosen = solution.values > 0
    choice[row[chosen]] = column[chosen]
    return choice, solution.proven


def alike_jobs(worth: float, devices: IntArray, free: float, *, limits: Limits | None = None) -> BoolArray:
    """Which of jobs (J) run that are ``worth`` the same over waiting, each on so many ``devices`` of one type, of which ``free`` are:
    what `sia_allocation` chooses, without its tables."""
    if worth <= 0 or not devices.size:
        return np.zeros(devices.size, dtype=np.bool_)
    if devices.sum() <= free:
        return np.ones(devices.size, dtype=np.bool_)
    if devices.size >= _FEWEST:
        served = smallest_first(devices, free)
        if np.count_nonzero(served) >= _LEAST_TAKEN:
            return served
    room = np.array([free])
    program = _Program(np.full(devices.size, worth), np.arange(devices.size), np.zeros_like(devices), devices, room)
    solution = program.solved(limits or Limits())
    if solution.values is not None:
        return solution.values > 0
    sizes, column = np.unique(devices, return_inverse=True)
    value = np.where(column[:, None] == np.arange(sizes.size), worth, 0.0)
    offered = Configurations(np.zeros_like(sizes), np.ones_like(sizes), sizes)
    return greedy_allocation(value, offered, room) >= 0


def greedy_allocation(value: ArrayLike, offered: Configurations, capacity: ArrayLike) -> IntArray:
    """A feasible choice (J) without a solver: for ``value`` (J, C), take (job, configuration) by value per device, then upgrade.

    1. Pairs of positive value by value per device, descending: a job without a configuration takes the first that fits.
    2. With what is left, the change of one job to a configuration of the same type with the greatest gain, until none fits.
    """
    worth = numbers("value", value, (None, offered.kind.size))
    free = numbers("capacity", capacity, (None,), low=0.0).copy()
    choice = np.full(len(worth), -1, dtype=np.int64)
    order = np.argsort(-(worth / offered.devices).ravel(), kind="stable")
    for pair in order[worth.ravel()[order] > 0].tolist():
        job, picked = divmod(pair, offered.kind.size)
        if choice[job] < 0 and offered.devices[picked] <= free[offered.kind[picked]]:
            choice[job] = picked
            free[offered.kind[picked]] -= offered.devices[picked]
    while True:
        running = np.flatnonzero(choice >= 0)
        taken = choice[running]
        more = offered.devices - offered.devices[taken][:, None]
        fits = (offered.kind == offered.kind[taken][:, None]) & (more <= free[offered.kind])
        gain = np.where(fits, worth[running] - worth[running, taken][:, None], 0.0)
        if not gain.size or gain.max() <= 0.0:
            return choice
        row, picked = divmod(int(gain.argmax()), offered.kind.size)
        free[offered.kind[picked]] -= more[row, picked]
        choice[running[row]] = picked


def _solve(
    relative: FloatArray,
    allowed: BoolArray,
    kind: IntArray,
    devices: IntArray,
    free: FloatArray,
    kept: IntArray,
    power: float,
    penalty: float,
    limits: Limits,
) -> SiaPlan:
    jobs = len(relative)
    score = np.zeros_like(relative)
    runs = relative > 0
    score[runs] = relative[runs] ** power
    # The value of a configuration over waiting: both signs of p become one maximisation.
    value = np.where(allowed, penalty - score if power < 0 else score + penalty, 0.0)
    best, proven = greatest_value(value, kind, devices, free, limits)
    choice = np.where(best >= 0, best, kept)
    placed = np.flatnonzero(choice >= 0)
    waiting = jobs - placed.size
    total = float(score[placed, choice[placed]].sum())
    return SiaPlan(choice, total + penalty * waiting if power < 0 else total - penalty * waiting, proven)


class _Program:
    """The integer program over pairs (P) of a job and a configuration of ``value`` above 0: which to take, at most one per job,
    with ``devices`` of each type within ``free`` (T). ``row`` are the jobs, ascending, ``kind`` the types."""

    def __init__(self, value: FloatArray, row: IntArray, kind: IntArray, devices: IntArray, free: FloatArray) -> None:
        # Jobs without a pair are left out, so that programs are equal whoever else is there.
        job = np.cumsum(np.concatenate([row[:1] * 0, row[1:] != row[:-1]]))
        self._arrays = value, job, kind, devices, free
        self._key: tuple[bytes, ...] = tuple([item.tobytes() for item in (value, job, kind, devices, free)])

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Program) and type(self) is type(other) and self._key == other._key

    def solved(self, limits: Limits) -> Solution:
        """The solver's choice. Equal programs have the same one, and come back: few jobs come or go between rounds, and most are of
        few sizes. With a limit of time it may be another one each time."""
        return _solved(self, limits) if self._kept(limits) else self.solve(limits)

    def _kept(self, limits: Limits) -> bool:
        return limits.time_s is None and self._arrays[0].size <= _KEPT_PAIRS

    def solve(self, limits: Limits) -> Solution:
        """Ask the solver."""
        value, job, kind, devices, free = self._arrays
        pairs, jobs = np.arange(job.size), int(job[-1]) + 1
        rows = sparse.csr_array(
            (
                np.concatenate([np.ones(job.size), devices.astype(np.float64)]),
                (np.concatenate([job, jobs + kind]), np.concatenate([pairs, pairs])),
            ),
            shape=(jobs + free.size, job.size),
        )
        most = np.concatenate([np.ones(jobs), free])
        return minimise(-value, rows, np.full(most.size, -np.inf), most, limits)


@lru_cache(maxsize=4096)
def _solved(program: _Program, limits: Limits) -> Solution:
    return program.solve(limits)
