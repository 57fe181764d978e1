"""Why each unit waits, put together from the last whole cycle and those after it that looked only at what was new."""

from __future__ import annotations

from collections.abc import Mapping

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.deciding.decisions import Blocked, Decisions, Waiting
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import OrderContext

_MOST_PARTS = 32


class WaitingUnits:
    """`add` costs nothing that grows with the queue; `all` is worked out when somebody asks."""

    def __init__(self) -> None:
        self._parts: list[tuple[Blocked, ...]] = []
        self._all: Mapping[UnitKey, Waiting] | None = None

    def add(self, decisions: Decisions) -> None:
        """A cycle was carried out."""
        if not decisions.partial:
            self._parts.clear()
        if decisions.blocked:
            self._parts.append(decisions.blocked)
        if len(self._parts) > _MOST_PARTS:
            found = {unit.key: (unit, group) for part in self._parts for group in part for unit in group.units}
            groups: dict[int, tuple[Blocked, list[UnitKey]]] = {}
            for key, (_, group) in found.items():
                groups.setdefault(id(group), (group, []))[1].append(key)
            self._parts = [
                tuple(
                    Blocked(tuple(found[key][0] for key in keys), group.explanation, group.start_s, group.reason)
                    for group, keys in groups.values()
                )
            ]
        self._all = None

    def all(self, cluster: Cluster, now_s: float) -> Mapping[UnitKey, Waiting]:
        """The units that still wait and were looked at, by their places in the order of the policy (from 1)."""
        if self._all is None:
            facts = {
                **cluster.view.facts,
                "running": cluster.running,
                "cluster": cluster,
                "order": cluster.pending.order,
            }
            context = OrderContext(cluster.shares(), now_s, facts)
            rows = {}
            for part in self._parts:
                for group in part:
                    for unit in group.units:
                        if unit.key in cluster.pending:
                            place = cluster.pending.key(unit, context), unit.queued_at_s, unit.key
                            rows[unit.key] = (place, group)
            ordered = sorted(rows.items(), key=lambda row: row[1][0])
            self._all = {
                key: Waiting(key, number, group.explanation, group.start_s)
                for number, (key, (_, group)) in enumerate(ordered, 1)
            }
        return self._all
