"""What the network and its domains say to each other: summaries, assignments, answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import DeviceModel
from services.scheduler.core.waiting_unit import PendingUnit

ANY = None
"""In place of a device model: the ranks may use different ones."""

Ranks = Mapping[Demand, Mapping[DeviceModel | None, int]]


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """What a domain tells the network about itself.

    ``sequence`` grows with every change. ``ranks`` is how many ranks of each class fit now, by the device model that all
    ranks of a unit must share, or `ANY`. ``blocks`` counts nodes by their free whole devices (0, 1, 2 ...), per model.
    ``largest_block`` is the greatest number of free devices on one node. Prices and the like stand in the fleet's `Domain`.
    """

    domain_id: str
    sequence: int
    ranks: Ranks
    blocks: Mapping[DeviceModel, tuple[int, ...]]
    total_devices: Mapping[DeviceModel, int]
    free_cpus: float
    total_cpus: float
    free_memory_bytes: int
    largest_block: int = 0
    running: int = 0
    share_gap: float = float("nan")
    own_scheduler: bool = False

    @property
    def free_devices(self) -> dict[DeviceModel, int]:
        """Free whole devices by model."""
        return {model: sum(size * count for size, count in enumerate(counts)) for model, counts in self.blocks.items()}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A unit, or some of its ranks, that a domain is to place. ``first_rank`` is the number of its first rank here.

    ``unit.demand`` asks for the ranks of this part. ``whole`` False: other domains have other parts.
    """

    unit: PendingUnit
    domain_id: str
    first_rank: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a domain with a scheduler of its own is told: resources, not nodes. Amounts are per rank.

    ``time_limit_s`` is infinite when the user declared none. ``topology`` names the level that the ranks should share.
    """

    ranks: int
    cpus: float
    memory_bytes: int
    accelerators: int
    accelerator_types: tuple[str, ...]
    device_milli: int
    resources: tuple[tuple[str, float], ...]
    topology: str
    topology_required: bool
    time_limit_s: float

    @classmethod
    def of(cls, unit: PendingUnit) -> Constraints:
        """Those of a unit or of its part."""
        demand = unit.demand
        return cls(
            demand.ranks,
            demand.cpus,
            demand.memory_bytes,
            demand.accelerators,
            demand.accelerator_types,
            demand.device_milli,
            demand.resources,
            demand.topology,
            demand.topology_required,
            unit.limit_s,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of assignments: ranks by unit; units that were handed to the domain's own scheduler; and refused ones
    with the reason. ``summary`` is the domain after it."""

    domain_id: str
    placed: tuple[tuple[UnitKey, tuple[PlacedRank, ...]], ...]
    refused: tuple[tuple[UnitKey, str], ...]
    summary: DomainSummary
    handed: tuple[tuple[UnitKey, Constraints], ...] = ()


class IntraDomain(Protocol):
    """A domain as the network reaches it, in this process or another. All are told first, then all are asked."""

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """Place these, in this order, and summarise for these classes."""
        ...

    def answer(self) -> Answer:
        """What became of them."""
        ...

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """Parts that were placed here are not wanted: another part of their unit has no place."""
        ...
