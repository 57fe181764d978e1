"""Readings of a whole batch system or cluster from one document: Slurm's or Kubernetes' JSON, or kube-state-metrics.

It speaks of nodes by their names; those that the domain does not have are left out. What it says of the cluster is said of the
domain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from agent.collectors.base import Collector, Reading, Source
from agent.collectors.exposition import DEFAULT_LIMITS, ExpositionLimits
from agent.collectors.http_get import ScrapeError, get_text
from agent.collectors.metrics import Metric
from agent.collectors.sensing import CLUSTER, sense
from agent.collectors.unknown import UnknownKind
from agent.commands import CommandError, CommandLimits, run_command
from meridian.errors import ConfigurationError, InvalidArgumentError

FROM_FILE = "file:"


class DocumentCollector(Collector):
    """Reads one source; a read takes at most ``deadline_s`` and ``max_bytes``."""

    def __init__(
        self,
        name: str,
        node_ids: Iterable[str],
        *,
        url: str = "",
        command: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 3.0,
        max_bytes: int = 8 * 1024 * 1024,
        limits: ExpositionLimits = DEFAULT_LIMITS,
        working_dir: Path = Path(),
    ) -> None:
        self._name = name
        self._node_ids = frozenset(node_ids)
        self._url = url
        self._command = tuple(command)
        self._headers = dict(headers or {})
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._limits = limits
        self._working_dir = working_dir
        self._seen: dict[tuple[str, int | None, str, Metric], Reading] = {}

    def collect(self, now: datetime) -> list[Reading]:
        try:
            sensed = sense(self._text(), now, limits=self._limits)
        except ScrapeError as error:
            return self._silent(error.kind, f"{self._name}: {error.detail}", now)
        except (CommandError, InvalidArgumentError, ConfigurationError) as error:
            return self._silent(UnknownKind.UNAVAILABLE, f"{self._name}: {error}", now)
        readings = [
            replace(item, node_id="" if item.node_id == CLUSTER else item.node_id)
            for item in sensed.readings
            if (item.node_id == CLUSTER or item.node_id in self._node_ids) and item.kind is not UnknownKind.NOT_EXPORTED
        ]
        self._seen.update(
            {(item.node_id, item.accelerator_index, item.partition, item.metric): item for item in readings}
        )
        return readings

    def unavailable(self, reason: str, now: datetime) -> list[Reading]:
        """All it has read before, as unknown."""
        return self._silent(UnknownKind.UNAVAILABLE, f"{self._name}: {reason}", now)

    def _silent(self, kind: UnknownKind, reason: str, now: datetime) -> list[Reading]:
        return [
            replace(item, value=None, kind=kind, reason=reason, source=Source.DIRECTLY_MEASURED, observed_at=now)
            for item in list(self._seen.values())
        ]

    def _text(self) -> str:
        if self._url:
            return get_text(self._url, self._deadline_s, self._max_bytes, self._request_headers())
        limits = CommandLimits(time_s=self._deadline_s, output_bytes=self._max_bytes)
        return asyncio.run(run_command(self._command, limits, self._working_dir))

    def _request_headers(self) -> dict[str, str]:
        found = {}
        for name, value in self._headers.items():
            if value.startswith(FROM_FILE):
                try:
                    value = Path(value.removeprefix(FROM_FILE)).read_text().strip()  # noqa: PLW2901 - the file's content instead
                except (OSError, UnicodeDecodeError) as error:
                    raise ScrapeError(f"header {name}: {error}") from None
            found[name] = value
        return found
