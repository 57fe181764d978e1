"""Labelled windows on fabrics: what the network and its rivals learn from and are judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from learning.node_state import fabrics, loads
from learning.node_state.fabrics import Shape
from learning.node_state.faults import Kind, episodes
from learning.node_state.jobs import scheduled
from learning.node_state.loads import LoadSeries
from learning.node_state.physics import Life, lived
from services.graph.node_state import NodeState
from services.graph.recognition.features import QUANTITIES, WINDOW, Quantity

CLASSES = (
    NodeState.HEALTHY,
    NodeState.BUSY,
    NodeState.DEGRADED,
    NodeState.FAILING,
    NodeState.UNREACHABLE,
    NodeState.ASLEEP,
)
STEPS = 30
SNAPSHOTS = 5
INTERVALS_S = (2.0, 5.0, 10.0, 15.0)
UNKNOWN_LOAD = -1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fabric at one step. ``windows [nodes, WINDOW, QUANTITIES]``, ``label`` by place in `CLASSES`, ``load`` the true
    utilisation one interval later (`UNKNOWN_LOAD` for nodes that are gone), ``kind`` of the fault that acts (-1 none)."""

    windows: npt.NDArray[np.float32]
    switch_of: npt.NDArray[np.int64]
    site_of: npt.NDArray[np.int64]
    site_links: tuple[tuple[int, int], ...]
    sites: int
    label: npt.NDArray[np.int64]
    load: npt.NDArray[np.float32]
    kind: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sources:
    """What simulations are made of; ``real``: shapes and loads are recorded ones."""

    shapes: tuple[Shape, ...]
    series: tuple[LoadSeries, ...]
    real: bool


def sources(data: Path | None) -> Sources:
    """Topology Zoo and recorded loads below ``data`` where they are, generated ones otherwise."""
    if data is not None and (data / "net/topologyzoo").is_dir() and (data / "figures" / loads.SERIES_FILE).is_file():
        shapes = fabrics.zoo(data / "net/topologyzoo")
        return Sources(tuple(shapes), tuple(loads.recorded(data / "figures" / loads.SERIES_FILE)), real=True)
    return Sources(tuple(fabrics.generated(150, seed=1)), tuple(loads.made_up(20, seed=2)), real=False)


def snapshots(
    found: Sources, split: str, kinds: Sequence[Kind], count: int, seed: int, most_nodes: int = 160
) -> list[Snapshot]:
    """``count`` simulated fabrics of a split, `SNAPSHOTS` looks at each. Only faults of ``kinds`` strike."""
    shapes = [shape for shape in found.shapes if shape.split == split]
    series = [item for item in found.series if item.split == split]
    chance = np.random.default_rng([seed, sum(split.encode())])
    looks: list[Snapshot] = []
    for _ in range(count):
        fabric = fabrics.populated(shapes[int(chance.integers(len(shapes)))], chance, most_nodes)
        # Young networks stand nearly idle; recorded clusters never did.
        share = loads.window(series[int(chance.integers(len(series)))], STEPS, chance) * chance.choice(
            [1, 1, 1, 0.5, 0.1]
        )
        work = scheduled(fabric, share, chance)
        faults = episodes(fabric, kinds, STEPS - 2, chance, work.allocated.mean(axis=0) > 0.5)
        interval_s = float(chance.choice(INTERVALS_S))
        life = lived(fabric, work, faults, interval_s, chance)
        steps = chance.choice(np.arange(2, STEPS - 1), SNAPSHOTS, replace=False)
        looks += [_look(fabric, life, int(step), interval_s) for step in steps]
    return looks


def _look(fabric: fabrics.Fabric, life: Life, step: int, interval_s: float) -> Snapshot:
    read, state = life.read, life.state
    nodes = read.shape[1]
    windows = np.full((nodes, WINDOW, QUANTITIES), np.nan, dtype=np.float32)
    first = max(0, step + 1 - WINDOW)
    steps = step + 1 - first
    windows[:, WINDOW - steps :] = read[first : step + 1].transpose(1, 0, 2)
    windows[:, WINDOW - steps :, Quantity.AGE_S] = interval_s * np.arange(steps - 1, -1, -1)
    label = np.searchsorted([int(item) for item in CLASSES], state[step])
    known = (state[step] != NodeState.UNREACHABLE) & (state[step + 1] != NodeState.UNREACHABLE)
    load = np.where(known, life.utilization[step + 1], UNKNOWN_LOAD).astype(np.float32)
    return Snapshot(
        windows, fabric.switch_of, fabric.site_of, fabric.shape.links, fabric.shape.sites, label, load, life.kind[step]
    )
