"""Nodes that sleep, as a shard sees them: what domains would have besides if they were woken, and which grants still wait for it.

1. Only when nothing that waits has room on nodes that are awake, a shard asks for nodes that sleep (`with_sleepers`).
2. What is granted on them is nominated: the unit waits with its nodes, for some times the waking time.
3. Its run begins once each of its domains has said that all nodes are awake, and the shard's own graph says so too (`awake`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest

from services.scheduler.core.apart.messages import GrantName
from services.scheduler.core.book import Book
from services.scheduler.core.state import Demand, Nomination, UnitKey
from services.scheduler.core.table import DeviceModel
from services.scheduler.core.two_level import DomainSummary


class Waking:
    """See the module; good for one session."""

    def __init__(self) -> None:
        self.asleep: dict[str, DomainSummary] = {}
        self._awake: dict[GrantName, set[str]] = {}

    def told(self, name: str, asleep: DomainSummary | None) -> None:
        """A domain said what it would have besides; None: no node can be woken."""
        if asleep is None:
            self.asleep.pop(name, None)
        else:
            self.asleep[name] = asleep

    def has_room(self, name: str, demands: Iterable[Demand]) -> bool:
        """Whether some node of a domain could be woken for one of these classes."""
        asleep = self.asleep.get(name)
        return asleep is not None and any(any(asleep.ranks.get(demand, {}).values()) for demand in demands)

    def woke(self, name: GrantName, domain_id: str) -> None:
        """A domain said that all nodes of a grant are awake."""
        self._awake.setdefault(name, set()).add(domain_id)

    def awake(self, name: GrantName, domains: Iterable[str]) -> bool:
        """Whether all these domains have said so."""
        return self._awake.get(name, set()).issuperset(domains)

    def forget(self, kept: Iterable[GrantName]) -> None:
        """Only these are waited for any more."""
        names = set(kept)
        for name in [name for name in self._awake if name not in names]:
            del self._awake[name]


def with_sleepers(summary: DomainSummary, asleep: DomainSummary | None) -> DomainSummary:
    """A domain as it would be if its sleeping nodes were woken."""
    if asleep is None:
        return summary
    models = {**summary.total_devices, **asleep.total_devices}
    return replace(
        summary,
        ranks={demand: _sum(room, asleep.ranks.get(demand, {})) for demand, room in summary.ranks.items()},
        blocks={
            model: tuple(
                a + b for a, b in zip_longest(summary.blocks.get(model, ()), asleep.blocks.get(model, ()), fillvalue=0)
            )
            for model in models
        },
        total_devices={
            model: summary.total_devices.get(model, 0) + asleep.total_devices.get(model, 0) for model in models
        },
        free_cpus=summary.free_cpus + asleep.free_cpus,
        total_cpus=summary.total_cpus + asleep.total_cpus,
        free_memory_bytes=summary.free_memory_bytes + asleep.free_memory_bytes,
        largest_block=max(summary.largest_block, asleep.largest_block),
    )


def _sum(
    room: Mapping[DeviceModel | None, int], more: Mapping[DeviceModel | None, int]
) -> dict[DeviceModel | None, int]:
    found = {model: room.get(model, 0) + more.get(model, 0) for model in {**room, **more}}
    return {model: ranks for model, ranks in found.items() if ranks}


def kept_grant(book: Book, key: UnitKey) -> tuple[GrantName, Nomination] | None:
    """The grant with which a unit waits until its nodes are awake; None when it has none."""
    unit = book.units.get(key)
    if unit is None or unit.nomination is None or unit.nomination.waits_for:
        return None
    return GrantName(key, unit.epoch + 1), unit.nomination
