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
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from services.scheduler.core.choosing import Choice
from services.scheduler.core.cluster import RunningUnit
from services.scheduler.core.placement import Candidates
from services.scheduler.core.segments import cuts, least, packed, ratio, throughout, unpacked, with_any
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import UNBOUNDED, Bools, Floats, Ints
from services.scheduler.core.view import View

_MOST_CELLS = 3_000_000
_LEAST_SEGMENTS = 24
_SLACK = 1e-6
"""Cpus are fractions, and times are sums: neither is exact."""
_CPUS, _MEMORY, _DEVICES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for a unit from ``start_s`` on."""

    key: UnitKey
    start_s: float
    end_s: float
    choice: Choice
    partition: frozenset[str]


@dataclass(frozen=True, slots=True)
class Change:
    """What `Profile.follow` found: ``freed``, that something ended before it was thought to; ``late``, that something did
    not end when it was thought to, so that reservations may not hold."""

    freed: bool
    late: bool


@dataclass(slots=True)
class _Held:
    """What a unit takes: amounts (L, R) on rows (R) until ``end_s``. Its end was estimated from
    the unit's ends as they were then, ``expected_s`` and ``limit_s``."""

    unit: RunningUnit
    expected_s: float
    limit_s: float
    end_s: float
    rows: Ints
    amounts: Floats


