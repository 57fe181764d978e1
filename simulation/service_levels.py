"""Service levels of a simulation: what tenants were promised, fed from what happens to their jobs, and what it comes to.

The accounts are those of the scheduler (services/scheduler/core/selection/objectives_sla.py); as the cluster's fact "sla" they
are what its order `sla` reads. A job's run is lost by a failure or a reclaim; a preemption with a checkpoint loses none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.scheduler.core.selection.objectives_sla import SlaAccounts, SlaRow
from services.scheduler.core.sla_values import Objective
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import PendingUnit


class ServiceLevels:
    """Accounts of the tenants with objectives; events come in order of time."""

    def __init__(self, objectives: Mapping[str, Sequence[Objective]], start_s: float = 0.0) -> None:
        self.accounts = SlaAccounts(objectives, start_s)
        self._lost_s: dict[UnitKey, float] = {}

    def lost(self, key: UnitKey, now_s: float) -> None:
        """The job's run was lost."""
        self._lost_s.setdefault(key, now_s)

    def queued(self, unit: PendingUnit, now_s: float) -> None:
        """The job waits, at first or again."""
        self.accounts.queued(unit, now_s, self._lost_s.get(unit.key))

    def started(self, unit: PendingUnit, now_s: float) -> None:
        """The job has nodes."""
        self.accounts.started(unit, now_s)

    def works(self, unit: PendingUnit, now_s: float, from_s: float) -> None:
        """The job makes progress from ``from_s`` on: if its run was lost, it has recovered."""
        lost_s = self._lost_s.pop(unit.key, None)
        if lost_s is not None:
            self.accounts.recovered(unit, now_s, from_s - lost_s)

    def finished(self, unit: PendingUnit, now_s: float) -> None:
        """The job has done its work."""
        self.accounts.finished(unit, now_s)

    def rows(self, now_s: float) -> list[SlaRow]:
        """How every objective stands; advances the accounts."""
        return self.accounts.rows(now_s)

    def figures(self, now_s: float) -> dict[str, float]:
        """Extra figures of a run: penalties by currency, violations, and the share of the objectives that are kept at the
        end."""
        rows = self.rows(now_s)
        penalties: dict[str, int] = {}
        for row in rows:
            penalties[row.currency] = penalties.get(row.currency, 0) + row.penalty_micro_units
        found = {f"sla_penalty_cost_{currency.lower()}": amount / 1e6 for currency, amount in sorted(penalties.items())}
        found["sla_violations_count"] = float(sum(row.violations for row in rows))
        found["sla_met_share"] = sum(row.met for row in rows) / len(rows) if rows else 1.0
        return found
