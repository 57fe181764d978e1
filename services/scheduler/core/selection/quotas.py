"""The limit "quota": a unit starts only when the tree of queues (entitlement/quota.py) has room for it, of its queue's own or borrowed.

Usage is kept from cycle to cycle: a unit is charged when it begins and refunded when it ends (`Cluster.watch`). What a cycle
charges on top, for units that it places or takes off, is undone before anything else is asked or told: a cycle that is not
carried out leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.scheduler.core.entitlement.amounts import ACCELERATORS, MEMORY_BYTES, RUNNING, natural, request
from services.scheduler.core.entitlement.queues import QueueSpec
from services.scheduler.core.entitlement.quota import QuotaTree, Verdict
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.amounts import Amounts, Meter, account_of, cluster_of, index_key, of_part
from services.scheduler.core.selection.settings import (
    list_of,
    mapping_of,
    number_of,
    numbers_by_name,
    text_of,
    whole_of,
)
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from services.scheduler.core.watching import Watched

QUOTA = "quota"
"""Name of the limit; the account of a cycle stands in ``context.cache`` under it."""
_FIELDS = ("name", "parent", "nominal", "borrowing_limit", "lending_limit", "weight", "max_running")


def queue_specs(path: str, value: Any) -> tuple[QueueSpec, ...]:
    """Queues from options; PolicyError names the path of what is wrong."""
    specs = []
    for place, item in enumerate(list_of(path, value)):
        here = f"{path}[{place}]"
        body = mapping_of(here, item, _FIELDS)
        if "name" not in body:
            raise PolicyError(f"{here}.name: is missing")
        fields: dict[str, Any] = {"name": text_of(f"{here}.name", body["name"])}
        if "parent" in body:
            fields["parent"] = text_of(f"{here}.parent", body["parent"])
        for name in ("nominal", "borrowing_limit", "lending_limit"):
            if name in body:
                fields[name] = numbers_by_name(f"{here}.{name}", body[name])
        if "weight" in body:
            fields["weight"] = number_of(f"{here}.weight", body["weight"], above=0.0)
        if "max_running" in body:
            fields["max_running"] = whole_of(f"{here}.max_running", body["max_running"])
        specs.append(QueueSpec(**fields))
    return tuple(specs)


class QuotaAccount:
    """The tree with what runs charged to it, and on top what the present cycle decided.

    ``others`` is the queue of units whose own the tree does not name (empty: they may not start). Usage of the ledger
    that belongs to no known running unit is charged to its tenant's queue, at the greatest index.
    """

    def __init__(self, specs: Sequence[QueueSpec], others: str, cluster: Watched) -> None:
        self.tree = QuotaTree(specs)
        self.weights = {spec.name: spec.weight for spec in specs}
        self._queues = frozenset(self.tree.queues)
        self._others = others
        self._meter = Meter(cluster)
        self._charged: dict[UnitKey, tuple[str, Amounts]] = {}
        self._trial: list[tuple[str, Amounts, int]] = []
        self._borrowing: tuple[int, frozenset[str]] | None = None
        self.version = 0
        """Grows with every change: what was worked out before may hold no more."""
        self._charge_ledger(cluster)

    # -- with every event --------------------------------------------------------------------------------------------

    def began(self, running: RunningUnit) -> None:
        """A unit is charged."""
        self.settle()
        key = running.unit.key
        self._refund(key)
        queue = self.queue_of(running.unit)
        if queue:
            self._charged[key] = queue, self._meter.held(running)
            self._move(*self._charged[key], 1)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit is refunded what it was charged."""
        self.settle()
        self._refund(running.unit.key)

    def _refund(self, key: UnitKey) -> None:
        charged = self._charged.pop(key, None)
        if charged is not None:
            self._move(*charged, -1)

    # -- in a cycle --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Undo what the last cycle charged: what was carried out of it is told by `began` and `ended`."""
        while self._trial:
            queue, amounts, sign = self._trial.pop()
            self._move(queue, amounts, -sign)

    def queue_of(self, unit: PendingUnit) -> str:
        """The queue of the tree that the unit counts for; empty when there is none."""
        account = account_of(unit)
        return account if account in self._queues else self._others

    def amounts_of(self, unit: PendingUnit) -> Amounts:
        """What the unit counts for: as charged when it runs, else the most it may."""
        charged = self._charged.get(unit.key)
        return charged[1] if charged is not None else self._meter.of(unit.demand)

    def is_charged(self, key: UnitKey) -> bool:
        """Whether a running unit counts for a queue of the tree."""
        return key in self._charged

    def borrowing(self) -> frozenset[str]:
        """Queues that hold more than their own quota and that of all below them."""
        if self._borrowing is None or self._borrowing[0] != self.version:
            found = frozenset(name for name in self.tree.queues if any(self.tree.borrowed(name).values()))
            self._borrowing = self.version, found
        return self._borrowing[1]

    def admits(self, unit: PendingUnit) -> Verdict:
        """Whether the tree has room for a unit that waits (its queue must exist)."""
        return self.tree.admits(self.queue_of(unit), self._meter.of(unit.demand))

    def refuses(self, unit: PendingUnit) -> str:
        """See `Gate`."""
        if not self.queue_of(unit):
            return f"quota: there is no queue {account_of(unit)!r} in the tree of quotas"
        verdict = self.admits(unit)
        return "" if verdict.ok else self._reason(unit, verdict)

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """See `Gate`."""
        queue = self.queue_of(unit)
        if not queue:
            return
        if sign > 0 or unit.key in self._charged:
            self._move(queue, self.amounts_of(unit), sign)
            self._trial.append((queue, self.amounts_of(unit), sign))

    def grows(self, running: RunningUnit, milli: int, more: int) -> bool:
        """See `PartsGate`."""
        queue, amounts = self._charged.get(running.unit.key, ("", {}))
        if not queue:
            return True
        wanted = of_part(amounts, running, milli + more) - of_part(amounts, running, milli)
        return wanted <= self.tree.available(queue).get(ACCELERATORS, wanted)

    def resize(self, running: RunningUnit, milli: int, after: int) -> None:
        """See `PartsGate`."""
        queue, amounts = self._charged.get(running.unit.key, ("", {}))
        if not queue:
            return
        for part, sign in ((milli, -1), (after, 1)):
            held = {**amounts, ACCELERATORS: of_part(amounts, running, part)}
            self._move(queue, held, sign)
            self._trial.append((queue, held, sign))

    def _move(self, queue: str, amounts: Amounts, sign: int) -> None:
        self.version += 1
        if sign > 0:
            self.tree.charge(queue, amounts)
        else:
            self.tree.refund(queue, amounts)

    def _reason(self, unit: PendingUnit, verdict: Verdict) -> str:
        queue = self.queue_of(unit)
        at = "" if verdict.blocked_at == queue else f" (held up at {verdict.blocked_at!r})"
        if verdict.resource == RUNNING:
            return f"quota: queue {queue!r} has as many running units as it may{at}"
        asked = _shown(verdict.resource, self._meter.of(unit.demand)[verdict.resource])
        left = _shown(verdict.resource, max(verdict.available, 0))
        return f"quota: queue {queue!r} asks for {asked} {verdict.resource}, {left} would be available{at}"

    def _charge_ledger(self, cluster: Watched) -> None:
        milli = {name: usage.accelerator_milli for name, usage in cluster.tenants.items()}
        cpus = {name: usage.cpus for name, usage in cluster.tenants.items()}
        for running in cluster.running.values():
            demand, tenant = running.unit.demand, running.unit.tenant_id
            milli[tenant] -= demand.ranks * demand.accelerators * demand.device_milli
            cpus[tenant] -= demand.ranks * demand.cpus
        most = max((self._meter.index.get(model.model, 1.0) for model in cluster.table.models), default=1.0)
        for tenant, left in milli.items():
            queue = tenant if tenant in self._queues else self._others
            rest = request({"": max(left, 0) / 1000.0}, max(cpus[tenant], 0.0), weights={"": most})
            if queue and any(rest.values()):
                self.tree.charge(queue, rest, units=0)


