"""Rolling mixed-integer baseline: which type (or domain) and which time slot each waiting job gets, over a short horizon.

It knows what every other policy knows (estimated run times, what is running and until when), looks at the first jobs of the queue
and solves their placement exactly; the rest follows greedily. It is solved again at every decision, and only the jobs that
start in slot 0 are started.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from services.scheduler.core.errors import PolicyError
from services.scheduler.planners.alike_window import alike_starts
from services.scheduler.planners.checks import FloatArray, IntArray, number, numbers, whole_numbers
from services.scheduler.planners.mixed_integer import Limits, minimise


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Per job (J): type index and start slot, -1 and -1 when it does not start within the horizon.

    ``cost`` is the weighted completion time in seconds of the jobs that were solved together, ``proven`` that it is the least.
    """

    kind: IntArray
    slot: IntArray
    cost: float
    proven: bool


def free_devices(
    capacity: ArrayLike,
    running_kind: ArrayLike,
    running_devices: ArrayLike,
    running_left_s: ArrayLike,
    slots: int,
    slot_s: float,
) -> FloatArray:
    """Devices free (T, S) in each slot of ``slot_s`` seconds, given the jobs running (R): type, devices, remaining seconds.

    A job that is over its estimate (remaining 0) holds its devices for one slot more.
    """
    size = numbers("capacity", capacity, (None,), low=0.0)
    kind = whole_numbers("running_kind", running_kind, (None,), low=0, high=max(size.size - 1, 0))
    devices = numbers("running_devices", running_devices, (kind.size,), low=0.0)
    left = numbers("running_left_s", running_left_s, (kind.size,), low=0.0)
    count = int(whole_numbers("slots", slots, (), low=1, high=10**5))
    free = room_beside(size, kind, devices, left, count, number("slot_s", slot_s, low=1e-9))
    if (free < -1e-9).any():
        raise PolicyError(f"running_devices: more than the capacity of type {int(np.argwhere(free < -1e-9)[0][0])}")
    return np.maximum(free, 0.0)


def room_beside(
    capacity: FloatArray, kind: IntArray, devices: FloatArray, left_s: FloatArray, slots: int, slot_s: float
) -> FloatArray:
    """`free_devices` of what is known to be right; below 0 where more run than there are devices."""
    until = np.clip(np.ceil(left_s / slot_s), 1, slots).astype(np.int64)
    given = np.bincount(kind * slots + until - 1, devices, capacity.size * slots).reshape(capacity.size, slots)
    room: FloatArray = capacity[:, None] - np.cumsum(given[:, ::-1], axis=1)[:, ::-1]
    return room


def rolling_plan(
    duration_s: ArrayLike,
    devices: ArrayLike,
    weight: ArrayLike,
    free: ArrayLike,
    slot_s: float,
    *,
    first: int = 20,
    limits: Limits | None = None,
    now_only: bool = False,
) -> SlotPlan:
    """Minimise the weighted sum of completion times of the first jobs of the queue; the rest is placed behind them.

    ``duration_s`` (J, T) estimated run time, infinite where a job does not run; ``devices`` (J), all on one type; ``weight`` (J);
    ``free`` (T, S) from `free_devices`; jobs in the order of the queue.

    1. The first ``first`` jobs: binary x[j, t, s] = job j starts on type t in slot s. A job holds its devices for its duration
       rounded up to slots, cut at the horizon; completion = start + duration. Not starting costs as if it started after
       the horizon on its fastest type.
    2. Compared with the greedy placement of the same jobs; the better one is kept, so a solver cut short does no harm. Where
       greedy completes each job as early as if it were alone, in the one way that does, nothing is solved. Nor is it where
       serving the smallest first is best (`by_size`), nor a program that came before, whose answer is kept. On one type, of jobs
       worth alike that need whole devices, the plan is searched instead of all that (`alike_window`); the solver is asked where that does
       not end.
    3. The remaining jobs in order, each where it completes first in what is left (it never delays those before it). With
       ``now_only`` they are placed only until none of those behind has room in slot 0: who begins there is the same.
    """
    room = numbers("free", free, (None, None), low=0.0)
    kinds, slots = room.shape
    if not kinds:
        raise PolicyError("free: no types")
    length = numbers("duration_s", duration_s, (None, kinds), low=0.0, infinite=True)
    jobs = len(length)
    need = numbers("devices", devices, (jobs,), low=np.finfo(float).tiny)
    worth = numbers("weight", weight, (jobs,), low=0.0)
    step = number("slot_s", slot_s, low=1e-9)
    exact = min(int(whole_numbers("first", first, (), low=0, high=10**6)), jobs)
    head = np.arange(exact)
    alike = alike_starts(length, need, worth, room, step, exact, now_only=now_only)
    if alike is not None:
        alike_kind = np.where(alike >= 0, 0, -1)
        cost = _cost((alike_kind[head], alike[head]), head, length, worth, slots, step)
        return SlotPlan(alike_kind, alike, cost, proven=True)
    greedy = _greedy(head, length, need, room, step)
    solved, proven = None, True
    if not _none_better(greedy, head, length, need, room, step):
        solved = by_size(length[head], need[head], worth[head], room, step)
        if solved is None:
            program = _Program(length[head], need[head], worth[head], room, step)
            solved, proven = program.solved(limits or Limits())
    best = greedy
    cost = _cost(greedy, head, length, worth, slots, step)
    if solved is not None:
        solved_cost = _cost(solved, head, length, worth, slots, step)
        if solved_cost <= cost:
            best, cost = solved, solved_cost
    kind, slot = np.full(jobs, -1, dtype=np.int64), np.full(jobs, -1, dtype=np.int64)
    kind[head], slot[head] = best
    for job in head:
        if kind[job] >= 0:
            room = _taken(room, int(kind[job]), int(slot[job]), length[job, kind[job]], need[job], step)
    tail = np.arange(exact, jobs)
    kind[tail], slot[tail] = _greedy(tail, length, need, room, step, now_only=now_only)
    return SlotPlan(kind, slot, cost, proven)


