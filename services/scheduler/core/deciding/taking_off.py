"""Room for a unit that has none: others are taken off for it, or go to other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from services.scheduler.core.choosing import Choice
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.deciding.chances import Chances
from services.scheduler.core.placement import Candidates, best
from services.scheduler.core.preemption import Preemption, find_room
from services.scheduler.core.ranking import PLACE
from services.scheduler.core.room_by_moving import Moves
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.tenants_objectives import state_tenant
from services.scheduler.core.waiting_unit import PendingUnit


class TakingOff(Chances):
    """See the module."""

    def _preempt(self, unit: PendingUnit, group: Sequence[Candidates], selection: Selection) -> bool:
        self._beyond = self._leaving_out
        place = selection.place_of(unit)
        if place is not None:
            self._context.cache[PLACE, unit.key] = place
        for plugin in self._stages.preemptions:
            if self._runs is None:
                self._runs = list(self._running.values())
            hopeless = getattr(plugin, "out_of_reach", None)
            if hopeless is not None and hopeless(unit, self._runs, self._context):
                continue
            self._beyond = False
            before = self._cluster.view.free_amounts() if self._leaving_out else ()
            if not (
                self._take_others_off(unit, group, plugin, selection) or self._move(unit, group, plugin, selection)
            ):
                continue
            if self._leaving_out and self._cluster.view.is_more_free(before):
                # What was taken off leaves room that those still to come may use.
                selection.bring_back(place or self._position(unit))
            return True
        return False

    def _take_others_off(
        self, unit: PendingUnit, group: Sequence[Candidates], plugin: Preemption, selection: Selection
    ) -> bool:
        assert self._runs is not None
        victims = plugin.victims(unit, self._runs, self._context)
        found = find_room(self._cluster, group, victims) if victims else None
        if found is None:
            return False
        off, candidates, choice = found
        for victim in off:
            for gate in self._gates:
                gate.charge(victim.unit, -1)
        self._take_off(off, plugin, unit, selection)
        self._place(unit, group, candidates, choice)
        selection.charge(unit)
        return True

    def _move(self, unit: PendingUnit, group: Sequence[Candidates], plugin: Preemption, selection: Selection) -> bool:
        """Units that run go to other nodes in this cycle, which makes room."""
        ask = getattr(plugin, "moves", None)
        found: Moves | None = None if ask is None else ask(unit, group, self._context)
        if found is None:
            return False
        off = [move.running for move in found.moved]
        self._shift(off, -1)
        self._take_off(off, plugin, unit, selection, moved=True)
        self._place(unit, group, found.candidates, found.choice)
        selection.charge(unit)
        for move in found.moved:
            self._place(move.unit, move.group, move.candidates, move.choice)
            selection.charge(move.unit)
        return True

    def _relieve(self, unit: PendingUnit, selection: Selection) -> bool:
        """Take units off so that the limits let this one pass and it has room; nothing changes when it is in vain."""
        if self._per_tenant:
            state_tenant(self._cluster.view, unit.tenant_id)
        group = self._cluster.candidates(unit.demand)
        for plugin in self._stages.preemptions:
            ask = getattr(plugin, "relieve", None)
            off = list(ask(unit, list(self._running.values()), self._context)) if ask is not None else []
            if not off:
                continue
            self._shift(off, -1)
            found: tuple[list[RunningUnit], Candidates, Choice] | None = None
            if not any(gate.refuses(unit) for gate in self._gates):
                chosen = best(group)
                found = ([], *chosen) if chosen is not None else None
                if found is None:
                    left = [item for key, item in self._running.items() if key not in {gone.unit.key for gone in off}]
                    found = find_room(self._cluster, group, plugin.victims(unit, left, self._context))
            if found is None:
                self._shift(off, 1)
                continue
            more, candidates, choice = found
            for victim in more:
                for gate in self._gates:
                    gate.charge(victim.unit, -1)
            self._take_off((*off, *more), plugin, unit, selection)
            self._place(unit, group, candidates, choice)
            selection.charge(unit)
            return True
        return False
