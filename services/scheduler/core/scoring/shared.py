"""What is free, in the form of fragmentation.py: nodes with shares of devices, counted in milli.

Two simplifications, as its rules know no other nodes: a node with devices of several models counts as one of its first
device's model, and a demand for a share of each of several devices as one for whole devices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from services.scheduler.core.fragmentation import ABSENT, WHOLE, Greatest, ShareDemand, SharedNodes
from services.scheduler.core.state import Demand
from services.scheduler.core.table import DeviceModel, Ints, Table
from services.scheduler.core.view import View


def kind_label(demand: Demand) -> str:
    """The label by which units tell their `ShareDemand.kind`: ``devices:0`` for a share, ``devices:4`` for four devices.

    Empty without devices. `View.labels` counts labels per node, so units that bear it can be clustered by kind.
    """
    if not demand.accelerators:
        return ""
    return f"devices:{0 if demand.accelerators == 1 and demand.device_milli < WHOLE else demand.accelerators}"


def share_demand(table: Table, demand: Demand) -> ShareDemand:
    """One rank of ``demand``; accepted models are columns of ``table``."""
    return _share_demand(table.models, demand)


@lru_cache(maxsize=16384)
def _share_demand(models: tuple[DeviceModel, ...], demand: Demand) -> ShareDemand:
    # Kept by models, not by table: a table is large, and the fleet gets a new one with each change.
    shared = demand.accelerators == 1 and demand.device_milli < WHOLE
    parted = any(model.is_part for model in models)
    narrow = bool(demand.accelerators and (demand.accelerator_types or demand.real_accelerators or parted))
    accepted = [
        column
        for column, model in enumerate(models)
        if model.suits(demand) and not (demand.real_accelerators and model.emulated)
    ]
    return ShareDemand(
        cpu_milli=round(demand.cpus * 1000),
        memory_bytes=demand.memory_bytes,
        devices=demand.accelerators,
        device_milli=(demand.device_milli if shared else WHOLE) if demand.accelerators else 0,
        # A model that does not exist: no accepted one is not any.
        models=tuple(accepted or (len(models),)) if narrow else (),
    )


def indices(view: View, rows: Any) -> Ints:
    """``rows``, an index array or slice, as indices."""
    return rows if isinstance(rows, np.ndarray) else np.arange(len(view.table.nodes))[rows]


def shared_nodes(view: View, rows: Any, *, hosted: bool = False) -> SharedNodes:
    """The nodes of ``rows`` (an index array or slice) as they are now, as copies.

    With ``hosted`` the kinds of demands that they hold are counted by `kind_label`; otherwise the counts are 0.
    """
    columns, milli = view.table.device_columns[rows], view.device_milli[rows]
    if not columns.shape[1]:
        # A fleet without devices: the rules look for the fullest one of each node.
        columns = milli = np.full((len(columns), 1), ABSENT)
    count, width = columns.shape
    kinds = np.zeros((count, width + 1), dtype=np.int64)
    if hosted:
        _count_kinds(view, kinds, indices(view, rows))
    return SharedNodes(
        cpu_free_milli=np.rint(view.free_cpus[rows] * 1000).astype(np.int64),
        memory_free_bytes=view.free_memory_bytes[rows],
        device_free_milli=np.where(columns >= 0, milli, ABSENT),
        device_model=columns[:, 0],
        hosted=kinds,
    )


def _count_kinds(view: View, kinds: Ints, rows: Ints) -> None:
    for kind in range(kinds.shape[1]):
        holders = view.labels.get(f"devices:{kind}")
        if holders:
            kinds[:, kind] = [holders.get(row, 0) for row in rows.tolist()]


@lru_cache(maxsize=2)
def greatest_of(table: Table) -> Greatest:
    """The most processors and the most devices of any node of the fleet, at least 1 each."""
    cpu_milli = round(float(table.cpus.max(initial=0.0)) * 1000)
    return Greatest(max(cpu_milli, 1), max(int(table.device_totals.max(initial=0)), 1) * WHOLE)
