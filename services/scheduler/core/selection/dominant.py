"""Orders by dominant shares of what is held now: "drf" (flat) and "hierarchical_drf" (a tree of queues).

Accelerators count by their index, beside cpus and memory (in "drf" named resources, too). What units hold is kept from
cycle to cycle (`Holdings`); what the cycle places is counted on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.entitlement.drf import HierarchicalDrf
from services.scheduler.core.entitlement.share_tree import ShareNode
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.selection.amounts import COUNTED, Amounts, account_of, cluster_of, index_key
from services.scheduler.core.selection.caps import Holdings
from services.scheduler.core.selection.history import dominant_part
from services.scheduler.core.selection.usage import share_nodes, weight_of
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from services.scheduler.core.watching import Watched

_HELD = "held"


def holdings_of(context: OrderContext) -> Holdings:
    """What accounts hold in this cycle; the first to ask begins it."""
    found: Holdings | None = context.cache.get(_HELD)
    if found is None:
        cluster = cluster_of(context)
        found = cluster.watch("drf", index_key(cluster), lambda: Holdings(cluster))
        found.settle()
        context.cache[_HELD] = found
        context.cache["capacity"] = found.meter.capacity()
    return found


class DrfOrder:
    """The queue (or tenant without one) with the least weighted dominant share first (Ghodsi et al., NSDI 2011)."""

    name = "drf"
    per = "tenant"
    scale = "amount"

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        account = account_of(unit)
        held = holdings_of(context).of(account)
        return dominant_part(held, context.cache["capacity"]) / weight_of(account, context)

    def charged(self, unit: PendingUnit, sign: int, context: OrderContext) -> bool:
        """A unit was placed or taken off."""
        holdings_of(context).charge(unit, sign)
        return False


class HierarchicalDrfOrder:
    """Down a tree of queues, at each level the queue with the least share first, by H-DRF (entitlement/drf.py).

    What a queue wants next is the least amount of each resource that any unit waiting in it asks for; the paper knows one
    task per queue. A queue that the engine took out of the cycle for another reason than what is free in sum (limits,
    fragmented nodes) counts as wanting still. Queues that the tree does not name come last.
    """

    name = "hierarchical_drf"
    per = "placements"

    def __init__(self, nodes: Sequence[ShareNode] = ()) -> None:
        self._nodes = tuple(nodes)
        place = {node.name: at for at, node in enumerate(nodes)}
        parent = {node.name: node.parent for node in nodes}
        inner = set(parent.values())
        self._paths: dict[str, tuple[tuple[str, int], ...]] = {}
        for node in nodes:
            if node.name not in inner:
                path, at = [], node.name
                while at:
                    path.append((at, place[at]))
                    at = parent.get(at, "")
                self._paths[node.name] = tuple(reversed(path))

    def configured(self, options: Mapping[str, Any]) -> HierarchicalDrfOrder:
        """With ``queues`` (name, parent, shares)."""
        refuse_unknown(self.name, options, ("queues",))
        return HierarchicalDrfOrder(share_nodes("options.hierarchical_drf.queues", options.get("queues", ())))

    def requires(self, policy: Policy) -> None:
        """PolicyError when there is no queue."""
        if not self._nodes:
            raise PolicyError("options.hierarchical_drf.queues: is missing")

    def key(self, unit: PendingUnit, context: OrderContext) -> tuple[float, ...]:
        """(share, place among its siblings) at each level, from the top."""
        path = self._paths.get(account_of(unit))
        if path is None:
            return (np.inf,)
        state = self._state(context)
        return tuple([value for name, place in path for value in (state.drf.share(name), place)])

    def charged(self, unit: PendingUnit, sign: int, context: OrderContext) -> bool:
        """A unit was placed or taken off; True when a resource became scarce for all, so that shares may have fallen."""
        account = account_of(unit)
        return account in self._paths and self._state(context).charge(account, unit, sign)

    def _state(self, context: OrderContext) -> _TreeState:
        found: _TreeState | None = context.cache.get(self.name)
        if found is None:
            cluster = cluster_of(context)
            holdings = cluster.watch(self.name, index_key(cluster), lambda: Holdings(cluster))
            found = context.cache[self.name] = _TreeState(self._nodes, self._paths, holdings, cluster)
        return found


class _TreeState:
    """H-DRF in one cycle; nothing of it is kept."""

    def __init__(
        self, nodes: Sequence[ShareNode], leaves: Mapping[str, Any], holdings: Holdings, cluster: Watched
    ) -> None:
        self._holdings, self._leaves = holdings, leaves
        capacity = holdings.meter.capacity()
        self.drf = HierarchicalDrf(nodes, _vector(capacity))
        for name in leaves:
            self.drf.charge(name, _vector(holdings.of(name)))
        least: dict[str, npt.NDArray[np.float64]] = {}
        for lane in cluster.pending.lanes.values():
            account = lane.queue or lane.tenant_id
            if account in leaves:
                asked = _vector(holdings.meter.of(lane.demand))
                least[account] = np.minimum(least[account], asked) if account in least else asked
        for name, asked in least.items():
            self.drf.want(name, asked)
        self._names = [node.name for node in nodes]

    def charge(self, account: str, unit: PendingUnit, sign: int) -> bool:
        """Count a unit; whether any share fell."""
        before = [self.drf.share(name) for name in self._names]
        amounts = _vector(self._holdings.amounts_of(unit))
        if sign > 0:
            self.drf.charge(account, amounts)
        else:
            self.drf.refund(account, amounts)
        after = [self.drf.share(name) for name in self._names]
        return any(new < old for new, old in zip(after, before, strict=True))


def _vector(amounts: Amounts) -> npt.NDArray[np.float64]:
    return np.array([amounts.get(name, 0) for name in COUNTED], dtype=np.float64)
