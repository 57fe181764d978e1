"""The future of what is free: when running units are thought to end, and what is reserved for units that wait.

Steps:
1. `Profile` cuts time at the expected ends of running units; each segment holds the free amounts of every node. Where there
   are more ends than `segments` allows, ends are put off to the next cut: a reservation may be late, never too early.
2. `earliest` finds the first segment from which a unit fits for as long as it is thought to run.
3. `reserve` takes its nodes out of the segments of its run; `window` tells what is left for a unit that would run from now
   on, so that one that would disturb a reservation finds no room (conservative backfilling; with one reservation EASY, Lifka
   1995, Mu'alem and Feitelson 2001, on nodes instead of counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.placement import Candidates, Choice
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import UNBOUNDED, Bools, Floats, Free, Ints, View, fits

_MOST_CELLS = 3_000_000
_LEAST_SEGMENTS = 24


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for a unit from ``start_s`` on."""

    key: UnitKey
    start_s: float
    end_s: float
    choice: Choice
    partition: frozenset[str]


class Profile:
    """See the module. Arrays by segment: ``times`` (S) are their beginnings; the last one has no end."""

    def __init__(self, view: View, running: Sequence[RunningUnit], now_s: float, estimate: str) -> None:
        self._table = view.table
        nodes, models = view.free_devices.shape
        most = max(_LEAST_SEGMENTS, _MOST_CELLS // max(nodes * (2 + models + view.free_resources.shape[1]), 1))
        ends = np.array([unit.end_s(now_s, estimate) for unit in running])
        cuts, segment_of = _cuts(ends, most)
        self.times: Floats = np.concatenate([[now_s], cuts])
        size = len(self.times)
        self._cpus = np.zeros((size, nodes))
        self._memory = np.zeros((size, nodes))
        self._devices = np.zeros((size, nodes, models))
        self._resources = np.zeros((size, *view.free_resources.shape))
        self._give(running, segment_of)
        self._cpus[0] += view.free_cpus
        self._memory[0] += view.free_memory_bytes
        self._devices[0] += view.free_devices
        self._resources[0] += view.free_resources
        for values in (self._cpus, self._memory, self._devices, self._resources):
            np.cumsum(values, axis=0, out=values)
        self.reservations: list[Reservation] = []
        self._reserved_from = np.inf

    def _give(self, running: Sequence[RunningUnit], segment_of: Ints) -> None:
        table = self._table
        for unit, segment in zip(running, segment_of.tolist(), strict=True):
            if segment < 0:
                continue
            demand = unit.unit.demand
            for row, devices in unit.rows:
                self._cpus[segment, row] += demand.cpus
                self._memory[segment, row] += demand.memory_bytes
                for name, amount in demand.resources:
                    self._resources[segment, row, table.resource_names.index(name)] += amount
                if devices and demand.device_milli >= 1000:
                    held = set(devices)
                    for index, column in table.devices_of[row]:
                        if index in held:
                            self._devices[segment, row, column] += 1

    # -- asking ------------------------------------------------------------------------------------------------------

    def earliest(self, candidates: Candidates, duration_s: float) -> tuple[float, Choice] | None:
        """When and where a unit fits for ``duration_s`` (seconds, may be infinite); None when it never does."""
        table = self._fits(candidates.demand, candidates.columns, candidates.allowed)
        for start in range(len(self.times)):
            least = table[start]
            if np.isfinite(self._reserved_from):
                end = int(np.searchsorted(self.times, self.times[start] + duration_s, side="left"))
                if end > start + 1:
                    least = table[start:end].min(axis=0)
            if int(least.sum()) < candidates.demand.ranks:
                continue
            choice = candidates.choose_of(least)
            if choice is not None:
                return float(self.times[start]), choice
        return None

    def window(self, candidates: Candidates, duration_s: float) -> Ints | None:
        """Ranks that fit on each node (N) from now until ``duration_s`` later; None when no reservation is in the way."""
        until = self.times[0] + duration_s
        if until <= self._reserved_from:
            return None
        first = max(int(np.searchsorted(self.times, self._reserved_from, side="right")) - 1, 0)
        end = max(int(np.searchsorted(self.times, until, side="left")), first + 1)
        table = self._fits(candidates.demand, candidates.columns, candidates.allowed, slice(first, end))
        least: Ints = table.min(axis=0)
        return least

    @property
    def reserved_from_s(self) -> float:
        """When the first reservation begins; infinite when there is none."""
        return float(self._reserved_from)

    def _fits(self, demand: Demand, columns: Ints, allowed: Bools, part: slice = slice(None)) -> Ints:
        """Ranks that fit, by segment and node (S, N)."""
        cpus = self._cpus[part]
        segments, nodes = cpus.shape
        free = Free(
            cpus.reshape(-1),
            self._memory[part].reshape(-1),
            self._devices[part].reshape(segments * nodes, -1),
            self._resources[part].reshape(segments * nodes, -1),
            None,
        )
        table = fits(self._table, free, demand, columns).reshape(segments, nodes)
        table[:, ~allowed] = 0
        return np.minimum(table, UNBOUNDED)

    # -- changing ----------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Time passed and nothing else happened: what was thought to end by now did not, and counts as ending now."""
        if now_s > self.times[0]:
            self.times = np.maximum(self.times, now_s)

    def reserve(self, key: UnitKey, start_s: float, duration_s: float, candidates: Candidates, choice: Choice) -> None:
        """Keep the nodes of ``choice`` for a unit that waits."""
        self.occupy(start_s, duration_s, candidates, choice)
        self._reserved_from = min(self._reserved_from, start_s)
        partition = candidates.demand.domains
        self.reservations.append(Reservation(key, start_s, start_s + duration_s, choice, partition))

    def occupy(self, start_s: float, duration_s: float, candidates: Candidates, choice: Choice) -> None:
        """Take nodes out of what is free from ``start_s`` for ``duration_s``."""
        first = self._cut(start_s)
        last = self._cut(start_s + duration_s) if np.isfinite(duration_s) else len(self.times)
        demand = candidates.demand
        for row, count in choice.rows:
            self._cpus[first:last, row] -= count * demand.cpus
            self._memory[first:last, row] -= count * demand.memory_bytes
            for name, amount in demand.resources:
                self._resources[first:last, row, self._table.resource_names.index(name)] -= count * amount
            left = count * demand.accelerators
            # The fewest that suffice first, as `View.take` does; several models only when one has not enough.
            part = self._devices[first:last, row][:, candidates.columns]
            least = part.min(axis=0) if len(part) else part.sum(axis=0)
            for place in np.argsort(least, kind="stable"):
                take = min(left, int(least[place]) // max(demand.accelerators, 1) * demand.accelerators)
                if take > 0:
                    self._devices[first:last, row, candidates.columns[place]] -= take
                    left -= take

    def _cut(self, at_s: float) -> int:
        """The number of the segment that begins at a time, made by cutting another if there is none."""
        place = int(np.searchsorted(self.times, at_s, side="left"))
        if place < len(self.times) and self.times[place] == at_s:
            return place
        if place == 0:
            return 0
        self.times = np.insert(self.times, place, at_s)
        self._cpus = np.insert(self._cpus, place, self._cpus[place - 1], axis=0)
        self._memory = np.insert(self._memory, place, self._memory[place - 1], axis=0)
        self._devices = np.insert(self._devices, place, self._devices[place - 1], axis=0)
        self._resources = np.insert(self._resources, place, self._resources[place - 1], axis=0)
        return place


def _cuts(ends: Floats, most: int) -> tuple[Floats, Ints]:
    """Times at which segments begin, and the segment of each end; -1 for ends that never come."""
    finite = np.isfinite(ends)
    cuts = np.unique(ends[finite])
    if len(cuts) > most:
        cuts = cuts[np.linspace(0, len(cuts) - 1, most).astype(np.int64)]
    segments = np.where(finite, np.searchsorted(cuts, np.where(finite, ends, 0.0), side="left") + 1, -1)
    return cuts, segments.astype(np.int64)
