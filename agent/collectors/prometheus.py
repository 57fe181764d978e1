"""Readings from a Prometheus exporter: scrape, parse, translate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from agent.collectors.base import Collector, Reading
from agent.collectors.device import Device, PeakOf
from agent.collectors.exporter_table import ExporterTable
from agent.collectors.exposition import DEFAULT_LIMITS, ExpositionLimits, parse_exposition
from agent.collectors.http_get import ScrapeError, get_text
from agent.collectors.translation import Translator
from agent.collectors.unknown import UnknownError, UnknownKind


class PrometheusCollector(Collector):
    """Scrapes one exporter of one node; a scrape takes at most ``deadline_s`` and ``max_bytes``.

    Parts of accelerators, and devices whose number is not known, are left out: a report has no place for them.
    """

    def __init__(
        self,
        url: str,
        table: ExporterTable,
        node_id: str,
        expected: Iterable[Device] = (),
        *,
        deadline_s: float = 3.0,
        max_bytes: int = 8 * 1024 * 1024,
        limits: ExpositionLimits = DEFAULT_LIMITS,
        peak_of: PeakOf | None = None,
    ) -> None:
        self._url = url
        self._table = table
        self._translator = Translator(table, node_id, expected, peak_of=peak_of)
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._limits = limits
        self._families = table.families

    def collect(self, now: datetime) -> list[Reading]:
        try:
            text = get_text(self._url, self._deadline_s, self._max_bytes)
            exposition = parse_exposition(text, self._is_wanted, self._limits, last_line_may_be_cut=True)
        except ScrapeError as error:
            return self._translator.unavailable(error.kind, f"{self._table.exporter}: {error.detail}", now)
        except UnknownError as unknown:
            return self._translator.unavailable(unknown.kind, f"{self._table.exporter}: {unknown.reason}", now)
        readings = self._translator.translate(exposition.samples, now)
        return [item for item in readings if _is_reported(item)]

    def unavailable(self, reason: str, now: datetime) -> list[Reading]:
        return self._translator.unavailable(UnknownKind.UNAVAILABLE, f"{self._table.exporter}: {reason}", now)

    def _is_wanted(self, family: str) -> bool:
        return self._table.canonical(family) in self._families


def _is_reported(item: Reading) -> bool:
    """It has a place in the inventory; of a part, what is known of the whole chip only, or not told, says nothing."""
    if item.partition:
        return item.accelerator_index is not None and item.kind not in _SAYS_NOTHING_OF_A_PART
    return item.accelerator_index is not None or not item.device


# Parts come and go as people partition: one that is gone is no fault.
_SAYS_NOTHING_OF_A_PART = frozenset({UnknownKind.PARTITIONED, UnknownKind.NOT_EXPORTED, UnknownKind.VANISHED})
