"""Kinds of fault, how they grow, and where they strike. What they do to the metrics is in `physics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from learning.node_state.fabrics import Fabric

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Kind(StrEnum):
    """What goes wrong. The last two are faults of the exporter: the node itself is as it was."""

    THERMAL = "thermal-throttling"
    ECC = "ecc-growth"
    LEAK = "memory-leak"
    NIC_LOSS = "nic-loss"
    NIC_SLOW = "nic-slow"
    SWITCH_LOSS = "switch-loss"
    CONGESTION = "link-congestion"
    POWER_CAP = "power-cap"
    STRAGGLER = "straggler"
    HANG = "hang"
    COOLING = "site-cooling"
    FROZEN_EXPORTER = "exporter-frozen"
    WRONG_EXPORTER = "exporter-offset"


# Each fold is left out of training in turn, so that every kind is once unseen. Each has faults of single nodes and of
# neighbours together. Relatives lie in different folds (a hot node and a hot site, a port and a switch that are lost, a slow
# port and a congested link, a straggler and a power cap), so that an unseen kind is another scope or cause of something seen.
FOLDS: tuple[frozenset[Kind], ...] = (
    frozenset({Kind.THERMAL, Kind.SWITCH_LOSS, Kind.NIC_SLOW, Kind.POWER_CAP, Kind.FROZEN_EXPORTER}),
    frozenset({Kind.COOLING, Kind.NIC_LOSS, Kind.STRAGGLER, Kind.LEAK}),
    frozenset({Kind.CONGESTION, Kind.ECC, Kind.HANG, Kind.WRONG_EXPORTER}),
)
_AT_ONCE = frozenset({Kind.NIC_LOSS, Kind.SWITCH_LOSS, Kind.HANG, Kind.FROZEN_EXPORTER, Kind.WRONG_EXPORTER})
_OF_A_SWITCH = frozenset({Kind.SWITCH_LOSS, Kind.CONGESTION})


@dataclass(frozen=True, slots=True)
class Episode:
    """A fault of some nodes; it begins at a step and is whole ``ramp_steps`` later (0: at once)."""

    kind: Kind
    nodes: Integers
    start: int
    ramp_steps: int
    worst: float

    def severity(self, steps: int) -> Floats:
        """``[steps]``: 0 before the start, growing to ``worst`` (at most 1)."""
        since = np.arange(steps) - self.start
        grown = np.where(since >= 0, 1.0, 0.0) if not self.ramp_steps else np.clip(since / self.ramp_steps, 0.0, 1.0)
        return grown * self.worst


def episodes(
    fabric: Fabric, kinds: Sequence[Kind], steps: int, chance: np.random.Generator, busy: npt.NDArray[np.bool_]
) -> list[Episode]:
    """Faults that strike a fabric in ``steps`` steps, about one per six nodes, those of neighbours together half as often. ``busy``: nodes that have work."""
    found: list[Episode] = []
    if not kinds:
        return found
    nodes = len(fabric.switch_of)
    loaded = np.flatnonzero(busy)
    often = np.array([0.3 if kind in _OF_A_SWITCH or kind is Kind.COOLING else 1.0 for kind in kinds])
    for _ in range(max(3, nodes // 6)):
        kind = kinds[int(chance.choice(len(kinds), p=often / often.sum()))]
        place = int(chance.choice(loaded)) if len(loaded) and chance.random() < 0.8 else int(chance.integers(nodes))
        if kind in _OF_A_SWITCH:
            struck = np.flatnonzero(fabric.switch_of == fabric.switch_of[place])
        elif kind is Kind.COOLING:
            struck = np.flatnonzero(fabric.site_of[fabric.switch_of] == fabric.site_of[fabric.switch_of[place]])
        else:
            struck = np.array([place])
        ramp = 0 if kind in _AT_ONCE else int(chance.integers(3, 16))
        start = int(chance.integers(2, max(3, 4 * steps // 5)))
        found.append(Episode(kind, struck, start, ramp, float(chance.uniform(0.5, 1.0))))
    return found
