"""The limits "max_running" (units that may run at once) and "queue_cap" (amounts that may be held at once), by tenant and
queue, without borrowing. Counts are kept from cycle to cycle, and what a cycle adds is undone, as in quotas.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.scheduler.core.entitlement.amounts import ACCELERATORS, natural, quantity
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.amounts import Amounts, Meter, account_of, cluster_of, index_key, of_part
from services.scheduler.core.selection.settings import mapping_of, numbers_by_name, whole_of
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from services.scheduler.core.watching import Watched


class RunningCounts:
    """Units that run, by tenant and by queue, and on top those of the present cycle."""

    def __init__(self) -> None:
        self.tenants: dict[str, int] = {}
        self.queues: dict[str, int] = {}
        self._trial: list[tuple[PendingUnit, int]] = []

    def began(self, running: RunningUnit) -> None:
        """One unit more."""
        self.settle()
        self._move(running.unit, 1)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """One unit fewer."""
        self.settle()
        self._move(running.unit, -1)

    def settle(self) -> None:
        """Undo what the last cycle counted."""
        while self._trial:
            unit, sign = self._trial.pop()
            self._move(unit, -sign)

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """Count for this cycle only."""
        self._move(unit, sign)
        self._trial.append((unit, sign))

    def _move(self, unit: PendingUnit, sign: int) -> None:
        self.tenants[unit.tenant_id] = self.tenants.get(unit.tenant_id, 0) + sign
        if unit.queue:
            self.queues[unit.queue] = self.queues.get(unit.queue, 0) + sign


class MaxRunningLimit:
    """At most so many units of a tenant, and of a queue, run at once. ``default`` holds for tenants without a number of
    their own (None: any number); queues without one are not limited."""

    name = "max_running"

    def __init__(
        self,
        default: int | None = None,
        tenants: Mapping[str, int] | None = None,
        queues: Mapping[str, int] | None = None,
    ) -> None:
        self._default, self._tenants, self._queues = default, dict(tenants or {}), dict(queues or {})

    def configured(self, options: Mapping[str, Any]) -> MaxRunningLimit:
        """With ``default``, ``tenants`` and ``queues`` (whole numbers of at least 0)."""
        refuse_unknown(self.name, options, ("default", "tenants", "queues"))
        default = whole_of("options.max_running.default", options["default"]) if "default" in options else None
        parts = []
        for part in ("tenants", "queues"):
            path = f"options.max_running.{part}"
            body = mapping_of(path, options.get(part, ()))
            parts.append({name: whole_of(f"{path}.{name}", count) for name, count in body.items()})
        return MaxRunningLimit(default, *parts)

    def requires(self, policy: Policy) -> None:
        """PolicyError when nothing is limited."""
        if self._default is None and not self._tenants and not self._queues:
            raise PolicyError("options.max_running: limits nobody: give it default, tenants or queues")

    def open(self, context: OrderContext) -> MaxRunningGate:
        """Begin a cycle."""
        counts = cluster_of(context).watch(self.name, None, RunningCounts)
        counts.settle()
        return MaxRunningGate(counts, self._default, self._tenants, self._queues)


class MaxRunningGate:
    """`MaxRunningLimit` in one cycle."""

    def __init__(
        self, counts: RunningCounts, default: int | None, tenants: Mapping[str, int], queues: Mapping[str, int]
    ) -> None:
        self._counts, self._default, self._tenants, self._queues = counts, default, tenants, queues

    def refuses(self, unit: PendingUnit) -> str:
        """See `Gate`."""
        most = self._tenants.get(unit.tenant_id, self._default)
        if most is not None and self._counts.tenants.get(unit.tenant_id, 0) >= most:
            return f"max_running: tenant {unit.tenant_id!r} has {most} running units, as many as it may"
        most = self._queues.get(unit.queue)
        if most is not None and self._counts.queues.get(unit.queue, 0) >= most:
            return f"max_running: queue {unit.queue!r} has {most} running units, as many as it may"
        return ""

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """See `Gate`."""
        self._counts.charge(unit, sign)


class Holdings:
    """What the running units of each account (queue or tenant) hold, and on top what the present cycle decided."""

    def __init__(self, cluster: Watched) -> None:
        self.meter = Meter(cluster)
        self.held: dict[str, Amounts] = {}
        self._charged: dict[UnitKey, tuple[str, Amounts]] = {}
        self._trial: list[tuple[str, Amounts, int]] = []

    def began(self, running: RunningUnit) -> None:
        """A unit is charged."""
        self.settle()
        charged = self._charged[running.unit.key] = account_of(running.unit), self.meter.held(running)
        self._move(*charged, 1)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit is refunded what it was charged."""
        self.settle()
        charged = self._charged.pop(running.unit.key, None)
        if charged is not None:
            self._move(*charged, -1)

    def settle(self) -> None:
        """Undo what the last cycle charged."""
        while self._trial:
            account, amounts, sign = self._trial.pop()
            self._move(account, amounts, -sign)

    def of(self, account: str) -> Amounts:
        """What the account holds, with what this cycle gave it."""
        return self.held.get(account, {})

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """Charge for this cycle only; a unit that runs is taken off by what it was charged."""
        account, amounts = account_of(unit), self.amounts_of(unit)
        self._move(account, amounts, sign)
        self._trial.append((account, amounts, sign))

    def resize(self, running: RunningUnit, milli: int, after: int) -> None:
        """A unit that runs has another part of its accelerator, for this cycle only."""
        account, amounts = account_of(running.unit), self.amounts_of(running.unit)
        for part, sign in ((milli, -1), (after, 1)):
            held = {**amounts, ACCELERATORS: of_part(amounts, running, part)}
            self._move(account, held, sign)
            self._trial.append((account, held, sign))

    def amounts_of(self, unit: PendingUnit) -> Amounts:
        """What the unit counts for: as charged when it runs, else the most it may."""
        charged = self._charged.get(unit.key)
        return charged[1] if charged is not None else self.meter.of(unit.demand)

    def _move(self, account: str, amounts: Amounts, sign: int) -> None:
        held = self.held.setdefault(account, {})
        for name, amount in amounts.items():
            held[name] = held.get(name, 0) + sign * amount


