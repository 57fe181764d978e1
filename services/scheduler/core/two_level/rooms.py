"""What the domains have room for: as they told it, less what was given away since, by class of demands.

Kept up domain by domain: what fits in one depends on what that one told and was given, so a class is counted anew only in the
domains that were touched since it was counted last. All classes that are kept stand in matrices, so that a summary or a unit
that is given away is one column of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import alternatives
from services.scheduler.core.placement import Candidates
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand
from services.scheduler.core.table import SLACK, DeviceModel, Floats, Ints
from services.scheduler.core.two_level.bounds import displaced, greatest_drop
from services.scheduler.core.two_level.messages import ANY, DomainSummary
from services.scheduler.core.two_level.summary import MOST_BLOCK
from services.scheduler.core.two_level.tally import MOST_CLASSES, apart
from services.scheduler.core.view import View

_MOST_TOUCHED = 100_000
_BOUNDLESS = 1e6
"""Ranks that fit where nothing bounds them."""


@dataclass(slots=True, eq=False)
class Room:
    """A way to satisfy a class: its judgement of domains, its device models, and the ranks (D) that fit at least and at most.

    ``model`` is the one under which summaries tell of it. ``gone`` (D) are ranks that what was given to other classes since is
    thought to take the place of. The three are rows of matrices over all rooms. ``at_most`` and ``likely`` (D) are what was
    counted last, of what was touched before ``most_seen`` and ``likely_seen`` in `View.taken`.
    """

    candidates: Candidates
    columns: Ints
    model: DeviceModel | None
    allowed: list[bool]
    least: Floats
    most: Floats
    gone: Floats
    at_most: Ints
    likely: Ints
    most_seen: int = -1
    likely_seen: int = -1


class Rooms:
    """See the module. ``view`` has a row for each domain; ``summaries`` are the newest by domain, kept by the caller; ``coarse`` is
    the part of ``policy`` that judges domains."""

    def __init__(self, view: View, summaries: Mapping[str, DomainSummary], policy: Policy, coarse: Policy) -> None:
        self._view, self._summaries = view, summaries
        self._policy, self._coarse = policy, coarse
        names = view.table.domain_ids
        size = len(names)
        self._index = {name: row for row, name in enumerate(names)}
        self._blocks: Ints = np.zeros((size, len(view.table.models), MOST_BLOCK + 1), dtype=np.int64)
        self._width = 1
        self._rooms: dict[Demand, list[Room]] = {}
        self._least: Floats = np.zeros((0, size))
        self._most, self._gone = self._least.copy(), self._least.copy()
        self._effects: dict[Demand, tuple[Floats, Floats]] = {}
        self._taken: list[list[tuple[Demand, int]]] = [[] for _ in names]
        self._given = np.zeros(size, dtype=np.bool_)
        self._untold: list[set[Demand]] = [set() for _ in names]
        for summary in summaries.values():
            self.read(summary)

    @property
    def classes(self) -> tuple[Demand, ...]:
        """The classes that are kept, those that came first first."""
        return tuple(self._rooms)

    def of(self, demand: Demand) -> list[Room]:
        """The rooms of a class; those of one that is not kept are made for the occasion."""
        return self._rooms.get(demand) or self._made(demand)

    def read(self, summary: DomainSummary) -> None:
        """Take a domain's room as it told it."""
        view, row = self._view, self._index[summary.domain_id]
        self._taken[row].clear()
        self._given[row] = False
        free = summary.free_devices
        for column, model in enumerate(view.table.models):
            view.free_devices[row, column] = free.get(model, 0)
            told = summary.blocks.get(model, ())
            self._blocks[row, column] = 0
            self._blocks[row, column, : len(told)] = told
            self._width = max(self._width, len(told))
        view.free_device_totals[row] = view.domain_free_devices[row] = view.free_devices[row].sum()
        view.free_cpus[row] = view.domain_free_cpus[row] = summary.free_cpus
        view.free_memory_bytes[row] = summary.free_memory_bytes
        bounds = [self._told(demand, room, row, summary) for demand, rooms in self._rooms.items() for room in rooms]
        if bounds:
            self._least[:, row], self._most[:, row] = zip(*bounds, strict=True)
            self._gone[:, row] = 0.0
        self._untold[row] = set() if summary.own_scheduler else self._rooms.keys() - summary.ranks.keys()
        view.note((row,))

    def keep(self, waiting: Iterable[Demand]) -> bool:
        """Keep room for classes, before anything is given away in a round. True when some domain has not told of one of them."""
        view = self._view
        if len(view.taken) > _MOST_TOUCHED:
            # Kept judgements count from the beginning of this list.
            self._rooms.clear()
            view.forget_touched()
        wanted = dict.fromkeys(waiting)
        new = [demand for demand in wanted if demand not in self._rooms]
        if new:
            for demand in new:
                self._rooms[demand] = self._made(demand)
                for untold, item in zip(self._untold, self._by_row(), strict=True):
                    if not (item.own_scheduler or demand in item.ranks):
                        untold.add(demand)
            old = [demand for demand in self._rooms if demand not in wanted]
            for demand in old[: max(len(self._rooms) - MOST_CLASSES, 0)]:
                del self._rooms[demand]
            self._line_up()
        return any(untold and not untold.isdisjoint(wanted) for untold in self._untold)

    def fits(self, demand: Demand, room: Room, *, most: bool) -> Ints:
        """Ranks (D) that fit at most, or else are thought to."""
        taken = self._view.taken
        if most:
            rows = self._since(room.most_seen)
            if len(rows):
                room.at_most[rows] = whole(self._ceiling(demand, room, rows))
                room.most_seen = len(taken)
            return room.at_most.copy()
        rows = self._since(room.likely_seen)
        if len(rows):
            room.likely[rows] = whole(self._thought(demand, room, rows))
            room.likely_seen = len(taken)
        return room.likely.copy()

    def take(self, demand: Demand, room: Room, row: int, ranks: int) -> None:
        """Count ranks off a domain's room, as if it packed them; other classes see what is left."""
        view = self._view
        view.free_cpus[row] -= demand.cpus * ranks
        view.domain_free_cpus[row] -= demand.cpus * ranks
        view.free_memory_bytes[row] -= demand.memory_bytes * ranks
        if demand.accelerators:
            self._take_devices(demand, room.columns.tolist(), row, ranks)
        view.note((row,))
        self._taken[row].append((demand, ranks))
        self._given[row] = True
        drops, gone = self._effects_of(demand)
        self._least[:, row] = np.maximum(self._least[:, row] - ranks * drops, 0.0)
        self._gone[:, row] += ranks * gone
        if not demand.topology_required:
            room.most[row] -= ranks

    def _by_row(self) -> list[DomainSummary]:
        return [self._summaries[name] for name in self._index]

    # -- making ------------------------------------------------------------------------------------------------------

    def _made(self, demand: Demand) -> list[Room]:
        size = len(self._index)
        rooms = []
        for item in alternatives(self._view, demand, self._coarse):
            single = apart(demand, self._policy) and len(item.columns) == 1
            model = self._view.table.models[int(item.columns[0])] if single else ANY
            counts = np.zeros((2, size), dtype=np.int64)
            room = Room(item, item.columns, model, item.allowed.tolist(), *np.zeros((3, size)), *counts)
            for row, summary in enumerate(self._by_row()):
                room.least[row], room.most[row] = self._told(demand, room, row, summary)
                room.gone[row] = _gone(demand, self._taken[row])
            rooms.append(room)
        return rooms

    def _line_up(self) -> None:
        """Put the rooms into matrices, so that telling of a domain and taking from it are one operation."""
        rooms = [room for found in self._rooms.values() for room in found]
        shape = len(rooms), len(self._index)
        self._least = np.array([room.least for room in rooms]).reshape(shape)
        self._most = np.array([room.most for room in rooms]).reshape(shape)
        self._gone = np.array([room.gone for room in rooms]).reshape(shape)
        for place, room in enumerate(rooms):
            room.least, room.most, room.gone = self._least[place], self._most[place], self._gone[place]
        self._effects.clear()

    def _told(self, demand: Demand, room: Room, row: int, summary: DomainSummary) -> tuple[float, float]:
        """The room of a class in a domain at least and at most, by its summary; bounded by its blocks and totals where it does
        not tell."""
        if not room.allowed[row]:
            return 0.0, 0.0
        told = summary.ranks.get(demand)
        if told is not None:
            known = float(_told_of(told, room.model))
            return known, known
        most = float(self._bound(demand, room.columns, np.array([row]))[0])
        # A foreign scheduler never tells more: its blocks are taken at their word.
        return (most if summary.own_scheduler else 0.0), most

    def _effects_of(self, taken: Demand) -> tuple[Floats, Floats]:
        """By how many ranks each of the kept rooms falls for a rank of this class: at most, and as it is thought."""
        effects = self._effects.get(taken)
        if effects is None:
            drops = [greatest_drop(taken, other) for other, rooms in self._rooms.items() for _ in rooms]
            gone = [_gone(other, ((taken, 1),)) for other, rooms in self._rooms.items() for _ in rooms]
            effects = self._effects[taken] = np.array(drops), np.array(gone)
        return effects

    # -- counting ----------------------------------------------------------------------------------------------------

    def _since(self, seen: int) -> Ints:
        """The domains that were touched since; all of them for one that has seen nothing."""
        if seen < 0:
            return np.arange(len(self._index))
        new = self._view.taken[seen:]
        return np.array(list(set(new)), dtype=np.int64)

    def _ceiling(self, demand: Demand, room: Room, rows: Ints) -> Floats:
        """Ranks that fit in these domains at most."""
        view = self._view
        fits: Floats = room.most[rows]
        if demand.accelerators and demand.device_milli >= 1000:
            np.minimum(fits, view.free_device_totals[rows] // demand.accelerators, out=fits)
        if demand.cpus > 0:
            np.minimum(fits, (view.free_cpus[rows] + SLACK) // demand.cpus, out=fits)
        return fits

    def _thought(self, demand: Demand, room: Room, rows: Ints) -> Floats:
        """Ranks that are thought to fit in these domains: where something was given away since they told, what that leaves."""
        fits = self._ceiling(demand, room, rows)
        given = self._given[rows] & (fits >= 1)
        if given.any():
            some = rows[given]
            left = np.minimum(fits[given] - room.gone[some], self._bound(demand, room.columns, some))
            fits[given] = np.maximum(left, room.least[some])
        return fits

    def _bound(self, demand: Demand, columns: Ints, rows: Ints) -> Floats:
        """Ranks that can fit in these domains at most, by free blocks of devices and by totals of the rest."""
        view = self._view
        most = np.full(len(rows), np.inf)
        if demand.cpus > 0:
            np.minimum(most, (view.free_cpus[rows] + SLACK) // demand.cpus, out=most)
        if demand.memory_bytes > 0:
            np.minimum(most, view.free_memory_bytes[rows] // demand.memory_bytes, out=most)
        if demand.accelerators and demand.device_milli >= 1000:
            sizes = np.arange(self._width) // demand.accelerators
            blocks = self._blocks[rows[:, None], columns, : self._width]
            np.minimum(most, (blocks @ sizes).sum(axis=1), out=most)
        elif demand.accelerators:
            shares = 1000 // demand.device_milli
            free = view.free_devices[rows[:, None], columns].sum(axis=1)
            np.minimum(most, free * shares // demand.accelerators, out=most)
        most[np.isinf(most)] = _BOUNDLESS
        return most

    def _take_devices(self, demand: Demand, columns: Iterable[int], row: int, ranks: int) -> None:
        view, size = self._view, demand.accelerators
        if demand.device_milli < 1000:
            size, ranks = 1, -(-ranks * demand.accelerators * demand.device_milli // 1000)
        for column in columns:
            counts = self._blocks[row, column]
            while ranks:
                held = np.flatnonzero(counts[size : self._width]) + size
                if not len(held):
                    break
                enough = held[held >= size * ranks]
                block = int(enough[0]) if len(enough) else int(held[-1])
                here = min(ranks, block // size)
                counts[block] -= 1
                counts[block - here * size] += 1
                ranks -= here
                view.free_devices[row, column] -= here * size
                view.free_device_totals[row] -= here * size
                view.domain_free_devices[row] -= here * size


def _gone(demand: Demand, taken: Iterable[tuple[Demand, int]]) -> float:
    """Ranks of a class that what was given to others is thought to take the place of."""
    return float(sum(ranks * displaced(other, demand) for other, ranks in taken if other != demand))


def _told_of(told: Mapping[DeviceModel | None, int], model: DeviceModel | None) -> int:
    """Ranks that a domain told of for a model. One whose own policy has gangs use one model each tells of its models apart: where
    any will do, as many fit as on the roomiest. One that tells of no models may use any."""
    if model in told:
        return told[model]
    return max(told.values(), default=0) if model is ANY else told.get(ANY, 0)


def whole(room: Floats) -> Ints:
    """Whole ranks."""
    return np.maximum(np.floor(room + SLACK), 0.0).astype(np.int64)
