"""Jobs on the nodes of a fabric, so that the share in use follows a load series. Gangs lie behind one switch where they fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from learning.node_state.fabrics import Fabric

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class Work:
    """``[steps, nodes]`` each: share allocated, busy share of the job while it runs, its traffic (0-1), its efficiency
    (share of the peak), device memory in use, and the number of the job (-1 none)."""

    allocated: Floats
    level: Floats
    traffic: Floats
    efficiency: Floats
    memory: Floats
    job: Integers


def scheduled(fabric: Fabric, shares: Floats, chance: np.random.Generator) -> Work:
    """Play ``len(shares)`` steps: start jobs while less is allocated than the share asks, end them by chance or surplus."""
    steps, nodes = len(shares), len(fabric.switch_of)
    work = Work(*(np.zeros((steps, nodes)) for _ in range(5)), np.full((steps, nodes), -1, dtype=np.int64))
    free = np.ones(nodes)
    running: dict[int, tuple[Integers, Floats, float]] = {}
    number = 0
    lifetime = chance.uniform(8, 40)
    for step in range(steps):
        wanted = shares[step] * nodes
        for job in [job for job in running if chance.random() < 1 / lifetime or wanted < (1 - free).sum() - 3]:
            members, _, share = running.pop(job)
            free[members] += share
            if step == 0 or wanted >= (1 - free).sum():
                continue
        while wanted - (1 - free).sum() > 0.5:
            size = int(chance.choice([1, 1, 2, 4, 8]))
            share = 1.0 if size > 1 else float(chance.choice([0.25, 0.5, 1.0]))
            members = _place(fabric, free, size, share, chance)
            if members is None:
                break
            free[members] -= share
            idle = chance.random() < 0.08
            traits = np.array(
                [
                    chance.uniform(0.0, 0.1) if idle else chance.uniform(0.55, 0.99),
                    chance.uniform(0.2, 1.0) if size > 1 else chance.uniform(0.0, 0.3),
                    chance.uniform(0.15, 0.6),
                    chance.uniform(0.3, 0.95),
                ]
            )
            running[number] = (members, traits, share)
            number += 1
        for job, (members, traits, share) in running.items():
            before = work.allocated[step, members]
            weight = share / np.maximum(before + share, 1e-9)
            work.allocated[step, members] = before + share
            for values, trait in zip((work.level, work.traffic, work.efficiency, work.memory), traits, strict=True):
                values[step, members] += (trait - values[step, members]) * weight
            work.job[step, members] = job
    work.allocated = np.clip(work.allocated, 0.0, 1.0)
    return work


def _place(fabric: Fabric, free: Floats, size: int, share: float, chance: np.random.Generator) -> Integers | None:
    fits = np.flatnonzero(free >= share - 1e-9)
    if len(fits) < size:
        return None
    if size == 1:
        return fits[[int(chance.integers(len(fits)))]]
    start = int(chance.integers(len(fits)))
    # Nodes are numbered switch by switch: neighbours in the list are neighbours in the fabric.
    return np.take(fits, np.arange(start, start + size), mode="wrap")
