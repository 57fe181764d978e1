"""What a divided accelerator computes as a whole, from what is read of its parts. Pure.

Exporters of MIG tell compute of the instances only, so a node with a divided chip had none. What the whole does is the sum over
its instances; slices without an instance do nothing. It is said only when each instance tells it, and marked as an estimation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agent.collectors.base import Reading, Source
from agent.collectors.metrics import Metric


def with_wholes(readings: Sequence[Reading]) -> list[Reading]:
    """The readings, and of each accelerator whose parts take work its effective compute, where nothing else tells it."""
    parts: dict[tuple[str, int | str], list[Reading]] = {}
    wholes: dict[tuple[str, int | str], Reading] = {}
    for reading in readings:
        if reading.metric is Metric.COMPUTE_EFFECTIVE:
            # The inventory may know the whole by its number only.
            number = reading.device if reading.accelerator_index is None else reading.accelerator_index
            if not reading.partition:
                wholes[reading.node_id, number] = reading
            elif reading.in_parts:
                parts.setdefault((reading.node_id, number), []).append(reading)
    found = list(readings)
    for place, of_place in parts.items():
        total, whole = _total(of_place), wholes.get(place)
        if total is None or (whole is not None and whole.value is not None):
            continue
        if whole is None:
            found.append(total)
        else:
            found[found.index(whole)] = replace(total, device=whole.device)
    return found


def _total(parts: Iterable[Reading]) -> Reading | None:
    known = [(part, part.value) for part in parts]
    values = [value for _, value in known if value is not None]
    if len(values) < len(known):
        return None
    oldest = min((part for part, _ in known), key=lambda part: part.observed_at)
    return replace(oldest, value=sum(values), source=Source.ESTIMATION, partition="", profile="")
