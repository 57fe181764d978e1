"""Service levels in the cycle: the orders "slack" (least slack first) and "sla" (most urgent by the tenant's objectives
first), and the accounts of all tenants, fed with what happens to units by whoever runs the scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.selection.settings import list_of, mapping_of, number_of, text_of, whole_of
from services.scheduler.core.sla import SlaAccount
from services.scheduler.core.sla_values import Objective, ObjectiveKind
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import INFINITE, OrderContext, PendingUnit

SLA = "sla"
"""Name of the order, and of the cluster's fact that holds the `SlaAccounts`."""
_FIELDS = ("kind", "target", "window_s", "penalty_micro_units", "currency")


@dataclass(frozen=True, slots=True)
class SlaRow:
    """How one objective of one tenant stands: a row of a report. ``value`` as in `sla.Compliance`, NaN without
    ``observations``; ``penalty_micro_units`` are those accrued so far in ``currency``."""

    tenant_id: str
    kind: str
    target: float
    window_s: float
    value: float
    met: bool
    observations: int
    violations: int
    penalty_micro_units: int
    currency: str


class SlaAccounts:
    """The accounts of all tenants. Events of one tenant come in order of time; events of tenants without objectives are
    ignored. Set it as the fact "sla" of the cluster (``view.facts``) for the order `sla`."""

    def __init__(self, objectives: Mapping[str, Sequence[Objective]], start_s: float = 0.0) -> None:
        self._objectives = {tenant: tuple(items) for tenant, items in objectives.items() if items}
        self._accounts = {tenant: SlaAccount(items, start_s) for tenant, items in self._objectives.items()}
        self._waiting: set[UnitKey] = set()

    def knows(self, unit: PendingUnit) -> bool:
        """Whether the unit waits or runs by the account of its tenant; False without one."""
        account = self._accounts.get(unit.tenant_id)
        return account is not None and account.knows(str(unit.key))

    def waits(self, unit: PendingUnit) -> bool:
        """Whether the unit is known to wait."""
        account = self._accounts.get(unit.tenant_id)
        return account is not None and account.waits(str(unit.key))

    def now_s(self, tenant_id: str) -> float:
        """The time that the account of a tenant was advanced to; -inf without one."""
        account = self._accounts.get(tenant_id)
        return account.now_s if account is not None else -math.inf

    def adopted(self, unit: PendingUnit, at_s: float) -> None:
        """The unit runs already and is known from now on."""
        account = self._accounts.get(unit.tenant_id)
        if account is not None:
            account.adopted(str(unit.key), at_s)

    @property
    def objectives(self) -> Mapping[str, Sequence[Objective]]:
        """What was promised to whom."""
        return self._objectives

    def snapshot(self) -> SlaAccounts:
        """A copy that goes its own way."""
        other = SlaAccounts({})
        other._objectives, other._waiting = self._objectives, set(self._waiting)
        other._accounts = {tenant: account.snapshot() for tenant, account in self._accounts.items()}
        return other

    def state(self) -> dict[str, Any]:
        """Everything but the objectives, as JSON types; see `load`."""
        return {
            "accounts": {tenant: account.state() for tenant, account in self._accounts.items()},
            "waiting": sorted([key.job_id, key.unit_index] for key in self._waiting),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as `state` had it, as far as the objectives are the same; see `SlaAccount.load`."""
        for tenant, account in self._accounts.items():
            if tenant in state["accounts"]:
                account.load(state["accounts"][tenant])
        self._waiting = {UnitKey(job_id, index) for job_id, index in state["waiting"]}

    def queued(self, unit: PendingUnit, at_s: float, lost_at_s: float | None = None) -> None:
        """The unit waits; ``lost_at_s``: since when its run is lost, if it is queued again."""
        account = self._accounts.get(unit.tenant_id)
        if account is None:
            return
        account.queued(
            str(unit.key),
            at_s,
            deadline_s=None if unit.deadline_s == INFINITE else unit.deadline_s,
            run_time_s=known_remaining_s(unit),
            lost_at_s=lost_at_s,
        )
        self._waiting.add(unit.key)

    def started(self, unit: PendingUnit, at_s: float) -> None:
        """The unit runs."""
        account = self._accounts.get(unit.tenant_id)
        if account is not None:
            account.started(str(unit.key), at_s)
            self._waiting.discard(unit.key)

    def finished(self, unit: PendingUnit, at_s: float) -> None:
        """The unit has done its work."""
        account = self._accounts.get(unit.tenant_id)
        if account is not None:
            account.finished(str(unit.key), at_s)

    def withdrawn(self, unit: PendingUnit, at_s: float) -> None:
        """The unit was cancelled."""
        account = self._accounts.get(unit.tenant_id)
        if account is not None:
            account.withdrawn(str(unit.key), at_s)
            self._waiting.discard(unit.key)

    def recovered(self, unit: PendingUnit, at_s: float, took_s: float) -> None:
        """The unit's lost run goes on again, ``took_s`` after it was lost."""
        account = self._accounts.get(unit.tenant_id)
        if account is not None:
            account.recovered(at_s, took_s, str(unit.key))

    def responded(self, tenant_id: str, at_s: float, took_s: float) -> None:
        """A service of the tenant answered after ``took_s``."""
        account = self._accounts.get(tenant_id)
        if account is not None:
            account.responded(at_s, took_s)

    def urgency(self, unit: PendingUnit, now_s: float) -> tuple[float, float]:
        """(slack in seconds, minus penalties per second) of a waiting unit, the smallest is the most urgent; infinite
        slack when nothing is promised or the unit is not known to wait."""
        account = self._accounts.get(unit.tenant_id)
        if account is None or unit.key not in self._waiting or not account.waits(str(unit.key)):
            return INFINITE, 0.0
        urgency = account.urgency(str(unit.key), now_s)
        return urgency.slack_s, urgency.minus_penalty_micro_units_per_s

    def rows(self, now_s: float) -> list[SlaRow]:
        """One row per tenant and objective, tenants by name. Advances the accounts to ``now_s``."""
        rows = []
        for tenant in sorted(self._accounts):
            stands = self._accounts[tenant].compliance(now_s)
            for objective, stand in zip(self._objectives[tenant], stands, strict=True):
                rows.append(
                    SlaRow(
                        tenant,
                        objective.kind.value,
                        objective.target,
                        objective.window_s,
                        stand.value,
                        stand.met,
                        stand.observations,
                        stand.violations,
                        stand.violations * objective.penalty_micro_units,
                        objective.currency,
                    )
                )
        return rows


def objectives_of(path: str, value: Any) -> dict[str, tuple[Objective, ...]]:
    """Objectives by tenant from options; PolicyError names the path of what is wrong."""
    found: dict[str, tuple[Objective, ...]] = {}
    for tenant, items in mapping_of(path, value).items():
        objectives = []
        for place, item in enumerate(list_of(f"{path}.{tenant}", items)):
            here = f"{path}.{tenant}[{place}]"
            body = mapping_of(here, item, _FIELDS)
            for name in ("kind", "target", "window_s"):
                if name not in body:
                    raise PolicyError(f"{here}.{name}: is missing")
            kind = text_of(f"{here}.kind", body["kind"])
            if kind not in set(ObjectiveKind):
                raise PolicyError(f"{here}.kind: must be one of {', '.join(ObjectiveKind)}, not {kind!r}")
            objectives.append(
                Objective(
                    ObjectiveKind(kind),
                    number_of(f"{here}.target", body["target"]),
                    number_of(f"{here}.window_s", body["window_s"], least=1e-6),
                    whole_of(f"{here}.penalty_micro_units", body.get("penalty_micro_units", 0)),
                    text_of(f"{here}.currency", body.get("currency", "USD")),
                )
            )
        found[tenant] = tuple(objectives)
    return found


def known_remaining_s(unit: PendingUnit) -> float:
    """What is left of the unit's run by prediction, else by its declared limit, else nothing."""
    for whole in (unit.expected_s, unit.limit_s):
        if whole != INFINITE:
            return max(whole - unit.attained_s, 0.0)
    return 0.0


class SlackOrder:
    """Least slack first: the latest time to start and still meet the deadline. That time does not change while a unit
    waits. Units without a deadline come last; those that are late already come first (see `sla` for lost causes)."""

    name = "slack"
    per = "unit"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return unit.deadline_s - known_remaining_s(unit) if unit.deadline_s != INFINITE else INFINITE

    def running_key(self, running: Any, context: OrderContext) -> float:
        """The same of a unit that runs: it has less left with every second."""
        deadline_s = float(running.unit.deadline_s)
        if deadline_s == INFINITE:
            return INFINITE
        whole = next((value for value in (running.unit.expected_s, running.unit.limit_s) if value != INFINITE), 0.0)
        return deadline_s - max(float(whole) - float(running.ran_s(context.now_s)), 0.0)


class SlaOrder:
    """Most urgent first, by the accounts that are the cluster's fact "sla" (`SlaAccounts`): least slack before an
    objective breaks, then the greatest penalty per second.

    A tenant without objectives there is judged by the deadline of the unit alone, its value being the penalty, with the
    same rule for lost causes: a deadline that has passed no longer counts. ``step_s`` > 0 counts slack in whole steps, so
    that among units of about the same slack penalties decide.
    """

    name = SLA
    per = "time"
    compares = True

    def __init__(self, step_s: float = 0.0) -> None:
        self._step_s = step_s

    def configured(self, options: Mapping[str, Any]) -> SlaOrder:
        """With ``step_s`` (seconds, at least 0)."""
        refuse_unknown(self.name, options, ("step_s",))
        return SlaOrder(number_of("options.sla.step_s", options.get("step_s", 0.0)))

    def key(self, unit: PendingUnit, context: OrderContext) -> tuple[float, ...]:
        accounts: SlaAccounts | None = context.facts.get(SLA)
        slack, rate = accounts.urgency(unit, context.now_s) if accounts is not None else (INFINITE, 0.0)
        if slack == INFINITE and unit.deadline_s >= context.now_s and unit.deadline_s != INFINITE:
            slack = unit.deadline_s - context.now_s - known_remaining_s(unit)
            rate = -unit.value / max(slack, 1.0)
        if self._step_s and slack != INFINITE:
            slack = math.floor(slack / self._step_s)
        return slack, rate
