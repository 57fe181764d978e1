"""Alike nodes of a domain as one pool: how many accelerators are free on which, cpus and memory in sum; see outflow.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.scheduler.core.state import Demand
from services.scheduler.core.table import UNBOUNDED

SLACK = 1e-6
Nodes = Sequence[tuple[int, int]]
"""(node row, accelerators)."""
Part = tuple[int, int, Nodes]
"""What ranks hold: (number of the pool, ranks, nodes)."""


_BITS = 32
_FIELD = (1 << _BITS) - 1


class Sizes:
    """How room is counted: the ranks of each size that fit, and the nodes by how many accelerators are free on them (their
    level, up to ``top``), as fields of 32 bits of one whole number. So what a node more or less changes is one addition.

    ``asked`` are the accelerators of a rank. ``all`` has 0 first, then each; ``number_of`` says where. ``worth[level]`` is the
    room of one node, ``moves[level][later]`` what it changes when its level does, ``none`` that of no node: of ranks that want
    no accelerators `UNBOUNDED` fit.
    """

    def __init__(self, top: int, asked: Iterable[int]) -> None:
        self.all = (0, *sorted({each for each in asked if each > 0}))
        self.number_of = {each: number for number, each in enumerate(self.all)}
        self.none = UNBOUNDED
        self.worth = [self._worth(level) for level in range(top + 1)]
        self.moves = [[later - before for later in self.worth] for before in self.worth]

    def _worth(self, level: int) -> int:
        found = 1 << _BITS * (len(self.all) + level)
        for number, each in enumerate(self.all[1:], 1):
            found += level // each << _BITS * number
        return found

    def field(self, each: int) -> tuple[int, int]:
        """The place (in bits) and the mask of the field for one of the sizes: `room & mask` is the count, shifted."""
        shift = _BITS * self.number_of[each]
        return shift, _FIELD << shift

    def ranks(self, room: int, each: int) -> int:
        """Ranks of so many accelerators that fit, of any size; of none `UNBOUNDED`."""
        if each in self.number_of:
            return room >> _BITS * self.number_of[each] & _FIELD
        nodes = room >> _BITS * len(self.all)
        return sum((nodes >> _BITS * level & _FIELD) * (level // each) for level in range(each, len(self.worth)))


@dataclass(slots=True, eq=False)
class Pool:
    """Nodes of one domain with the same accelerator models; ``levels[f]`` are the rows of those with f accelerators free,
    ``level_of`` says it of each row, for all pools together. ``number`` is its place among the pools.

    ``room`` counts the ranks of each of the ``sizes`` that fit by accelerators alone, and the nodes of each level; ``whole`` would
    if nothing were held."""

    number: int
    sizes: Sizes
    levels: list[set[int]]
    level_of: list[int]
    room: int
    whole: int = 0
    free: int = 0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    ends: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, number, accelerators, cpus) of what ends here, in order of time; kept where room is reserved."""

    def copy(self, level_of: list[int]) -> Pool:
        """The same without ends; ``level_of`` is the copy's."""
        levels = [set(rows) for rows in self.levels]
        held = self.room, self.whole, self.free, self.cpus, self.memory_bytes
        return Pool(self.number, self.sizes, levels, level_of, *held)

    def ranks(self, demand: Demand) -> int:
        """Ranks of the demand that fit, counted up to those it has."""
        counted = self.sizes.ranks(self.room, demand.accelerators)
        return min(counted, by_sums(demand, self.cpus, self.memory_bytes))

    def take(self, demand: Demand, ranks: int) -> Nodes:
        """Give that many ranks their nodes; they fit."""
        self.cpus -= ranks * demand.cpus
        self.memory_bytes -= ranks * demand.memory_bytes
        each = demand.accelerators
        if not each:
            return ()
        levels, level_of, moves = self.levels, self.level_of, self.sizes.moves
        left = ranks * each
        self.free -= left
        held = []
        top = len(levels) - 1
        while left:
            level = left
            while level <= top and not levels[level]:
                level += 1
            if level <= top:
                rest = level - left
                row = levels[level].pop()
                levels[rest].add(row)
                level_of[row] = rest
                self.room += moves[level][rest]
                held.append((row, left))
                break
            # No node holds all that are left: those that hold most, as long as that is so.
            level = top
            while not levels[level]:
                level -= 1
            taken = level // each * each
            rest = level - taken
            rows, later = levels[level], levels[rest]
            nodes = min((left - 1) // taken, len(rows))
            for _ in range(nodes):
                row = rows.pop()
                later.add(row)
                level_of[row] = rest
                held.append((row, taken))
            left -= nodes * taken
            self.room += nodes * moves[level][rest]
        return held

    def give(self, demand: Demand, ranks: int, nodes: Nodes) -> None:
        """Put back what ranks held."""
        self.cpus += ranks * demand.cpus
        self.memory_bytes += ranks * demand.memory_bytes
        if demand.accelerators:
            self.free += ranks * demand.accelerators
        levels, level_of, moves = self.levels, self.level_of, self.sizes.moves
        top = len(levels) - 1
        last, alike = (0, 0), 0
        for row, count in nodes:
            level = level_of[row]
            later = level + count
            if later > top:  # noqa: PLR1730 (min() would be a call for each node)
                # More was held there than the node has.
                later = top
            levels[level].discard(row)
            levels[later].add(row)
            level_of[row] = later
            if last == (level, later):
                alike += 1
            else:
                self.room += alike * moves[last[0]][last[1]]
                last, alike = (level, later), 1
        self.room += alike * moves[last[0]][last[1]]


def by_sums(demand: Demand, cpus: float, memory_bytes: float) -> int:
    """Ranks of the demand that fit into cpus and memory in sum, counted up to those it has; 0 at least."""
    most = demand.ranks
    if demand.cpus > 0:
        most = min(most, int((cpus + SLACK) // demand.cpus))
    if demand.memory_bytes > 0:
        most = min(most, int(memory_bytes // demand.memory_bytes))
    return max(most, 0)


@dataclass(slots=True)
class Kept:
    """A pool (by number) is kept from a time on; so much is free besides."""

    pool: int
    start_s: float
    accelerators: float
    cpus: float

    def lets(self, demand: Demand) -> bool:
        """Whether so much may go there for good."""
        return (
            demand.ranks * demand.accelerators <= self.accelerators and demand.ranks * demand.cpus <= self.cpus + SLACK
        )
