"""Who need be asked in a cycle: those that wait and have no chance of a place are left out of it.

Steps:
1. A demand that has room on no node is asked once, not once per unit (`_with_room`).
2. Where units may take others off, a demand has a chance too when all that it could take off would leave it enough
   (`_with_a_chance`, reach.py).
3. One that had no chance at the end of the last cycle has one now only where something changed since (`Changed`).
4. Under EASY who waits in a partition of the domains in which nothing changed waits still (partitions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.deciding.partitions import changed_partitions
from services.scheduler.core.deciding.reserving import Reserving
from services.scheduler.core.deciding.state import has_room
from services.scheduler.core.pending import Lane, by_demand
from services.scheduler.core.ranking import Place, running_key
from services.scheduler.core.reach import Changed
from services.scheduler.core.running_unit import SLACK_S, RunningUnit
from services.scheduler.core.state import Demand, UnitKey


class Chances(Reserving):
    """See the module."""

    def _find_roomy(self) -> bool:
        """Which demands have room now; nobody need be asked about reservations when none has: they say who may not start.
        Returns whether only what changed since the last cycle is looked at."""
        cluster, memory = self._cluster, self._cluster.memory
        known = memory is not None and memory.stamp == cluster.stamp and not memory.some
        asked: Iterable[Lane] = cluster.pending.lanes.values()
        self._some = changed_partitions(cluster, self._policy.estimate, self._now_s) if self._settled else None
        if self._some is not None:
            asked, known = self._some, True
        elif known and memory is not None and memory.unasked:
            asked = [lane for lane in asked if lane.fresh]
        self._roomy = {lane.demand: None for lane in self._with_room(asked)}
        self._unasked = not self._roomy
        return known

    def _with_room(self, lanes: Iterable[Lane]) -> list[Lane]:
        """The lanes whose demand has room now."""
        found: dict[Demand, bool] = {}
        out = []
        for lane in lanes:
            room = found.get(lane.demand)
            if room is None:
                room = found[lane.demand] = self._has_room(lane.demand)
            if room:
                out.append(lane)
        return out

    def _still_roomy(self, selection: Selection) -> bool:
        """Whether a demand has room still: they are asked until one has, and those that have none are taken out of the cycle
        with all their lanes. The others find out in their turn; where the cycle ends here, they are asked as well. Where
        units may get reservations, those without room are asked until all are made."""
        demands, full = self._roomy, set()
        for demand in list(demands):
            if not self._has_room(demand):
                del demands[demand]
                full.add(demand)
            elif not self._has_done_enough:
                break
        if self._reserving:
            return bool(demands) or not self._all_reserved
        if full and demands:
            selection.close(lambda lane: lane.demand in full)
        return bool(demands)

    @property
    def _may_leave_out(self) -> bool:
        """Whether lanes that have no room, and whose first unit can take nobody off, may be left out of a cycle."""
        return (
            self._policy.discipline == "greedy"
            and not (self._explain or self._gates)
            and self._stages.promises.bounded
            and self._cluster.pending.settled
        )

    def _with_a_chance(self, lanes: Iterable[Lane] | None) -> list[Lane]:
        """Of lanes (None: all) those whose demand has room now, or whose first units might take others off. The others may find
        room when somebody was taken off."""
        alike: Mapping[Demand, list[Lane]] = self._cluster.pending.alike if lanes is None else by_demand(lanes)
        runs = self._runs = list(self._running.values())
        asked = [plugin.out_of_reach for plugin in self._stages.preemptions]  # type: ignore[attr-defined]
        added, changed, looked = self._cluster.pending.added, None, False
        out: list[Lane] = []
        for demand, group in alike.items():
            first = min([lane.entries[0] for lane in group]) if len(group) > 1 else group[0].entries[0]
            place = first[:3]
            places = self._cluster.candidates(demand)
            waited = first[2] not in added
            if waited and not looked:
                changed, looked = self._changed(), True
            if waited and changed is not None and not changed.may_hold(places, place):
                self._hopeless += group
            elif has_room(places) or not all(ask(first[3], runs, self._context, place) for ask in asked):
                out += group
            else:
                self._hopeless += group
        return out

    def _changed(self) -> Changed | None:
        """Where something changed since nobody who waited then had a chance; None when that is not known. The place in the
        order of a unit that outlived its estimate may be another: that counts as a change too."""
        cluster, memory = self._cluster, self._cluster.memory
        rows = cluster.view.touched_since(memory.since) if memory is not None and self._steady else None
        if rows is None:
            return None
        rows.update([row for item in self._late() for row, _ in item.rows])
        place_of = self._place_of if self._kept is None else self._kept.place
        held: dict[int, list[tuple[Place, int]]] = {
            row: [(place_of(key), devices) for key, devices in cluster.holders.get(row, {}).items()] for row in rows
        }
        return Changed(cluster.view, held)

    def _late(self) -> list[RunningUnit]:
        """Units that run and have outlived an estimate."""
        if self._kept is not None:
            return self._kept.late()
        soon_s = self._now_s + SLACK_S
        return [item for item in self._running.values() if item.expected_end_s <= soon_s or item.limit_end_s <= soon_s]

    def _place_of(self, key: UnitKey) -> Place:
        item = self._running[key]
        return running_key(self._cluster.pending.order, item, self._context), item.unit.queued_at_s, key
