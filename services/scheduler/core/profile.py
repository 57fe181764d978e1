"""The future of what is free: when running units are thought to end, and what is reserved for units that wait.

Steps:
1. `Profile` cuts time at the expected ends of running units; each segment holds the free amounts of every node. Where there
   are more ends than fit, ends are put off to the next cut: a reservation may be late, never too early.
2. `earliest` finds the first segment from which a unit fits for as long as it is thought to run: segments.py answers for all
   beginnings at once which nodes hold k ranks throughout. While nothing is reserved only more comes free, so that what fits
   in a segment fits from then on.
3. `reserve` takes its nodes out of the segments of its run; `window` tells what is left for a unit that would run from now
   on, so that one that would disturb a reservation finds no room (conservative backfilling; with one reservation EASY, Lifka
   1995, Mu'alem and Feitelson 2001, on nodes instead of counts). `drop` gives a reservation up.
4. `follow` brings a profile of an earlier moment up to date by what began and ended since, instead of building it anew.

Steps 1 and 4 stand in following.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.choosing import Choice
from services.scheduler.core.following import CPUS, DEVICES, MEMORY, SLACK, Change, Following, add_to
from services.scheduler.core.placement import Candidates
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.segments import least, packed, parts, ratio, throughout, unpacked, with_any
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import UNBOUNDED, Bools, Floats, Ints
from services.scheduler.core.view import View


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for a unit from ``start_s`` on."""

    key: UnitKey
    start_s: float
    end_s: float
    choice: Choice
    partition: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Owed:
    """A reservation whose nodes are not yet taken out of what is free; ``columns`` are the models it may use."""

    reservation: Reservation
    demand: Demand
    columns: Ints


