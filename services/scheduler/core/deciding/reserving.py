"""Reservations in a cycle (EASY and conservative backfilling): who gets one, and who fits beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.scheduler.core.choosing import Choice
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.deciding.state import State
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.futures.spans import LEAST_RUN_S
from services.scheduler.core.pending import Lane, estimated_s
from services.scheduler.core.placement import Candidates, best
from services.scheduler.core.profile import Profile, Reservation
from services.scheduler.core.state import Demand
from services.scheduler.core.waiting_unit import PendingUnit


class Reserving(State):
    """See the module."""

    def _room(self, unit: PendingUnit, group: Sequence[Candidates]) -> tuple[Candidates, Choice] | None:
        """Where a unit may go now; nowhere, if that would disturb a reservation."""
        if not self._reserving:
            return best(group)
        demand = unit.demand
        if demand in self._no_room:
            return None
        if self._profile is None:
            chosen = best(group)
            if chosen is None:
                self._no_room.add(demand)
            return chosen
        duration_s = _still_s(unit, self._duration)
        too_long_s = self._too_long.get(demand)
        if too_long_s is not None and duration_s >= too_long_s:
            return None
        found: list[tuple[Candidates, Choice]] = []
        room = False
        profile = self._up_to_date(self._profile)
        for candidates in group:
            # Only a score of sets may refuse what has room by number.
            if not candidates.has_room() or (demand.cross_domain and candidates.choose() is None):
                continue
            room = True
            choice = candidates.choose(profile.window(candidates, duration_s))
            if choice is not None:
                found.append((candidates, choice))
        if not room:
            self._no_room.add(demand)
        if not found and self._policy.discipline == "easy":
            # What is longer disturbs the same reservations: they only grow in number within a cycle.
            self._too_long[demand] = duration_s
        return max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score), default=None)

    def _up_to_date(self, profile: Profile) -> Profile:
        """The profile with what was placed since it was asked last."""
        for running in self._unbegun:
            profile.begin(running, self._now_s)
        self._unbegun.clear()
        return profile

    def _may_fit(self, demand: Demand) -> bool:
        """Whether the demand has room by number; what is awaited is asked in its turn."""
        if demand in self._no_room:
            return False
        return demand in self._awaited or (demand in self._roomy and self._has_room(demand))

    def _close_full(self, partition: frozenset[str], selection: Selection) -> None:
        """The units of a partition that has its reservations must fit now, or wait."""
        known: dict[Demand, bool] = {}

        def full(lane: Lane) -> bool:
            if lane.demand.domains != partition:
                return False
            found = known.get(lane.demand)
            if found is None:
                found = known[lane.demand] = not self._may_fit(lane.demand)
            return found

        selection.close(full)

    @property
    def _all_reserved(self) -> bool:
        """Whether every partition that is looked at has its reservations."""
        asked = self._cluster.pending.lanes.values() if self._some is None else self._some
        partitions = {lane.demand.domains for lane in asked}
        return all(self._reserved.get(partition, 0) >= self._depth for partition in partitions)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait_with_reservations(
        self, unit: PendingUnit, group: Sequence[Candidates], explanation: Explanation, selection: Selection
    ) -> None:
        partition = unit.demand.domains
        start_s = 0.0
        known = self._profile.reservation(unit.key) if self._profile is not None else None
        if known is not None:
            # That of the last cycle, made again (`_renew`): the unit is looked at as another of its lane is new.
            self._hold((unit,), explanation, known.start_s)
            return
        if self._reserved.get(partition, 0) < self._depth:
            start_s = self._reserve(unit, group)
            self._hold((unit,), explanation, start_s)
            if start_s:
                if self._reserved[partition] >= self._depth:
                    if self._shortest:
                        self._put_off(partition, selection)
                    elif self._only_room:
                        self._close_full(partition, selection)
                return
        else:
            self._hold((unit,), explanation)
        profile = self._profile
        if profile is None or unit.demand in self._no_room:
            # No room at all now, whatever is reserved.
            if not start_s and self._reserved.get(partition, 0) >= self._depth:
                self._hold(self._dropped(selection), explanation)
            return
        # There is room that is reserved: only shorter units can use it, with one reservation only those that end before it.
        limit_s = np.nextafter(_still_s(unit, self._duration), 0.0)
        if profile.count == 1:
            limit_s = min(limit_s, profile.reserved_from_s - self._now_s)
        self._hold(tuple(selection.skip_longer_than(limit_s, self._duration)), explanation)

    def _put_off(self, partition: frozenset[str], selection: Selection) -> None:
        """The others of a partition that has its reservations are asked after all that need not overtake, by length."""
        self._later += selection.drop_where(lambda lane: lane.demand.domains == partition)

    # -- reservations --------------------------------------------------------------------------------------------------

    def _reserve(self, unit: PendingUnit, group: Sequence[Candidates]) -> float:
        """Reserve nodes for a unit, by how they are judged now, whoever explained anything before; returns when, 0 when it can
        never start."""
        if self._profile is None:
            self._profile = self._future().copy()
        self._up_to_date(self._profile)
        duration_s = _still_s(unit, self._policy.estimate)
        best_start: tuple[float, float, Candidates, Choice] | None = None
        for candidates in group:
            candidates.refresh()
            found = self._profile.earliest(candidates, duration_s)
            if found is not None:
                start_s, choice = found
                if best_start is None or (start_s, -choice.score) < best_start[:2]:
                    best_start = (start_s, -choice.score, candidates, choice)
        if best_start is None:
            return 0.0
        start_s, _, candidates, choice = best_start
        self._profile.reserve(unit.key, start_s, duration_s, candidates, choice)
        self._awaited.add(unit.demand)
        partition = unit.demand.domains
        self._reserved[partition] = self._reserved.get(partition, 0) + 1
        self._last_reserved = self._position(unit)
        return start_s

    def _renew(self, reservations: Sequence[Reservation]) -> bool:
        """Make the reservations of the last cycle again; False when they are not as they were."""
        for before in reservations:
            unit, start_s = self._cluster.pending.get(before.key), 0.0
            if unit is not None:
                start_s = self._reserve(unit, self._cluster.candidates(unit.demand))
            now = self._profile.reservation(before.key) if self._profile is not None else None
            if not start_s or now is None or (now.start_s, now.choice.rows) != (before.start_s, before.choice.rows):
                self._profile = self._last_reserved = None
                self._reserved.clear()
                return False
        return True

    def _future(self) -> Profile:
        """What is free when, with what runs and what was placed in this cycle."""
        if self._base is None:
            running = [*self._running.values(), *self._new]
            self._base = Profile(self._cluster.view, running, self._now_s, self._policy.estimate)
        else:
            for unit in self._new:
                self._base.begin(unit, self._now_s)
        self._new.clear()
        return self._base

    def _due(self, profile: Profile) -> list[PendingUnit] | None:
        """Units that are new or whose reservations begin now, in order; None when others left the queue."""
        pending = self._cluster.pending
        new = [
            unit
            for unit in pending.added.values()
            if unit.key not in self._unplanned and profile.reservation(unit.key) is None
        ]
        if len(pending) != len(new) + profile.count + len(self._unplanned):
            return None
        for key in profile.due(self._now_s):
            unit = pending.get(key)
            if unit is None:
                return None
            new.append(unit)
        return sorted(new, key=self._position) if len(new) > 1 else new


def _still_s(unit: PendingUnit, estimate: str) -> float:
    """How long the unit is thought to run from now. One whose former runs took all that was estimated runs on for some time, as one
    that outlives its estimate while it runs (`RunningUnit.end_s`): what is kept for no time is kept from nobody."""
    left_s = estimated_s(unit, estimate)
    return left_s if left_s > 0 or not unit.attained_s else LEAST_RUN_S
