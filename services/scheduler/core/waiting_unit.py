"""What waits, as the decisions see it, and what an order of it is told and must promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.scheduler.core.ledger import Usage
from services.scheduler.core.state import Demand, UnitKey

INFINITE = math.inf
SERVICE = "service"
_DECIMALS = 6
"""Of cpus and accelerators held: what is less is left over from adding and taking away fractions."""


@dataclass(frozen=True, slots=True)
class PendingUnit:
    """A unit that may be placed now.

    ``queue`` names its place in the tree of quotas (empty: its tenant). ``limit_s`` is the run time that its user declared,
    ``expected_s`` what is predicted for a whole run of it (infinite: unknown), ``low_s`` and ``high_s`` the band of it;
    ``attained_s`` is how long it ran already (progress that it kept), ``served_s`` how long it
    held nodes for that, restarts and lost work included, ``service_index`` what the predictor says about its worth (greater goes first).
    ``deadline_s`` and ``queued_at_s`` are times, ``value`` what finishing in time is worth. ``min_ranks`` and ``max_ranks``
    other than 0 say that the number of ranks may change. ``restart_s`` is what an interruption costs it. ``nameless``: its job
    names neither user nor program. ``kind`` is `SERVICE` for a replica of a service.
    """

    key: UnitKey
    tenant_id: str
    priority: int
    queued_at_s: float
    demand: Demand
    queue: str = ""
    submitted_at_s: float = 0.0
    limit_s: float = INFINITE
    expected_s: float = INFINITE
    low_s: float = 0.0
    high_s: float = INFINITE
    attained_s: float = 0.0
    served_s: float = 0.0
    service_index: float = 0.0
    deadline_s: float = INFINITE
    value: float = 1.0
    preemptible: bool = True
    min_ranks: int = 0
    max_ranks: int = 0
    restart_s: float = 0.0
    work: float = 0.0
    kind: str = "batch"
    nameless: bool = False

    @property
    def devices(self) -> float:
        """Accelerators over all ranks, counting shares."""
        demand = self.demand
        return demand.ranks * demand.accelerators * (demand.device_milli / 1000.0)

    @property
    def service_s(self) -> float:
        """How long it held nodes so far."""
        return max(self.served_s, self.attained_s)

    @property
    def remaining_s(self) -> float:
        """What is predicted to be left of its run."""
        return max(self.expected_s - self.attained_s, 0.0)


class Shares:
    """Dominant shares (Ghodsi et al., NSDI 2011): the greater of a tenant's parts of all accelerators and all cpus,
    divided by its weight. What a tenant holds is read when it is asked for first: to be used before the next change."""

    def __init__(
        self, held: Mapping[str, Usage], total_accelerators: float, total_cpus: float, weights: Mapping[str, float]
    ) -> None:
        self._usages = held
        self._held: dict[str, list[float]] = {}
        """What was asked about or charged."""
        self._total_accelerators = max(total_accelerators, 1.0)
        self._total_cpus = max(total_cpus, 1.0)
        self._weights = weights

    def of(self, tenant_id: str) -> float:
        """The tenant's weighted dominant share."""
        held = self._held.get(tenant_id)
        if held is None:
            held = self._read(tenant_id)
        accelerators, cpus = round(held[0], _DECIMALS), round(held[1], _DECIMALS)
        dominant = max(accelerators / self._total_accelerators, cpus / self._total_cpus)
        return dominant / self._weights.get(tenant_id, 1.0)

    def charge(self, tenant_id: str, demand: Demand, sign: int = 1) -> None:
        """Count a placed (with ``sign`` -1: a preempted) unit's demand as held."""
        held = self._held.get(tenant_id)
        if held is None:
            held = self._read(tenant_id)
        held[0] += sign * demand.ranks * demand.accelerators * (demand.device_milli / 1000.0)
        held[1] += sign * demand.ranks * demand.cpus

    def _read(self, tenant_id: str) -> list[float]:
        usage = self._usages.get(tenant_id)
        found = self._held[tenant_id] = [0.0, 0.0] if usage is None else [usage.accelerators, usage.cpus]
        return found


@dataclass(slots=True)
class OrderContext:
    """What order plugins may read: the tenants' shares, the time, and whatever else the cycle knows by name."""

    shares: Shares
    now_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict)
    """For plugins: what they worked out in this cycle."""


class Order(Protocol):
    """An ordering criterion. The smallest key goes first.

    ``per`` says what the key depends on: "unit" (nothing but the unit, so it is computed once), "tenant" (its tenant and
    queue too: only placements of the same tenant or queue may change it within a cycle, and only upwards), "placements"
    (the same, but any placement may), or "time" (on the unit and the time: computed anew in every cycle).

    A plugin may have more methods: ``keys(units, context)``, the keys of many units at once (an array, for "time");
    ``charged(unit, sign, context)``, told of each placement (1) and preemption (-1), which returns True when keys may have
    fallen; ``running_key(running, context)``, the key of a unit that runs, ``running_keys(running, context)`` of many;
    ``changes_at_s(running, now_s)``, when that key grows by itself. ``steady`` True promises that the key of a unit that runs
    never grows otherwise, but when it outlives its estimate. ``lasting`` True promises that this key stays the same altogether
    until then; ``by_end`` names the estimate by which this key is the time to the unit's end (``running.end_s`` less now).

    ``compares`` True says that a cycle makes keys, when it begins, out of who else waits or runs: it is not bounded (`decide`).

    ``scale`` says what a ratio between two keys means: "amount" (keys are amounts of at least 0: how many times one is the other),
    "logarithm" (of amounts: the same of their difference). Without it keys only say who comes first, as points in time, levels and
    priorities do.
    """

    name: str
    per: str

    def key(self, unit: PendingUnit, context: OrderContext) -> float | tuple[float, ...]:
        """The unit's rank by this criterion."""
        ...
