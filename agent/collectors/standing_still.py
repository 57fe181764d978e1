"""Devices of which what must move stands still while they claim to work: an exporter serves old values of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from agent.collectors.base import Reading, unknown_from
from agent.collectors.exporter_table import ExporterTable, FrozenGuard
from agent.collectors.exposition import Sample
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind


@dataclass(slots=True)
class _Still:
    """Since when what must move has not moved while the device works."""

    evidence: tuple[float, ...]
    since_s: float
    scrapes: int


class StandingStill:
    """What stood still of an exporter's devices so far. Times come in, in seconds."""

    def __init__(self, table: ExporterTable) -> None:
        self._table = table
        self._still: dict[Hashable, _Still] = {}

    def judged(
        self, device: Hashable, taken: list[Reading], families: Mapping[str, Sequence[Sample]], now_s: float
    ) -> list[Reading]:
        """The readings, all unknown where the device stood still for as long as the table says."""
        guard = self._table.frozen
        evidence = None if guard is None else self._evidence(guard, taken, families)
        if guard is None or evidence is None:
            self._still.pop(device, None)
            return taken
        still = self._still.get(device)
        if still is None or evidence != still.evidence:
            self._still[device] = _Still(evidence, now_s, 1)
            return taken
        still.scrapes += 1
        still_s = now_s - still.since_s
        if still.scrapes < guard.scrapes or still_s < guard.after_s:
            return taken
        what = _told(guard, families) or "everything it says"
        reason = f"frozen: {what} stood still for {still_s:.0f} s while the device claims to work"
        return [unknown_from(reading, UnknownKind.FROZEN, reason) for reading in taken]

    def _evidence(
        self, guard: FrozenGuard, taken: Sequence[Reading], families: Mapping[str, Sequence[Sample]]
    ) -> tuple[float, ...] | None:
        """What must move while the device works; None: it does not work, or nothing that must move is known."""
        activity = next((item.value for item in taken if item.metric is guard.activity), None)
        if activity is None or activity <= 0:
            return None
        if guard.counters:
            counter = families.get(_told(guard, families))
            if not counter or not all(
                math.isfinite(item.value) and not self._table.is_sentinel(item.family, item.value) for item in counter
            ):
                return None
            return (math.fsum(item.value for item in counter),)
        # Energy without a counter of its own is summed of power by the exporter: it moves with old values, too.
        known = {
            item.metric: item.value for item in taken if item.value is not None and item.metric is not Metric.ENERGY
        }
        if activity >= 1 or not {Metric.POWER, Metric.TEMPERATURE} <= known.keys():
            return None
        return tuple(known.values())


def _told(guard: FrozenGuard, families: Mapping[str, Sequence[Sample]]) -> str:
    """The counter under the name that this exporter has for it."""
    return next((name for name in guard.counters if name in families), "")
