"""Rented domains: used only when the domains one owns have no room."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats
from services.scheduler.core.view import View


class BurstScore:
    """0 for rented domains, 1 for the others. With more weight than all other domain scores together a rented domain is
    chosen only when no other single domain holds the unit."""

    name = "burst"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        return np.where(view.table.burst, 0.0, 1.0)


class BurstLastFilter:
    """Rejects nodes of rented domains while a domain of one's own holds the unit, alone or (if it may span) with others.

    Looked at are capacity, nodes that are up, and what the unit says of domains, security and nodes; not other filters. A gang
    is held if one accelerator model suffices. ``everywhere``: a placing on one node may change the answer for all others.
    """

    name = "burst_last"
    dynamic = True
    everywhere = True

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        rented = view.table.burst[view.table.node_domain[rows]]
        if not rented.any() or not self._held(view, demand):
            return np.ones(len(rented), dtype=np.bool_)
        allowed: Bools = ~rented
        return allowed

    def why(self, view: View, demand: Demand, row: int) -> str:
        return f"{view.table.nodes[row].domain_id} is rented, and there is room elsewhere"

    def _held(self, view: View, demand: Demand) -> bool:
        table = view.table
        own = table.domains_of(demand) & ~table.burst & (table.security >= demand.min_security_level)
        allowed = view.up & own[table.node_domain]
        allowed[[table.node_index[name] for name in demand.excluded_nodes if name in table.node_index]] = False
        rows = np.flatnonzero(allowed)
        columns = view.columns(demand)
        apart = demand.ranks > 1 and demand.accelerators and len(columns) > 1
        for accepted in columns[:, None] if apart else [columns]:
            room = view.ranks_that_fit(demand, accepted, rows)
            sums = np.bincount(table.node_domain[rows], weights=room, minlength=len(table.domain_ids))
            if (sums.sum() if demand.cross_domain else sums.max(initial=0)) >= demand.ranks:
                return True
        return False
