"""What a domain tells about itself: totals, free blocks, and the ranks that fit per class, kept up where nodes were touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.placement import Candidates, applies, plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, DeviceModel, Ints
from services.scheduler.core.two_level.messages import ANY, DomainSummary

MOST_CLASSES = 256
MOST_BLOCK = 256
"""Accelerators on a node at most, for the free blocks."""


class Tally:
    """Ranks per class that a domain has room for, kept up where nodes were touched. What the candidates keep up too, but
    without their scores, which only a choice needs."""

    def __init__(self) -> None:
        self._generation = -1
        self._rooms: dict[Demand, list[_NodeRoom]] = {}

    def ranks(self, cluster: Cluster, demand: Demand) -> dict[DeviceModel | None, int]:
        """Ranks that fit now, by the model that all share."""
        view = cluster.view
        if self._generation != view.generation:
            self._rooms.clear()
            self._generation = view.generation
        rooms = self._rooms.get(demand)
        if rooms is None:
            group = cluster.candidates(demand)
            if demand.topology_required or _looks_beyond(demand, cluster.policy):
                for candidates in group:
                    candidates.refresh()
                return {_model_of(item, demand, cluster): int(item.domain_fits[0]) for item in group}
            while len(self._rooms) >= MOST_CLASSES:
                del self._rooms[next(iter(self._rooms))]
            rooms = self._rooms[demand] = []
            for item in group:
                item.refresh()
                fits = item.fits.copy()
                model = _model_of(item, demand, cluster)
                rooms.append(_NodeRoom(model, item.columns, item.allowed, fits, int(fits.sum()), len(view.taken)))
        seen = rooms[0].seen if rooms else 0
        if seen < len(view.taken):
            rows = np.array(sorted(set(view.taken[seen:])), dtype=np.int64)
            for room in rooms:
                fits = view.ranks_that_fit(demand, room.columns, rows) * room.allowed[rows]
                room.total += int(fits.sum() - room.fits[rows].sum())
                room.fits[rows] = fits
                room.seen = len(view.taken)
        return {room.model: room.total for room in rooms}


@dataclass(slots=True)
class _NodeRoom:
    model: DeviceModel | None
    columns: Ints
    allowed: Bools
    fits: Ints
    total: int
    seen: int


def _looks_beyond(demand: Demand, policy: Policy) -> bool:
    """Whether room on a node depends on more than what is free on it."""
    return any(
        item.dynamic and item.name != "capacity" and applies(item, demand) for item in plugins_of(policy).filters
    )


def summarise(
    cluster: Cluster,
    classes: Sequence[Demand],
    *,
    sequence: int = 0,
    own_scheduler: bool = False,
    tally: Tally | None = None,
) -> DomainSummary:
    """The summary of a cluster that is one domain; ``tally`` is kept from one to the next. PolicyError when the cluster has
    no domain or several."""
    view, table = cluster.view, cluster.table
    if len(table.domain_ids) != 1:
        raise PolicyError(f"a domain's own cluster is wanted, not one of {len(table.domain_ids)} domains")
    tally = tally or Tally()
    ranks = {demand: tally.ranks(cluster, demand) for demand in classes}
    up = view.up
    blocks, totals = {}, {}
    for column, model in enumerate(table.models):
        sizes = np.minimum(view.free_devices[up, column], MOST_BLOCK)
        blocks[model] = tuple(np.bincount(sizes, minlength=1).tolist())
        totals[model] = int(table.devices[up, column].sum())
    return DomainSummary(
        table.domain_ids[0],
        sequence,
        ranks,
        blocks,
        totals,
        float(view.domain_free_cpus[0]),
        float(table.cpus[up].sum()),
        int(view.free_memory_bytes[up].sum()),
        int(view.free_devices[up].max(initial=0)),
        len(cluster.running),
        own_scheduler=own_scheduler,
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
