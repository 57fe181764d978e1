"""The series of the domains that this process handles, kept between batches so that they are not read back each time.

What is kept is believed only while the database's version of the domain is the one that was stored with it: another process
may have had the domain in between, or a transaction may have been rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.telemetry.reading_check import SeriesOfNode


@dataclass(slots=True)
class DomainSeries:
    """The series of a domain by node; before ``quiet_until_s`` (seconds since 1970) none of them can be missing."""

    nodes: dict[str, SeriesOfNode] = field(default_factory=dict)
    quiet_until_s: float = 0.0

    def take(self, changed: Mapping[str, SeriesOfNode], quiet_until_s: float) -> None:
        """What a report changed."""
        self.quiet_until_s = quiet_until_s
        for node_id, found in changed.items():
            known = self.nodes.get(node_id)
            if known is None:
                self.nodes[node_id] = found
            else:
                known.update(found)


class KnownSeries:
    """Series by domain with the version of each."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, DomainSeries]] = {}

    def take(self, domain_ids: Sequence[str], versions: Mapping[str, int]) -> dict[str, DomainSeries]:
        """What is held of these domains in the versions given; it is no longer held until it is put back."""
        taken: dict[str, DomainSeries] = {}
        for domain_id in domain_ids:
            held = self._held.pop(domain_id, None)
            if held is not None and held[0] == versions.get(domain_id):
                taken[domain_id] = held[1]
        return taken

    def put(self, known: Mapping[str, DomainSeries], versions: Mapping[str, int]) -> None:
        """Hold the series of domains as they were committed in these versions."""
        for domain_id, version in versions.items():
            self._held[domain_id] = version, known[domain_id]

    def drop(self) -> None:
        """Hold nothing, so that what was removed from the database is forgotten here too."""
        self._held.clear()
