"""What a domain keeps: its grants, the sessions of shards, and what of both is to be written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.scheduler.core.apart.messages import GrantName, Session
from services.scheduler.core.apart.parts import Part, device_of
from services.scheduler.core.state import Demand, PlacedRank, UnitKey


@dataclass(frozen=True, slots=True)
class Grant:
    """Nodes of a domain that a unit's run holds. ``ranks`` are numbered as the shard numbers them. Its part of an accelerator may have
    become another one than it asked for; ``asked_milli`` (0: that of the demand) and ``least_milli`` as in `Holding`."""

    shard: str
    name: GrantName
    tenant_id: str
    demand: Demand
    ranks: tuple[PlacedRank, ...]
    since_s: float
    least_milli: int = 0
    asked_milli: int = 0

    def with_part(self, milli: int) -> Grant:
        """The grant with another part of its device, in thousandths."""
        ranks = tuple([replace(rank, device_milli=milli) for rank in self.ranks])
        return replace(self, demand=replace(self.demand, device_milli=milli), ranks=ranks)

    def part(self) -> Part | None:
        """The part of a device that it has; None when that never changes."""
        device = device_of(self.ranks)
        if device is None:
            return None
        milli = self.ranks[0].device_milli
        return Part(self.name.key, device, milli, self.asked_milli or milli, self.least_milli)


@dataclass(slots=True)
class ShardSession:
    """What a domain knows of a shard: its session, its classes by number, whether it waits for room, and of which classes units wait.
    ``told`` is the state of the domain that it was told last."""

    session: Session
    classes: dict[int, Demand] = field(default_factory=dict)
    waiting: bool = False
    told: tuple[int, int] | None = None
    waiting_classes: tuple[int, ...] = ()


@dataclass(slots=True)
class GrantChanges:
    """What is to be written since it was asked for last: grants by unit (None: ended), sessions by shard."""

    grants: dict[UnitKey, Grant | None] = field(default_factory=dict)
    sessions: dict[str, ShardSession] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.grants or self.sessions)
