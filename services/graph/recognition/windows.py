"""The newest samples of the nodes of one domain. In memory only: after a restart they fill again, and meanwhile what the
model decided stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from services.graph.recognition.features import QUANTITIES, WINDOW, Floats, Quantity

_SET_BACK_S = 60.0


class Windows:
    """Samples by observation time, one array over the nodes of the newest observation; a node that left is forgotten."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._values = np.zeros((0, WINDOW, QUANTITIES), dtype=np.float32)
        self._times = np.full((0, WINDOW), np.nan)
        self.newest_s = 0.0
        self.count = 0

    def add(self, at_s: float, samples: Mapping[str, Floats | Sequence[float]]) -> bool:
        """One observation of all nodes; False when it is not newer than the newest. One that is much older begins anew: then a
        clock was set back."""
        if at_s < self.newest_s - _SET_BACK_S:
            self._places = {}
            self.count = 0
        elif at_s <= self.newest_s:
            return False
        self.newest_s = at_s
        self.count += 1
        values, times = self._of(list(samples))
        values[:, :-1], times[:, :-1] = values[:, 1:].copy(), times[:, 1:].copy()
        if samples:
            values[:, -1] = np.array(list(samples.values()), dtype=np.float32)
        times[:, -1] = at_s
        self._places = {node_id: place for place, node_id in enumerate(samples)}
        self._values, self._times = values, times
        return True

    def of(self, node_ids: Sequence[str]) -> Floats:
        """``[nodes, WINDOW, QUANTITIES]``, the newest last; NaN where there is nothing yet."""
        values, times = self._of(node_ids)
        values[:, :, Quantity.AGE_S] = self.newest_s - times
        return values

    def _of(self, node_ids: Sequence[str]) -> tuple[Floats, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
        """Copies for these nodes in this order."""
        places = np.array([self._places.get(node_id, -1) for node_id in node_ids], dtype=np.int64)
        values = np.full((len(places), WINDOW, QUANTITIES), np.nan, dtype=np.float32)
        times = np.full((len(places), WINDOW), np.nan)
        known = places >= 0
        values[known], times[known] = self._values[places[known]], self._times[places[known]]
        return values, times
