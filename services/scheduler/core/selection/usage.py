"""Orders by who used least: "usage" (faded usage divided by weight) and "fair_tree" (Slurm's Fair Tree over queues)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.scheduler.core.entitlement.fair_share import fair_tree
from services.scheduler.core.entitlement.share_tree import ShareNode
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.selection.amounts import account_of, cluster_of
from services.scheduler.core.selection.history import history_of
from services.scheduler.core.selection.settings import list_of, mapping_of, number_of, text_of
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

WEEK_S = 7 * 86400.0


def share_nodes(path: str, value: Any) -> tuple[ShareNode, ...]:
    """Queues of a tree of shares from options (name, parent, shares); PolicyError names the path of what is wrong."""
    nodes = []
    for place, item in enumerate(list_of(path, value)):
        here = f"{path}[{place}]"
        body = mapping_of(here, item, ("name", "parent", "shares"))
        if "name" not in body:
            raise PolicyError(f"{here}.name: is missing")
        parent = text_of(f"{here}.parent", body["parent"]) if "parent" in body else ""
        shares = number_of(f"{here}.shares", body.get("shares", 1.0), above=0.0)
        nodes.append(ShareNode(text_of(f"{here}.name", body["name"]), parent, shares))
    try:
        fair_tree(nodes, {})
    except PolicyError as error:
        raise PolicyError(f"{path}: {error.detail}") from None
    return tuple(nodes)


def faded_usage(context: OrderContext, half_life_s: float) -> dict[str, float]:
    """Faded usage by account at the time of the cycle; worked out once in a cycle."""
    name = f"usage {half_life_s:g}"
    found: dict[str, float] | None = context.cache.get(name)
    if found is None:
        history = history_of(cluster_of(context), half_life_s)
        history.settle(context.now_s)
        found = context.cache[name] = history.values(context.now_s)
    return found


class UsageOrder:
    """The queue (or tenant without one) that used least first: faded usage divided by the tenant's weight. What is placed
    in the cycle has used nothing yet, so put `drf` behind it to tell units of one cycle apart."""

    name = "usage"
    per = "tenant"
    scale = "amount"

    def __init__(self, half_life_s: float = WEEK_S) -> None:
        self._half_life_s = half_life_s

    def configured(self, options: Mapping[str, Any]) -> UsageOrder:
        """With ``half_life_s`` (seconds; 0: nothing fades)."""
        return UsageOrder(**numbers_of(self.name, options, half_life_s=0.0))

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        account = account_of(unit)
        used = faded_usage(context, self._half_life_s).get(account, 0.0)
        return used / weight_of(account, context)


def weight_of(account: str, context: OrderContext) -> float:
    """The weight that the policy gives a tenant (or a queue by its name)."""
    weights: dict[str, float] | None = context.cache.get("weights")
    if weights is None:
        weights = context.cache["weights"] = dict(cluster_of(context).policy.tenant_weights)
    return weights.get(account, 1.0)


class FairTreeOrder:
    """By Slurm's Fair Tree factor of the queue, the greatest first: who is under-served at the top of the tree goes first,
    whatever his users did. Queues that the tree does not name come last."""

    name = "fair_tree"
    per = "tenant"

    def __init__(self, nodes: Sequence[ShareNode] = (), half_life_s: float = WEEK_S) -> None:
        self._nodes, self._half_life_s = tuple(nodes), half_life_s
        parents = {node.parent for node in nodes}
        self._leaves = frozenset(node.name for node in nodes if node.name not in parents)

    def configured(self, options: Mapping[str, Any]) -> FairTreeOrder:
        """With ``queues`` (name, parent, shares) and ``half_life_s``."""
        refuse_unknown(self.name, options, ("queues", "half_life_s"))
        nodes = share_nodes("options.fair_tree.queues", options.get("queues", ()))
        half_life_s = number_of("options.fair_tree.half_life_s", options.get("half_life_s", WEEK_S))
        return FairTreeOrder(nodes, half_life_s)

    def requires(self, policy: Policy) -> None:
        """PolicyError when there is no queue."""
        if not self._nodes:
            raise PolicyError("options.fair_tree.queues: is missing")

    def key(self, unit: PendingUnit, context: OrderContext) -> float:
        return -self.factors(context).get(account_of(unit), 0.0)

    def factors(self, context: OrderContext) -> dict[str, float]:
        """The factor of every leaf in this cycle (0-1)."""
        found: dict[str, float] | None = context.cache.get(self.name)
        if found is None:
            usage = faded_usage(context, self._half_life_s)
            known = {name: value for name, value in usage.items() if name in self._leaves}
            found = context.cache[self.name] = fair_tree(self._nodes, known)
        return found
