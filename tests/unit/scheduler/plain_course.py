"""A course of things as outflow.py describes it, asked unit by unit and node by node: what the quicker one is held to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.futures.layout import Layout, pools_of, spread_over
from services.scheduler.core.futures.pools import SLACK, Pool
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.state import Demand, UnitKey

_INFINITE = math.inf
Nodes = list[tuple[int, int]]


@dataclass
class Said:
    """As the fields of `Course`."""

    found: dict[UnitKey, tuple[float, float]] = field(default_factory=dict)
    cause: dict[UnitKey, int] = field(default_factory=dict)
    until_s: float = 0.0
    cycles: int = 0
    exhausted: bool = False


@dataclass
class _Kept:
    start_s: float
    accelerators: float
    cpus: float


class PlainCourse:
    """``ends`` and ``lasts`` as for `Course`; ``units`` of the layout wait in the cluster."""

    def __init__(
        self, cluster: Cluster, layout: Layout, now_s: float, ends: Sequence[float], lasts: Sequence[float]
    ) -> None:
        self.layout, self.now_s, self.lasts = layout, now_s, lasts
        self.pools = layout.pools()
        self.may_use = [pools_of(cluster, layout.pool_of, unit.demand) for unit in layout.units]
        self.together = [spread_over(cluster, layout.pool_of, unit.demand) for unit in layout.units]
        self.up, self.totals = cluster.view.up.tolist(), cluster.table.device_totals.tolist()
        self.waiting = list(range(len(layout.units)))
        self.runs = [
            (end_s, number, *held) for number, (end_s, held) in enumerate(zip(ends, layout.running, strict=True))
        ]
        self.number = len(self.runs)
        self.pool_ends = [
            (end_s, number, *ending)
            for number, (end_s, endings) in enumerate(zip(ends, layout.endings, strict=True))
            for ending in endings
        ]

    def run(self, wanted: Collection[UnitKey], horizon_s: float) -> Said:
        said, left = Said(until_s=self.now_s), set(wanted)
        first_s = at_s = self.now_s
        cause = -1
        while True:
            for place in self.start(at_s):
                key = self.layout.units[place].key
                if key in left:
                    left.remove(key)
                    said.found[key], said.cause[key] = (first_s, at_s), cause
            said.cycles += 1
            if not left:
                return said
            said.until_s = at_s
            self.runs.sort()
            if not self.runs or self.runs[0][0] > min(horizon_s, 1e300):
                said.exhausted = not self.runs
                return said
            first_s = self.runs[0][0]
            until_s = first_s + max(0.05 * (first_s - self.now_s), 1.0)
            over = [run for run in self.runs if run[0] <= until_s]
            self.runs = self.runs[len(over) :]
            for _, number, demand, parts in over:
                self.pool_ends = [entry for entry in self.pool_ends if entry[1] != number]
                for pool, ranks, nodes in parts:
                    give(self.pools[pool], demand, ranks, nodes)
            at_s = over[-1][0]
            cause = over[0][1] if len(over) == 1 and over[0][1] < len(self.layout.running) else -1

    def start(self, at_s: float) -> list[int]:
        """Every unit that waits in turn; those of a demand that had no room only if they are short enough for what is kept."""
        layout, started = self.layout, []
        closed: set[frozenset[str]] = set()
        longest: dict[Demand, float] = {}
        kept: dict[int, _Kept] = {}
        for place in list(self.waiting):
            unit = layout.units[place]
            demand, lasts_s = unit.demand, estimated_s(unit, "expected")
            if lasts_s > longest.get(demand, _INFINITE):
                continue
            parts, before_s = None, -_INFINITE
            if not (layout.strict and demand.domains in closed):
                parts, before_s = self.room(place, at_s + lasts_s, kept)
            if parts is not None:
                longest.pop(demand, None)
                self.waiting.remove(place)
                started.append(place)
                self.number += 1
                end_s = at_s + self.lasts[place]
                self.runs.append((end_s, self.number, demand, parts))
                for pool, ranks, _ in parts:
                    self.pool_ends.append((end_s, self.number, pool, ranks * demand.accelerators, ranks * demand.cpus))
                continue
            longest[demand] = before_s - at_s if before_s > at_s else -1.0
            if layout.reserving and demand.domains not in closed:
                reservations = self.keep(place)
                for number, reservation in reservations.items():
                    kept.setdefault(number, reservation)
                if not reservations:
                    continue
            closed.add(demand.domains)
        return started

    def room(
        self, place: int, end_s: float, kept: dict[int, _Kept]
    ) -> tuple[list[tuple[int, int, Nodes]] | None, float]:
        demand, before_s = self.layout.units[place].demand, -_INFINITE
        for number in self.may_use[place]:
            pool, reservation = self.pools[number], kept.get(number)
            if fitting(pool, demand) < demand.ranks:
                continue
            accelerators, cpus = demand.ranks * demand.accelerators, demand.ranks * demand.cpus
            if reservation is not None and end_s > reservation.start_s:
                if accelerators > reservation.accelerators or cpus > reservation.cpus + SLACK:
                    before_s = max(before_s, reservation.start_s)
                    continue
                reservation.accelerators -= accelerators
                reservation.cpus -= cpus
            return [(number, demand.ranks, take(pool, demand, demand.ranks))], 0.0
        for numbers in self.together[place]:
            free = [(fitting(self.pools[number], demand), number) for number in numbers if number not in kept]
            if sum(count for count, _ in free) < demand.ranks:
                continue
            parts, left = [], demand.ranks
            for count, number in sorted(free, reverse=True):
                if ranks := min(count, left):
                    parts.append((number, ranks, take(self.pools[number], demand, ranks)))
                    left -= ranks
            return parts, 0.0
        return None, before_s

    def keep(self, place: int) -> dict[int, _Kept]:
        """Where so much is free first, by number; only where all ranks fit when nothing is held."""
        demand = self.layout.units[place].demand
        wanted, wanted_cpus = demand.ranks * demand.accelerators, demand.ranks * demand.cpus
        found: dict[int, _Kept] = {}
        start_s = _INFINITE
        for number in self.may_use[place]:
            if self.when_empty(number, demand) < demand.ranks:
                continue
            free, cpus = float(self.pools[number].free), self.pools[number].cpus
            for end_s, _, where, more, more_cpus in sorted(self.pool_ends):
                if where != number:
                    continue
                free, cpus = free + more, cpus + more_cpus
                if free >= wanted and cpus + SLACK >= wanted_cpus:
                    if end_s < start_s:
                        start_s, found = end_s, {number: _Kept(end_s, free - wanted, cpus - wanted_cpus)}
                    break
        for numbers in self.together[place]:
            if sum(self.when_empty(number, demand) for number in numbers) < demand.ranks:
                continue
            for at_s in sorted({end[0] for end in self.pool_ends if end[2] in numbers and end[0] < start_s}):
                spread = self.spread(demand, numbers, at_s)
                if spread:
                    start_s, found = at_s, spread
                    break
        return found

    def when_empty(self, number: int, demand: Demand) -> int:
        if not demand.accelerators:
            return demand.ranks
        rows = [row for row, of in enumerate(self.layout.pool_of) if of == number and self.up[row]]
        return int(sum(self.totals[row] // demand.accelerators for row in rows))

    def spread(self, demand: Demand, numbers: Sequence[int], at_s: float) -> dict[int, _Kept]:
        """What is kept when ranks go to one pool after the other as things are at ``at_s``; nothing when there is not enough."""
        left, kept = demand.ranks, {}
        for number in numbers:
            over = [end for end in sorted(self.pool_ends) if end[2] == number and end[0] <= at_s]
            free, cpus = self.pools[number].free, self.pools[number].cpus
            for end in over:
                free, cpus = free + end[3], cpus + end[4]
            counts = [left]
            if demand.accelerators:
                counts.append(free // demand.accelerators)
            if demand.cpus > 0:
                counts.append(int((cpus + SLACK) // demand.cpus))
            ranks = min(counts)
            if ranks > 0:
                left -= ranks
                kept[number] = _Kept(at_s, free - ranks * demand.accelerators, cpus - ranks * demand.cpus)
        return {} if left else kept


def fitting(pool: Pool, demand: Demand) -> int:
    """Ranks that fit, up to those there are."""
    counts = [demand.ranks]
    if demand.cpus > 0:
        counts.append(int((pool.cpus + SLACK) // demand.cpus))
    if demand.memory_bytes > 0:
        counts.append(int(pool.memory_bytes // demand.memory_bytes))
    if demand.accelerators:
        counts.append(sum(level // demand.accelerators * len(rows) for level, rows in enumerate(pool.levels)))
    return max(min(counts), 0)


def take(pool: Pool, demand: Demand, ranks: int) -> Nodes:
    """Node by node: the tightest that holds all that are left, else one that holds most."""
    give(pool, demand, -ranks, [])
    held: Nodes = []
    left, each = ranks, demand.accelerators
    while each and left:
        with_any = [level for level, rows in enumerate(pool.levels) if rows]
        level = next((level for level in with_any if level >= left * each), with_any[-1])
        count = min(level // each, left)
        row = pool.levels[level].pop()
        pool.levels[level - count * each].add(row)
        pool.level_of[row] = level - count * each
        held.append((row, count * each))
        left -= count
    return held


def give(pool: Pool, demand: Demand, ranks: int, nodes: Sequence[tuple[int, int]]) -> None:
    pool.free += ranks * demand.accelerators
    pool.cpus += ranks * demand.cpus
    pool.memory_bytes += ranks * demand.memory_bytes
    for row, count in nodes:
        level = pool.level_of[row]
        pool.levels[level].remove(row)
        pool.levels[level + count].add(row)
        pool.level_of[row] = level + count
