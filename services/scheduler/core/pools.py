"""Alike nodes of a domain as one pool: how many accelerators are free on which, cpus and memory in sum; see outflow.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import sub

import numpy as np

from services.scheduler.core.state import Demand
from services.scheduler.core.table import UNBOUNDED

SLACK = 1e-6
Nodes = Sequence[tuple[int, int]]
"""(node row, accelerators)."""
Part = tuple[int, int, Nodes]
"""What ranks hold: (number of the pool, ranks, nodes)."""


def ranks_on(sizes: Sequence[int], each: int) -> int:
    """Ranks of so many accelerators (at least 1) that fit on nodes: ``sizes`` says how many of them have 0, 1, 2... free."""
    found = 0
    for level in range(each, len(sizes)):
        if sizes[level]:
            found += sizes[level] * (level // each)
    return found


class Sizes:
    """Numbers of accelerators of a rank that are asked about: (0 first, then each), and how many such ranks a node holds by its
    level, up to ``top``."""

    def __init__(self, top: int, asked: Iterable[int]) -> None:
        self.all = (0, *sorted({each for each in asked if each > 0}))
        self.number_of = {each: number for number, each in enumerate(self.all)}
        self._on_one = np.array([[0, *[level // each for each in self.all[1:]]] for level in range(top + 1)])
        self._none = np.array([UNBOUNDED] + [0] * (len(self.all) - 1))
        self._lost: dict[tuple[int, int, int], list[int]] = {}

    def counts(self, pools: Sequence[Pool]) -> list[list[int]]:
        """Ranks of each size that fit, by pool; of ranks that want none `UNBOUNDED`."""
        rows = [rows for pool in pools for rows in pool.levels]
        levels = np.fromiter(map(len, rows), np.int64, len(rows)).reshape(len(pools), len(self._on_one))
        found: list[list[int]] = (levels @ self._on_one + self._none).tolist()
        return found

    def lost(self, level: int, rest: int, nodes: int) -> Sequence[int]:
        """Ranks of each size that so many nodes hold less, when no more than ``rest`` are free on each."""
        found = self._lost.get((level, rest, nodes))
        if found is None:
            found = self._lost[level, rest, nodes] = (nodes * (self._on_one[level] - self._on_one[rest])).tolist()
        return found


@dataclass(slots=True, eq=False)
class Pool:
    """Nodes of one domain with the same accelerator models; ``levels[f]`` are the rows of those with f accelerators free,
    ``level_of`` says it of each row, for all pools together. ``number`` is its place among the pools.

    ``counts`` are the ranks of each of the ``sizes`` that fit by accelerators alone. They are brought up to date by what is
    taken; when something was given they are as before until they are counted anew."""

    number: int
    sizes: Sizes
    levels: list[set[int]]
    level_of: list[int]
    free: int = 0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    ends: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, number, accelerators, cpus) of what ends here, in order of time; kept where room is reserved."""
    counts: list[int] = field(default_factory=list)

    def copy(self, level_of: list[int]) -> Pool:
        """The same without ends; ``level_of`` is the copy's."""
        levels = [set(rows) for rows in self.levels]
        return Pool(self.number, self.sizes, levels, level_of, self.free, self.cpus, self.memory_bytes)

    def ranks(self, demand: Demand) -> int:
        """Ranks of the demand that fit, counted up to those it has."""
        counted = self.counts[self.sizes.number_of[demand.accelerators]]
        return min(counted, by_sums(demand, self.cpus, self.memory_bytes))

    def take(self, demand: Demand, ranks: int) -> Nodes:
        """Give that many ranks their nodes; they fit."""
        self.cpus -= ranks * demand.cpus
        self.memory_bytes -= ranks * demand.memory_bytes
        each = demand.accelerators
        if not each:
            return ()
        self.free -= ranks * each
        levels, level_of = self.levels, self.level_of
        top = len(levels) - 1
        left, held = ranks, []
        while left:
            level = left * each
            while level <= top and not levels[level]:
                level += 1
            if level > top:
                # No node holds all that are left: those that hold most, as long as that is so.
                level = top
                while not levels[level]:
                    level -= 1
                on_one = level // each
                nodes = min((left - 1) // on_one, len(levels[level]))
            else:
                on_one, nodes = left, 1
            taken = on_one * each
            rest = level - taken
            rows, later = levels[level], levels[rest]
            for _ in range(nodes):
                row = rows.pop()
                later.add(row)
                level_of[row] = rest
                held.append((row, taken))
            left -= nodes * on_one
            self.counts = list(map(sub, self.counts, self.sizes.lost(level, rest, nodes)))
        return held

    def give(self, demand: Demand, ranks: int, nodes: Nodes) -> None:
        """Put back what ranks held."""
        self.cpus += ranks * demand.cpus
        self.memory_bytes += ranks * demand.memory_bytes
        if demand.accelerators:
            self.free += ranks * demand.accelerators
        levels, level_of = self.levels, self.level_of
        top = len(levels) - 1
        for row, count in nodes:
            level = level_of[row]
            levels[level].discard(row)
            level += count
            try:
                levels[level].add(row)
            except IndexError:
                # More was held there than the node has.
                level = top
                levels[top].add(row)
            level_of[row] = level


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
