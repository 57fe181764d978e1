"""Which filter rejects which nodes, for one class of units: asked of all nodes once, then of those that were touched since.

A node counts for the first filter of the chain that rejects it. Of each filter are known how many nodes it rejects, the first
few of them, and why; the reasons of nodes that nothing touched are not asked for again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Self

import numpy as np
import numpy.typing as npt

from services.scheduler.core.explaining.explanation import Rejection
from services.scheduler.core.filters import Filter
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Ints
from services.scheduler.core.view import View

_BLOCK = 4096
"""So many nodes are looked through at a time for the first that a filter rejects."""


def applies(item: Filter, demand: Demand) -> bool:
    """Whether a filter has anything to say about a demand; a plugin without ``applies`` always has."""
    says = getattr(item, "applies", None)
    return says is None or bool(says(demand))


@dataclass(slots=True)
class _Told:
    """A filter, how many nodes count for it, the first of them in order (None: to be looked for), their names and why it rejects
    them, and all that in words (None: to be said again)."""

    item: Filter
    count: int
    rows: list[int] | None = None
    whys: dict[int, tuple[str, str]] = field(default_factory=dict)
    said: Rejection | None = None

    def copy(self) -> _Told:
        return replace(self, rows=None if self.rows is None else list(self.rows), whys=dict(self.whys))


class Rejecting:
    """See the module. ``chain`` are the filters in order, ``shown`` is of how many nodes the reasons are told. ``room`` is what the
    filter "capacity" says of nodes (N), where it is known already.

    ``allowed`` (N) are the nodes that all filters let pass that read nothing of what is free, ``passing`` (N) those that all
    let pass, as it was in the beginning.
    """

    def __init__(
        self, view: View, demand: Demand, chain: Sequence[Filter], shown: int, room: Bools | None = None
    ) -> None:
        self._view, self._demand, self._shown = view, demand, shown
        self._lasting = len(list(takewhile(lambda item: not item.dynamic, chain)))
        self._again = [
            (place, item) for place, item in enumerate(chain) if place >= self._lasting and applies(item, demand)
        ]
        self.capacity_alone = [item.name for _, item in self._again] == ["capacity"]
        """Whether what changes is said by the filter "capacity" alone."""
        everything = slice(None)
        size = len(view.table.nodes)
        self._none = len(chain)
        self._first: npt.NDArray[np.int16] = np.full(size, self._none, dtype=np.int16)
        self.allowed: Bools = np.ones(size, dtype=np.bool_)
        for place in range(len(chain) - 1, -1, -1):
            item = chain[place]
            if applies(item, demand):
                known = room is not None and item.name == "capacity"
                passes = room if known and room is not None else item.passes(view, demand, everything)
                self._first[~passes] = place
                if not item.dynamic:
                    self.allowed &= passes
        self.passing: Bools = self._first == self._none
        counts = np.bincount(self._first, minlength=self._none + 1).tolist()
        self._told = [_Told(item, count) for item, count in zip(chain, counts, strict=False)]
        self._all: tuple[Rejection, ...] | None = None

    def on(self, view: View) -> Self:
        """The same on a copy of this view. What does not change is shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._view, other._first = view, self._first.copy()
        other._told = self._told[: self._lasting] + [told.copy() for told in self._told[self._lasting :]]
        return other

    def look_again(self, rows: Ints) -> None:
        """Nodes were touched."""
        before = self._first[rows]
        now = np.full(len(rows), self._none, dtype=np.int16)
        for place, item in reversed(self._again):
            now[~item.passes(self._view, self._demand, rows)] = place
        now = np.where(before < self._lasting, before, now)
        self._first[rows] = now
        self._forget(set(rows.tolist()))
        changed = now != before
        if changed.any():
            for place, _ in self._again:
                self._move(place, rows[changed & (before == place)].tolist(), rows[changed & (now == place)].tolist())

    def count_full(self, touched: Set[int], more: int, fits: Ints) -> None:
        """The same where what changes is said by the filter "capacity" alone: it rejects ``more`` nodes than it did, as ``fits``
        (N) ranks fit on the nodes now."""
        self._forget(touched)
        told = self._told[self._again[0][0]]
        before = told.rows
        if before is None or (not touched.isdisjoint(before) and any(fits.item(row) for row in before)):
            shown = self._first_of(lambda part: (fits[part] == 0) & (self._first[part] >= self._lasting))
        else:
            last = before[-1] if before and len(before) >= self._shown else len(fits)
            full = [row for row in touched if row < last and not fits.item(row)]
            come = [row for row in full if self._first.item(row) >= self._lasting]
            shown = sorted({*before, *come})[: self._shown] if come else before
        if more or shown != before:
            told.count += more
            told.rows, told.said, self._all = shown, None, None

    def _forget(self, touched: Set[int]) -> None:
        """The reasons of nodes that were touched may be others."""
        for told in self._told[self._lasting :]:
            for row in told.whys.keys() & touched if told.whys else ():
                del told.whys[row]
                told.said = self._all = None

    def _move(self, place: int, gone: list[int], come: list[int]) -> None:
        """Some nodes count for a filter no more, and some, in order, do now."""
        if not (gone or come):
            return
        told = self._told[place]
        told.count += len(come) - len(gone)
        told.said = self._all = None
        shown = told.rows
        if shown is None:
            return
        if not set(shown).isdisjoint(gone):
            told.rows = None
            return
        for row in come:
            if len(shown) >= self._shown and (not shown or row > shown[-1]):
                break
            insort(shown, row)
            del shown[self._shown :]

    def said(self) -> tuple[Rejection, ...]:
        """What each filter rejects of what those before it have left."""
        found = self._all
        if found is None:
            found = tuple([told.said or self._rejection(place, told) for place, told in enumerate(self._told)])
            self._all = found
        return found

    def _rejection(self, place: int, told: _Told) -> Rejection:
        told.said = self._say(place, told)
        return told.said

    def _say(self, place: int, told: _Told) -> Rejection:
        if not told.count:
            return Rejection(told.item.name, 0, ())
        if told.rows is None:
            told.rows = self._first_of(lambda part: self._first[part] == place)
        nodes, whys = self._view.table.nodes, told.whys
        for row in told.rows:
            if row not in whys:
                whys[row] = nodes[row].node_id, told.item.why(self._view, self._demand, row)
        return Rejection(told.item.name, told.count, tuple([whys[row] for row in told.rows]))

    def _first_of(self, rejected: Callable[[slice], Bools]) -> list[int]:
        """The first nodes of which ``rejected`` is true, as many as are shown."""
        found: list[int] = []
        for begin in range(0, len(self._first), _BLOCK):
            if len(found) >= self._shown:
                break
            found += (begin + np.flatnonzero(rejected(slice(begin, begin + _BLOCK)))).tolist()
        return found[: self._shown]
