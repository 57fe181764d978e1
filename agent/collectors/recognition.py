"""Which exporters speak in a text: found from the names of its families, never from its file name or address."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.collectors.exporter_table import ExporterTable
from agent.collectors.exposition import Sample

# A prefix is believed when so many of a table's families are found with it.
LEAST_FAMILIES = 2
INSTANCE = "instance"


def recognised(samples: Sequence[Sample], tables: Iterable[ExporterTable]) -> list[ExporterTable]:
    """The tables whose exporters speak, each with the prefix that is used, in the order of ``tables``."""
    families = {sample.family for sample in samples}
    found = []
    for table in tables:
        if any(table.recognises(family) for family in families):
            found.append(table)
            continue
        prefix = used_prefix(samples, table)
        if prefix is not None:
            found.append(table.with_prefix(prefix))
    return found


def used_prefix(samples: Iterable[Sample], table: ExporterTable) -> str | None:
    """The prefix under which samples with the table's label have most of its families; None: too few."""
    if not table.prefix_label:
        return None
    endings = {family.removeprefix(table.default_prefix) for family in table.families}
    labelled = {sample.family for sample in samples if table.prefix_label in sample.labels}
    counts: dict[str, int] = {}
    for family in labelled:
        for ending in endings:
            if family.endswith(ending):
                prefix = family[: len(family) - len(ending)]
                counts[prefix] = counts.get(prefix, 0) + 1
    best = max(counts, key=lambda prefix: (counts[prefix], -len(prefix)), default=None)
    return best if best is not None and counts[best] >= LEAST_FAMILIES else None


def instances(samples: Iterable[Sample], table: ExporterTable) -> set[str]:
    """The targets that a page of several speaks of (federation, an answer of Prometheus), by the label that Prometheus gives them."""
    named = [sample for sample in samples if sample.labels.get(INSTANCE)]
    found = {sample.labels[INSTANCE] for sample in named}
    if len(found) < 2:
        return found
    return {sample.labels[INSTANCE] for sample in named if table.canonical(sample.family) in table.families}


def unread(samples: Iterable[Sample], tables: Iterable[ExporterTable]) -> list[str]:
    """Families that none of the tables reads."""
    known = list(tables)
    names = {sample.family for sample in samples}
    return sorted(name for name in names if not any(table.canonical(name) in table.families for table in known))
