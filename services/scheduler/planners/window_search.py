"""Start slots of the least sum over jobs worth alike on one type, by branch and bound: exact, and faster than an integer program.

Jobs that hold their devices to the horizon from their earliest start on (lasting ones) give nothing back: whatever the others do, the
smallest first are begun by every slot as many as can be. So only the others (passing ones) are searched.

1. A first plan: the best of some orders in which each job takes the earliest slots with room.
2. Passing jobs, the largest of devices times slots first, each at every start with room and at none; those alike in order.
3. A part of a plan is left where `_Search.least` is no less than the best plan's cost. It adds up, slot by slot, how many jobs cannot
   have begun yet: at most those with room for them alone; and at most those that fit beside each other there, the smallest first, of all that
   last h slots or to the horizon, those that began more than h slots ago (by the same reasoning) and the shorter ones with room.

The free devices of all slots are one integer of a field per slot, whose highest bit is a guard: one subtraction says in which slots a
job has room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

_MOST_NODES = 5000
_MOST_PASSING = 100
"""More jobs than that are not searched."""

_ORDERS: tuple[Callable[[int, int], tuple[int, int]], ...] = (
    lambda need, held: (need * held, need),
    lambda need, held: (need, held),
    lambda need, held: (held, need),
    lambda need, held: (need * need * held, need),
    lambda need, held: (need * held * held, need),
)


@dataclass(frozen=True, slots=True)
class Alike:
    """``many`` jobs of ``need`` devices for ``held`` slots each (at least 1, at most to the horizon)."""

    need: int
    held: int
    many: int


def best_starts(classes: Sequence[Alike], room: Sequence[int], *, nodes: int = _MOST_NODES) -> list[list[int]] | None:
    """Per class the slots at which jobs begin, ascending, the others do not: of the least sum of slots, where not to begin counts as the
    number of slots. ``room`` are the free devices of each slot. None where the search is not over after ``nodes`` nodes."""
    search = _Search(classes, room, nodes)
    return search.starts() if search.solved() else None


class _Search:
    def __init__(self, classes: Sequence[Alike], room: Sequence[int], nodes: int) -> None:
        self._slots, self._nodes = len(room), nodes
        self._classes = len(classes)
        demand = sum(item.need * item.many for item in classes)
        self._width = max(max(room, default=0), demand).bit_length() + 1
        self._ones = self._filled(self._slots)
        self._guards = self._ones << (self._width - 1)
        self._beyond = self._guards << (self._slots * self._width)
        self._all = (1 << (self._slots * self._width)) - 1
        self._free = sum(free << (slot * self._width) for slot, free in enumerate(room))
        self._lasting: list[tuple[int, int]] = []
        """Needs and classes, the smallest first."""
        self._passing: list[tuple[int, int, int]] = []
        """Needs, slots and classes."""
        for which, item in enumerate(classes):
            first = self._first(self._free, item.need, item.held)
            if first + item.held >= self._slots > first:
                self._lasting += [(item.need, which)] * item.many
            elif first < self._slots:
                self._passing += [(item.need, item.held, which)] * item.many
        self._lasting.sort()
        self._passing.sort(key=lambda job: (-job[0] * job[1], job))
        self._cells = [need * self._filled(held) for need, held, _ in self._passing]
        self._sums = [total * self._ones for total in accumulate(need for need, _ in self._lasting)]
        self._groups = [self._groups_of(place) for place in range(len(self._passing))]
        self._now = [0] * len(self._passing)
        self._best: list[int] = []
        self._cost = 0

    def _filled(self, slots: int) -> int:
        return sum(1 << (slot * self._width) for slot in range(slots))

    def _groups_of(self, place: int) -> list[tuple[int, list[int], list[int]]]:
        """For each number of slots h of the passing jobs from ``place`` on: h, and the sums of the smallest needs of those that
        last h slots at least, without and with the lasting ones."""
        rest = self._passing[place:]
        groups = []
        for least in sorted({held for _, held, _ in rest}):
            needs = [need for need, held, _ in rest if held >= least]
            everyone = sorted(needs + [need for need, _ in self._lasting])
            groups.append((least, list(accumulate(sorted(needs))), list(accumulate(everyone))))
        return groups

    def solved(self) -> bool:
        """Whether the best plan was found."""
        if len(self._passing) > _MOST_PASSING:
            return False
        least = self.least(self._free, 0)
        for number, order in enumerate(_ORDERS):
            cost, plan = self._by_order(order)
            if not number or cost < self._cost:
                self._cost, self._best = cost, plan
            if self._cost <= least:
                return True
        self._branch(0, self._free, 0)
        return self._nodes >= 0

    def starts(self) -> list[list[int]]:
        """The best plan; see `best_starts`."""
        found: list[list[int]] = [[] for _ in range(self._classes)]
        free = self._free
        for (_, _, which), slot, cells in zip(self._passing, self._best, self._cells, strict=True):
            if slot < self._slots:
                found[which].append(slot)
                free -= (cells << (slot * self._width)) & self._all
        for (_, which), slot in zip(self._lasting, self._lasting_starts(free), strict=False):
            found[which].append(slot)
        return [sorted(slots) for slots in found]

    def _room_for(self, free: int, need: int, held: int) -> int:
        """The guards of the slots at which ``need`` devices are free for ``held`` slots, and of the slots beyond the horizon."""
        found = (((free | self._guards) - need * self._ones) & self._guards) | self._beyond
        have = 1
        while have < held:
            more = min(have, held - have)
            found &= found >> (more * self._width)
            have += more
        return found

    def _slot_of(self, guards: int) -> int:
        """The first slot of ``guards``, the number of slots where it lies beyond the horizon."""
        return min(((guards & -guards).bit_length() - 1) // self._width, self._slots)

    def _first(self, free: int, need: int, held: int) -> int:
        return self._slot_of(self._room_for(free, need, held))

    def _lasting_starts(self, free: int) -> list[int]:
        """When lasting jobs begin, the smallest first; without those that do not."""
        guarded, starts = free | self._guards, []
        for needed in self._sums:
            short = ~(guarded - needed) & self._guards
            slot = short.bit_length() // self._width
            if slot >= self._slots:
                break
            starts.append(slot)
        return starts

    def _lasting_cost(self, free: int) -> int:
        starts = self._lasting_starts(free)
        return sum(starts) + (len(self._lasting) - len(starts)) * self._slots

    def _by_order(self, order: Callable[[int, int], tuple[int, int]]) -> tuple[int, list[int]]:
        """Cost, and starts of the passing jobs, where all jobs in this order take the earliest slots with room."""
        slots, width = self._slots, self._width
        jobs = [(order(need, held), need, held, place) for place, (need, held, _) in enumerate(self._passing)]
        jobs += [(order(need, slots), need, slots, -1) for need, _ in self._lasting]
        jobs.sort()
        left = without = self._free
        starts = [slots] * len(self._passing)
        for _, need, held, place in jobs:
            slot = self._first(left, need, held)
            if slot >= slots:
                continue
            cells = self._cells[place] if place >= 0 else need * self._ones
            taken = (cells << (slot * width)) & self._all
            left -= taken
            if place >= 0:
                without -= taken
                starts[place] = slot
        return sum(starts) + self._lasting_cost(without), starts

    def least(self, free: int, place: int) -> int:
        """No less do the lasting jobs and the passing ones from ``place`` on cost in what is ``free``."""
        if place == len(self._passing):
            return self._lasting_cost(free)
        slots = self._slots
        rest = self._passing[place:]
        begins, firsts, before = [0] * (slots + 1), [], None
        for job in rest:
            if job != before:
                before, first = job, self._first(free, job[0], job[1])
            begins[first] += 1
            firsts.append(first)
        for slot in self._lasting_starts(free):
            begins[slot] += 1
        most = list(accumulate(begins[:slots]))
        field = (1 << (self._width - 1)) - 1
        room = [(free >> (slot * self._width)) & field for slot in range(slots)]
        for held, needs, everyone in self._groups[place]:
            begins = [0] * (slots + 1)
            for job, first in zip(rest, firsts, strict=True):
                if job[1] < held:
                    begins[first] += 1
            shorter = 0
            begun: list[int] = []
            for slot, here in enumerate(room):
                shorter += begins[slot]
                ago = begun[slot - held] if slot >= held else 0
                begun.append(ago + bisect_right(needs, here))
                found = shorter + ago + bisect_right(everyone, here)
                most[slot] = min(most[slot], found)
        return (len(rest) + len(self._lasting)) * slots - sum(most)

    def _branch(self, place: int, free: int, cost: int) -> None:
        """Try all starts of the passing jobs from ``place`` on; the others cost ``cost``."""
        if place == len(self._passing):
            cost += self._lasting_cost(free)
            if cost < self._cost:
                self._cost, self._best = cost, self._now.copy()
            return
        need, held, _ = self._passing[place]
        earliest = self._now[place - 1] if place and self._passing[place] == self._passing[place - 1] else 0
        starts = self._room_for(free, need, held) >> (earliest * self._width) << (earliest * self._width)
        least = self.least(free, place + 1)
        while self._nodes >= 0:
            slot = self._slot_of(starts)
            if cost + slot + least >= self._cost:
                return
            self._nodes -= 1
            self._now[place] = slot
            if slot == self._slots:
                self._branch(place + 1, free, cost + slot)
                return
            left = free - ((self._cells[place] << (slot * self._width)) & self._all)
            if cost + slot + self.least(left, place + 1) < self._cost:
                self._branch(place + 1, left, cost + slot)
            starts &= starts - 1
