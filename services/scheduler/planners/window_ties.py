"""Which of the plans of least cost: the one in which the largest of devices times slots begin first.

Of plans that cost as much it leaves the least devices free early, and keeps long jobs from being put off for others as large. Jobs that
hold their devices to the horizon from their earliest start on (lasting ones) give nothing back: whatever the others (passing ones) do,
of them the smallest begin first, of as many devices the shorter ones.

Passing jobs, the largest first, each at every start with room from the earliest on and at none; those alike in order. A part of a plan
is left where `_Search.least` is more than the cost leaves. The free devices of all slots are one integer of a field per slot, whose
highest bit is a guard: one subtraction says in which slots a job has room.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import add

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
        # Fields of whole bytes, so that all are read at once.
        bits = max(max(room, default=0), demand).bit_length() + 1
        self._width, form = next((width, form) for width, form in ((16, "H"), (32, "I"), (64, "Q")) if bits <= width)
        self._fields = struct.Struct(f"<{self._slots}{form}")
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
        self._rest: list[_Rest | None] = [None] * len(self._passing)
        self._now = [0] * len(self._passing)

    def _filled(self, slots: int) -> int:
        return sum(1 << (slot * self._width) for slot in range(slots))

    def _rest_of(self, place: int) -> _Rest:
        found = self._rest[place]
        if found is None:
            found = self._rest[place] = _Rest(self._passing[place:], [need for need, _ in self._lasting])
        return found

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

    def least(self, free: int, place: int, enough: int) -> int:
        """No less do the lasting jobs and the passing ones from ``place`` on cost in what is ``free``: of them by each slot at most
        those with room for them alone have begun, and at most those that fit beside each other there, the smallest first, of all that
        last h slots or to the horizon, those that began more than h slots ago (by the same reasoning) and the shorter ones with room.
        It looks no further where that is more than ``enough``."""
        slots, lasting = self._slots, self._lasting_starts(free)
        if place == len(self._passing):
            return sum(lasting) + (len(self._lasting) - len(lasting)) * slots
        rest = self._rest_of(place)
        first = [self._slot_of(self._room_for(free, need, held)) for need, held, _ in rest.classes]
        begins = [0] * (slots + 1)
        for (_, _, many), slot in zip(rest.classes, first, strict=True):
            begins[slot] += many
        for slot in lasting:
            begins[slot] += 1
        most = list(accumulate(begins[:slots]))
        never = (rest.jobs + len(self._lasting)) * slots
        cost = never - sum(most)
        room = self._fields.unpack(free.to_bytes(self._fields.size, "little"))
        for number, (held, needs, everyone, shorter) in enumerate(rest.groups):
            if cost > enough:
                # What told first is likely to tell again.
                if number:
                    rest.groups.insert(0, rest.groups.pop(number - 1))
                break
            # How many of those that last so long began more than ``held`` slots ago.
            ago = [0] * slots
            if held < slots:
                begun = list(map(bisect_right, repeat(needs), room[: slots - held]))
                for slot in range(held, slots - held):
                    begun[slot] += begun[slot - held]
                ago[held:] = begun
            now = map(add, ago, map(bisect_right, repeat(everyone), room))
            if shorter:
                begins = [0] * (slots + 1)
                for which in shorter:
                    begins[first[which]] += rest.classes[which][2]
                now = map(add, now, accumulate(begins[:slots]))
            most = list(map(min, most, now))
            cost = never - sum(most)
        return cost

    def found(self, place: int, free: int, cost: int) -> bool:
        """Whether the lasting jobs and the passing ones from ``place`` on can cost ``cost``, the least that they can."""
        if place == len(self._passing):
            return self.least(free, place, cost) <= cost
        need, held, _ = self._passing[place]
        earliest = self._now[place - 1] if place and self._passing[place] == self._passing[place - 1] else 0
        starts = self._room_for(free, need, held) >> (earliest * self._width) << (earliest * self._width)
        least = self.least(free, place + 1, cost)
        while True:
            slot = self._slot_of(starts)
            if slot + least > cost or not self._nodes:
                return False
            self._nodes -= 1
            self._now[place] = slot
            if slot == self._slots:
                return self.found(place + 1, free, cost - slot)
            left = free - ((self._cells[place] << (slot * self._width)) & self._all)
            if self.least(left, place + 1, cost - slot) <= cost - slot and self.found(place + 1, left, cost - slot):
                return True
            starts &= starts - 1


class _Rest:
    """Passing jobs from a place on: how many, their ``classes``, and ``groups``, for each number of slots h that one of them lasts: h,
    the sums of the smallest needs of those that last h slots at least, without and with the lasting ones, and the shorter classes."""

    def __init__(self, passing: Sequence[tuple[int, int, int]], lasting: Sequence[int]) -> None:
        self.jobs = len(passing)
        counts = Counter([(need, held) for need, held, _ in passing])
        self.classes = [(need, held, many) for (need, held), many in counts.items()]
        self.groups: list[tuple[int, list[int], list[int], list[int]]] = []
        for least in sorted({held for _, held, _ in passing}):
            needs = sorted([need for need, held, _ in passing if held >= least])
            everyone = sorted([*needs, *lasting])
            shorter = [which for which, (_, held, _) in enumerate(self.classes) if held < least]
            self.groups.append((least, list(accumulate(needs)), list(accumulate(everyone)), shorter))
