"""One reading of each metric of each device, when several collectors speak of it."""

from __future__ import annotations

from collections.abc import Iterable

from agent.collectors.base import Reading


def merged(sources: Iterable[Iterable[Reading]]) -> list[Reading]:
    """The readings of all sources, those that come first before later ones, and what is known before what is not."""
    found: dict[tuple[str, int | None, str, str], Reading] = {}
    for readings in sources:
        for reading in readings:
            key = reading.node_id, reading.accelerator_index, reading.partition, reading.metric
            earlier = found.get(key)
            if earlier is None or (earlier.value is None and reading.value is not None):
                found[key] = reading
    return list(found.values())
