"""Inside a domain: it places what it is given by its own nodes, or hands it to a scheduler of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.explaining.explanation import Explanation
from services.scheduler.core.placement import best, would_do
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.two_level.messages import Answer, Assignment, Constraints, DomainSummary
from services.scheduler.core.two_level.summary import summarise
from services.scheduler.core.two_level.tally import Tally
from services.scheduler.core.waiting_unit import PendingUnit


def place_in_domain(
    cluster: Cluster,
    assignments: Sequence[Assignment],
    now_s: float,
    explanations: dict[UnitKey, Explanation] | None = None,
    most_explained: int = 0,
) -> tuple[list[RunningUnit], list[tuple[UnitKey, str]]]:
    """Place parts in order, each with all its ranks or not at all; they run on the cluster then. Returns what was begun, and
    what was refused with the reason. The cluster's own policy orders the nodes. ``explanations`` takes why, of the first
    ``most_explained``."""
    view = cluster.view
    chosen: list[tuple[PendingUnit, tuple[PlacedRank, ...]]] = []
    refused: list[tuple[UnitKey, str]] = []
    none: dict[Demand, str] = {}
    view.begin()
    try:
        for item in assignments:
            unit = item.unit
            if unit.key in cluster.running:
                refused.append((unit.key, "it runs here already"))
                continue
            if unit.demand in none:
                refused.append((unit.key, none[unit.demand]))
                continue
            group = cluster.candidates(unit.demand)
            found = best(group)
            kept = explanations if explanations is not None and len(explanations) < most_explained else None
            if found is None:
                explained = would_do(group).explain_waiting() if group else None
                reason = explained.blocked if explained is not None else "no node is known yet"
                none[unit.demand] = reason
                refused.append((unit.key, reason))
                if kept is not None and explained is not None:
                    kept[unit.key] = explained
            else:
                if kept is not None:
                    kept[unit.key] = found[0].explain(found[1])
                chosen.append((unit, found[0].take(found[1])))
    finally:
        view.rollback()
    return [cluster.begin(unit, ranks, now_s) for unit, ranks in chosen], refused


class LocalDomain:
    """A domain in this process, with its cluster. It counts the runs that it began and ended (``sequence``)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sequence = 0
        self._tally = Tally()
        self._told: tuple[Sequence[Assignment], Sequence[Demand], float] | None = None

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """See `IntraDomain`."""
        self._told = assignments, classes, now_s

    def answer(self) -> Answer:
        """See `IntraDomain`."""
        assert self._told is not None
        assignments, classes, now_s = self._told
        self._told = None
        begun, refused = place_in_domain(self.cluster, assignments, now_s)
        self.sequence += len(begun)
        placed = tuple([(running.unit.key, running.ranks) for running in begun])
        return Answer(self.cluster.table.domain_ids[0], placed, tuple(refused), self.summary(classes))

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """See `IntraDomain`; also for units that ended."""
        for key in keys:
            self.sequence += self.cluster.release(key, now_s) is not None

    def summary(self, classes: Sequence[Demand]) -> DomainSummary:
        """The domain as it is now."""
        return summarise(self.cluster, classes, sequence=self.sequence, tally=self._tally)


class HandingDomain:
    """A domain with a scheduler of its own, which gets constraints; its agent says later which of them it takes.

    ``open`` are the units that it has not answered for. The summary is what the agent told last.
    """

    def __init__(self, summary: DomainSummary) -> None:
        self.summary = replace(summary, own_scheduler=True)
        self.open: dict[UnitKey, PendingUnit] = {}
        self._told: Sequence[Assignment] = ()

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """See `IntraDomain`."""
        self._told = assignments

    def answer(self) -> Answer:
        """See `IntraDomain`: everything is handed over, nothing is placed yet."""
        self.open.update({item.unit.key: item.unit for item in self._told})
        handed = tuple([(item.unit.key, Constraints.of(item.unit)) for item in self._told])
        self._told = ()
        return Answer(self.summary.domain_id, (), (), self.summary, handed)

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """See `IntraDomain`."""
        for key in keys:
            self.open.pop(key, None)

    def accepted(self, key: UnitKey) -> bool:
        """The agent took it; False when it had been given back."""
        return self.open.pop(key, None) is not None

    def rejected(self, key: UnitKey) -> PendingUnit | None:
        """The agent did not take it: the part that waits again, None when it had been given back."""
        return self.open.pop(key, None)
