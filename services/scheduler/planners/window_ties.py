"""Which of the plans of least cost: the one in which the largest of devices times slots begin first.

Of plans that cost as much it leaves the least devices free early, and keeps long jobs from being put off for others as large. Jobs that
hold their devices to the horizon from their earliest start on (lasting ones) give nothing back: whatever the others (passing ones) do,
of them the smallest begin first, of as many devices the shorter ones.

Passing jobs, the largest first, each at every start with room from the earliest on and at none; those alike in order. A part of a plan
is left where `_Search.least` is more than the cost leaves. The free devices of all slots are one integer of a field per slot, whose
highest bit is a guard: one subtraction says in which slots a job has room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_Class = tuple[int, int, int]
"""Devices, slots (at most to the horizon), and how many jobs."""


def largest_first(classes: Sequence[_Class], room: Sequence[int], cost: int, nodes: int) -> list[list[int]] | None:
    """Per class the slots at which jobs begin, ascending, of the first plan that costs ``cost``, the least sum of slots (not to begin
    counts as their number); None where it was not found within ``nodes`` nodes. Classes by devices and slots, each with room somewhere."""
    search = _Search(classes, room, nodes)
    return search.starts() if search.found(0, search.free, cost) else None


class _Search:
    def __init__(self, classes: Sequence[_Class], room: Sequence[int], nodes: int) -> None:
        self._slots, self._nodes, self._classes = len(room), nodes, len(classes)
        demand = sum(need * many for need, _, many in classes)
        self._width = max(max(room, default=0), demand).bit_length() + 1
        self._ones = self._filled(self._slots)
        self._guards = self._ones << (self._width - 1)
        self._beyond = self._guards << (self._slots * self._width)
        self._all = (1 << (self._slots * self._width)) - 1
        self.free = sum(free << (slot * self._width) for slot, free in enumerate(room))
        self._lasting: list[tuple[int, int]] = []
        """Needs and classes, the smallest first."""
        self._passing: list[tuple[int, int, int]] = []
        """Needs, slots and classes."""
        for which, (need, held, many) in enumerate(classes):
            first = self._slot_of(self._room_for(self.free, need, held))
            if first + held >= self._slots > first:
                self._lasting += [(need, which)] * many
            elif first < self._slots:
                self._passing += [(need, held, which)] * many
        self._lasting.sort()
        self._passing.sort(key=lambda job: (-job[0] * job[1], job))
        self._cells = [need * self._filled(held) for need, held, _ in self._passing]
        self._sums = [total * self._ones for total in accumulate(need for need, _ in self._lasting)]
        self._groups = [self._groups_of(place) for place in range(len(self._passing))]
        self._now = [0] * len(self._passing)

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

    def starts(self) -> list[list[int]]:
        """The plan that was found."""
        found: list[list[int]] = [[] for _ in range(self._classes)]
        free = self.free
        for (_, _, which), slot, cells in zip(self._passing, self._now, self._cells, strict=True):
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

    def least(self, free: int, place: int) -> int:
        """No less do the lasting jobs and the passing ones from ``place`` on cost in what is ``free``: of them by each slot at most
        those with room for them alone have begun, and at most those that fit beside each other there, the smallest first, of all that
        last h slots or to the horizon, those that began more than h slots ago (by the same reasoning) and the shorter ones with room."""
        slots, lasting = self._slots, self._lasting_starts(free)
        rest = self._passing[place:]
        if not rest:
            return sum(lasting) + (len(self._lasting) - len(lasting)) * slots
        begins, firsts, before, first = [0] * (slots + 1), [], None, 0
        for job in rest:
            if job != before:
                before, first = job, self._slot_of(self._room_for(free, job[0], job[1]))
            begins[first] += 1
            firsts.append(first)
        for slot in lasting:
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
                most[slot] = min(most[slot], shorter + ago + bisect_right(everyone, here))
        return (len(rest) + len(self._lasting)) * slots - sum(most)

    def found(self, place: int, free: int, cost: int) -> bool:
        """Whether the lasting jobs and the passing ones from ``place`` on can cost ``cost``, the least that they can."""
        if place == len(self._passing):
            return self.least(free, place) <= cost
        need, held, _ = self._passing[place]
        earliest = self._now[place - 1] if place and self._passing[place] == self._passing[place - 1] else 0
        starts = self._room_for(free, need, held) >> (earliest * self._width) << (earliest * self._width)
        least = self.least(free, place + 1)
        while True:
            slot = self._slot_of(starts)
            if slot + least > cost or not self._nodes:
                return False
            self._nodes -= 1
            self._now[place] = slot
            if slot == self._slots:
                return self.found(place + 1, free, cost - slot)
            left = free - ((self._cells[place] << (slot * self._width)) & self._all)
            if slot + self.least(left, place + 1) <= cost and self.found(place + 1, left, cost - slot):
                return True
            starts &= starts - 1
