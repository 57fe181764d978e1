"""What a cycle leaves to the next one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from services.scheduler.core.profile import Profile


@dataclass(slots=True)
class Memory:
    """What the last cycle found, while nothing came free since: who waits then waits still."""

    stamp: tuple[int, int, str]
    profile: Profile | None = None
    reserved: tuple[Any, ...] = ()
    last_reserved: tuple[Any, ...] | None = None
    unasked: bool = False
    """Whether nothing had room, so that nobody asked who is to have a reservation: whoever finds room is compared with all."""
    room_left: bool = False
    """Whether units were taken off, which may have left more room than the cycle used."""
    since: tuple[int, int, int] | None = None
    """The moment (`View.mark`) up to which nobody who waits can have a place, with all that it could take off; None: unknown."""
    at_s: float = -inf
    """When that was."""
    some: bool = False
    """Whether only some partitions were looked at: the reservations are not all that there are."""
