"""Fair division between queues: dominant shares, hierarchical dominant shares, decayed usage, Slurm's two fair-share
factors, and the indices by which fairness is measured.

Resources are vectors in one agreed order (accelerators weighted by index, cpus, memory, named ones). Sources: Ghodsi et
al., NSDI 2011 (DRF); Bhattacharya et al., SoCC 2013 (H-DRF); Slurm's classic_fair_share and fair_tree documents; Mahajan
et al., NSDI 2020 (Themis: finish-time fairness); Jain, Chiu and Hawe, DEC-TR-301, 1984.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import PolicyError

Floats = npt.NDArray[np.float64]
ROUNDING = 1e-9
"""Relative slack of comparisons of sums of floating-point amounts."""

# -- dominant resource fairness ------------------------------------------------------------------------------------


def dominant_share(usage: npt.ArrayLike, capacity: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> Floats:
    """Weighted dominant shares (...,) of usage (..., R) in capacity (R,): max over resources of usage / capacity / weight.

    ``weights`` (...,) or (..., R). Resources without capacity do not count. InvalidArgumentError names what is negative,
    NaN or, for weights, zero.
    """
    used, total = _amounts("usage", usage), _amounts("capacity", capacity)
    weight = _weights(weights)
    parts = np.divide(used, total, out=np.zeros(np.broadcast_shapes(used.shape, total.shape)), where=total > 0)
    if weight.ndim < parts.ndim:
        weight = weight[..., np.newaxis]
    shares: Floats = np.max(parts / weight, axis=-1, initial=0.0)
    return shares


def drf_allocation(
    capacity: npt.ArrayLike,
    demands: npt.ArrayLike,
    weights: npt.ArrayLike = 1.0,
    tasks: npt.ArrayLike | None = None,
) -> npt.NDArray[np.int64]:
    """Tasks (U,) that each user runs under DRF: demands (U, R) per task, capacity (R,), weights (U,) or (U, R), at most
    ``tasks`` (U,) each. O(tasks x (log U + R)).

    Steps (algorithm 1 of the paper; a user whose next task does not fit leaves, the others go on):
    1. Take the user with the least weighted dominant share; the first of equals.
    2. If one more of its tasks fits, it gets it, and its share grows; else it is out for good.
    """
    need, total = _amounts("demands", demands), _amounts("capacity", capacity)
    users = len(need)
    if not np.all(need.sum(axis=1) > 0):
        raise InvalidArgumentError("demands must ask for something in each row")
    step = dominant_share(need, total, weights)
    most = np.full(users, np.iinfo(np.int64).max) if tasks is None else np.asarray(tasks)
    given = np.zeros(users, dtype=np.int64)
    free = total.copy()
    slack = total * ROUNDING
    heap = [(0.0, user) for user in range(users)]
    while heap:
        _, user = heapq.heappop(heap)
        if given[user] < most[user] and np.all(need[user] <= free + slack):
            given[user] += 1
            free -= need[user]
            heapq.heappush(heap, (float(step[user] * given[user]), user))
    return given


@dataclass(frozen=True, slots=True)
class ShareNode:
    """A queue of a tree of shares: ``parent`` "" at the top; ``shares`` are relative to its siblings."""

    name: str
    parent: str = ""
    shares: float = 1.0


class _Tree:
    """Names, parents and children of a tree with a root 0 above the top; leaves are the nodes without children."""

    def __init__(self, nodes: Sequence[ShareNode], *, zero_shares: bool = False) -> None:
        self.names = ["", *(node.name for node in nodes)]
        self.index = {name: at for at, name in enumerate(self.names)}
        if "" in self.names[1:] or len(self.index) <= len(nodes):
            raise PolicyError("queues need names of their own")
        self.shares = [1.0, *(float(node.shares) for node in nodes)]
        self.parent = [-1]
        self.children: list[list[int]] = [[] for _ in self.names]
        for at, node in enumerate(nodes, start=1):
            if not (0 < node.shares < math.inf or (zero_shares and node.shares == 0)):
                raise PolicyError(f"queue {node.name!r}: shares must be above 0 and finite, not {node.shares!r}")
            if node.parent not in self.index:
                raise PolicyError(f"queue {node.name!r}: parent {node.parent!r} does not exist")
            self.parent.append(self.index[node.parent])
            self.children[self.index[node.parent]].append(at)
        self.order = [0]
        for at in self.order:
            self.order += self.children[at]
        if len(self.order) < len(self.names):
            stray = next(name for at, name in enumerate(self.names) if at not in set(self.order))
            raise PolicyError(f"queue {stray!r}: parent makes a cycle")

    def leaf(self, name: str) -> int:
        at = self.index.get(name, 0)
        if not at or self.children[at]:
            raise InvalidArgumentError(f"{name!r} is not a queue without queues below it")
        return at

    def leaves(self) -> list[int]:
        return [at for at in range(1, len(self.names)) if not self.children[at]]

    def totals(self, usage: Mapping[str, float]) -> list[float]:
        """Usage of every node: its own and that of all below."""
        total = [0.0] * len(self.names)
        for name, value in usage.items():
            if not 0 <= value < math.inf:
                raise InvalidArgumentError(f"usage of {name!r} must be at least 0 and finite, not {value!r}")
            total[self.leaf(name)] = float(value)
        for at in reversed(self.order[1:]):
            total[self.parent[at]] += total[at]
        return total


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
        self._tree = _Tree(nodes)
        self._capacity = _amounts("capacity", capacity)
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
        self._demand[row] = 0.0 if demand is None else _amounts("demand", demand)
        self._wants[row] = demand is not None
        self._stale = True

    def charge(self, leaf: str, amounts: npt.ArrayLike) -> None:
        """The leaf holds ``amounts`` (R,) more."""
        self._hold(self._tree.leaf(leaf), _amounts("amounts", amounts))

    def refund(self, leaf: str, amounts: npt.ArrayLike) -> None:
        """The leaf gives ``amounts`` (R,) back; InvalidArgumentError when it holds less."""
        at, back = self._tree.leaf(leaf), _amounts("amounts", amounts)
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


# -- usage that fades ----------------------------------------------------------------------------------------------


class DecayedUsage:
    """Device-seconds by queue that lose half their weight every half-life (Slurm: PriorityDecayHalfLife). O(1) each.

    One number and one time are kept for each queue; a charge of the past is decayed to that time, so that the order of
    charges does not matter (up to rounding). A half-life of 0 means no decay, as in Slurm.
    """

    def __init__(self, half_life_s: float) -> None:
        if not 0 <= half_life_s < math.inf:
            raise PolicyError(f"half_life_s must be at least 0 and finite, not {half_life_s!r}")
        self._rate = math.log(2.0) / half_life_s if half_life_s else 0.0
        self._kept: dict[str, tuple[float, float]] = {}

    def add(self, queue: str, device_seconds: float, at_s: float) -> None:
        """The queue used ``device_seconds`` at ``at_s``. InvalidArgumentError when they are negative or NaN."""
        if not 0 <= device_seconds < math.inf:
            raise InvalidArgumentError(f"device_seconds must be at least 0 and finite, not {device_seconds!r}")
        if not math.isfinite(at_s):
            raise InvalidArgumentError(f"at_s must be finite, not {at_s!r}")
        kept, last_s = self._kept.get(queue, (0.0, at_s))
        now_s = max(last_s, at_s)
        kept = kept * math.exp(-self._rate * (now_s - last_s)) + device_seconds * math.exp(-self._rate * (now_s - at_s))
        self._kept[queue] = (kept, now_s)

    def add_run(self, queue: str, devices: float, start_s: float, end_s: float) -> None:
        """The queue held ``devices`` from ``start_s`` to ``end_s``: the exact integral of their decayed usage."""
        if not start_s <= end_s:
            raise InvalidArgumentError(f"end_s must not lie before start_s ({end_s!r} < {start_s!r})")
        length = end_s - start_s
        self.add(queue, devices * (-math.expm1(-self._rate * length) / self._rate if self._rate else length), end_s)

    def value(self, queue: str, now_s: float) -> float:
        """What is left of the queue's usage at ``now_s``; 0 for an unknown one. InvalidArgumentError when usage was added
        for a later time."""
        kept, last_s = self._kept.get(queue, (0.0, now_s))
        if not now_s >= last_s:
            raise InvalidArgumentError(f"now_s {now_s!r} lies before the last usage of {queue!r} at {last_s!r}")
        return kept * math.exp(-self._rate * (now_s - last_s))

    def values(self, now_s: float) -> dict[str, float]:
        """`value` of every queue that has used something."""
        return {queue: self.value(queue, now_s) for queue in self._kept}


# -- Slurm's fair-share factors ------------------------------------------------------------------------------------


def fair_share_factor(usage: npt.ArrayLike, shares: npt.ArrayLike, dampening: float = 1.0) -> Floats:
    """2 ** (-U / S / dampening): 0.5 when a queue has used just its share, 0 without a share (Slurm, classic fair share).

    ``usage`` and ``shares`` are normalised to the whole (0-1), of any equal shapes.
    """
    used, share = np.broadcast_arrays(_amounts("usage", usage), _amounts("shares", shares))
    if not dampening > 0:
        raise PolicyError(f"dampening must be above 0, not {dampening!r}")
    ratio = np.divide(used, share, out=np.full(used.shape, np.inf), where=share > 0)
    factor: Floats = np.exp2(-ratio / dampening)
    return factor


def classic_fair_share(nodes: Sequence[ShareNode], usage: Mapping[str, float]) -> dict[str, float]:
    """Slurm's classic fair-share factor of every leaf, from raw (decayed) usage of leaves.

    Steps: shares are normalised down the tree; a top-level node's effective usage is its part of all usage; below, it is
    U + (effective usage of the parent - U) x shares / siblings' shares; the factor is `fair_share_factor`.
    """
    tree = _Tree(nodes, zero_shares=True)
    total = tree.totals(usage)
    actual = [value / total[0] if total[0] else 0.0 for value in total]
    effective, normal = [1.0] * len(actual), [1.0] * len(actual)
    for at in tree.order:
        siblings = sum(tree.shares[child] for child in tree.children[at])
        for child in tree.children[at]:
            part = tree.shares[child] / siblings if siblings else 0.0
            normal[child] = normal[at] * part
            effective[child] = actual[child] + ((effective[at] - actual[child]) * part if at else 0.0)
    leaves = tree.leaves()
    factors = fair_share_factor([effective[at] for at in leaves], [normal[at] for at in leaves])
    return {tree.names[at]: float(factor) for at, factor in zip(leaves, factors, strict=True)}


def level_fair_share(nodes: Sequence[ShareNode], usage: Mapping[str, float]) -> dict[str, float]:
    """Slurm's level fair share of every node: (its part of its siblings' shares) / (its part of their usage); inf without
    usage, 0 without shares. Above 1 means under-served."""
    tree = _Tree(nodes, zero_shares=True)
    found = _level(tree, tree.totals(usage))
    return {tree.names[at]: found[at] for at in tree.order[1:]}


def fair_tree(nodes: Sequence[ShareNode], usage: Mapping[str, float]) -> dict[str, float]:
    """Slurm's Fair Tree factor of every leaf: its rank from the end / number of leaves, 1.0 for the first.

    Steps (fair_tree document): children are visited by falling level fair share; a leaf gets the next rank, an inner node
    is descended into. Ties: leaves with equal level share one rank; inner nodes with equal level have their children
    merged before descending; a leaf ranks with the best leaf of an inner node of its level.
    """
    tree = _Tree(nodes, zero_shares=True)
    level = _level(tree, tree.totals(usage))
    count = len(tree.leaves())
    ranks: dict[int, int] = {}
    last = count

    def visit(children: Iterable[int], tied: bool) -> None:
        nonlocal last
        groups: dict[float, list[int]] = {}
        for child in children:
            groups.setdefault(level[child], []).append(child)
        for value in sorted(groups, reverse=True):
            leaves = [child for child in groups[value] if not tree.children[child]]
            if leaves:
                rank = last if tied else count - len(ranks)
                last = rank
                ranks.update(dict.fromkeys(leaves, rank))
            below = [child for inner in groups[value] for child in tree.children[inner]]
            if below:
                visit(below, tied or bool(leaves))
            tied = False

    visit(tree.children[0], False)
    return {tree.names[at]: rank / count for at, rank in sorted(ranks.items())}


def _level(tree: _Tree, total: list[float]) -> list[float]:
    level = [math.inf] * len(total)
    for at in tree.order:
        siblings = sum(tree.shares[child] for child in tree.children[at])
        for child in tree.children[at]:
            share = tree.shares[child] / siblings if siblings else 0.0
            used = total[child] / total[at] if total[at] else 0.0
            level[child] = 0.0 if not share else share / used if used else math.inf
    return level


# -- indices -------------------------------------------------------------------------------------------------------


def jain_index(values: npt.ArrayLike) -> float:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything; 1 when nobody has anything."""
    x = _amounts("values", values).ravel()
    if not x.size:
        raise InvalidArgumentError("values must not be empty")
    top = float(x.max())
    if not top:
        return 1.0
    x = x / top  # so that squares neither overflow nor vanish
    return float(x.sum() ** 2 / (x.size * np.sum(x * x)))


def finish_time_fairness(shared_s: npt.ArrayLike, alone_s: npt.ArrayLike) -> Floats:
    """Themis' rho (J,): the time from arrival to finish in the shared system / the same with 1/N of the system for itself
    alone. Above 1: sharing cost the job time. Times (J,) above 0."""
    shared, alone = _amounts("shared_s", shared_s), _amounts("alone_s", alone_s)
    if not np.all(alone > 0):
        raise InvalidArgumentError("alone_s must be above 0")
    rho: Floats = shared / alone
    return rho


def _amounts(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0) & (array < np.inf)):
        raise InvalidArgumentError(f"{name} must be at least 0 and finite")
    return array


def _weights(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array > 0) & (array < np.inf)):
        raise PolicyError("weights must be above 0 and finite")
    return array
