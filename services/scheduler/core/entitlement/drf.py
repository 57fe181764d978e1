"""Dominant resource fairness between users and in trees of queues.

Resources are vectors in one agreed order (accelerators weighted by index, cpus, memory, named ones). Sources: Ghodsi et
al., NSDI 2011 (DRF); Bhattacharya et al., SoCC 2013 (H-DRF).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.entitlement.share_tree import (
    Floats,
    ShareNode,
    ShareTree,
    checked_amounts,
    checked_weights,
)

ROUNDING = 1e-9
"""Relative slack of comparisons of sums of floating-point amounts."""


def dominant_share(usage: npt.ArrayLike, capacity: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> Floats:
    """Weighted dominant shares (...,) of usage (..., R) in capacity (R,): max over resources of usage / capacity / weight.

    ``weights`` (...,) or (..., R). Resources without capacity do not count. InvalidArgumentError names what is negative,
    NaN or, for weights, zero.
    """
    used, total = checked_amounts("usage", usage), checked_amounts("capacity", capacity)
    weight = checked_weights(weights)
    parts = np.divide(used, total, out=np.zeros(np.broadcast_shapes(used.shape, total.shape)), where=total > 0)
    if weight.ndim < parts.ndim:
        weight = weight[..., np.newaxis]
    shares: Floats = np.max(parts / weight, axis=-1, initial=0.0)
    return shares


class HierarchicalDrf:
    """Which leaf queue gets the next task, by H-DRF in its dynamic version (Bhattacharya et al. 2013, section 5).

    The naive version (an inner node's share is the dominant share of the sum of its children) starves leaves whose
    siblings have complementary demands; the paper's two corrections are both here.

    Steps for an inner node, from the leaves upwards:
    1. A leaf is blocked when it wants nothing or its next task does not fit in what is free; an inner node, when all
       its children are.
    2. M is the least weighted share among the children that are not blocked. Their vectors are scaled down so that each
       has the weighted share M; those of blocked children stay as they are. The sum is the node's vector.
    3. Its share is its dominant share over the resources that are not saturated (some leaf wants it and no leaf's next
       task can have it). A blocked node has no claim, so there all resources count.
    `next` goes down from the root to the child with the least weighted share that is not blocked, ties by order.

    `charge` costs O(depth x siblings x R) and one O(leaves x R) array comparison for the blocking; `want`, `refund` and
    charges that block further leaves cost a pass over the tree.
    """

    def __init__(self, nodes: Sequence[ShareNode], capacity: npt.ArrayLike) -> None:
        """``capacity`` (R,). PolicyError names the queue with a wrong parent or weight."""
        self._tree = ShareTree(nodes)
        self._capacity = checked_amounts("capacity", capacity)
        self._leaves = self._tree.leaves()
        self._row = {at: row for row, at in enumerate(self._leaves)}
        resources = len(self._capacity)
        self._demand = np.zeros((len(self._leaves), resources))
        self._wants = np.zeros(len(self._leaves), dtype=bool)
        self._blocked_leaf = ~self._wants
        self._saturated = np.zeros(resources, dtype=bool)
        self._used = np.zeros((len(self._tree.names), resources))
        self._vector = np.zeros((len(self._tree.names), resources))
        self._share = np.zeros(len(self._tree.names))
        self._blocked = np.ones(len(self._tree.names), dtype=bool)
        self._weight = np.array(self._tree.shares)
        self._stale = True

    def want(self, leaf: str, demand: npt.ArrayLike | None) -> None:
        """The leaf's next task needs ``demand`` (R,); None: it wants nothing more."""
        row = self._row[self._tree.leaf(leaf)]
        self._demand[row] = 0.0 if demand is None else checked_amounts("demand", demand)
        self._wants[row] = demand is not None
        self._stale = True

    def charge(self, leaf: str, amounts: npt.ArrayLike) -> None:
        """The leaf holds ``amounts`` (R,) more."""
        self._hold(self._tree.leaf(leaf), checked_amounts("amounts", amounts))

    def refund(self, leaf: str, amounts: npt.ArrayLike) -> None:
        """The leaf gives ``amounts`` (R,) back; InvalidArgumentError when it holds less."""
        at, back = self._tree.leaf(leaf), checked_amounts("amounts", amounts)
        if np.any(self._used[at] + self._capacity * ROUNDING < back):
            raise InvalidArgumentError(f"queue {leaf!r} holds less than the amounts given back")
        self._hold(at, -back)

    def share(self, name: str) -> float:
        """The node's weighted share by the steps above; inf when it is blocked."""
        self._refresh()
        at = self._tree.index[name]
        return math.inf if self._blocked[at] else float(self._share[at] / self._weight[at])

    def next(self) -> str | None:
        """The leaf whose next task is to be placed; None when every leaf is blocked. Changes nothing."""
        self._refresh()
        if self._blocked[0]:
            return None
        at = 0
        while children := self._tree.children[at]:
            open_ = [child for child in children if not self._blocked[child]]
            at = min(open_, key=lambda child: self._share[child] / self._weight[child])
        return self._tree.names[at]

    def _hold(self, leaf: int, change: Floats) -> None:
        at = leaf
        while at >= 0:
            self._used[at] = np.maximum(self._used[at] + change, 0.0)
            at = self._tree.parent[at]
        if not self._stale:
            self._stale = not self._same_blocks()
        if not self._stale:
            at = leaf
            while at >= 0:
                self._update(at)
                at = self._tree.parent[at]

    def _blocks(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        free = self._capacity - self._used[0] + self._capacity * ROUNDING
        lacking = (self._demand > 0) & (self._demand > free)
        asked = (self._demand > 0) & self._wants[:, np.newaxis]
        saturated = np.any(asked, axis=0) & ~np.any(asked & ~lacking, axis=0)
        return ~self._wants | np.any(lacking, axis=1), saturated

    def _same_blocks(self) -> bool:
        blocked, saturated = self._blocks()
        return bool(np.array_equal(blocked, self._blocked_leaf) and np.array_equal(saturated, self._saturated))

    def _refresh(self) -> None:
        if self._stale:
            self._blocked_leaf, self._saturated = self._blocks()
            for at in reversed(self._tree.order):
                self._update(at)
            self._stale = False

    def _update(self, at: int) -> None:
        children = self._tree.children[at]
        if at and not children:
            self._vector[at] = self._used[at]
            self._blocked[at] = self._blocked_leaf[self._row[at]]
            self._share[at] = dominant_share(self._used[at], self._capacity)
            return
        vectors, blocked = self._vector[children], self._blocked[children]
        shares = self._share[children] / self._weight[children]
        self._blocked[at] = bool(np.all(blocked))
        if not self._blocked[at]:
            least = shares[~blocked].min()
            factor = np.divide(least, shares, out=np.ones(len(children)), where=~blocked & (shares > 0))
            vectors = vectors * factor[:, np.newaxis]
        self._vector[at] = vectors.sum(axis=0)
        counted = np.zeros_like(self._saturated) if self._blocked[at] else self._saturated
        self._share[at] = dominant_share(np.where(counted, 0.0, self._vector[at]), self._capacity)
