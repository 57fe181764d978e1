"""Ranks per class that a domain has room for, kept up where nodes were touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.placement import Candidates
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.rejecting import applies
from services.scheduler.core.state import Demand
from services.scheduler.core.table import SLACK, UNBOUNDED, Bools, DeviceModel, Ints
from services.scheduler.core.two_level.messages import ANY
from services.scheduler.core.view import View

MOST_CLASSES = 256


class Tally:
    """What fits per class. The candidates keep it up too, but each class by itself and with its scores, which only a choice
    needs; here all classes are counted at once on the nodes that were touched."""

    def __init__(self) -> None:
        self._generation = -1
        self._seen = 0
        self._rooms: dict[Demand, list[_NodeRoom]] = {}
        self._lines = _Lines((), 0, 0)
        self._others: list[_NodeRoom] = []

    def ranks(self, cluster: Cluster, demands: Iterable[Demand]) -> dict[Demand, dict[DeviceModel | None, int]]:
        """Ranks of each class that fit now, by the model that all share."""
        view, policy = cluster.view, cluster.policy
        wanted = list(dict.fromkeys(demands))
        if not wanted:
            return {}
        if self._generation != view.generation:
            self._rooms.clear()
            self._lines, self._others = _Lines((), 0, 0), []
            self._generation, self._seen = view.generation, len(view.taken)
        self._count(view)
        unknown = [demand for demand in wanted if demand not in self._rooms]
        judged = {demand for demand in unknown if demand.topology_required or _looks_beyond(demand, policy)}
        new = [demand for demand in unknown if demand not in judged]
        if new:
            self._add(cluster, new, frozenset(wanted))
        found: dict[Demand, dict[DeviceModel | None, int]] = {}
        for demand in wanted:
            if demand in judged:
                group = cluster.candidates(demand)
                for candidates in group:
                    candidates.refresh()
                found[demand] = {_model_of(item, demand, cluster): int(item.domain_fits[0]) for item in group}
            else:
                found[demand] = {room.model: room.total for room in self._rooms[demand]}
        return found

    def _count(self, view: View) -> None:
        """Count again on the nodes that were touched since."""
        if self._seen == len(view.taken):
            return
        rows = np.array(sorted(set(view.taken[self._seen :])), dtype=np.int64)
        self._seen = len(view.taken)
        self._lines.count(view, rows)
        for room in self._others:
            room.put(rows, view.ranks_that_fit(room.demand, room.columns, rows) * room.allowed[rows])

    def _add(self, cluster: Cluster, new: Sequence[Demand], wanted: frozenset[Demand]) -> None:
        """Keep more classes, and forget those that came first and are not asked about."""
        for demand in new:
            rooms = self._rooms[demand] = []
            for item in cluster.candidates(demand):
                item.refresh()
                fits = item.fits.copy()
                model = _model_of(item, demand, cluster)
                rooms.append(_NodeRoom(demand, model, item.columns, item.allowed, fits, int(fits.sum())))
        old = [demand for demand in self._rooms if demand not in wanted]
        for demand in old[: max(len(self._rooms) - MOST_CLASSES, 0)]:
            del self._rooms[demand]
        all_rooms = [room for rooms in self._rooms.values() for room in rooms]
        table = cluster.table
        self._others = [room for room in all_rooms if not _of_amounts(room.demand)]
        self._lines = _Lines(
            [room for room in all_rooms if _of_amounts(room.demand)], len(table.nodes), len(table.models)
        )


@dataclass(slots=True, eq=False)
class _NodeRoom:
    """A class, for one model that its ranks may share: ranks that fit on each node (N), and on all of them."""

    demand: Demand
    model: DeviceModel | None
    columns: Ints
    allowed: Bools
    fits: Ints
    total: int

    def put(self, rows: Ints, fits: Ints) -> None:
        """So many fit on these nodes now."""
        self.total += int(fits.sum() - self.fits[rows].sum())
        self.fits[rows] = fits


class _Lines:
    """Rooms (K) whose fits depend on cpus, memory and whole devices alone, as matrices over nodes (N): `fitting.fits` for all of
    them at once. The rooms' own rows become rows of these."""

    def __init__(self, rooms: Sequence[_NodeRoom], nodes: int, models: int) -> None:
        self._rooms = rooms
        demands = [room.demand for room in rooms]
        self._cpus = np.array([item.cpus for item in demands]).reshape(-1, 1)
        self._memory_bytes = np.array([item.memory_bytes for item in demands], dtype=np.int64).reshape(-1, 1)
        self._devices = np.array([item.accelerators for item in demands], dtype=np.int64).reshape(-1, 1, 1)
        self._most = np.array([1 if item.service_port else UNBOUNDED for item in demands]).reshape(-1, 1)
        self._accepted = np.zeros((len(rooms), 1, models), dtype=np.int64)
        self._allowed = np.array([room.allowed for room in rooms], dtype=np.bool_).reshape(len(rooms), nodes)
        self._fits = np.array([room.fits for room in rooms], dtype=np.int64).reshape(len(rooms), nodes)
        for place, room in enumerate(rooms):
            self._accepted[place, 0, room.columns] = 1
            room.fits = self._fits[place]

    def count(self, view: View, rows: Ints) -> None:
        """Count all of them again on these nodes."""
        if not self._rooms:
            return
        fits = np.where(self._allowed[:, rows], self._fits_on(view, rows), 0)
        more = (fits - self._fits[:, rows]).sum(axis=1)
        self._fits[:, rows] = fits
        for room, change in zip(self._rooms, more.tolist(), strict=True):
            room.total += change

    def _fits_on(self, view: View, rows: Ints) -> Ints:
        cpus, memory, devices = self._cpus, self._memory_bytes, self._devices
        by_cpus = (view.free_cpus[rows] + SLACK) // np.where(cpus > 0, cpus, 1.0)
        fits = np.where(cpus > 0, by_cpus, UNBOUNDED).astype(np.int64)
        by_memory = view.free_memory_bytes[rows] // np.maximum(memory, 1)
        np.minimum(fits, np.where(memory > 0, by_memory, UNBOUNDED), out=fits)
        by_devices = (view.free_devices[rows] // np.maximum(devices, 1) * self._accepted).sum(axis=2)
        np.minimum(fits, np.where(devices[:, :, 0] > 0, by_devices, UNBOUNDED), out=fits)
        np.minimum(fits, self._most, out=fits)
        result: Ints = np.maximum(fits, 0)
        return result


def _of_amounts(demand: Demand) -> bool:
    return not demand.resources and (demand.device_milli >= 1000 or not demand.accelerators)


def _looks_beyond(demand: Demand, policy: Policy) -> bool:
    """Whether room on a node depends on more than what is free on it."""
    return any(
        item.dynamic and item.name != "capacity" and applies(item, demand) for item in plugins_of(policy).filters
    )


def _model_of(candidates: Candidates, demand: Demand, cluster: Cluster) -> DeviceModel | None:
    """The one model that all ranks share; `ANY` where the demand is judged for all its models together."""
    if not apart(demand, cluster.policy):
        return ANY
    columns = candidates.columns
    return cluster.table.models[int(columns[0])] if len(columns) == 1 else ANY


def apart(demand: Demand, policy: Policy) -> bool:
    """Whether each device model is judged by itself (as `alternatives` does)."""
    gang = demand.ranks > 1 and policy.one_accelerator_model_per_gang
    return bool(demand.accelerators) and (gang or bool(demand.profile))
