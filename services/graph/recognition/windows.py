"""The newest samples of the nodes of one domain. In memory only: after a restart they fill again, and the rules serve meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from services.graph.recognition.features import QUANTITIES, WINDOW, Floats, Quantity


class Windows:
    """Samples by observation time; a node that left is forgotten."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, Floats]]] = {}
        self.newest_s = 0.0
        self.count = 0

    def add(self, at_s: float, samples: Mapping[str, Floats]) -> bool:
        """One observation of all nodes; False when it is not newer than the newest."""
        if at_s <= self.newest_s:
            return False
        self.newest_s = at_s
        self.count += 1
        kept = {node_id: self._samples.get(node_id) or deque(maxlen=WINDOW) for node_id in samples}
        for node_id, found in samples.items():
            kept[node_id].append((at_s, found))
        self._samples = kept
        return True

    def of(self, node_ids: Sequence[str]) -> Floats:
        """``[nodes, WINDOW, QUANTITIES]``, the newest last; NaN where there is nothing yet."""
        found = np.full((len(node_ids), WINDOW, QUANTITIES), np.nan, dtype=np.float32)
        for place, node_id in enumerate(node_ids):
            samples = self._samples.get(node_id, ())
            start = WINDOW - len(samples)
            for step, (at_s, values) in enumerate(samples, start):
                found[place, step] = values
                found[place, step, Quantity.AGE_S] = self.newest_s - at_s
        return found