class Profile:
    """See the module. ``times`` (S) are the beginnings of the segments; the last one has no end.

    Amounts are kept by segment, layer (cpus, memory, devices by model, resources) and node: (S, L, N).
    """

    def __init__(self, view: View, running: Iterable[RunningUnit], now_s: float, estimate: str) -> None:
        units = list(running)
        self._table, self._estimate = view.table, estimate
        self._generation = view.generation
        nodes, models = view.free_devices.shape
        layers = _DEVICES + models + view.free_resources.shape[1]
        self._models = models
        self._bounds = [part.start for part in view.table.domain_slice if part.start < part.stop]
        self._most = max(_LEAST_SEGMENTS, _MOST_CELLS // max(nodes * layers, 1))
        ends = np.array([unit.end_s(now_s, estimate) for unit in units])
        times, segment_of = cuts(ends, self._most)
        self._size = len(times) + 1
        self._times: Floats = np.empty(2 * self._size + 8)
        self._times[0] = now_s
        self._times[1 : self._size] = times
        self._free: Floats = np.zeros((len(self._times), layers, nodes))
        now = self._free[0]
        now[_CPUS], now[_MEMORY] = view.free_cpus, view.free_memory_bytes
        now[_DEVICES : _DEVICES + models] = view.free_devices.T
        now[_DEVICES + models :] = view.free_resources.T
        self._sharing: WeakSet[Profile] = WeakSet((self,))
        self._held: dict[int, _Held] = {}
        self.whole = all(unit.unit.demand.device_milli >= 1000 for unit in units)
        """Whether no running unit shares a device: only then can the profile `follow`."""
        for unit, segment in zip(units, segment_of.tolist(), strict=True):
            end_s = float(self._times[segment]) if segment > 0 else np.inf
            held = self._held[id(unit)] = self._holding(unit, end_s)
            if segment > 0:
                self._free[segment][:, held.rows] += held.amounts
        self._give_shared(view, units, segment_of)
        part = self._free[: self._size]
        np.cumsum(part, axis=0, out=part)
        self._reserved: dict[UnitKey, Reservation] = {}
        self._taken: dict[UnitKey, tuple[Ints, Floats]] = {}
        self._starts: list[tuple[float, UnitKey]] = []
        """Begins of reservations, as a heap; those that were given up stay until they come first."""
        self.reserved_from_s = np.inf
        """No reservation begins before this."""

    @property
    def times(self) -> Floats:
        """When the segments begin (S), in seconds."""
        return self._times[: self._size]

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
        soon_s = now_s + _SLACK
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

    def _own(self) -> None:
        """Share what is free with nobody, before it is changed."""
        if len(self._sharing) == 1:
            return
        free = np.empty((len(self._times), *self._free.shape[1:]))
        free[: self._size] = self._free[: self._size]
        # In this order: whoever is left alone changes the former one in place, maybe in another thread.
        former, self._free = self._sharing, free
        self._sharing = WeakSet((self,))
        former.discard(self)

    # -- what runs ---------------------------------------------------------------------------------------------------

    def _holding(self, unit: RunningUnit, end_s: float) -> _Held:
        demand = unit.unit.demand
        columns: dict[int, list[float]] = {}
        for row, devices in unit.rows:
            column = columns.get(row)
            if column is None:
                column = columns[row] = [0.0] * self._free.shape[1]
            self._add(column, demand, 1)
            if devices and demand.device_milli >= 1000:
                for index, model in self._table.devices_of[row]:
                    if index in devices:
                        column[_DEVICES + model] += 1
        rows = sorted(columns)
        amounts = self._stacked([columns[row] for row in rows])
        return _Held(unit, unit.expected_end_s, unit.limit_end_s, end_s, np.array(rows, dtype=np.int64), amounts)

    def _stacked(self, columns: Sequence[Sequence[float]]) -> Floats:
        """Amounts (L, R) from those of each row."""
        amounts: Floats = np.array(columns, dtype=np.float64).reshape(len(columns), self._free.shape[1]).T
        return amounts

    def _add(self, column: list[float], demand: Demand, count: int) -> None:
        column[_CPUS] += count * demand.cpus
        column[_MEMORY] += count * demand.memory_bytes
        for name, amount in demand.resources:
            if name in self._table.resource_names:
                column[_DEVICES + self._models + self._table.resource_names.index(name)] += count * amount

    def _give_shared(self, view: View, units: Sequence[RunningUnit], segment_of: Ints) -> None:
        """A shared device is free when the last of its units ends."""
        if self.whole:
            return
        free_at: dict[tuple[int, int], int] = {}
        milli: dict[tuple[int, int], int] = {}
        for unit, segment in zip(units, segment_of.tolist(), strict=True):
            share = unit.unit.demand.device_milli
            if share >= 1000:
                continue
            for row, devices in unit.rows:
                for index in devices:
                    device = (row, index)
                    last = self._size if segment < 0 else segment
                    free_at[device] = max(free_at.get(device, 0), last)
                    milli[device] = milli.get(device, 0) + share
        for (row, index), segment in free_at.items():
            for position, (other, model) in enumerate(self._table.devices_of[row]):
                left = int(view.device_milli[row, position]) + milli[row, index]
                if other == index and segment < self._size and left >= 1000:
                    self._free[segment, _DEVICES + model, row] += 1

    def follow(self, view: View, running: Iterable[RunningUnit], now_s: float) -> Change | None:
        """Bring the profile up to what runs now. None when that cannot be: it must be built anew."""
        if not self.whole or view.generation != self._generation or now_s < self._times[0]:
            return None
        self._advance(now_s)
        estimate, soon_s = self._estimate, now_s + _SLACK
        numbers, outlived, again = self._compare(list(running), soon_s)
        held = self._held
        gone = [held.pop(number) for number in numbers]
        by_key = {item.unit.unit.key: item for item in gone} if gone else {}
        gone += [held[number] for number in outlived]
        freed, late = False, bool(outlived)
        for unit in again:
            if unit.unit.demand.device_milli < 1000:
                return None
            before = by_key.get(unit.unit.key)
            if before is not None and before.end_s > soon_s and self._is_same(before, unit):
                gone = [item for item in gone if item is not before]
                held[id(unit)] = _Held(
                    unit, before.expected_s, before.limit_s, before.end_s, before.rows, before.amounts
                )
                continue
            late = late or before is not None
            now = held[id(unit)] = self._holding(unit, self._rounded(unit.end_s(now_s, estimate)))
            self._shift(now_s, now.end_s, now.rows, -now.amounts)
        for item in gone:
            if item.end_s > soon_s:
                self._shift(now_s, item.end_s, item.rows, item.amounts)
                freed = True
        return Change(freed, late)

    def _compare(
        self, units: Sequence[RunningUnit], soon_s: float
    ) -> tuple[list[int], list[int], Sequence[RunningUnit]]:
        """By the numbers under which they are held, the units that ended and those that go on though they were thought to end
        by ``soon_s`` or at another time than now; and the latter with all that are new, in the order of what runs.

        What is held stands in that order too, as units leave and new ones come last. Where that does not hold, as a unit took
        the place of another, it is put in order first.
        """
        gone, outlived, new = self._in_order(units, soon_s)
        if not new or not any(id(unit) in self._held for unit in new):
            return gone, outlived, [*[self._held[number].unit for number in outlived], *new] if outlived else new
        held, numbers = self._held, list(map(id, units))
        here = set(numbers)
        self._held = {number: held[number] for number in held if number not in here}
        self._held |= {number: held[number] for number in numbers if number in held}
        gone, outlived, _ = self._in_order([unit for unit in units if id(unit) in held], soon_s)
        again = {number for number in here if number not in held}.union(outlived)
        return gone, outlived, [unit for unit in units if id(unit) in again]

    def _in_order(
        self, units: Sequence[RunningUnit], soon_s: float
    ) -> tuple[list[int], list[int], Sequence[RunningUnit]]:
        """Units that ended, those that go on, and what is left of ``units`` after the last that is held."""
        gone: list[int] = []
        outlived: list[int] = []
        left = iter(units)
        unit = next(left, None)
        for number, item in self._held.items():
            if unit is not item.unit:
                gone.append(number)
                continue
            if item.end_s <= soon_s or unit.expected_end_s != item.expected_s or unit.limit_end_s != item.limit_s:
                outlived.append(number)
            unit = next(left, None)
        return gone, outlived, [] if unit is None else [unit, *left]

    def _is_same(self, before: _Held, unit: RunningUnit) -> bool:
        """Whether a unit that runs holds what was held, and ends when that was thought to end."""
        if (unit.expected_end_s, unit.limit_end_s) != (before.expected_s, before.limit_s):
            return False
        former = before.unit
        if unit.rows == former.rows and unit.unit.demand == former.unit.demand:
            return True
        now = self._holding(unit, before.end_s)
        return np.array_equal(now.rows, before.rows) and np.array_equal(now.amounts, before.amounts)

    def begin(self, unit: RunningUnit, now_s: float) -> None:
        """A unit begins to run."""
        if unit.unit.demand.device_milli < 1000:
            self.whole = False
        end_s = self._rounded(unit.end_s(now_s, self._estimate))
        held = self._held[id(unit)] = self._holding(unit, end_s)
        self._shift(now_s, held.end_s, held.rows, -held.amounts)

    def end(self, unit: RunningUnit, now_s: float) -> None:
        """A unit is taken off now."""
        held = self._held.pop(id(unit), None)
        if held is not None:
            self._shift(now_s, held.end_s, held.rows, held.amounts)

    # -- asking ------------------------------------------------------------------------------------------------------

    def earliest(self, candidates: Candidates, duration_s: float) -> tuple[float, Choice] | None:
        """When and where a unit fits for ``duration_s`` (seconds, may be infinite); None when it never does."""
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
        # Without reservations there is never less room later.
        ends: Ints = np.zeros(0, dtype=np.int64)
        if self._reserved:
            ends = np.full(size, size) if duration_s == np.inf else times.searchsorted(times + duration_s)
            # What takes no time needs room at its moment.
            np.maximum(ends, np.arange(1, size + 1), out=ends)
        if demand.ranks == 1:
            holds = self._holds(demand, candidates.columns, candidates.allowed, 0, size)
            if not self._reserved:
                yield from ((start, holds[start].astype(np.int64)) for start in with_any(holds))
                return
            words = throughout(packed(holds), ends)
            nodes = holds.shape[1]
            yield from ((start, unpacked(words[start], nodes).astype(np.int64)) for start in with_any(words != 0))
            return
        table = self._fits(demand, candidates.columns, candidates.allowed, 0, size)
        np.minimum(table, demand.ranks, out=table)
        if self._reserved:
            table = least(table, ends)
        yield from ((start, table[start].astype(np.int64)) for start in with_any(self._enough(table, demand)))

    def _enough(self, table: Floats, demand: Demand) -> Bools:
        """Whether a domain, or all together, may hold all ranks in a segment (of S, N): (S, domains or 1)."""
        if demand.cross_domain or len(self._bounds) < 2:
            return np.add.reduce(table, axis=1, keepdims=True) >= demand.ranks
        return np.add.reduceat(table, self._bounds, axis=1) >= demand.ranks

    def window(self, candidates: Candidates, duration_s: float) -> Ints | None:
        """Ranks that fit on each node (N) from now until ``duration_s`` later; None when no reservation is in the way."""
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
            parts.append(free[:, _CPUS] + _SLACK >= demand.cpus)
        if demand.memory_bytes > 0:
            parts.append(free[:, _MEMORY] >= demand.memory_bytes)
        if demand.accelerators > 0:
            # All devices of a rank are of one model.
            devices = [free[:, _DEVICES + column] >= demand.accelerators for column in columns.tolist()]
            parts.append(np.logical_or.reduce(devices) if len(devices) > 1 else devices[0])
        for name, amount in demand.resources:
            layer = _DEVICES + self._models + self._table.resource_names.index(name)
            if amount > 0:
                parts.append(free[:, layer] + _SLACK >= amount)
        table = parts[0] if parts else np.ones(free[:, _CPUS].shape, dtype=np.bool_)
        for each in (*parts[1:], allowed):
            np.logical_and(table, each, out=table)
        return table

    def _fits(self, demand: Demand, columns: Ints, allowed: Bools, first: int, end: int) -> Floats:
        """Ranks that fit, by segment and node (S, N), as `fitting.fits` counts them for one moment."""
        free = self._free[first:end]
        parts: list[Any] = []
        if demand.cpus > 0:
            parts.append(ratio(free[:, _CPUS], demand.cpus, _SLACK))
        if demand.memory_bytes > 0:
            parts.append(ratio(free[:, _MEMORY], demand.memory_bytes))
        if demand.accelerators > 0:
            devices = [free[:, _DEVICES + column] for column in columns.tolist()]
            if demand.device_milli < 1000:
                whole = sum(devices) if devices else np.zeros(free[:, _CPUS].shape)
                parts.append(ratio(whole * (1000 // demand.device_milli), demand.accelerators))
            else:
                ratios = devices if demand.accelerators == 1 else [ratio(each, demand.accelerators) for each in devices]
                parts.append(sum(ratios[1:], ratios[0]) if ratios else np.zeros(free[:, _CPUS].shape))
        for name, amount in demand.resources:
            if amount > 0 and name not in self._table.resource_names:
                parts.append(np.zeros(free[:, _CPUS].shape))
            elif amount > 0:
                layer = _DEVICES + self._models + self._table.resource_names.index(name)
                parts.append(ratio(free[:, layer], amount, _SLACK))
        table: Floats = parts[0].copy() if parts else np.full(free[:, _CPUS].shape, float(UNBOUNDED))
        for each in parts[1:]:
            np.minimum(table, each, out=table)
        np.maximum(table, 0, out=table)
        np.minimum(table, 1 if demand.service_port else UNBOUNDED, out=table)
        table *= allowed
        return table

    # -- changing ----------------------------------------------------------------------------------------------------

    def reserve(self, key: UnitKey, start_s: float, duration_s: float, candidates: Candidates, choice: Choice) -> None:
        """Keep the nodes of ``choice`` for a unit that waits; a former reservation of it is given up."""
        self.drop(key)
        demand = candidates.demand
        rows = np.array([row for row, _ in choice.rows], dtype=np.int64)
        columns = [[0.0] * self._free.shape[1] for _ in choice.rows]
        self._own()
        end_s = self._rounded(start_s + duration_s)
        first = self._cut(start_s)
        last = self._size if end_s == np.inf else self._cut(end_s)
        for column, (row, count) in zip(columns, choice.rows, strict=True):
            self._add(column, demand, count)
            left = count * demand.accelerators
            if not left:
                continue
            if len(candidates.columns) == 1:
                column[_DEVICES + candidates.columns.item(0)] += left
                continue
            # The fewest that suffice first, as `View.take` does; several models only when one has not enough.
            free = self._free[first:last, _DEVICES : _DEVICES + self._models, row][:, candidates.columns]
            least = free.min(axis=0)
            for model in np.argsort(least, kind="stable"):
                take = min(left, int(least[model]) // demand.accelerators * demand.accelerators)
                if take > 0:
                    column[_DEVICES + candidates.columns.item(model)] += take
                    left -= take
        amounts = self._stacked(columns)
        _change(self._free[first:last], rows, -amounts)
        self.reserved_from_s = min(self.reserved_from_s, start_s)
        self._reserved[key] = Reservation(key, start_s, end_s, choice, demand.domains)
        heapq.heappush(self._starts, (start_s, key))
        self._taken[key] = rows, amounts

    def drop(self, key: UnitKey) -> Reservation | None:
        """Give a reservation up; None when there is none."""
        reservation = self._reserved.pop(key, None)
        if reservation is None:
            return None
        self._shift(reservation.start_s, reservation.end_s, *self._taken.pop(key))
        if not self._reserved:
            self.reserved_from_s = np.inf
        return reservation

    def _shift(self, start_s: float, end_s: float, rows: Ints, amounts: Floats) -> None:
        """Add amounts (L, R) on rows (R) to what is free from a time to another."""
        if end_s <= self._times[0] + _SLACK:
            return
        self._own()
        first = self._cut(start_s)
        last = self._size if end_s == np.inf else self._cut(end_s)
        _change(self._free[first:last], rows, amounts)

    def _advance(self, now_s: float) -> None:
        """Forget segments that are over."""
        times = self._times[: self._size]
        over = int(times.searchsorted(now_s + _SLACK, side="right")) - 1
        if over > 0:
            self._size -= over
            self._times, self._free = self._times[over:], self._free[over:]
        self._times[0] = now_s

    def _rounded(self, end_s: float) -> float:
        """An end, put off to the next cut when there are as many segments as there may be."""
        if self._size < 2 * self._most:
            return end_s
        place = int(self._times[: self._size].searchsorted(end_s))
        return float(self._times[place]) if place < self._size else np.inf

    def _cut(self, at_s: float) -> int:
        """The number of the segment that begins at a time, made by cutting another if there is none."""
        size = self._size
        place = int(self._times[:size].searchsorted(at_s))
        if place < size and self._times[place] == at_s:
            return place
        if place == 0:
            return 0
        if size == len(self._times):
            self._times = np.concatenate([self._times, np.empty(size + 8)])
            grown = np.empty((len(self._times), *self._free.shape[1:]))
            grown[:size] = self._free[:size]
            self._free = grown
        # Arrays of one dimension are moved in place, without a copy.
        flat, width = self._free.reshape(-1), self._free[0].size
        flat[(place + 1) * width : (size + 1) * width] = flat[place * width : size * width]
        self._times[place + 1 : size + 1] = self._times[place:size]
        self._times[place] = at_s
        self._free[place] = self._free[place - 1]
        self._size = size + 1
        return place


def _change(free: Floats, rows: Ints, amounts: Floats) -> None:
    """Add amounts (L, R) on rows (R) to what is free in segments (S, L, N)."""
    if len(rows) != 1:
        free[:, :, rows] += amounts[None]
        return
    row = rows.item(0)
    for layer, amount in enumerate(amounts[:, 0].tolist()):
        if amount:
            free[:, layer, row] += amount
