"""Several objectives in the choice of a domain, weighed by each tenant for itself.

Steps of the score `ChebyshevScore` (plugin "chebyshev"):
1. What each domain would cost the unit by each objective: expected completion, idle accelerators that it leaves beside
   itself, what moving its data costs, energy.
2. The distance from the best of each, in units of its scale or of the range over domains if that is greater, by the
   augmented Chebyshev norm with the tenant's weights.
3. ``1 / (1 + distance)``: 1 where a domain is best in everything that the tenant weighs.

`front/tenants.py` looks at several jobs together and lets the tenant pick a point instead of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.front.objectives import RHO, Objective, augmented_chebyshev, tenant_weights
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.scores import NEUTRAL
from services.scheduler.core.scoring.affinity import relative_rates
from services.scheduler.core.scoring.data import transfer_cost, transfer_seconds
from services.scheduler.core.scoring.facts import by_domain
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats
from services.scheduler.core.view import View

REFERENCE_S = 3600.0
OBJECTIVES = (
    Objective("completion", "s"),
    Objective("idle", "share of the domain's accelerators"),
    Objective("transfer", "micro-units"),
    Objective("energy", "kWh"),
)
SCALES = {"completion": REFERENCE_S, "idle": 1.0, "transfer": 1e6, "energy": 1.0}
"""The difference that counts as one, per objective."""


class ChebyshevScore:
    """See the module. Without weights for a tenant those of the tenant "default" hold, without these all are equal.

    Options: ``weights`` {tenant: {objective: weight}}, ``scales`` {objective: difference that counts as one} and
    ``reference_s``, how long a unit runs at full speed. Facts: ``tenant`` (whose unit is placed; the cycle states it),
    ``expected_wait_s`` and ``accelerator_watts`` (D). What is unknown of a domain counts as the mean of the others.
    """

    name = "chebyshev"
    dynamic = True
    per_tenant = True

    def __init__(
        self,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        scales: Mapping[str, float] | None = None,
        reference_s: float = REFERENCE_S,
    ) -> None:
        self._table = {tenant: dict(given) for tenant, given in (weights or {}).items()}
        self._scales = np.array([{**SCALES, **(scales or {})}[item.name] for item in OBJECTIVES])
        self._reference_s = reference_s
        self._weights: dict[str, Floats] = {}
        tenant_weights(self._table, (), OBJECTIVES)

    def configured(self, options: Mapping[str, Any]) -> ChebyshevScore:
        """With the options of a policy; PolicyError names the wrong one."""
        refuse_unknown(self.name, options, ("weights", "scales", "reference_s"))
        reference = {key: value for key, value in options.items() if key == "reference_s"}
        try:
            weights = {str(name): dict(given) for name, given in dict(options.get("weights", ())).items()}
            scales = dict(options.get("scales", ()))
        except (TypeError, ValueError):
            raise PolicyError(f"options.{self.name}: weights and scales are objects of numbers by name") from None
        for tenant, given in weights.items():
            for objective, weight in given.items():
                if isinstance(weight, bool) or not isinstance(weight, int | float):
                    where = f"options.{self.name}.weights.{tenant}.{objective}"
                    raise PolicyError(f"{where}: a finite number is wanted, not {weight!r}")
        checked = numbers_of(f"{self.name}.scales", scales, **dict.fromkeys(SCALES, 1e-12))
        try:
            return ChebyshevScore(weights, checked, **numbers_of(self.name, reference, reference_s=1e-3))
        except PolicyError as error:
            raise PolicyError(f"options.{self.name}.{error}") from None

    def domains(self, view: View, demand: Demand) -> Floats:
        costs = domain_costs(view, demand, self._reference_s)
        there = costs[_may_run(view, demand)]
        if not len(there):
            return np.full(len(costs), NEUTRAL)
        ideal = there.min(axis=0)
        # No deviation is greater than one: else the sum of those that weigh nothing would outvote the greatest.
        nadir = ideal + np.maximum(self._scales, there.max(axis=0) - ideal)
        distance = augmented_chebyshev(costs, ideal, nadir, self._weights_of(view), RHO)
        return 1.0 / (1.0 + np.maximum(distance, 0.0))

    def _weights_of(self, view: View) -> Floats:
        tenant = str(view.facts.get("tenant", ""))
        found = self._weights.get(tenant)
        if found is None:
            found = self._weights[tenant] = tenant_weights(self._table, (tenant,), OBJECTIVES)[0]
        return found


def _may_run(view: View, demand: Demand) -> Bools:
    """Domains (D) that have nodes and that the unit names or does not exclude."""
    table = view.table
    found: Bools = table.domains_of(demand) & ((table.domain_devices if demand.accelerators else table.domain_cpus) > 0)
    return found


def state_tenant(view: View, tenant_id: str) -> None:
    """Scores with ``per_tenant`` judge for this tenant from now on."""
    if view.facts.get("tenant") != tenant_id:
        view.state("tenant", tenant_id)


def domain_costs(view: View, demand: Demand, reference_s: float = REFERENCE_S) -> Floats:
    """(D, 4) what each domain would cost a unit by each of `OBJECTIVES`, small is good, all finite."""
    table = view.table
    size = len(table.domain_ids)
    waits = by_domain(view, "expected_wait_s")
    rates = relative_rates(view, demand)
    speed = np.ones(size) if rates is None else _best_rate(view, rates)
    with np.errstate(divide="ignore"):
        run_s = np.where(speed > 0, reference_s / np.where(speed > 0, speed, 1.0), np.nan)
    transfer_s = transfer_seconds(table, demand)
    completion = transfer_s + run_s + (0.0 if waits is None else np.nan_to_num(waits))
    devices = devices_of(demand)
    left = view.domain_free_devices - devices
    idle = np.clip(left / np.maximum(table.domain_devices, 1.0), 0.0, 1.0)
    energy = watts_of(view) * max(devices, 0.0) * run_s / 3.6e6
    return np.column_stack([filled(completion), idle, filled(transfer_cost(table, demand)), filled(energy)])


def devices_of(demand: Demand) -> float:
    """Accelerators over all ranks, counting shares."""
    return demand.ranks * demand.accelerators * demand.device_milli / 1000.0


def _best_rate(view: View, rates: Floats) -> Floats:
    best = np.zeros(len(view.table.domain_ids))
    per_node = np.where(view.table.devices > 0, rates, 0.0).max(axis=1, initial=0.0)
    np.maximum.at(best, view.table.node_domain, per_node)
    return best


def watts_of(view: View) -> Floats:
    """Watts per accelerator in use (D): the fact ``accelerator_watts``, else what the domain's nodes draw when idle, spread
    over their accelerators; NaN where neither is known."""
    table = view.table
    stated = by_domain(view, "accelerator_watts")
    idle = np.bincount(table.node_domain, weights=table.idle_watts, minlength=len(table.domain_ids))
    found = np.where((idle > 0) & (table.domain_devices > 0), idle / np.maximum(table.domain_devices, 1.0), np.nan)
    return found if stated is None else np.where(np.isnan(stated), found, stated)


def filled(values: Floats) -> Floats:
    """Unknown values as the mean of the known ones, 0 when none is known."""
    known = np.isfinite(values)
    return np.where(known, values, values[known].mean() if known.any() else 0.0)
