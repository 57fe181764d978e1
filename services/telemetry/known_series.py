"""The series of the domains that this process handles, kept between batches so that they are not read back each time.

What is kept is believed only while the database's version of the domain is the one that was stored with it: another process
may have had the domain in between, or a transaction may have been rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.telemetry.reading_check import Series, SeriesKey

Known = dict[SeriesKey, Series]


class KnownSeries:
    """Series by domain with the version of each."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Known]] = {}

    def take(self, domain_ids: Sequence[str], versions: Mapping[str, int]) -> dict[str, Known]:
        """What is held of these domains in the versions given; it is no longer held until it is put back."""
        taken: dict[str, Known] = {}
        for domain_id in domain_ids:
            held = self._held.pop(domain_id, None)
            if held is not None and held[0] == versions.get(domain_id):
                taken[domain_id] = held[1]
        return taken

    def put(self, known: Mapping[str, Known], versions: Mapping[str, int]) -> None:
        """Hold the series of domains as they were committed in these versions."""
        for domain_id, version in versions.items():
            self._held[domain_id] = version, known[domain_id]

    def drop(self) -> None:
        """Hold nothing, so that what was removed from the database is forgotten here too."""
        self._held.clear()
