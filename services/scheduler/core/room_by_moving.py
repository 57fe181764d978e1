"""Room by moving: units that run go to other nodes, where they fit at once, so that one that waits has room.

Long units of half a node leave every node half free in time; then a gang of whole nodes waits beside more than it needs, and
nobody need lose his nodes for it. Moving for this is how Gandiva packs (Xiao et al., OSDI 2018, migration).

Steps of `MovePreemption.moves`:
1. Per node, the fewest and smallest units whose devices make room for one more rank; what that would cost, in device-seconds.
2. Per domain as many of the cheapest nodes as ranks lack; all domains together where the gang may span them.
3. The cheapest of these first, it is tried: take them off, place the one that waits, place them again, the largest first. All
   of them, or nothing is done.

Only units of whole devices on one node are moved. One stays in its domain if it has room there; it leaves it only without input data,
and never gets another model. Devices decide what is looked for; the trial asks everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from services.scheduler.core.choosing import Choice
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of
from services.scheduler.core.placement import Candidates, best
from services.scheduler.core.running_unit import RunningUnit, model_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

_TRIALS = 8
_NODES = 64
"""So many nodes of a domain are looked at, those that lack least."""


@dataclass(frozen=True, slots=True)
class Move:
    """A unit that runs, as it will wait for a moment, and its next place."""

    running: RunningUnit
    unit: PendingUnit
    group: Sequence[Candidates]
    candidates: Candidates
    choice: Choice


@dataclass(frozen=True, slots=True)
class Moves:
    """Where a unit goes that waited, and what moves for it, in the order of placing."""

    candidates: Candidates
    choice: Choice
    moved: tuple[Move, ...]


class MovePreemption:
    """See the module. It takes nobody off who has no place elsewhere at once, so it needs no order of units.

    ``overhead`` bounds what moving costs, as a share. A unit is moved only when the work that it would lose since its last checkpoint
    and its restart are at most that share of the time since it began where it is; and what all that move lose, times
    devices, is at most that share of the work that is thought to be left of the unit they make room for.
    """

    name = "move"
    settled = True

    def __init__(self, overhead: float = 0.02) -> None:
        self.overhead = overhead

    def configured(self, options: Mapping[str, Any]) -> MovePreemption:
        """With ``overhead`` (0-1)."""
        made = MovePreemption(**numbers_of(self.name, options, overhead=0.0))
        if made.overhead > 1.0:
            raise PolicyError(f"options.{self.name}.overhead: must be at most 1, not {made.overhead:g}")
        return made

    def victims(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext
    ) -> Sequence[RunningUnit]:
        """Nobody is taken off without a place."""
        return ()

    def out_of_reach(
        self, unit: PendingUnit, running: Sequence[RunningUnit], context: OrderContext, place: object = None
    ) -> bool:
        """Whether fewer devices are free in all than it needs: nobody could move then."""
        demand = unit.demand
        if not demand.accelerators or demand.device_milli < 1000:
            return True
        view = context.facts["cluster"].view
        return float(view.domain_free_devices.sum()) < demand.ranks * demand.accelerators

    def moves(self, unit: PendingUnit, group: Sequence[Candidates], context: OrderContext) -> Moves | None:
        """How to make room for ``unit``; None where there is no way. The view is left as it was."""
        cluster: Cluster = context.facts["cluster"]
        budget = self.overhead * unit.remaining_s * unit.devices
        failed: dict[Demand, tuple[int, float]] = context.cache.setdefault(self.name, {})
        moment, tried = failed.get(unit.demand, (-1, 0.0))
        if moment == len(cluster.view.taken) and budget <= tried:
            return None
        found = [part for candidates in group for part in self._ways(unit.demand, candidates, context)]
        found.sort(key=lambda part: (part[0], part[1]))
        for cost, _, off in islice(found, _TRIALS):
            if cost > budget:
                break
            moves = _tried(cluster, group, off, context.now_s)
            if moves is not None:
                return moves
        failed[unit.demand] = len(cluster.view.taken), budget
        return None

    def _ways(
        self, demand: Demand, candidates: Candidates, context: OrderContext
    ) -> Iterator[tuple[float, tuple[int, ...], list[RunningUnit]]]:
        """Units that would have to move: what that costs, the nodes that they leave, and who they are."""
        cluster: Cluster = context.facts["cluster"]
        view, table = cluster.view, cluster.table
        candidates.refresh()
        useful = candidates.allowed & view.up & (table.device_totals // demand.accelerators > candidates.fits)
        lacking = demand.accelerators - view.free_device_totals % demand.accelerators
        spans = demand.cross_domain and not demand.topology_required
        everywhere: list[tuple[float, int, list[RunningUnit]]] = []
        for part in table.domain_slice:
            rows = np.flatnonzero(useful[part]) + part.start
            rows = rows[np.argsort(lacking[rows], kind="stable")[:_NODES]]
            nodes = [
                (sum(_lost_s(item, cluster, context.now_s) * item.unit.devices for item in off), row, off)
                for row in rows.tolist()
                if (off := self._off(row, lacking.item(row), context)) is not None
            ]
            yield from _cheapest(nodes, demand.ranks - int(candidates.fits[part].sum()))
            everywhere += nodes
        if spans and len(table.domain_slice) > 1:
            yield from _cheapest(everywhere, demand.ranks - int(candidates.fits.sum()))

    def _off(self, row: int, lacking: int, context: OrderContext) -> list[RunningUnit] | None:
        """The smallest units of a node that hold so many devices together, none of them needlessly; None where there are not
        enough."""
        cluster: Cluster = context.facts["cluster"]
        running: Mapping[UnitKey, RunningUnit] = context.facts["running"]
        held = [
            (devices, item)
            for key, devices in cluster.holders.get(row, {}).items()
            if (item := running.get(key)) is not None and self._may_move(item, row, cluster, context.now_s)
        ]
        held.sort(key=lambda pair: (pair[0], pair[1].unit.key))
        off: list[tuple[int, RunningUnit]] = []
        freed = 0
        for devices, item in held:
            if freed >= lacking:
                break
            off.append((devices, item))
            freed += devices
        if freed < lacking:
            return None
        for pair in reversed(off[:-1]):
            if freed - pair[0] >= lacking:
                off.remove(pair)
                freed -= pair[0]
        return [item for _, item in off]

    def _may_move(self, item: RunningUnit, row: int, cluster: Cluster, now_s: float) -> bool:
        demand = item.unit.demand
        if not item.unit.preemptible or demand.device_milli < 1000 or demand.service_port:
            return False
        if any(at != row for at, _ in item.rows):
            return False
        return _lost_s(item, cluster, now_s) <= self.overhead * (now_s - item.since_s)


def _lost_s(item: RunningUnit, cluster: Cluster, now_s: float) -> float:
    """What a move costs the unit; where it does not say what a restart costs, the policy does."""
    return item.lost_s(now_s) + (0.0 if item.unit.restart_s else cluster.policy.restarts.restart_cost_s)


def _cheapest(
    nodes: list[tuple[float, int, list[RunningUnit]]], ranks: int
) -> Iterator[tuple[float, tuple[int, ...], list[RunningUnit]]]:
    """Ways to make room for so many ranks, a rank a node."""
    if ranks == 1:
        yield from ((cost, (row,), off) for cost, row, off in nodes)
    elif 1 < ranks <= len(nodes):
        chosen = sorted(nodes, key=lambda node: node[:2])[:ranks]
        together = [item for _, _, off in chosen for item in off]
        yield sum(cost for cost, _, _ in chosen), tuple(row for _, row, _ in chosen), together


def _tried(cluster: Cluster, group: Sequence[Candidates], off: Sequence[RunningUnit], now_s: float) -> Moves | None:
    """What comes of it when these are taken off, the unit is placed and they are placed again; None when one has no place."""
    view = cluster.view
    for item in off:
        for row, devices in item.rows:
            view.give(row, item.unit.demand, devices)
    taken: list[tuple[Demand, tuple[tuple[int, tuple[int, ...]], ...]]] = []

    def take(candidates: Candidates, choice: Choice) -> None:
        taken.append((candidates.demand, cluster.rows_of(candidates.take(choice))))

    place, moved = best(group), list[Move]()
    if place is not None:
        take(*place)
        for item in sorted(off, key=lambda item: (-item.unit.devices, item.unit.key)):
            move = _next_place(cluster, item, now_s)
            if move is None:
                break
            take(move.candidates, move.choice)
            moved.append(move)
    for demand, rows in reversed(taken):
        for row, devices in rows:
            view.give(row, demand, devices)
    for item in reversed(off):
        for row, devices in item.rows:
            view.occupy(row, item.unit.demand, devices)
    return Moves(*place, tuple(moved)) if place is not None and len(moved) == len(off) else None


def _next_place(cluster: Cluster, item: RunningUnit, now_s: float) -> Move | None:
    """Where it goes, at home before elsewhere."""
    home = item.ranks[0].domain_id
    model = model_of(cluster.table, item) if len(cluster.table.models) > 1 else ""
    demand = item.unit.demand
    # With data, or bound to what it resumes from, it would have to be followed by that.
    places = (home,) if demand.data or demand.checkpoint_domain else (home, "")
    for domain_id in places:
        group = cluster.candidates(_bound(demand, domain_id, model))
        found = best(group)
        if found is None:
            continue
        names = {cluster.table.domain_ids[domain] for domain in found[1].domains}
        if domain_id and names != {home}:
            # The policy's filters do not ask for domains.
            continue
        ran_s = item.ran_s(now_s)
        left_s = item.end_s(now_s, "expected") - now_s
        unit = replace(
            item.unit,
            attained_s=ran_s,
            served_s=item.service_s(now_s),
            expected_s=ran_s + left_s if left_s < inf else inf,
            service_index=item.service_index,
        )
        return Move(item, unit, group, *found)
    return None


@lru_cache(maxsize=4096)
def _bound(demand: Demand, domain_id: str, model: str) -> Demand:
    if domain_id:
        demand = replace(demand, domains=frozenset({domain_id}))
    if model:
        demand = replace(demand, accelerator_types=(model,))
    return demand
