"""Random places that can be computed again: the same seed, node and class of units always give the same number.

Units with equal demands are one class and see the nodes in one order; units that are to draw each for themselves need
demands that differ (a label of their own). The number is a 64-bit digest, mixed by SplitMix64 (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.options import numbers_of
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats, Ints, Table
from services.scheduler.core.view import View

Words = npt.NDArray[np.uint64]
_NAMES = tuple(item.name for item in fields(Demand) if item.compare)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def demand_digest(demand: Demand) -> int:
    """64 bits of a demand's values, the same in every process."""
    values = [getattr(demand, name) for name in _NAMES]
    return _digest(repr([sorted(value) if isinstance(value, frozenset) else value for value in values]))


@lru_cache(maxsize=2)
def _node_digests(table: Table) -> Words:
    return np.array([_digest(node.node_id) for node in table.nodes], dtype=np.uint64)


def mixed(words: Words) -> Words:
    """The finaliser of SplitMix64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class RandomScore:
    """A number in [0, 1) by seed, node and class; the device of a share is drawn likewise. Option: ``seed`` (0)."""

    name = "random"
    dynamic = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def configured(self, options: Mapping[str, Any]) -> RandomScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return RandomScore(int(numbers_of(self.name, options, seed=0.0).get("seed", self._seed)))

    def _word(self, demand: Demand) -> np.uint64:
        return np.uint64(_digest(f"{self._seed} {demand_digest(demand)}"))

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        words = mixed(_node_digests(view.table)[rows] ^ self._word(demand))
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def devices(self, view: View, demand: Demand, columns: Ints, row: int) -> tuple[int, ...]:
        """One of the devices with room for the share; no preference for whole devices or shares of several."""
        if demand.accelerators != 1 or demand.device_milli >= 1000:
            return ()
        accepted = np.isin(view.table.device_columns[row], columns)
        room = np.flatnonzero(accepted & (view.device_milli[row] >= demand.device_milli))
        if not len(room):
            return ()
        words = mixed(np.array([int(_node_digests(view.table)[row])], dtype=np.uint64) ^ ~self._word(demand))
        return (view.table.devices_of[row][int(room[int(words[0]) % len(room)])][0],)
