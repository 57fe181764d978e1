"""A cycle that follows a planner: what does not agree with the plan is taken off, what it names is placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from services.scheduler.core.deciding.decisions import Preempted
from services.scheduler.core.deciding.state import State
from services.scheduler.core.placement import best
from services.scheduler.core.planning import Target
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Table
from services.scheduler.core.tenants_objectives import state_tenant
from services.scheduler.core.unlike import said
from services.scheduler.core.waiting_unit import PendingUnit


class _Settled:
    """The targets that were found carried out, with nobody else running, since when nobody began or ended; and the target that
    each unit was found to agree with since it began."""

    def __init__(self) -> None:
        self.targets: Sequence[Target] | None = None
        self._agreed: dict[UnitKey, Target] = {}
        self._table: Table | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> _Settled:
        return _Settled()

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        self.targets = None
        self._agreed.pop(running.unit.key, None)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more."""
        self.targets = None
        self._agreed.pop(running.unit.key, None)

    def agreed(self, table: Table) -> dict[UnitKey, Target]:
        """The targets that running units were found to agree with, by unit."""
        if table is not self._table:
            self._agreed.clear()
            self._table = table
        return self._agreed

    def agrees(self, running: RunningUnit, target: Target, table: Table) -> bool:
        """Whether the unit runs as the target says."""
        found = _agrees(running, target, table)
        if found:
            self._agreed[target.key] = target
        return found


class ByPlan(State):
    """See the module."""

    def _carry_out(self, targets: Sequence[Target]) -> None:
        settled = self._cluster.watch("by plan", None, _Settled)
        if settled.targets is not targets or self._explain:
            done = self._follow_targets(targets, settled)
            settled.targets = targets if done else None

    def _follow_targets(self, targets: Sequence[Target], settled: _Settled) -> bool:
        """See the module; whether all was already as planned."""
        cluster = self._cluster
        follows = self._stages.follows
        more = f"; {said(cluster, self._policy)}" if follows and self._explain else ""
        wanted = {target.key: target for target in targets}
        agreed = settled.agreed(cluster.table)
        changed = [key for key in self._running if key not in wanted or wanted[key] is not agreed.get(key)]
        for running in [self._running[key] for key in changed]:
            target = wanted.get(running.unit.key)
            if target is not None and settled.agrees(running, target, cluster.table):
                continue
            if not running.unit.preemptible:
                continue
            for row, devices in running.rows:
                cluster.view.give(row, running.unit.demand, devices)
            del self._running[running.unit.key]
            why = "the plan gives it nothing" if target is None else f"the plan gives it another place: {target.reason}"
            self._preempted.append(Preempted(running.unit.key, why + more))
        off = {item.key for item in self._preempted}
        for target in [target for target in targets if target.key not in self._running]:
            unit = cluster.pending.get(target.key)
            before = None
            if unit is None:
                before = cluster.running.get(target.key)
                if before is None or target.key not in off:
                    continue
                unit = before.unit
            if follows and not unit.demand.accelerators:
                continue
            if self._per_tenant:
                state_tenant(cluster.view, unit.tenant_id)
            demand = _fitted_demand(unit.demand, target.ranks, target.model, target.domain_id)
            group = cluster.candidates(demand)
            found = best(group)
            if found is None:
                continue
            if before is not None:
                unit = replace(unit, attained_s=before.ran_s(self._now_s), served_s=before.service_s(self._now_s))
            self._place(_fitted(unit, target), group, *found, reason=target.reason + more)
        if self._explain:
            self._hold_others(wanted)
        return self._running.keys() == wanted.keys() and not self._placed and not self._preempted

    def _hold_others(self, wanted: Mapping[UnitKey, Target]) -> None:
        """Units that the plan gives nothing, or what is not free yet."""
        cluster = self._cluster
        begun = {item.key for item in self._placed}
        says = getattr(self._stages.planner, "says", None)
        why = "" if says is None else says(cluster, self._now_s)
        follows = self._stages.follows
        if follows:
            why = f"the plan gives it nothing now: {said(cluster, self._policy)}"
        for unit in cluster.pending:
            if unit.key in begun or (follows and not unit.demand.accelerators):
                continue
            target = wanted.get(unit.key)
            explanation = self._explained(unit.demand if target is None else _fitted(unit, target).demand)
            if target is None and why and explanation.found_stage == "capacity":
                self._hold((unit,), replace(explanation, found="", found_stage="plan"), reason=why)
            else:
                self._hold((unit,), explanation)


def _agrees(running: RunningUnit, target: Target, table: Table) -> bool:
    demand = running.unit.demand
    if target.ranks and target.ranks != demand.ranks:
        return False
    if target.domain_id and any(rank.domain_id != target.domain_id for rank in running.ranks):
        return False
    if target.model and running.rows:
        row, devices = running.rows[0]
        held = {table.models[column].model for index, column in table.devices_of[row] if index in devices}
        return held <= {target.model}
    return True


def _fitted(unit: PendingUnit, target: Target) -> PendingUnit:
    """The unit with the demand that the plan gives it."""
    demand = _fitted_demand(unit.demand, target.ranks, target.model, target.domain_id)
    return unit if demand is unit.demand else replace(unit, demand=demand)


@lru_cache(maxsize=4096)
def _fitted_demand(demand: Demand, ranks: int, model: str, domain_id: str) -> Demand:
    if ranks and ranks != demand.ranks:
        demand = replace(demand, ranks=ranks)
    if model:
        demand = replace(demand, accelerator_types=(model,))
    if domain_id:
        demand = replace(demand, domains=frozenset({domain_id}))
    return demand
