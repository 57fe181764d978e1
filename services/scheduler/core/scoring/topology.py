"""Keeping a gang together: in one rack, else under one spine; and one job over several domains only where the network
carries what its ranks exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View

LEVELS = ("rack", "spine")


class CompactScore:
    """Nodes by the nearest level of topology at which their group holds the whole gang, the tightest group first.

    With L levels, level i (0 the nearest) gives ``1 - (i + 1)/(L + 1) + ranks / room / (L + 1)``; where no group suffices,
    ``room / ranks / (L + 1)`` with the room of the greatest one. 1 for single ranks. A node without a group stands alone.
    Looked at are capacity and nodes that are up. ``everywhere``: a placing on a node changes the room of its neighbours.
    Option: ``levels`` (rack, spine), near to far.
    """

    name = "compact"
    dynamic = True
    everywhere = True

    def __init__(self, levels: Sequence[str] = LEVELS) -> None:
        self._levels = tuple(levels)

    def configured(self, options: Mapping[str, Any]) -> CompactScore:
        """With the options of a policy; PolicyError names the wrong one."""
        refuse_unknown(self.name, options, ("levels",))
        levels = options.get("levels", LEVELS)
        if (
            not isinstance(levels, list | tuple)
            or not levels
            or not all(isinstance(level, str) and level for level in levels)
        ):
            raise PolicyError(f"options.{self.name}.levels: a list of names is wanted, not {levels!r}")
        return CompactScore(levels)

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        table = view.table
        if demand.ranks < 2:
            return np.ones(len(table.cpus[rows]))
        values: Floats
        fits = np.where(view.up, view.ranks_that_fit(demand, view.columns(demand)), 0)
        band = 1.0 / (len(self._levels) + 1)
        room = fits[rows].astype(np.float64)
        values = np.minimum(room / demand.ranks, 1.0) * band
        # From far to near: the nearest level that suffices is written last.
        for place, level in reversed(list(enumerate(self._levels))):
            groups = table.levels.get(level)
            if groups is None:
                continue
            grouped = groups >= 0
            sums = np.bincount(groups[grouped], weights=fits[grouped])
            mine = groups[rows]
            room = np.where(mine >= 0, sums[np.maximum(mine, 0)] if len(sums) else 0.0, fits[rows])
            share = demand.ranks / np.maximum(room, 1.0)
            suffices = 1.0 - (place + 1) * band + np.minimum(share, 1.0) * band
            lacking = np.maximum(values, np.minimum(room / demand.ranks, 1.0) * band)
            values = np.where(room >= demand.ranks, suffices, np.where(values > band, values, lacking))
        return values


class SplitCostScore:
    """Spanning domains only when the slowest link among them carries enough of what the ranks exchange.

    The value is that link's bandwidth over `Demand.traffic_bytes_per_s`, at most 1; below ``least_share`` (option, 1) or where
    a bandwidth is unknown it is -inf: the set is refused. 1 for one domain and for units that exchange nothing. Both
    directions of each link count. Other jobs on the link are not looked at.
    """

    name = "split_cost"

    def __init__(self, least_share: float = 1.0) -> None:
        self._least_share = least_share

    def configured(self, options: Mapping[str, Any]) -> SplitCostScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return SplitCostScore(**numbers_of(self.name, options, least_share=0.0))

    def domain_set(self, view: View, demand: Demand, domains: Sequence[int]) -> float:
        if len(domains) < 2 or demand.traffic_bytes_per_s <= 0:
            return 1.0
        links = view.table.bandwidth_bytes_per_s[np.ix_(list(domains), list(domains))]
        slowest = float(links[~np.eye(len(links), dtype=np.bool_)].min())
        share = slowest / demand.traffic_bytes_per_s
        if math.isnan(share) or share < self._least_share:
            return -math.inf
        return min(share, 1.0)