def _shown(resource: str, amount: int) -> str:
    value = natural(resource, amount)
    return f"{value / 2**30:g} GiB of" if resource == MEMORY_BYTES else f"{value:g}"


class QuotaLimit:
    """See the module. ``queues`` are the queues of the tree (`QueueSpec`), ``others`` the queue of units without one."""

    name = QUOTA
    counts_parts = True

    def __init__(self, specs: Sequence[QueueSpec] = (), others: str = "") -> None:
        self._specs = tuple(specs)
        self._others = others
        self._key = tuple(repr(spec) for spec in specs), others

    def configured(self, options: Mapping[str, Any]) -> QuotaLimit:
        """With ``queues`` (name, parent, nominal, borrowing_limit, lending_limit, weight, max_running) and ``others``."""
        refuse_unknown(self.name, options, ("queues", "others"))
        specs = queue_specs("options.quota.queues", options.get("queues", ()))
        try:
            names = QuotaTree(specs).queues
        except PolicyError as error:
            raise PolicyError(f"options.quota.queues: {error.detail}") from None
        others = text_of("options.quota.others", options["others"]) if "others" in options else ""
        if others and others not in names:
            raise PolicyError(f"options.quota.others: there is no queue {others!r}")
        return QuotaLimit(specs, others)

    def open(self, context: OrderContext) -> QuotaAccount:
        """Begin a cycle. The account is kept from cycle to cycle as long as the quotas and the index stay."""
        cluster = cluster_of(context)
        settings = self._key, index_key(cluster)
        account = cluster.watch(QUOTA, settings, lambda: QuotaAccount(self._specs, self._others, cluster))
        account.settle()
        context.cache[QUOTA] = account
        return account

    def requires(self, policy: Policy) -> None:
        """PolicyError when there is no queue."""
        if not self._specs:
            raise PolicyError(
                "options.quota.queues: is missing: no queue has nominal, borrowing_limit, lending_limit or max_running"
            )
