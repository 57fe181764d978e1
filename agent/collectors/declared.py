"""Accelerators that are only declared: a test network says what it would have, and every reading says so too.

Nothing is measured on a chip that is not there. What the agent itself allocates is real, and from it the load is
estimated: an accelerator that a run holds counts as busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from agent.collectors.base import Collector, Reading, Source
from agent.collectors.metrics import HEALTH_OK, Metric
from agent.collectors.unknown import UnknownKind
from agent.parts import Divided, Part

NODE_DOWN = "the node is down"
NO_PARTS = "the device is partitioned, and none of its parts is known to take work"


@dataclass(frozen=True, slots=True)
class DeclaredAccelerator:
    """One accelerator of the declaration; zero means not declared."""

    node_id: str
    index: int
    vendor: str
    model: str
    memory_bytes: int = 0
    peak_flops: float = 0.0
    idle_watts: float = 0.0
    peak_watts: float = 0.0
    sleep_watts: float = 0.0


Allocation = Callable[[], Mapping[str, Set[int]]]
"""Accelerators in use by node; a node that is down is not in it."""


class DeclaredCollector(Collector):
    """Readings of declared accelerators, all marked as emulated."""

    def __init__(
        self,
        accelerators: tuple[DeclaredAccelerator, ...],
        allocation: Allocation,
        asleep: Callable[[], Set[str]] = frozenset,
    ) -> None:
        """``asleep`` names the nodes that sleep: their accelerators draw what they draw asleep."""
        self._accelerators = accelerators
        self._allocation = allocation
        self._asleep = asleep

    def collect(self, now: datetime) -> list[Reading]:
        in_use = self._allocation()
        return [reading for item in self._accelerators for reading in self._read(item, in_use.get(item.node_id), now)]

    def _read(self, item: DeclaredAccelerator, in_use: Set[int] | None, now: datetime) -> list[Reading]:
        up = in_use is not None
        busy = 1.0 if in_use is not None and item.index in in_use else 0.0

        def reading(metric: Metric, value: float, source: Source, *, needs_node: bool = True) -> Reading:
            known = up or not needs_node
            return Reading(
                item.node_id,
                metric,
                value if known else None,
                source,
                now,
                accelerator_index=item.index,
                reason="" if known else NODE_DOWN,
                kind=None if known else UnknownKind.UNAVAILABLE,
                emulated=True,
            )

        readings = [
            reading(Metric.CAPACITY_FREE, 1.0 - busy, Source.DIRECTLY_MEASURED),
            reading(Metric.GPU_UTILIZATION, busy, Source.ESTIMATION),
            reading(Metric.HEALTH, HEALTH_OK, Source.NOMINAL),
        ]
        if item.memory_bytes:
            readings.append(reading(Metric.GPU_MEMORY_LIMIT, item.memory_bytes, Source.NOMINAL, needs_node=False))
        if item.peak_flops:
            readings.append(reading(Metric.COMPUTE_EFFECTIVE, item.peak_flops * busy, Source.ESTIMATION))
        if item.peak_watts:
            watts = item.idle_watts + (item.peak_watts - item.idle_watts) * busy
            if item.node_id in self._asleep():
                watts = item.sleep_watts
            readings.append(reading(Metric.POWER, watts, Source.ESTIMATION))
        return readings


class AllocationCollector(Collector):
    """What the agent itself has not given away of its accelerators: the only free capacity that it knows, declared or not.

    Of an accelerator that is ``divided`` each part that takes work is free or not, and of the whole the share is free that the
    free parts have of the memory of all (of their number, where memory is not told of all).
    """

    def __init__(
        self, accelerators: Mapping[str, int], allocation: Allocation, divided: Callable[[], Divided] = dict
    ) -> None:
        self._accelerators = dict(accelerators)
        self._allocation = allocation
        self._divided = divided

    def collect(self, now: datetime) -> list[Reading]:
        in_use, divided = self._allocation(), self._divided()
        return [
            reading
            for node_id, count in self._accelerators.items()
            for index in range(count)
            for reading in self._of(node_id, index, in_use.get(node_id), divided.get((node_id, index)), now)
        ]

    def _of(
        self, node_id: str, index: int, held: Set[int] | None, parts: tuple[Part, ...] | None, now: datetime
    ) -> Iterator[Reading]:
        def reading(value: float | None, reason: str, kind: UnknownKind, part: Part | None = None) -> Reading:
            return Reading(
                node_id,
                Metric.CAPACITY_FREE,
                value,
                Source.DIRECTLY_MEASURED,
                now,
                accelerator_index=index,
                reason="" if value is not None else reason,
                kind=None if value is not None else kind,
                partition=part.id if part is not None else "",
                profile=part.profile if part is not None else "",
            )

        if held is None:
            yield reading(None, NODE_DOWN, UnknownKind.UNAVAILABLE)
            return
        if parts is None:
            yield reading(float(index not in held), "", UnknownKind.NOT_EXPORTED)
            return
        work = [part for part in parts if part.index]
        weights = [part.memory_bytes for part in work] if all(part.memory_bytes for part in work) else [1] * len(work)
        free = sum(weight for part, weight in zip(work, weights, strict=True) if part.index not in held)
        yield reading(free / sum(weights) if work else None, NO_PARTS, UnknownKind.PARTITIONED)
        for part in work:
            yield reading(float(part.index not in held), "", UnknownKind.NOT_EXPORTED, part)