class Profile(Following):
    """See the module."""

    def __init__(self, view: View, running: Iterable[RunningUnit], now_s: float, estimate: str) -> None:
        super().__init__(view, running, now_s, estimate)
        self._reserved: dict[UnitKey, Reservation] = {}
        self._taken: dict[UnitKey, tuple[Ints, Floats]] = {}
        self._starts: list[tuple[float, UnitKey]] = []
        """Begins of reservations, as a heap; those that were given up stay until they come first."""
        self.reserved_from_s = np.inf
        """No reservation begins before this."""
        self._owed: _Owed | None = None

    @property
    def times(self) -> Floats:
        """See `Following.times`."""
        self._settle()
        return super().times

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """What is reserved, in the order in which it was."""
        return tuple(self._reserved.values())

    @property
    def count(self) -> int:
        """How many reservations there are."""
        return len(self._reserved)

    def reservation(self, key: UnitKey) -> Reservation | None:
        """The unit's reservation."""
        return self._reserved.get(key)

    def due(self, now_s: float) -> list[UnitKey]:
        """The units whose reservations have begun."""
        soon_s = now_s + SLACK
        if soon_s < self.reserved_from_s:
            return []
        begun: list[tuple[float, UnitKey]] = []
        starts = self._starts
        while starts:
            start_s, key = starts[0]
            item = self._reserved.get(key)
            if item is None or item.start_s != start_s or (begun and begun[-1] == starts[0]):
                heapq.heappop(starts)
            elif start_s <= soon_s:
                begun.append(heapq.heappop(starts))
            else:
                break
        if not begun:
            self.reserved_from_s = starts[0][0] if starts else np.inf
        for entry in begun:
            heapq.heappush(starts, entry)
        return [key for _, key in begun]

    def copy(self) -> Profile:
        """A profile that can be changed without changing this one. What is free is shared until one of the two changes it."""
        other = object.__new__(Profile)
        other.__dict__.update(self.__dict__)
        self._sharing.add(other)
        other._times = self._times.copy()
        other._held, other._reserved, other._taken = dict(self._held), dict(self._reserved), dict(self._taken)
        other._starts = list(self._starts)
        return other

    # -- asking ------------------------------------------------------------------------------------------------------

    def earliest(self, candidates: Candidates, duration_s: float) -> tuple[float, Choice] | None:
        """When and where a unit fits for ``duration_s`` (seconds, may be infinite); None when it never does."""
        self._settle()
        times = self._times[: self._size]
        for start, fits in self._rooms(candidates, duration_s):
            choice = candidates.choose_of(fits)
            if choice is not None:
                return float(times[start]), choice
        return None

    def _rooms(self, candidates: Candidates, duration_s: float) -> Iterator[tuple[int, Ints]]:
        """The segments from which on a domain, or all together, may hold all ranks for so long, in order, each with the ranks
        that fit on each node (N)."""
        demand, size = candidates.demand, self._size
        times = self._times[:size]
        # What takes no time needs room at its moment. Without reservations there is never less room later.
        ends: Ints = np.arange(1, size + 1)
        if self._reserved:
            until = np.full(size, size) if duration_s == np.inf else times.searchsorted(times + duration_s)
            np.maximum(ends, until, out=ends)
        nodes = len(candidates.allowed)
        alone = demand.ranks == 1
        holding = alone or self._at_most_one(demand, candidates)
        counted: Any = np.empty((size, nodes), dtype=np.bool_ if holding else np.float64)
        first = done = 0
        for last in parts(ends):
            end = int(ends[last - 1])
            if end > done:
                counted[done:end] = self._counted(demand, candidates, done, end, holding)
                done = end
            table, spans = counted[first:end], ends[first:last] - first
            if self._reserved and alone:
                words = throughout(packed(table), spans)
                found = ((start, unpacked(words[start], nodes)) for start in with_any(words != 0))
            else:
                if self._reserved:
                    table = unpacked(throughout(packed(table), spans), nodes) if holding else least(table, spans)
                hits = table if alone else self._enough(table, demand)
                found = ((start, table[start]) for start in with_any(hits))
            yield from ((first + start, fits.astype(np.int64)) for start, fits in found)
            first = last

    def _at_most_one(self, demand: Demand, candidates: Candidates) -> bool:
        """Whether no node has the accelerators of two ranks, even when nothing is held."""
        if not demand.accelerators or demand.device_milli < 1000:
            return False
        whole = self._table.devices[candidates.allowed][:, candidates.columns] // demand.accelerators
        return int(whole.sum(axis=1).max(initial=0)) <= 1

    def _counted(self, demand: Demand, candidates: Candidates, first: int, end: int, holding: bool) -> Bools | Floats:
        """Ranks that fit, by segment and node (S, N), counted up to those there are; where ``holding`` whether one does."""
        if holding:
            return self._holds(demand, candidates.columns, candidates.allowed, first, end)
        found = self._fits(demand, candidates.columns, candidates.allowed, first, end)
        return np.minimum(found, demand.ranks, out=found)

    def _enough(self, table: Bools | Floats, demand: Demand) -> Bools:
        """Whether a domain, or all together, may hold all ranks in a segment (of S, N): (S, domains or 1)."""
        if demand.cross_domain or len(self._bounds) < 2:
            return np.add.reduce(table, axis=1, keepdims=True, dtype=np.float64) >= demand.ranks
        return np.add.reduceat(table, self._bounds, axis=1, dtype=np.float64) >= demand.ranks

    def window(self, candidates: Candidates, duration_s: float) -> Ints | None:
        """Ranks that fit on each node (N) from now until ``duration_s`` later; None when no reservation is in the way."""
        self._settle()
        until_s = float(self._times[0]) + duration_s
        if until_s <= self.reserved_from_s:
            return None
        times = self._times[: self._size]
        first = max(int(times.searchsorted(self.reserved_from_s, side="right")) - 1, 0)
        end = max(int(times.searchsorted(until_s)), first + 1)
        table = self._fits(candidates.demand, candidates.columns, candidates.allowed, first, end)
        left: Ints = np.minimum.reduce(table, axis=0).astype(np.int64)
        return left

    def _holds(self, demand: Demand, columns: Ints, allowed: Bools, first: int, end: int) -> Bools:
        """Whether a rank fits, by segment and node (S, N): `_fits` of at least 1, without counting."""
        whole = demand.accelerators == 0 or (demand.device_milli >= 1000 and len(columns) > 0)
        if not whole or any(name not in self._table.resource_names for name, _ in demand.resources):
            counted: Bools = np.greater_equal(self._fits(demand, columns, allowed, first, end), 1)
            return counted
        free = self._free[first:end]
        parts: list[Bools] = []
        if demand.cpus > 0:
            parts.append(free[:, CPUS] + SLACK >= demand.cpus)
        if demand.memory_bytes > 0:
            parts.append(free[:, MEMORY] >= demand.memory_bytes)
        if demand.accelerators > 0:
            # All devices of a rank are of one model.
            devices = [free[:, DEVICES + column] >= demand.accelerators for column in columns.tolist()]
            parts.append(np.logical_or.reduce(devices) if len(devices) > 1 else devices[0])
        for name, amount in demand.resources:
            layer = DEVICES + self._models + self._table.resource_names.index(name)
            if amount > 0:
                parts.append(free[:, layer] + SLACK >= amount)
        table = parts[0] if parts else np.ones(free[:, CPUS].shape, dtype=np.bool_)
        for each in (*parts[1:], allowed):
            np.logical_and(table, each, out=table)
        return table

    def _fits(self, demand: Demand, columns: Ints, allowed: Bools, first: int, end: int) -> Floats:
        """Ranks that fit, by segment and node (S, N), as `fitting.fits` counts them for one moment."""
        free = self._free[first:end]
        parts: list[Any] = []
        if demand.cpus > 0:
            parts.append(ratio(free[:, CPUS], demand.cpus, SLACK))
        if demand.memory_bytes > 0:
            parts.append(ratio(free[:, MEMORY], demand.memory_bytes))
        if demand.accelerators > 0:
            devices = [free[:, DEVICES + column] for column in columns.tolist()]
            if demand.device_milli < 1000:
                whole = sum(devices) if devices else np.zeros(free[:, CPUS].shape)
                parts.append(ratio(whole * (1000 // demand.device_milli), demand.accelerators))
            else:
                ratios = devices if demand.accelerators == 1 else [ratio(each, demand.accelerators) for each in devices]
                parts.append(sum(ratios[1:], ratios[0]) if ratios else np.zeros(free[:, CPUS].shape))
        for name, amount in demand.resources:
            if amount > 0 and name not in self._table.resource_names:
                parts.append(np.zeros(free[:, CPUS].shape))
            elif amount > 0:
                layer = DEVICES + self._models + self._table.resource_names.index(name)
                parts.append(ratio(free[:, layer], amount, SLACK))
        table: Floats = parts[0].copy() if parts else np.full(free[:, CPUS].shape, float(UNBOUNDED))
        for each in parts[1:]:
            np.minimum(table, each, out=table)
        np.maximum(table, 0, out=table)
        np.minimum(table, 1 if demand.service_port else UNBOUNDED, out=table)
        table *= allowed
        return table

    # -- changing ----------------------------------------------------------------------------------------------------

    def reserve(self, key: UnitKey, start_s: float, duration_s: float, candidates: Candidates, choice: Choice) -> None:
        """Keep the nodes of ``choice`` for a unit that waits; a former reservation of it is given up."""
        self._settle()
        self.drop(key)
        end_s = self._rounded(start_s + duration_s)
        self.reserved_from_s = min(self.reserved_from_s, start_s)
        self._reserved[key] = Reservation(key, start_s, end_s, choice, candidates.demand.domains)
        heapq.heappush(self._starts, (start_s, key))
        self._owed = _Owed(self._reserved[key], candidates.demand, candidates.columns)
        if not self._is_shared():
            self._settle()

    def _settle(self) -> None:
        """Take the nodes of the last reservation out of what is free. Where that is shared with other profiles it would have to
        be copied first, in vain if nobody asks any more: so it waits until somebody does."""
        owed = self._owed
        if owed is None:
            return
        self._owed = None
        reservation, demand = owed.reservation, owed.demand
        rows = np.array([row for row, _ in reservation.choice.rows], dtype=np.int64)
        columns = [[0.0] * self._free.shape[1] for _ in reservation.choice.rows]
        self._own()
        first = self._cut(reservation.start_s)
        last = self._size if reservation.end_s == np.inf else self._cut(reservation.end_s)
        for column, (row, count) in zip(columns, reservation.choice.rows, strict=True):
            self._add(column, demand, count)
            left = count * demand.accelerators
            if not left:
                continue
            if len(owed.columns) == 1:
                column[DEVICES + owed.columns.item(0)] += left
                continue
            # The fewest that suffice first, as `View.take` does; several models only when one has not enough.
            free = self._free[first:last, DEVICES : DEVICES + self._models, row][:, owed.columns]
            least = free.min(axis=0)
            for model in np.argsort(least, kind="stable"):
                take = min(left, int(least[model]) // demand.accelerators * demand.accelerators)
                if take > 0:
                    column[DEVICES + owed.columns.item(model)] += take
                    left -= take
        amounts = self._stacked(columns)
        add_to(self._free[first:last], rows, -amounts)
        self._join(last)
        self._join(first)
        self._taken[reservation.key] = rows, amounts

    def drop(self, key: UnitKey) -> Reservation | None:
        """Give a reservation up; None when there is none."""
        if key not in self._reserved:
            return None
        self._settle()
        reservation = self._reserved.pop(key)
        self._shift(reservation.start_s, reservation.end_s, *self._taken.pop(key))
        if not self._reserved:
            self.reserved_from_s = np.inf
        return reservation

    def follow(self, view: View, running: Iterable[RunningUnit], now_s: float) -> Change | None:
        """See `Following.follow`."""
        self._settle()
        return super().follow(view, running, now_s)

    def begin(self, unit: RunningUnit, now_s: float) -> None:
        """See `Following.begin`."""
        self._settle()
        super().begin(unit, now_s)

    def end(self, unit: RunningUnit, now_s: float) -> None:
        """See `Following.end`."""
        self._settle()
        super().end(unit, now_s)
