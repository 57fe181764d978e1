"""How much room a unit could get at most by taking others off: asked before anybody looks for a place.

`Reach` asks all nodes, `Changed` only those on which something changed.

Steps:
1. Running units stand in one order for a whole cycle, those that go first at the front; who may be taken off for a unit is among
   the first so many of them.
2. `Reach` counts what the first 0, 1, 2, ... of them would free on each node, as far as it is asked: the most whole devices on a
   node, and the ranks of several devices over all nodes. Both only grow along the order.
3. A unit that needs more than its part of the order could free at most is out of reach: no place need be looked for.
Only devices are counted, and everybody in the order as if all could be taken: it is a bound, never too low.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.placement import Candidates
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools
from services.scheduler.core.view import View


class Reach:
    """See the module. ``first(past, until)`` are those of the running units that come in the order after ``past`` others and
    before ``until`` of them have come; only nodes of ``allowed`` (N) count."""

    def __init__(self, view: View, first: Callable[[int, int], Sequence[RunningUnit]], allowed: Bools) -> None:
        self._first, self._allowed = first, allowed
        self._free: list[int] = view.free_device_totals.tolist()
        self._here: list[bool] | None = None
        self._asked = False
        self._devices: list[int] = []
        self._gained: list[int] = []
        self._ranks: dict[int, tuple[list[int], list[int]]] = {}

    def covers(self, demand: Demand, first: int) -> bool:
        """Whether the ``first`` so many units of the order may free enough for a demand, with what is free."""
        if not demand.accelerators or demand.device_milli < 1000:
            return True
        if not self._asked:
            self._prepare()
        if demand.ranks == 1:
            return self._has_devices(demand.accelerators, first)
        return self._most_ranks(demand.accelerators, first) >= demand.ranks

    def _prepare(self) -> None:
        """Most are made only to say what was free then: of those in the order too few come first."""
        self._asked = True
        if np.count_nonzero(self._allowed) < len(self._allowed):
            self._here = self._allowed.tolist()
            self._free = [free if here else 0 for free, here in zip(self._free, self._here, strict=True)]
        self._devices.append(max(self._free, default=0))
        self._gained = list(self._free)

    def _has_devices(self, wanted: int, first: int) -> bool:
        """Whether so many devices may be free on one node."""
        known = self._devices
        if first < len(known) or known[-1] >= wanted:
            return known[min(first, len(known) - 1)] >= wanted
        gained, here = self._gained, self._here
        most = known[-1]
        for unit in self._first(len(known) - 1, first):
            for row, devices in unit.rows:
                if here is None or here[row]:
                    gained[row] = now = gained[row] + len(devices)
                    if now <= most:
                        continue
                    most = now
            known.append(most)
            if most >= wanted:
                return True
        return False

    def _most_ranks(self, devices: int, first: int) -> int:
        """Ranks of so many devices each, over all nodes."""
        found = self._ranks.get(devices)
        if found is None:
            found = self._ranks[devices] = [sum([free // devices for free in self._free])], list(self._free)
        known, gained = found
        ranks, here = known[-1], self._here
        for unit in self._first(len(known) - 1, first) if first >= len(known) else ():
            for row, held in unit.rows:
                if here is None or here[row]:
                    before = gained[row]
                    gained[row] = after = before + len(held)
                    ranks += after // devices - before // devices
            known.append(ranks)
        return known[first]


class Changed:
    """Nodes on which something changed since nobody who waits could have a place: who finds one now has a rank on one of them.

    On any other node no more is free than then, and no unit that runs there has fallen in the order, so what a unit could have
    there, with all behind it taken off, has not become more. ``held`` gives per node (row) that was touched the units that run
    there: their place in the order and their devices.
    """

    def __init__(self, view: View, held: Mapping[int, list[tuple[Any, int]]]) -> None:
        free = view.free_device_totals
        self._nodes = [(row, free.item(row), sorted(units, reverse=True)) for row, units in held.items()]

    def may_hold(self, alternatives: Sequence[Candidates], place: Any) -> bool:
        """Whether one of the nodes may hold a rank, if all that run behind ``place`` were taken off; True where that cannot be
        told by devices."""
        wanted, alone = alternatives[0].demand.accelerators, alternatives[0] if len(alternatives) == 1 else None
        if not wanted or not (all(item.local for item in alternatives) if alone is None else alone.local):
            return True
        for row, free, units in self._nodes:
            if not (any(item.allowed.item(row) for item in alternatives) if alone is None else alone.allowed.item(row)):
                continue
            lacking = wanted - free
            for their_place, devices in units:
                if lacking <= 0 or their_place <= place:
                    break
                lacking -= devices
            if lacking <= 0:
                return True
        return False
