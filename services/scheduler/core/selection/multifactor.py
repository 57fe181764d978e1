"""The order "multifactor": Slurm's weighted sum of age, fair share, size, priority and requested resources (multifactor.py of
the core), the greatest first, with its bound on starvation.

The key changes with time, and units of one lane may change places when they differ in more than age; it is therefore
computed anew in each cycle, for all waiting units at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.entitlement.fair_share import fair_share_factor
from services.scheduler.core.entitlement.share_tree import ShareNode
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.multifactor import Multifactor, WaitingJobs, Weights, breakdown, priority
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.selection.amounts import COUNTED, Meter, cluster_of, index_key
from services.scheduler.core.selection.history import dominant_part
from services.scheduler.core.selection.settings import flag_of, mapping_of, number_of
from services.scheduler.core.selection.usage import WEEK_S, FairTreeOrder, faded_usage, share_nodes, weight_of
from services.scheduler.core.state import Demand
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

Floats = npt.NDArray[np.float64]
_FACTORS = ("age", "fair_share", "size", "qos")
_NUMBERS = ("max_age_s", "half_life_s", "top_priority", "starvation_age_s", "protected_qos")


class _Sizes:
    """Parts of the cluster that demands are; kept while the index of accelerators and the nodes stay."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._capacity = meter, meter.capacity()
        self._known: dict[Demand, tuple[float, ...]] = {}

    def of(self, demand: Demand) -> tuple[float, ...]:
        """The dominant part, and the part of each counted resource."""
        capacity = self._meter.capacity()
        if capacity is not self._capacity:
            self._capacity = capacity
            self._known.clear()
        found = self._known.get(demand)
        if found is None:
            amounts = self._meter.of(demand)
            parts = [amounts[name] / self._capacity[name] if self._capacity[name] else 0.0 for name in COUNTED]
            found = self._known[demand] = (dominant_part(amounts, self._capacity), *parts)
        return found

    def began(self, running: Any) -> None:
        """Sizes do not depend on what runs."""

    def ended(self, running: Any, now_s: float) -> None:
        """Sizes do not depend on what runs."""


class MultifactorOrder:
    """See the module. ``qos`` is the unit's priority divided by ``top_priority`` (0: by the greatest that waits).

    The fair-share factor is Fair Tree's where ``queues`` give a tree; else 2 ** (-part of usage / part of weights) of each
    queue or tenant among those that wait or used something.
    """

    name = "multifactor"
    per = "time"
    compares = True

    def __init__(
        self,
        rule: Multifactor | None = None,
        nodes: Sequence[ShareNode] = (),
        half_life_s: float = WEEK_S,
        top_priority: float = 0.0,
    ) -> None:
        self._rule = rule or Multifactor()
        self._tree = FairTreeOrder(nodes, half_life_s) if nodes else None
        self._half_life_s, self._top = half_life_s, top_priority

    def configured(self, options: Mapping[str, Any]) -> MultifactorOrder:
        """With ``weights`` (age, fair_share, size, qos, and tres: {resource: weight}), ``max_age_s``, ``favor_small``,
        ``queues`` and ``half_life_s`` (as `fair_tree`), ``top_priority``, ``starvation_age_s``, ``protected_qos``."""
        path = "options.multifactor"
        refuse_unknown(self.name, options, ("weights", "favor_small", "queues", *_NUMBERS))
        numbers = {name: number_of(f"{path}.{name}", options[name]) for name in _NUMBERS if name in options}
        body = mapping_of(f"{path}.weights", options.get("weights", ()), (*_FACTORS, "tres"))
        weights: dict[str, Any] = {
            name: number_of(f"{path}.weights.{name}", body[name]) for name in _FACTORS if name in body
        }
        tres = mapping_of(f"{path}.weights.tres", body.get("tres", ()), COUNTED)
        weights["tres"] = {name: number_of(f"{path}.weights.tres.{name}", value) for name, value in tres.items()}
        half_life_s, top = numbers.pop("half_life_s", WEEK_S), numbers.pop("top_priority", 0.0)
        favor_small = flag_of(f"{path}.favor_small", options.get("favor_small", False))
        nodes = share_nodes(f"{path}.queues", options["queues"]) if "queues" in options else ()
        try:
            rule = Multifactor(
                Weights(**weights), favor_small=favor_small, tres_totals=dict.fromkeys(COUNTED, 1.0), **numbers
            )
        except PolicyError as error:
            raise PolicyError(f"{path}: {error.detail}") from None
        return MultifactorOrder(rule, nodes, half_life_s, top)

    def keys(self, units: Sequence[PendingUnit], context: OrderContext) -> Floats:
        """Minus the priorities (U,) of units; O(U)."""
        if not units:
            return np.zeros(0)
        found: Floats = -priority(self._jobs(units, context), self._rule, context.now_s)
        known = context.cache.setdefault((self.name, "keys"), {})
        known.update(zip([unit.key for unit in units], found.tolist(), strict=True))
        return found

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        found: float | None = context.cache.get((self.name, "keys"), {}).get(unit.key)
        if found is None:
            found = -float(priority(self._jobs([unit], context), self._rule, context.now_s)[0])
        return found

    def parts(self, units: Sequence[PendingUnit], context: OrderContext) -> dict[str, Floats]:
        """The weighted parts (U,) of the sum by factor, for people (Slurm: sprio)."""
        return breakdown(self._jobs(units, context), self._rule, context.now_s)

    def _jobs(self, units: Sequence[PendingUnit], context: OrderContext) -> WaitingJobs:
        cluster = cluster_of(context)
        sizes = cluster.watch(self.name, index_key(cluster), lambda: _Sizes(Meter(cluster)))
        factors = self._factors(context)
        size = np.array([sizes.of(unit.demand) for unit in units])
        priorities = np.maximum(np.array([unit.priority for unit in units], dtype=np.float64), 0.0)
        return WaitingJobs(
            queued_at_s=np.array([unit.queued_at_s for unit in units]),
            fair_share=np.array([factors.get(unit.queue or unit.tenant_id, 0.0) for unit in units]),
            size=size[:, 0],
            qos=np.minimum(priorities / self._top_priority(context), 1.0),
            tres={name: size[:, column] for column, name in enumerate(COUNTED, 1)},
        )

    def _factors(self, context: OrderContext) -> dict[str, float]:
        if self._tree is not None:
            return self._tree.factors(context)
        found: dict[str, float] | None = context.cache.get((self.name, "factors"))
        if found is None:
            usage = faded_usage(context, self._half_life_s)
            names = {lane.queue or lane.tenant_id for lane in cluster_of(context).pending.lanes.values()}
            accounts = sorted(names | set(usage))
            used = np.array([usage.get(name, 0.0) for name in accounts])
            weights = np.array([weight_of(name, context) for name in accounts])
            whole = used.sum()
            factors = fair_share_factor(used / whole if whole else used, weights / max(weights.sum(), 1e-300))
            found = context.cache[self.name, "factors"] = dict(zip(accounts, factors.tolist(), strict=True))
        return found

    def _top_priority(self, context: OrderContext) -> float:
        if self._top:
            return self._top
        found: float | None = context.cache.get((self.name, "top"))
        if found is None:
            waiting = (unit.priority for unit in cluster_of(context).pending)
            found = context.cache[self.name, "top"] = float(max(waiting, default=1))
        return max(found, 1.0)
