"""Rows of ``sinfo --json`` since Slurm 23.02 as the nodes that older ones list. Pure.

A row stands for the nodes of a partition that are alike: their names, one state, sums of processors, least and greatest memory,
and the GRES of one of them (data_parser, SINFO_DATA). With ``sinfo -N`` each node has a row, one for each of its partitions.
What a row says of several nodes together is not parted among them: the field is then an `UnknownError` that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.collectors.unknown import UnknownError, UnknownKind


def nodes_of_rows(rows: Iterable[object]) -> Iterator[Mapping[str, Any] | None]:
    """A document of each node as ``scontrol show nodes --json`` would have it, in the order of the rows; None for a row without names.

    Of several rows of a node the one with the fewest nodes is taken, and of these the first.
    """
    found: dict[str, tuple[int, Mapping[str, Any]]] = {}
    nameless = 0
    for row in rows:
        names = _names(row)
        if not isinstance(row, Mapping) or not names:
            nameless += 1
            continue
        fields = _fields(row, len(names))
        for name in names:
            if name not in found or len(names) < found[name][0]:
                found[name] = len(names), {"name": name, **fields}
    yield from (None for _ in range(nameless))
    yield from (document for _, document in found.values())


def _names(row: object) -> list[str]:
    names = _map(_map(row).get("nodes")).get("nodes")
    if not isinstance(names, list) or not all(isinstance(name, str) and name and "[" not in name for name in names):
        return []
    return list(dict.fromkeys(names))


def _fields(row: Mapping[str, Any], count: int) -> dict[str, Any]:
    cpus, memory, gres = (_map(row.get(name)) for name in ("cpus", "memory", "gres"))
    free = _map(memory.get("free"))
    fields = {
        "state": _map(row.get("node")).get("state"),
        "gres": gres.get("total"),
        "gres_used": gres.get("used"),
        "cpus": cpus.get("total"),
        "alloc_cpus": cpus.get("allocated"),
        "real_memory": _same(memory.get("minimum"), memory.get("maximum"), count),
        "free_mem": _same(free.get("minimum"), free.get("maximum"), count),
    }
    if count > 1:
        fields["cpus"] = _same(cpus.get("minimum"), cpus.get("maximum"), count)
        if cpus.get("allocated") == 0:
            # Whoever has an accelerator has a processor.
            fields["gres_used"] = "gpu:0"
        else:
            fields["gres_used"] = fields["alloc_cpus"] = _together(count)
    return fields


def _same(least: object, most: object, count: int) -> object:
    return least if least == most else _together(count)


def _together(count: int) -> UnknownError:
    return UnknownError(UnknownKind.NO_REFERENCE, f"told of {count} nodes together; sinfo -N tells of each")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
