"""Start slots of the least sum over jobs worth alike on one type whose free devices never become fewer: exact, and faster than an
integer program.

1. A first plan: the best of some orders in which each job takes the earliest slots with room. It is the answer where it costs no more than
   `_Search.least` says of all.
2. Slot by slot, the numbers of each class of jobs that begin there. As who began gives back later, a job has room for all its slots
   where it has room in the first. Of the plans these are left out, as others cost no more:
   - a job begins at a slot though it had room one slot before, beside all who began by then: it would better begin there;
   - a job that holds its devices to the horizon begins, though one that needs no more waits (of as many devices the shorter one):
     exchanged they cost as much;
   - what comes out at a slot where another way came out with the same jobs left, the same room and no more cost;
   - those in which fewer begin at the slot than the best plan's cost allows, and those with `_Search.least` no less than that.

Of plans of the least cost the first plan is kept where it is one; else it is the one of `window_ties`, where that is found within
``_TIE_NODES`` nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise, repeat
from operator import add

from services.scheduler.planners.window_ties import largest_first

_MOST_NODES = 5000
_TIE_NODES = 2000

_ORDERS: tuple[Callable[[int, int], tuple[int, int]], ...] = (
    lambda need, held: (need * held, need),
    lambda need, held: (need, held),
    lambda need, held: (held, need),
    lambda need, held: (need * need * held, need),
    lambda need, held: (need * held * held, need),
)

_Counts = tuple[int, ...]
"""Jobs of each class."""

_Kinds = tuple[tuple[int, int], ...]
"""Devices and slots of each class, by devices."""

_Way = list[tuple[int, int]]
"""Classes, and how many jobs of each."""


@dataclass(frozen=True, slots=True)
class Alike:
    """``many`` jobs of ``need`` devices for ``held`` slots each (at least 1, at most to the horizon)."""

    need: int
    held: int
    many: int


def best_starts(classes: Sequence[Alike], room: Sequence[int], *, nodes: int = _MOST_NODES) -> list[list[int]] | None:
    """Per class the slots at which jobs begin, ascending, the others do not: of the least sum of slots, where not to begin counts as the
    number of slots. ``room`` are the free devices of each slot. None where they become fewer, and where the search is not over after
    ``nodes`` slots at which it had a choice."""
    if any(later < free for free, later in pairwise(room)):
        return None
    starts: list[list[int]] = [[] for _ in classes]
    could = [which for which, item in enumerate(classes) if room and item.need <= room[-1]]
    could.sort(key=lambda which: (classes[which].need, classes[which].held))
    if not could:
        return starts
    search = _Search([classes[which] for which in could], room, nodes)
    if not search.solved():
        return None
    found = None
    if search.searched:
        alike = [(classes[which].need, classes[which].held, classes[which].many) for which in could]
        found = largest_first(alike, room, search.cost, _TIE_NODES)
    for which, begins in zip(could, found or search.best, strict=True):
        starts[which] = begins
    return starts


class _Search:
    """The search for jobs (classes by need and slots) that have room at some slot each."""

    def __init__(self, classes: Sequence[Alike], room: Sequence[int], nodes: int) -> None:
        self._classes, self._room, self._slots, self._nodes = classes, list(room), len(room), nodes
        self._begun: list[tuple[int, int, int]] = []
        """Of the part of a plan that is looked at: slots, classes and numbers of jobs."""
        self._seen: dict[tuple[int, int, _Counts, tuple[int, ...]], int] = {}
        """The least cost of what came out at a slot."""
        self._kinds = tuple([(item.need, item.held) for item in classes])
        self.best: list[list[int]] = []
        self.cost = 0
        self.searched = False
        """Whether the best plan is none of the first ones."""

    def solved(self) -> bool:
        """Whether the best plan was found."""
        everyone = tuple([item.many for item in self._classes])
        least, most = self.least(0, self._room, everyone, sum(everyone) * self._slots + 1)
        for number, order in enumerate(_ORDERS):
            cost, plan = self._by_order(order)
            if not number or cost < self.cost:
                self.cost, self.best = cost, plan
            if self.cost <= least:
                return True
        self._branch(0, self._room, everyone, 0, 0, least, most)
        return self._nodes >= 0

    def _by_order(self, order: Callable[[int, int], tuple[int, int]]) -> tuple[int, list[list[int]]]:
        """Cost and starts where all jobs in this order take the earliest slots with room."""
        slots, left = self._slots, self._room.copy()
        cost = 0
        plan: list[list[int]] = [[] for _ in self._classes]
        lasts = [
            slots if bisect_left(self._room, item.need) + item.held >= slots else item.held for item in self._classes
        ]
        for which in sorted(range(len(plan)), key=lambda which: order(self._classes[which].need, lasts[which])):
            item, begins, slot = self._classes[which], plan[which], 0
            need, held = item.need, item.held
            while len(begins) < item.many and slot < slots:
                end = min(slot + held, slots)
                least = min(left[slot:end])
                if least < need:
                    slot = max([cell for cell in range(slot, end) if left[cell] < need]) + 1
                    continue
                many = min(least // need, item.many - len(begins))
                begins += [slot] * many
                for cell in range(slot, end):
                    left[cell] -= need * many
                cost += slot * many
            cost += (item.many - len(begins)) * slots
        return cost, plan

    def least(self, slot: int, free: list[int], counts: _Counts, enough: int) -> tuple[int, list[int]]:
        """No less do ``counts`` jobs of each class cost in what is ``free`` from ``slot`` on, and how many at most have begun by each
        slot (for those from ``slot`` on). It looks no further where that is ``enough``.

        Of those that last h slots at least, each that began by a slot holds its devices at that slot or at one that is a multiple of
        h before it: so they need no more together than is free there in sum, and are no more than fit beside each other in each.
        Of the shorter ones at most those with room for them alone have begun.
        """
        needed, groups = _groups_of(self._kinds, counts)
        jobs, slots = sum(counts), self._slots
        least = 0
        # All have begun by the first slot with room for all beside each other.
        here = free[slot : bisect_left(free, needed, slot)] if groups else []
        most = [jobs] * len(here)
        for number, (held, sums, shorter) in enumerate(groups):
            begun = list(map(bisect_right, repeat(sums), here))
            if held < len(here):
                together = here.copy()
                for place in range(held, len(here)):
                    together[place] = devices = together[place] + together[place - held]
                    many, alone = bisect_right(sums, devices), begun[place] + begun[place - held]
                    begun[place] = min(many, alone)
            if shorter:
                begun = list(map(add, begun, map(bisect_right, repeat(shorter), here)))
            most = list(map(min, most, begun))
            least = jobs * (slot + len(here)) - sum(most)
            if least >= enough:
                # What told is likely to tell again.
                groups.insert(0, groups.pop(number))
                break
        return least, most + [jobs] * (slots - slot - len(here))

    def _branch(
        self, slot: int, free: list[int], counts: _Counts, fitted: int, cost: int, least: int, most: Sequence[int]
    ) -> None:
        """Try all ways in which ``counts`` jobs of each class begin from ``slot`` on; the others cost ``cost``. Those that need
        ``fitted`` devices or fewer had room one slot before. The whole costs ``least`` at least; ``most`` begin by each slot from this on."""
        classes, slots, begin = self._classes, self._slots, slot
        while True:
            if slot >= slots or not any(counts):
                self._found(cost + sum(counts) * slots)
                return
            here = free[slot]
            if any(many and fitted < item.need <= here for item, many in zip(classes, counts, strict=True)):
                break
            least += most[slot - begin]
            if least >= self.cost:
                return
            fitted, slot = here, slot + 1
        self._nodes -= 1
        if self._nodes < 0:
            return
        fewest = least + most[slot - begin] - self.cost + 1
        ways: list[tuple[int, int, _Way, list[int], _Counts, int, list[int]]] = []
        for chosen in self._ways(slot, here, counts, fitted, fewest):
            left = free.copy()
            stay = list(counts)
            began = 0
            for which, many in chosen:
                need, held = classes[which].need * many, classes[which].held
                for cell in range(slot, min(slot + held, slots)):
                    left[cell] -= need
                stay[which] -= many
                began += many
            now = cost + slot * began
            rest = tuple(stay)
            bound, later = self.least(slot + 1, left, rest, self.cost - now)
            if now + bound < self.cost:
                ways.append((now + bound, len(ways), chosen, left, rest, now, later))
        ways.sort(key=lambda way: way[:2])
        for bound, _, chosen, left, rest, now, later in ways:
            if bound >= self.cost:
                return
            had = max(
                [item.need for item, many in zip(classes, rest, strict=True) if many and item.need <= left[slot]],
                default=0,
            )
            seen = (slot + 1, had, rest, tuple(left[slot + 1 :]))
            if self._seen.get(seen, now + 1) <= now:
                continue
            self._seen[seen] = now
            self._begun += [(slot, which, many) for which, many in chosen]
            self._branch(slot + 1, left, rest, had, now, bound, later)
            if chosen:
                del self._begun[-len(chosen) :]

    def _found(self, cost: int) -> None:
        if cost < self.cost:
            self.cost, self.best, self.searched = cost, [[] for _ in self._classes], True
            for slot, which, many in self._begun:
                self.best[which] += [slot] * many

    def _ways(self, slot: int, free: int, counts: _Counts, fitted: int, fewest: int) -> list[_Way]:
        """All ways in which ``fewest`` jobs or more begin at the slot, of those that need more than ``fitted`` devices."""
        classes = self._classes
        needs: list[int] = []
        places = []
        for item, many in zip(classes, counts, strict=True):
            places.append(len(needs))
            if fitted < item.need <= free:
                needs += [item.need] * many
        sums = [0, *accumulate(needs)]
        found: list[_Way] = []

        def choose(which: int, left: int, begun: int, chosen: _Way, *, waits: bool) -> None:
            while which < len(classes):
                many, need = counts[which], classes[which].need
                if many and fitted < need <= left and not (waits and slot + classes[which].held >= self._slots):
                    break
                waits = waits or many > 0
                which += 1
            else:
                if begun >= fewest:
                    found.append(chosen)
                return
            behind = places[which + 1] if which + 1 < len(classes) else len(needs)
            for some in range(min(many, left // need), -1, -1):
                rest = left - some * need
                if begun + some + bisect_right(sums, sums[behind] + rest) - 1 - behind < fewest:
                    return
                choose(
                    which + 1,
                    rest,
                    begun + some,
                    [*chosen, (which, some)] if some else chosen,
                    waits=waits or some < many,
                )

        choose(0, free, 0, [], waits=False)
        return found


@lru_cache(maxsize=1 << 15)
def _groups_of(kinds: _Kinds, counts: _Counts) -> tuple[int, list[tuple[int, list[int], list[int]]]]:
    """What all need together, and for each number of slots h that one of the jobs lasts, in any order: h, the sums of the smallest needs
    of those that last h slots at least, and the needs of the shorter ones, the smallest first."""
    there = [(need, held, [need] * many) for (need, held), many in zip(kinds, counts, strict=True) if many]
    return sum(sum(needs) for _, _, needs in there), [
        (
            least,
            list(accumulate(chain.from_iterable([needs for _, held, needs in there if held >= least]))),
            list(chain.from_iterable([needs for _, held, needs in there if held < least])),
        )
        for least in sorted({held for _, held, _ in there})
    ]
