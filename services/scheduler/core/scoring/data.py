"""Where a unit's data is, what bringing it costs and how long that takes.

Data is that of `Demand.data` and the checkpoint. What lies in a domain that the fleet does not know is left out: it is as far
from everywhere. Values are on an absolute scale, so they mean the same in every decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.scheduler.core.options import numbers_of
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats, Table
from services.scheduler.core.view import View

GIB = float(2**30)


def bytes_from(table: Table, demand: Demand, *, checkpoint: bool = True) -> Floats:
    """Bytes that a unit would bring from each domain (D) if it ran elsewhere."""
    amounts = np.zeros(len(table.domain_ids))
    sources = [*demand.data, (demand.checkpoint_domain, float(demand.checkpoint_bytes))] if checkpoint else demand.data
    for name, size in sources:
        if name in table.domain_ids:
            amounts[table.domain_ids.index(name)] += max(float(size), 0.0)
    return amounts


def transfer_cost(table: Table, demand: Demand) -> Floats:
    """Micro-units that bringing the data into each domain (D) costs: what leaves a domain is charged at its price per GiB
    (egress), what is there already is free. A way without a stated price costs nothing."""
    amounts = bytes_from(table, demand)
    prices = table.transfer_price.copy()
    np.fill_diagonal(prices, 0.0)
    cost: Floats = amounts / GIB @ prices
    return cost


def transfer_seconds(table: Table, demand: Demand) -> Floats:
    """Seconds until all data is in each domain (D), with the links to itself: transfers from several domains run at the same
    time, so the slowest counts. NaN where a bandwidth is unknown."""
    amounts = bytes_from(table, demand)
    sources = np.flatnonzero(amounts)
    times = amounts[sources, None] / table.bandwidth_bytes_per_s[sources]
    times[np.arange(len(sources)), sources] = 0.0
    slowest: Floats = times.max(axis=0, initial=0.0)
    return slowest


class TransferCostScore:
    """``scale / (scale + cost)``: 1 where nothing is paid, one half where bringing the data costs ``scale``.

    Options: ``micro_units`` (1 000 000) is that scale. With ``run_hours`` above 0 it is what so many hours of the unit's
    accelerators cost at the mean known price instead, so that the cost is seen against the value of the run.
    """

    name = "transfer_cost"
    dynamic = False

    def __init__(self, micro_units: float = 1e6, run_hours: float = 0.0) -> None:
        self._micro_units, self._run_hours = micro_units, run_hours

    def configured(self, options: Mapping[str, Any]) -> TransferCostScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return TransferCostScore(**numbers_of(self.name, options, micro_units=1e-9, run_hours=0.0))

    def domains(self, view: View, demand: Demand) -> Floats:
        scale = self._scale(view.table, demand)
        values: Floats = scale / (scale + np.maximum(transfer_cost(view.table, demand), 0.0))
        return values

    def _scale(self, table: Table, demand: Demand) -> float:
        devices = demand.ranks * demand.accelerators * demand.device_milli / 1000.0
        known = ~np.isnan(table.price)
        if not (self._run_hours and devices and known.any()):
            return self._micro_units
        return float(table.price[known].mean()) * devices * self._run_hours


class TransferTimeScore:
    """``seconds / (seconds + transfer)``: 1 where the data is, one half after ``seconds`` (option, 60) of transfer, 0 where no
    bandwidth is known."""

    name = "transfer_time"
    dynamic = False

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds

    def configured(self, options: Mapping[str, Any]) -> TransferTimeScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return TransferTimeScore(**numbers_of(self.name, options, seconds=1e-9))

    def domains(self, view: View, demand: Demand) -> Floats:
        times = transfer_seconds(view.table, demand)
        return np.where(np.isnan(times), 0.0, self._seconds / (self._seconds + np.nan_to_num(times)))


class DataLocalityScore:
    """Share of the input's bytes (`Demand.data`) that lies in the domain already; 1 everywhere without input."""

    name = "data_locality"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        total = sum(max(float(size), 0.0) for _, size in demand.data)
        if total <= 0:
            return np.ones(len(view.table.domain_ids))
        return np.clip(bytes_from(view.table, demand, checkpoint=False) / total, 0.0, 1.0)