def _held(length: float, step: float) -> int:
    return max(int(np.ceil(length / step - 1e-9)), 1)


def _taken(room: FloatArray, kind: int, slot: int, length: float, need: float, step: float) -> FloatArray:
    left = room.copy()
    left[kind, slot : slot + _held(length, step)] -= need
    return left


def _starts(room: FloatArray, need: float, held: int) -> IntArray:
    """Slots at which ``need`` devices are free for ``held`` slots (to the horizon at most), of one type (S)."""
    short = np.concatenate([[0], np.cumsum(room + 1e-9 < need)])
    slots = np.arange(room.size)
    return np.flatnonzero(short[np.minimum(slots + held, room.size)] == short[slots])


def _greedy(
    jobs: IntArray, length: FloatArray, need: FloatArray, room: FloatArray, step: float, *, now_only: bool = False
) -> tuple[IntArray, IntArray]:
    kind, slot = np.full(jobs.size, -1, dtype=np.int64), np.full(jobs.size, -1, dtype=np.int64)
    left = room.copy()
    behind = np.minimum.accumulate(need[jobs][::-1])[::-1]
    for index, job in enumerate(jobs):
        if now_only and behind[index] > left[:, 0].max() + 1e-9:
            break
        best = np.inf
        for candidate in np.flatnonzero(np.isfinite(length[job])):
            starts = _starts(left[candidate], need[job], _held(length[job, candidate], step))
            if starts.size and starts[0] * step + length[job, candidate] < best:
                best = starts[0] * step + length[job, candidate]
                kind[index], slot[index] = candidate, starts[0]
        if kind[index] >= 0:
            left = _taken(left, int(kind[index]), int(slot[index]), length[job, kind[index]], need[job], step)
    return kind, slot


def _none_better(
    plan: tuple[IntArray, IntArray], jobs: IntArray, length: FloatArray, need: FloatArray, room: FloatArray, step: float
) -> bool:
    """Whether each of the jobs completes as early as it could alone in ``room``, could so in no other way, and would not better wait."""
    beyond = _beyond(length, room.shape[1], step).tolist()
    for job, kind, slot in zip(jobs.tolist(), *(item.tolist() for item in plan), strict=True):
        ends = [
            (starts[0] * step + length[job, candidate], candidate)
            for candidate in np.flatnonzero(np.isfinite(length[job])).tolist()
            if (starts := _starts(room[candidate], need[job], _held(length[job, candidate], step))).size
        ]
        least = min(ends, default=(np.inf, -1))[0]
        if [candidate for end, candidate in ends if end == least] != ([kind] if kind >= 0 else []):
            return False
        if kind >= 0 and (slot * step + length[job, kind] > least or least >= beyond[job]):
            return False
    return True


def _beyond(length: FloatArray, slots: int, step: float) -> FloatArray:
    fastest = length.min(axis=1, initial=np.inf)
    return slots * step + np.where(np.isfinite(fastest), fastest, 0.0)


def _cost(
    plan: tuple[IntArray, IntArray], jobs: IntArray, length: FloatArray, worth: FloatArray, slots: int, step: float
) -> float:
    kind, slot = plan
    completion = np.where(kind >= 0, slot * step + length[jobs, kind], _beyond(length[jobs], slots, step))
    return float((worth[jobs] * completion).sum())


