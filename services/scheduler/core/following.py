"""What comes free as running units end, and how that is brought up to date as units begin and end.

Time is cut at the expected ends of running units; each segment holds the free amounts of every node. Where there are more ends
than fit, ends are put off to the next cut: what comes free may be late, never too early. Where nothing changes, as one unit
takes what another leaves, there is no cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.segments import cuts
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats, Ints
from services.scheduler.core.view import View

_MOST_CELLS = 3_000_000
_LEAST_SEGMENTS = 24
SLACK = 1e-6
"""Cpus are fractions, and times are sums: neither is exact."""
CPUS, MEMORY, DEVICES = 0, 1, 2
"""Layers of amounts: those of devices are one per model, resources of users follow."""


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


class Following:
    """See the module. ``times`` (S) are the beginnings of the segments; the last one has no end.

    Amounts are kept by segment, layer (cpus, memory, devices by model, resources) and node: (S, L, N).
    """

    def __init__(self, view: View, running: Iterable[RunningUnit], now_s: float, estimate: str) -> None:
        units = list(running)
        self._table, self._estimate = view.table, estimate
        self._generation = view.generation
        nodes, models = view.free_devices.shape
        layers = DEVICES + models + view.free_resources.shape[1]
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
        now[CPUS], now[MEMORY] = view.free_cpus, view.free_memory_bytes
        now[DEVICES : DEVICES + models] = view.free_devices.T
        now[DEVICES + models :] = view.free_resources.T
        self._sharing: WeakSet[Following] = WeakSet((self,))
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

    @property
    def times(self) -> Floats:
        """When the segments begin (S), in seconds."""
        return self._times[: self._size]

    def _is_shared(self) -> bool:
        """Whether what is free is another's too."""
        return len(self._sharing) > 1

    def _own(self) -> None:
        """Share what is free with nobody, before it is changed."""
        if not self._is_shared():
            return
        free = np.empty((len(self._times), *self._free.shape[1:]))
        free[: self._size] = self._free[: self._size]
        # In this order: whoever is left alone changes the former one in place, maybe in another thread.
        former, self._free = self._sharing, free
        self._sharing = WeakSet((self,))
        former.discard(self)

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
                        column[DEVICES + model] += 1
        rows = sorted(columns)
        amounts = self._stacked([columns[row] for row in rows])
        return _Held(unit, unit.expected_end_s, unit.limit_end_s, end_s, np.array(rows, dtype=np.int64), amounts)

    def _stacked(self, columns: Sequence[Sequence[float]]) -> Floats:
        """Amounts (L, R) from those of each row."""
        amounts: Floats = np.array(columns, dtype=np.float64).reshape(len(columns), self._free.shape[1]).T
        return amounts

    def _add(self, column: list[float], demand: Demand, count: int) -> None:
        column[CPUS] += count * demand.cpus
        column[MEMORY] += count * demand.memory_bytes
        for name, amount in demand.resources:
            if name in self._table.resource_names:
                column[DEVICES + self._models + self._table.resource_names.index(name)] += count * amount

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
                    self._free[segment, DEVICES + model, row] += 1

    def follow(self, view: View, running: Iterable[RunningUnit], now_s: float) -> Change | None:
        """Bring the profile up to what runs now. None when that cannot be: it must be built anew."""
        if not self.whole or view.generation != self._generation or now_s < self._times[0]:
            return None
        self._advance(now_s)
        estimate, soon_s = self._estimate, now_s + SLACK
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

    def _shift(self, start_s: float, end_s: float, rows: Ints, amounts: Floats) -> None:
        """Add amounts (L, R) on rows (R) to what is free from a time to another."""
        if end_s <= self._times[0] + SLACK:
            return
        self._own()
        first = self._cut(start_s)
        last = self._size if end_s == np.inf else self._cut(end_s)
        add_to(self._free[first:last], rows, amounts)
        self._join(last)
        self._join(first)

    def _join(self, place: int) -> None:
        """Make a segment (S: none) one with that before it, where the same is free in both: whatever fits in it for a while fits
        as long from the beginning of the other on. So there are as many segments as there are changes, however many
        units follow each other on the same devices."""
        size = self._size
        if not 0 < place < size:
            return
        flat, width = self._free.reshape(-1), self._free[0].size
        begin = place * width
        if not np.array_equal(flat[begin - width : begin], flat[begin : begin + width]):
            return
        flat[begin : (size - 1) * width] = flat[begin + width : size * width]
        self._times[place : size - 1] = self._times[place + 1 : size]
        self._size = size - 1

    def _advance(self, now_s: float) -> None:
        """Forget segments that are over."""
        times = self._times[: self._size]
        over = int(times.searchsorted(now_s + SLACK, side="right")) - 1
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


def add_to(free: Floats, rows: Ints, amounts: Floats) -> None:
    """Add amounts (L, R) on rows (R) to what is free in segments (S, L, N)."""
    if len(rows) != 1:
        free[:, :, rows] += amounts[None]
        return
    row = rows.item(0)
    for layer, amount in enumerate(amounts[:, 0].tolist()):
        if amount:
            free[:, layer, row] += amount
