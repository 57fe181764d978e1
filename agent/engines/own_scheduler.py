"""The scheduler of a domain that chooses its nodes itself: it is told constraints, and answers with nodes or a refusal.

Batch systems and orchestrators schedule for themselves (Slurm, Kubernetes); naming nodes to them goes past their queue. What
is asked of one here is little: hold the resources for a unit on nodes of its choice, and let go of them.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.engines.base import RankPlacement


class UnitName(NamedTuple):
    """Names what a unit's run of one epoch holds."""

    job_id: str
    unit_index: int
    epoch: int

    @property
    def key(self) -> tuple[str, int]:
        """The unit."""
        return self.job_id, self.unit_index


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a unit needs here; amounts are per rank, no node is named but those to be avoided.

    ``accelerator_milli`` is the part of each accelerator in thousandths. ``accelerator_types`` are names of which one must fit
    (all its words occur in vendor and model); empty: any. ``topology`` names the level of which the ranks should share one
    group, must share it with ``topology_required``. ``labels`` say what the unit is, ``avoid`` with which labels it may not
    share a node. ``service_port`` other than 0 must be free on the node's address. ``time_limit_s`` is infinite when the tenant
    declared none.
    """

    ranks: int
    cpus: float = 0.0
    memory_bytes: int = 0
    accelerators: int = 0
    accelerator_types: tuple[str, ...] = ()
    accelerator_milli: int = 1000
    real_accelerators: bool = False
    resources: tuple[tuple[str, float], ...] = ()
    topology: str = ""
    topology_required: bool = False
    time_limit_s: float = math.inf
    service_port: int = 0
    labels: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    excluded_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Held:
    """What a unit holds: the nodes of its ranks, numbered from 0, and what it asked for."""

    constraints: Constraints
    ranks: tuple[RankPlacement, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing is held; the reason is for the tenant to read."""

    reason: str


class DeviceKind(NamedTuple):
    """A model of accelerators."""

    vendor: str
    model: str


@dataclass(frozen=True, slots=True)
class Room:
    """What the domain has: accelerators in all, and the number of usable nodes with 0, 1, 2 ... of them wholly free."""

    total: Mapping[DeviceKind, int] = field(default_factory=dict)
    nodes_by_free: Mapping[DeviceKind, tuple[int, ...]] = field(default_factory=dict)
    free_cpus: float = 0.0
    total_cpus: float = 0.0
    free_memory_bytes: int = 0
    # User-defined resources, over all usable nodes.
    free_resources: Mapping[str, float] = field(default_factory=dict)
    # How often so far the turn of a unit came that was refused for now and kept its place: its nodes are held for it, or its place
    # is gone. All the rest may look then as it did when the unit was refused.
    turns: int = 0


def nodes_by_free(blocks: Mapping[DeviceKind, Sequence[int]]) -> dict[DeviceKind, tuple[int, ...]]:
    """`Room.nodes_by_free`, from how many of each model are wholly free on each usable node."""
    return {
        kind: tuple(sizes.count(size) for size in range(max(sizes, default=-1) + 1)) for kind, sizes in blocks.items()
    }


class OwnScheduler(ABC):
    """Gives the nodes of a domain away. Calls for one unit come one after another, those for others meanwhile."""

    @abstractmethod
    async def restore(self, held: Mapping[UnitName, Held]) -> None:
        """The agent starts: this is all that was given away. What else is held for it is let go of."""

    @abstractmethod
    async def place(self, name: UnitName, constraints: Constraints) -> tuple[RankPlacement, ...] | Refusal:
        """Hold nodes for all ranks (numbered from 0), or for none."""

    async def place_all(
        self, wanted: Mapping[UnitName, Constraints]
    ) -> dict[UnitName, tuple[RankPlacement, ...] | Refusal]:
        """`place` for each, those first that come first. One that needs time for an answer begins with all of them."""
        return {name: await self.place(name, constraints) for name, constraints in wanted.items()}

    @abstractmethod
    async def adopt(self, name: UnitName, held: Held) -> None:
        """The unit runs there though this scheduler does not know of it; its nodes are not free."""

    @abstractmethod
    async def release(self, name: UnitName) -> None:
        """The unit has ended. One that is not known changes nothing."""

    @abstractmethod
    def room(self) -> Room:
        """What is free now."""

    async def run(self) -> None:
        """What it does beside its answers, until cancelled; the agent runs it as a part of its own."""
        await asyncio.Event().wait()
