"""What is known of a divided accelerator as a whole, from what is told of its parts. Pure.

An exporter may have lines of the parts only (dcgm-exporter where MIG is on): power, temperature and errors of the chip then stand
at each of them, and a chip of which there is a part has not vanished. Compute is told of the parts alone: what the whole does is
the sum over them, slices without an instance do nothing. It is said only when each part tells it, and marked as an estimation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from agent.collectors.base import Reading, Source
from agent.collectors.device import Device
from agent.collectors.exporter_table import ExporterTable, PartitionKind
from agent.collectors.exposition import Sample
from agent.collectors.metrics import Metric

Grouped = dict[Device, dict[str, list[Sample]]]


def add_wholes(grouped: Grouped, table: ExporterTable, known: Collection[Device]) -> None:
    """Give the devices of which ``grouped`` has parts the families that stand at the parts and are of the whole.

    A whole gets none of a family that it has lines of. One without any family is added only where it is ``known``.
    """
    if table.partitioning is None or table.partitioning.kind is not PartitionKind.INSTANCES:
        return
    families = _of_wholes(table)
    by_place: dict[tuple[str, int | str], list[Device]] = {}
    for device in grouped:
        if device.partition:
            by_place.setdefault(_place(device), []).append(device)
    wholes = {_place(device): device for device in (*known, *grouped) if not device.partition}
    for place, parts in by_place.items():
        names = {part.name for part in parts}
        # Parts may have names of their own; their number is that of the whole.
        alone = replace(parts[0], partition="", profile="", name=names.pop() if len(names) == 1 else "")
        whole = wholes.get(place, alone)
        own = grouped.get(whole, {})
        added: dict[str, list[Sample]] = {}
        for part in parts:
            for family, samples in grouped[part].items():
                if family in families and family not in own:
                    added.setdefault(family, []).extend(samples)
        if own or added or whole in known:
            grouped[whole] = {**own, **added}


def _place(device: Device) -> tuple[str, int | str]:
    return device.node, device.name if device.index is None else device.index


def _of_wholes(table: ExporterTable) -> frozenset[str]:
    """Families of the metrics that parts do not have, and of the events of a chip."""
    parts = table.partitioning
    of_metrics = {
        term.family
        for metric, alternatives in table.metrics.items()
        if parts is not None and metric in parts.whole
        for alternative in alternatives
        for term in alternative.terms
    }
    return frozenset(of_metrics | {edge.family for edge in table.edges})


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
