"""The graphs by which an exported file is held against torch, without torch: numpy draws them from their seeds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.graph.recognition.features import INPUTS
from services.graph.recognition.neighbourhood import Neighbourhood, neighbourhood

# Nodes, switches, sites of the graph that is traced, and of those by which the file is checked: none has its size.
TRACED = (37, 9, 5)
CHECKED = ((1, 1, 1), (12, 4, 3), (97, 21, 11), (400, 64, 24))


def random_graph(nodes: int, switches: int, sites: int, seed: int) -> tuple[npt.NDArray[np.float32], Neighbourhood]:
    """Inputs and neighbourhood of a random domain; some switches and sites may have no node."""
    chance = np.random.default_rng(seed)
    inputs = chance.normal(0, 1, (nodes, INPUTS)).astype(np.float32)
    links = {tuple(sorted(pair)) for pair in chance.integers(0, sites, (2 * sites, 2)).tolist() if pair[0] != pair[1]}
    switch_of, site_of = chance.integers(0, switches, nodes), chance.integers(0, sites, switches)
    return inputs, neighbourhood(switch_of, site_of, sorted(links), sites)


def rows_of(nodes: int, most: int = 40) -> npt.NDArray[np.int64]:
    """The rows that are kept of an answer: all of a small graph, some of a large one."""
    return np.unique(np.linspace(0, nodes - 1, most).astype(np.int64))
