"""Whether moving a unit's data is worth it: a hard limit beside the scores of data.py.

Scores choose among the domains that have room now; a unit far from its data is then started at once, at any price. This filter
makes it wait for a domain near its data instead, when moving would cost more than a stated part of what its run is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.scheduler.core.options import numbers_of
from services.scheduler.core.scoring.data import transfer_cost
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools
from services.scheduler.core.view import View


class WorthMovingFilter:
    """Domains into which bringing the data costs at most ``micro_units`` and, for each accelerator of the unit,
    ``micro_units_per_accelerator`` more (options; 0 by default: nothing that costs is moved)."""

    name = "worth_moving"
    dynamic = False

    def __init__(self, micro_units: float = 0.0, micro_units_per_accelerator: float = 0.0) -> None:
        self._micro_units, self._per_accelerator = micro_units, micro_units_per_accelerator

    def configured(self, options: Mapping[str, Any]) -> WorthMovingFilter:
        """With the options of a policy; PolicyError names the wrong one."""
        return WorthMovingFilter(**numbers_of(self.name, options, micro_units=0.0, micro_units_per_accelerator=0.0))

    def applies(self, demand: Demand) -> bool:
        """Only units with data."""
        return bool(demand.data) or demand.checkpoint_bytes > 0

    def _most(self, demand: Demand) -> float:
        devices = demand.ranks * demand.accelerators * demand.device_milli / 1000.0
        return self._micro_units + self._per_accelerator * devices

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        cost = transfer_cost(view.table, demand)
        # Where data cannot be moved for less anywhere (its domain is gone or too small), the price is no reason to wait.
        allowed: Bools = cost <= max(self._most(demand), float(cost.min(initial=np.inf)))
        result: Bools = allowed[view.table.node_domain[rows]]
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        cost = float(transfer_cost(view.table, demand)[view.table.node_domain[row]])
        return f"moving its data there costs {cost / 1e6:.2f}, worth are {self._most(demand) / 1e6:.2f}"
