"""Fair shares over time: usage that fades, and Slurm's two fair-share factors (its classic_fair_share and fair_tree documents)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.entitlement.share_tree import Floats, ShareNode, ShareTree, checked_amounts
from services.scheduler.core.errors import PolicyError


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
    used, share = np.broadcast_arrays(checked_amounts("usage", usage), checked_amounts("shares", shares))
    if not dampening > 0:
        raise PolicyError(f"dampening must be above 0, not {dampening!r}")
    ratio = np.divide(used, share, out=np.full(used.shape, np.inf), where=share > 0)
    factor: Floats = np.exp2(-ratio / dampening)
    return factor


def fair_tree(nodes: Sequence[ShareNode], usage: Mapping[str, float]) -> dict[str, float]:
    """Slurm's Fair Tree factor of every leaf: its rank from the end / number of leaves, 1.0 for the first.

    Steps (fair_tree document): children are visited by falling level fair share; a leaf gets the next rank, an inner node
    is descended into. Ties: leaves with equal level share one rank; inner nodes with equal level have their children
    merged before descending; a leaf ranks with the best leaf of an inner node of its level.
    """
    tree = ShareTree(nodes, zero_shares=True)
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


def _level(tree: ShareTree, total: list[float]) -> list[float]:
    level = [math.inf] * len(total)
    for at in tree.order:
        siblings = sum(tree.shares[child] for child in tree.children[at])
        for child in tree.children[at]:
            share = tree.shares[child] / siblings if siblings else 0.0
            used = total[child] / total[at] if total[at] else 0.0
            level[child] = 0.0 if not share else share / used if used else math.inf
    return level
