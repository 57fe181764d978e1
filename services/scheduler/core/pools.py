"""Alike nodes of a domain as one pool: how many accelerators are free on which, cpus and memory in sum; see outflow.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.core.state import Demand

SLACK = 1e-6
Nodes = tuple[tuple[int, int], ...]
"""(node row, accelerators)."""


@dataclass(slots=True, eq=False)
class Pool:
    """Nodes of one domain with the same accelerator models; ``levels[f]`` are the rows of those with f accelerators free."""

    levels: list[set[int]]
    level_of: dict[int, int]
    free: int = 0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    ends: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, number, accelerators, cpus) of what ends here, in order of time; kept where room is reserved."""
    _counts: dict[int, int] = field(default_factory=dict)

    def ranks(self, demand: Demand) -> int:
        """Ranks of the demand that fit, counted up to those it has."""
        most = demand.ranks
        if demand.cpus > 0:
            most = min(most, int((self.cpus + SLACK) // demand.cpus))
        if demand.memory_bytes > 0:
            most = min(most, int(self.memory_bytes // demand.memory_bytes))
        each = demand.accelerators
        if not each or most <= 0:
            return max(most, 0)
        return min(most, self.counted(each))

    def counted(self, each: int) -> int:
        """Ranks of so many accelerators (at least 1) that fit, by these alone."""
        found = self._counts.get(each)
        if found is None:
            levels = self.levels
            found = 0
            for level in range(each, len(levels)):
                if levels[level]:
                    found += len(levels[level]) * (level // each)
            self._counts[each] = found
        return found

    def take(self, demand: Demand, ranks: int) -> Nodes:
        """Give that many ranks their nodes; they fit."""
        self._charge(demand, ranks, -1)
        each, left, levels, level_of = demand.accelerators, ranks, self.levels, self.level_of
        held = []
        top = len(levels)
        while each and left:
            level = left * each
            while level < top and not levels[level]:
                level += 1
            if level >= top:
                level = top - 1
                while not levels[level]:
                    level -= 1
            taken = min(level // each, left)
            row = levels[level].pop()
            levels[level - taken * each].add(row)
            level_of[row] = level - taken * each
            held.append((row, taken * each))
            left -= taken
        return tuple(held)

    def give(self, demand: Demand, ranks: int, nodes: Nodes) -> None:
        """Put back what ranks held."""
        self._charge(demand, ranks, 1)
        levels, level_of = self.levels, self.level_of
        for row, count in nodes:
            level = level_of[row]
            levels[level].discard(row)
            level_of[row] = level = min(level + count, len(levels) - 1)
            levels[level].add(row)

    def _charge(self, demand: Demand, ranks: int, sign: int) -> None:
        if demand.accelerators:
            self.free += sign * ranks * demand.accelerators
            self._counts.clear()
        self.cpus += sign * ranks * demand.cpus
        self.memory_bytes += sign * ranks * demand.memory_bytes


@dataclass(slots=True)
class Held:
    """What a unit holds: (pool, ranks, nodes)."""

    demand: Demand
    parts: list[tuple[Pool, int, Nodes]]

    def end(self) -> None:
        for pool, ranks, nodes in self.parts:
            pool.give(self.demand, ranks, nodes)


@dataclass(slots=True)
class Kept:
    """A pool is kept from a time on; so much is free besides."""

    pool: Pool
    start_s: float
    accelerators: float
    cpus: float

    def lets(self, demand: Demand) -> bool:
        """Whether so much may go there for good."""
        return (
            demand.ranks * demand.accelerators <= self.accelerators and demand.ranks * demand.cpus <= self.cpus + SLACK
        )
