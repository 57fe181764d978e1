"""Error codes of which only the change tells: health is lower for a while after it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from agent.collectors.base import Reading, Source, unknown_from
from agent.collectors.exporter_table import Edge, ExporterTable
from agent.collectors.exposition import Sample
from agent.collectors.metrics import HEALTH_FAILED, Metric
from agent.collectors.unknown import UnknownKind
from agent.collectors.values import FUTURE_TOLERANCE_S


class ErrorCodes:
    """The last codes of an exporter's devices. Times come in, in seconds."""

    def __init__(self, table: ExporterTable) -> None:
        self._table = table
        self._values: dict[tuple[Hashable, str], float] = {}
        self._until_s: dict[tuple[Hashable, str], tuple[float, bool]] = {}

    def judged(
        self, device: Hashable, readings: list[Reading], families: Mapping[str, Sequence[Sample]], now_s: float
    ) -> list[Reading]:
        """Lower health for a while after an error code changed. One that stands there at first sight may be of just now or
        of long ago: for the same while health is not known. Later a code that only stands there says nothing."""
        for edge in self._table.edges:
            samples = families.get(edge.family, ())
            if edge.code_label:
                if any(_just_now(sample, edge, now_s) for sample in samples):
                    readings = [_after(item, edge.health, 0.0) for item in readings]
                continue
            key = device, edge.family
            if (
                samples
                and math.isfinite(samples[0].value)
                and not self._table.is_sentinel(samples[0].family, samples[0].value)
            ):
                value, before = samples[0].value, self._values.get(key)
                self._values[key] = value
                if value not in {before, 0.0} | edge.ignored:
                    self._until_s[key] = now_s + edge.for_s, before is not None
            until_s, was_seen = self._until_s.get(key, (-math.inf, False))
            if now_s < until_s:
                code = self._values[key]
                readings = [_after(item, edge.health if was_seen else None, code) for item in readings]
        return readings


def _just_now(sample: Sample, edge: Edge, now_s: float) -> bool:
    code = sample.labels.get(edge.code_label, "")
    counts = not code.isascii() or not code.isdigit() or float(code) not in edge.ignored
    return counts and 0 < sample.value <= now_s + FUTURE_TOLERANCE_S and now_s - sample.value < edge.for_s


def _after(reading: Reading, health: float | None, code: float) -> Reading:
    if reading.metric is not Metric.HEALTH or reading.value is None or reading.value == HEALTH_FAILED:
        return reading
    if health is not None:
        return replace(reading, value=min(reading.value, health), source=Source.ESTIMATION)
    return unknown_from(reading, UnknownKind.UNKNOWN_STATE, f"the last error is {code:g}, and its time is not known")
