"""The parts that accelerators are divided into, as their exporters tell: what is known stays until they tell otherwise.

An agent that starts anew knows them before its first scrape from what it wrote down: an accelerator that is divided must not be
given away as a whole meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent.collectors.base import Reading
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind
from agent.kept_file import keep
from meridian.hardware.parts import part_index

_SILENT = frozenset({UnknownKind.UNAVAILABLE, UnknownKind.LIMIT_EXCEEDED, UnknownKind.VANISHED})
# What only an exporter of the device tells; nominal figures and allocations come from elsewhere too.
_MEASURED = frozenset(
    {Metric.GPU_UTILIZATION, Metric.GPU_MEMORY_USAGE, Metric.POWER, Metric.ENERGY, Metric.TEMPERATURE}
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part. ``index`` is the number by which orders name it; 0: no program can be limited to it, so it takes no work.

    ``name`` is what a program's variable of visible devices takes for it. ``memory_bytes`` 0: not told.
    """

    id: str
    profile: str = ""
    index: int = 0
    memory_bytes: int = 0
    name: str = ""


Divided = Mapping[tuple[str, int], tuple[Part, ...]]
"""Accelerators (node, index) that are divided, with their parts as far as known; one that is whole is not in it."""


def observed(before: Divided, readings: Iterable[Reading]) -> dict[tuple[str, int], tuple[Part, ...]]:
    """What is known after ``readings``, the newest of all exporters. Pure.

    An accelerator of which an exporter speaks is divided when one says so, else whole; one of which none speaks stays as it was.
    """
    parts: dict[tuple[str, int], dict[str, Part]] = {}
    spoken: set[tuple[str, int]] = set()
    memory: dict[tuple[str, int, str], int] = {}
    for reading in readings:
        if reading.accelerator_index is None:
            continue
        key = reading.node_id, reading.accelerator_index
        if reading.in_parts:
            found = parts.setdefault(key, {})
            if reading.partition and reading.partition not in found:
                found[reading.partition] = _part(reading)
            if reading.partition and reading.metric is Metric.GPU_MEMORY_LIMIT and reading.value is not None:
                memory[*key, reading.partition] = int(reading.value)
        elif reading.metric in _MEASURED and reading.kind not in _SILENT:
            spoken.add(key)
    known = {(*key, part.id): part.memory_bytes for key, found in before.items() for part in found}
    after = {key: found for key, found in before.items() if key not in spoken and key not in parts}
    for key, by_id in parts.items():
        after[key] = tuple(
            Part(
                part.id, part.profile, part.index, memory.get((*key, part.id), known.get((*key, part.id), 0)), part.name
            )
            for part in sorted(by_id.values(), key=lambda part: (len(part.id), part.id))
        )
    return after


def _part(reading: Reading) -> Part:
    name = visible_name(reading.device, reading.partition)
    index = part_index(reading.accelerator_index or 0, reading.partition) if name else 0
    return Part(reading.partition, reading.profile, index, name=name)


def visible_name(device: str, part_id: str) -> str:
    """How CUDA_VISIBLE_DEVICES names a MIG device: ``MIG-<GPU UUID>/<GPU instance>/<compute instance>`` (NVIDIA, "CUDA
    Programming Guide", environment variables). Instances have one compute instance unless somebody divides them again; empty: none."""
    return f"MIG-{device}/{part_id}/0" if device.startswith("GPU-") and part_id.isdigit() else ""


class PartBook:
    """What is known now, kept in a file. ``whole``: how many accelerators each node has; a number that is one of theirs is no
    part's."""

    def __init__(self, path: Path, whole: Mapping[str, int] | None = None) -> None:
        self._path, self._whole = path, dict(whole or {})
        self.divided: Divided = self._numbered(_read(path))

    def observe(self, readings: Iterable[Reading]) -> bool:
        """Take the newest readings of all exporters; whether anything changed."""
        after = self._numbered(observed(self.divided, readings))
        if after == self.divided:
            return False
        self.divided = after
        content = [
            {"node_id": node_id, "index": index, "parts": [asdict(part) for part in parts]}
            for (node_id, index), parts in sorted(after.items())
        ]
        keep(self._path, content)
        return True

    def _numbered(self, divided: Divided) -> Divided:
        return {
            (node_id, index): tuple(
                replace(part, index=0) if part.index < self._whole.get(node_id, 0) else part for part in parts
            )
            for (node_id, index), parts in divided.items()
        }

    def by_node(self) -> dict[str, dict[int, Part]]:
        """Parts that take work, by node and number."""
        found: dict[str, dict[int, Part]] = {}
        for (node_id, _), parts in self.divided.items():
            found.setdefault(node_id, {}).update({part.index: part for part in parts if part.index})
        return found


def _read(path: Path) -> Divided:
    try:
        content = json.loads(path.read_text())
        return {
            (str(item["node_id"]), int(item["index"])): tuple(_kept(**part) for part in item["parts"])
            for item in content
        }
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}


def _kept(*, id: str, profile: str, index: int, memory_bytes: int, name: str) -> Part:  # noqa: A002 - as it is written
    return Part(str(id), str(profile), int(index), int(memory_bytes), str(name))
