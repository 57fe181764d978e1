"""Readings from a Prometheus exporter: scrape, parse, translate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from agent.collectors.base import Collector, Reading
from agent.collectors.exporter_table import ExporterTable
from agent.collectors.exposition import parse_exposition
from agent.collectors.http_get import ScrapeError, get_text
from agent.collectors.translation import Device, Translator


class PrometheusCollector(Collector):
    """Scrapes one exporter of one node; a scrape takes at most ``deadline_s`` and ``max_bytes``."""

    def __init__(
        self,
        url: str,
        table: ExporterTable,
        node_id: str,
        expected: Iterable[Device] = (),
        *,
        deadline_s: float = 3.0,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._url = url
        self._table = table
        self._translator = Translator(table, node_id, expected)
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes

    def collect(self, now: datetime) -> list[Reading]:
        try:
            text = get_text(self._url, self._deadline_s, self._max_bytes)
        except ScrapeError as error:
            return self._translator.unavailable(f"{self._table.exporter}: {error.detail}", now)
        samples, _ = parse_exposition(text, self._table.families)
        return self._translator.translate(samples, now)