class QueueCapLimit:
    """A queue (or a tenant without one) holds at most so much of a resource: accelerators weighted by index, cpus,
    memory_bytes, or a named resource. ``queues`` gives the caps by queue."""

    name = "queue_cap"
    counts_parts = True

    def __init__(self, queues: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._caps = {
            queue: {resource: quantity(resource, value) for resource, value in cap.items()}
            for queue, cap in (queues or {}).items()
        }

    def configured(self, options: Mapping[str, Any]) -> QueueCapLimit:
        """With ``queues``: {queue: {resource: amount}}."""
        refuse_unknown(self.name, options, ("queues",))
        path = "options.queue_cap.queues"
        body = mapping_of(path, options.get("queues", ()))
        return QueueCapLimit({name: numbers_by_name(f"{path}.{name}", cap) for name, cap in body.items()})

    def requires(self, policy: Policy) -> None:
        """PolicyError when nothing is limited."""
        if not self._caps:
            raise PolicyError("options.queue_cap.queues: is missing")

    def open(self, context: OrderContext) -> QueueCapGate:
        """Begin a cycle."""
        cluster = cluster_of(context)
        holdings = cluster.watch(self.name, index_key(cluster), lambda: Holdings(cluster))
        holdings.settle()
        return QueueCapGate(holdings, self._caps)


class QueueCapGate:
    """`QueueCapLimit` in one cycle."""

    def __init__(self, holdings: Holdings, caps: Mapping[str, Amounts]) -> None:
        self._holdings, self._caps = holdings, caps

    def refuses(self, unit: PendingUnit) -> str:
        """See `Gate`."""
        account = account_of(unit)
        cap = self._caps.get(account)
        if cap is None:
            return ""
        held, asked = self._holdings.of(account), self._holdings.meter.of(unit.demand)
        for resource, most in cap.items():
            amount = asked.get(resource, 0)
            left = most - held.get(resource, 0)
            if amount and amount > left:
                shown, free = natural(resource, amount), max(natural(resource, left), 0.0)
                return f"queue_cap: queue {account!r} asks for {shown:g} {resource}, {free:g} would be available"
        return ""

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """See `Gate`."""
        self._holdings.charge(unit, sign)

    def grows(self, running: RunningUnit, milli: int, more: int) -> bool:
        """See `PartsGate`."""
        account = account_of(running.unit)
        most = self._caps.get(account, {}).get(ACCELERATORS)
        if most is None:
            return True
        amounts = self._holdings.amounts_of(running.unit)
        wanted = of_part(amounts, running, milli + more) - of_part(amounts, running, milli)
        return wanted <= most - self._holdings.of(account).get(ACCELERATORS, 0)

    def resize(self, running: RunningUnit, milli: int, after: int) -> None:
        """See `PartsGate`."""
        self._holdings.resize(running, milli, after)
