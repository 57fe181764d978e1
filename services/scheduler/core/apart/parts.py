"""Parts of accelerators that move between the grants of a domain, whoever's they are: the decider's side of `core/shares.py`.

A shard says what part a replica would like to have by its load. The decider gives it what is free on the device, then what grants there
can spare that name a least part, the one with most to give first; what they lack is given back when it is free again.
Each shard is told the new parts of its own grants, and tells the agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.core.apart.messages import GrantName
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.shares import Device
from services.scheduler.core.state import PlacedRank, UnitKey


@dataclass(slots=True)
class Part:
    """What a grant has of one device: ``milli`` thousandths, of which it keeps ``least`` (0: all) when others want some, and of which it
    asked for ``asked``."""

    key: UnitKey
    device: Device
    milli: int
    asked: int
    least: int

    @property
    def spare(self) -> int:
        """What it can give."""
        return max(self.milli - self.least, 0) if self.least else 0


def device_of(ranks: tuple[PlacedRank, ...]) -> Device | None:
    """The one device of which a grant may have a part that changes; None for grants of several ranks or devices."""
    if len(ranks) != 1 or len(ranks[0].devices) != 1:
        return None
    return ranks[0].node_id, ranks[0].devices[0]


def free_milli(cluster: Cluster, device: Device) -> int:
    """Thousandths of a device that nobody holds; 0 when it is gone."""
    view = cluster.view
    row = view.table.node_index.get(device[0])
    if row is None:
        return 0
    places = {index: place for place, (index, _) in enumerate(view.table.devices_of[row])}
    return max(int(view.device_milli[row, places[device[1]]]), 0) if device[1] in places else 0


def moved(parts: Iterable[Part], wanted: Mapping[UnitKey, int], free: int) -> dict[UnitKey, int]:
    """New parts of those on one device that change, when ``free`` thousandths of it are nobody's.

    Steps:
    1. Those that want less have it.
    2. Those that want more get what is free, then what others can spare who want nothing themselves.
    3. Those that have less than they asked for, and want nothing else, get what is still free.
    """
    found = sorted(parts, key=lambda part: part.key)
    before = {part.key: part.milli for part in found}
    for part in found:
        if (want := wanted.get(part.key, part.milli)) < part.milli:
            free += part.milli - want
            part.milli = want
    for part in found:
        missing = wanted.get(part.key, 0) - part.milli
        if missing <= 0:
            continue
        taken = min(free, missing)
        free -= taken
        donors = [other for other in found if other.key not in wanted]
        for other in sorted(donors, key=lambda other: (-other.spare, other.key)):
            given = min(other.spare, missing - taken)
            other.milli -= given
            taken += given
        part.milli += taken
    for part in found:
        if part.key not in wanted and part.milli < part.asked:
            given = min(free, part.asked - part.milli)
            free -= given
            part.milli += given
    return {part.key: part.milli for part in found if part.milli != before[part.key]}


class PartsToTell:
    """Parts that shards are to be told of, by shard and grant."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[GrantName, int]] = {}

    def note(self, shard: str, name: GrantName, milli: int) -> None:
        """A grant of the shard has this part."""
        self._parts.setdefault(shard, {})[name] = milli

    def take(self, shard: str) -> tuple[tuple[GrantName, int], ...]:
        """What a shard is to be told, once."""
        return tuple(self._parts.pop(shard, {}).items())
