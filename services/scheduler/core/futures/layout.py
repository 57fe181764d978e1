"""What is the same in every course of things from one state (outflow.py): which nodes are alike, and who waits for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.futures.flowing import Class, Held, Kind
from services.scheduler.core.futures.pools import Pool, Sizes
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Ints
from services.scheduler.core.waiting_unit import PendingUnit

Ending = tuple[int, int, float]
"""What comes free of a pool (its number) at once: accelerators, cpus."""


def pools_of(cluster: Cluster, pool_of: Ints, demand: Demand) -> list[int]:
    """Numbers of the pools with nodes that a demand may use; ``pool_of`` are those of the nodes (N)."""
    alternatives = cluster.candidates(demand)
    allowed = alternatives[0].allowed
    if len(alternatives) > 1:
        allowed = np.logical_or.reduce([item.allowed for item in alternatives])
    found: list[int] = np.flatnonzero(np.bincount(pool_of[allowed])).tolist()
    return found


def spread_over(cluster: Cluster, pool_of: Ints, demand: Demand) -> tuple[tuple[int, ...], ...]:
    """Numbers of the pools over which the ranks of a demand may be spread, together: those of `pools_of` with accelerators of one
    model, where a gang takes one for all ranks; so several such sets. None where it stays in one domain."""
    if not demand.cross_domain:
        return ()
    pools, devices = pools_of(cluster, pool_of, demand), cluster.table.devices
    alternatives = cluster.candidates(demand)
    if len(alternatives) == 1:
        return (tuple(pools),)
    with_model = [set(pool_of[devices[:, item.columns].any(axis=1)].tolist()) for item in alternatives]
    return tuple([tuple([number for number in pools if number in numbers]) for numbers in with_model])


class Layout:
    """Which nodes are alike, and which of them the units may use. ``units`` wait, in the order of the policy; ``discipline`` is
    the policy's.

    ``running`` is what the runs hold on nodes that take work, in the order of the cluster, ``endings`` what comes free with
    each; ``class_of`` the number of the class of each unit, ``estimates_s`` how long it is thought to run.
    """

    def __init__(self, cluster: Cluster, units: Sequence[PendingUnit], discipline: str) -> None:
        self.units, self.strict = units, discipline == "strict"
        self.reserving = discipline in {"easy", "conservative"}
        table = cluster.table
        kinds = table.node_domain.astype(np.int64)
        for column in (table.devices > 0).T:
            kinds = np.unique(2 * kinds + column, return_inverse=True)[1].reshape(-1)
        self.pool_of: Ints = np.unique(kinds, return_inverse=True)[1].reshape(-1).astype(np.int64)
        self._level_of: list[int] = [0] * len(self.pool_of)
        most = int(table.device_totals.max(initial=0))
        self.sizes = Sizes(most, {unit.demand.accelerators for unit in units})
        self._pools = self._free(cluster, most)
        self._hold(cluster.running.values(), cluster.view.up.tolist())
        self._sort(cluster)

    def _sort(self, cluster: Cluster) -> None:
        """Units into classes, and classes into kinds."""
        number_of: dict[Demand, int] = {}
        known: dict[int, int] = {}
        self._places: list[list[int]] = []
        self.class_of: list[int] = []
        for place, unit in enumerate(self.units):
            demand = unit.demand
            # Most are one and the same value, which is quicker told than an equal one.
            number = known.get(id(demand), -1)
            if number < 0:
                number = known[id(demand)] = number_of.setdefault(demand, len(number_of))
                if number == len(self._places):
                    self._places.append([])
            self._places[number].append(place)
            self.class_of.append(number)
        self.estimates_s = [estimated_s(unit, "expected") for unit in self.units]
        self._kind_of: list[int] = []
        self._demands = list(number_of)
        self._kinds: dict[tuple[tuple[int, ...], int, int, tuple[tuple[int, ...], ...], frozenset[str]], int] = {}
        for demand in self._demands:
            pools = tuple(pools_of(cluster, self.pool_of, demand))
            together = spread_over(cluster, self.pool_of, demand)
            kind = pools, demand.ranks, demand.accelerators, together, demand.domains
            self._kind_of.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._by_time: list[list[tuple[float, int]]] = [[] for _ in self._kinds]
        if self.reserving:
            for entry in sorted(zip(self.estimates_s, range(len(self.units)), strict=True)):
                self._by_time[self._kind_of[self.class_of[entry[1]]]].append(entry)

    def waiting(self, pools: Sequence[Pool]) -> tuple[list[Class], list[Kind]]:
        """What waits, anew: classes by number, and their kinds."""
        kinds = []
        for (numbers, ranks, each, together, partition), by_time in zip(self._kinds, self._by_time, strict=True):
            shift, mask = self.sizes.field(each)
            own, sets = [pools[number] for number in numbers], [[pools[number] for number in some] for some in together]
            kinds.append(Kind(own, ranks, each, mask, ranks << shift, sets, partition, by_time))
        classes: list[Class] = []
        for demand, places, number in zip(self._demands, self._places, self._kind_of, strict=True):
            kinds[number].numbers.append(len(classes))
            classes.append(Class(demand, list(places), kinds[number]))
        for kind in kinds:
            kind.ask(classes)
        return classes, kinds

    def pools(self) -> list[Pool]:
        """What is free now, anew; nodes that take no work have no place in it."""
        level_of = list(self._level_of)
        return [pool.copy(level_of) for pool in self._pools]

    def _free(self, cluster: Cluster, most: int) -> list[Pool]:
        view, level_of = cluster.view, self._level_of
        size = int(self.pool_of.max(initial=-1)) + 1
        found = [
            Pool(number, self.sizes, [set() for _ in range(most + 1)], level_of, self.sizes.none)
            for number in range(size)
        ]
        up = np.flatnonzero(view.up)
        of = self.pool_of[up]
        free = np.maximum(view.free_device_totals[up], 0)
        for row, number, level in zip(up.tolist(), of.tolist(), free.tolist(), strict=True):
            level_of[row] = level
            found[number].levels[level].add(row)
        cpus = np.bincount(of, view.free_cpus[up], size).tolist()
        memory = np.bincount(of, view.free_memory_bytes[up], size).tolist()
        counts = np.bincount(of, free, size).tolist()
        for number, total in zip(of.tolist(), cluster.table.device_totals[up].tolist(), strict=True):
            found[number].whole += self.sizes.worth[total]
        for number, pool in enumerate(found):
            pool.free, pool.cpus, pool.memory_bytes = int(counts[number]), cpus[number], memory[number]
            pool.whole += self.sizes.none
            pool.room += sum(len(rows) * each for rows, each in zip(pool.levels, self.sizes.worth, strict=True))
        return found

    def _hold(self, running: Iterable[RunningUnit], up: Sequence[bool]) -> None:
        pool_of: list[int] = self.pool_of.tolist()
        self.running: list[Held] = []
        self.endings: list[list[Ending]] = []
        for item in running:
            demand = item.unit.demand
            nodes: dict[int, list[tuple[int, int]]] = {}
            endings: list[Ending] = []
            for row, devices in item.rows:
                if up[row]:
                    number = pool_of[row]
                    held = nodes.get(number)
                    if held is None:
                        held = nodes[number] = []
                    held.append((row, len(devices)))
                    endings.append((number, demand.accelerators, demand.cpus))
            self.running.append((demand, [(number, len(held), held) for number, held in nodes.items()]))
            self.endings.append(endings)