def by_size(
    length: FloatArray, need: FloatArray, worth: FloatArray, room: FloatArray, step: float
) -> tuple[IntArray, IntArray] | None:
    """Type and slot (J) of the least sum of completion times where jobs are served the smallest first, the first of equal ones; None
    where that need not be the least.

    It is on one type whose free devices (1, S) never become fewer, of jobs worth alike that last to the horizon at least: nobody gives
    anything back, so that at most as many have begun by a slot as fit into what is free there, and the smallest are most.
    """
    slots = room.shape[1]
    if len(room) != 1 or (np.diff(room[0]) < 0).any() or (worth != worth[:1]).any():
        return None
    free = room[0] + 1e-9
    first = free.searchsorted(need)
    order = np.flatnonzero(np.isfinite(length[:, 0]) & (first < slots))
    if (np.ceil(length[order, 0] / step - 1e-9) + first[order] < slots).any():
        return None
    order = order[np.argsort(need[order], kind="stable")]
    slot = np.full(need.size, -1, dtype=np.int64)
    begins = free.searchsorted(np.cumsum(need[order]))
    slot[order] = np.where(begins < slots, begins, -1)
    return np.where(slot >= 0, 0, -1), slot


_Places = tuple[tuple[tuple[int, int], ...], ...]
"""For each class of jobs the types and slots of those that begin, the earliest first."""


class _Program:
    """The integer program of some jobs (J), which are of few classes: alike in all that it hangs on. Programs of as many jobs of
    each class are equal."""

    def __init__(self, length: FloatArray, need: FloatArray, worth: FloatArray, room: FloatArray, step: float) -> None:
        kinds, slots = room.shape
        runs = np.isfinite(length)
        fastest = length.min(axis=1, initial=np.inf)
        self._could = np.flatnonzero((runs & (room.max(axis=1) + 1e-9 >= need[:, None])).any(axis=1))
        # What lies beyond the horizon changes nothing; 0 where a job does not run.
        held = np.where(runs, np.clip(np.ceil(np.where(runs, length, 0.0) / step - 1e-9), 1.0, slots), 0.0)
        # By how much it is slower there than where it is fastest.
        later = np.where(runs, length - np.where(np.isfinite(fastest), fastest, 0.0)[:, None], 0.0)
        table = np.column_stack([need, worth, held, later])[self._could]
        self._classes, members, self._many = np.unique(table, axis=0, return_inverse=True, return_counts=True)
        self._members = members.reshape(-1)
        self._room, self._step = np.minimum(room, need[self._could].sum()), step
        self._key = (kinds, slots, step, self._room.tobytes(), self._classes.tobytes(), self._many.tobytes())
        self._jobs = need.size

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Program) and self._key == other._key

    def solved(self, limits: Limits) -> tuple[tuple[IntArray, IntArray] | None, bool]:
        """Type and slot of each job, -1 for none, the first of a class the earliest; None where the solver ended without an answer.
        And whether it is proven."""
        places, proven = _solved(self, limits) if limits.time_s is None else self.solve(limits)
        if places is None:
            return None, proven
        kind, slot = np.full((2, self._jobs), -1, dtype=np.int64)
        for which, begin in enumerate(places):
            for job, place in zip(self._could[self._members == which].tolist(), begin, strict=False):
                kind[job], slot[job] = place
        return (kind, slot), proven

    def solve(self, limits: Limits) -> tuple[_Places | None, bool]:
        """How many of each class begin where and when."""
        room, step = self._room, self._step
        kinds, slots = room.shape
        columns: list[tuple[int, int, int]] = []
        cost: list[float] = []
        row: list[int] = []
        column: list[int] = []
        entry: list[float] = []
        for which, (need, worth, *rest) in enumerate(self._classes.tolist()):
            for kind in range(kinds):
                held, later = int(rest[kind]), rest[kinds + kind]
                for slot in _starts(room[kind], need, held).tolist() if held else ():
                    # Before capacity is shared: a start that is later than not starting at all is never chosen.
                    gain = worth * ((slots - slot) * step - later)
                    if gain <= 0:
                        continue
                    cells = range(slot, min(slot + held, slots))
                    row += [which, *(self._many.size + kind * slots + cell for cell in cells)]
                    column += [len(columns)] * (1 + len(cells))
                    entry += [1.0] + [need] * len(cells)
                    columns.append((which, kind, slot))
                    cost.append(-gain)
        if not columns:
            return ((),) * self._many.size, True
        most = np.concatenate([self._many.astype(np.float64), room.ravel()])
        rows = sparse.csr_array((entry, (row, column)), shape=(most.size, len(columns)))
        upper = self._many[[which for which, _, _ in columns]].astype(np.float64)
        solution = minimise(np.array(cost), rows, np.full(most.size, -np.inf), most, limits, upper=upper)
        if solution.values is None:
            return None, False
        begin: list[list[tuple[int, int]]] = [[] for _ in self._many]
        for (which, kind, slot), many in zip(columns, solution.values.astype(np.int64).tolist(), strict=True):
            begin[which] += [(kind, slot)] * many
        return tuple([tuple(sorted(places, key=lambda place: place[::-1])) for places in begin]), solution.proven


@lru_cache(maxsize=4096)
def _solved(program: _Program, limits: Limits) -> tuple[_Places | None, bool]:
    return program.solve(limits)
