"""What others hold in domains, as far as a shard is told: laid over a copy of its cluster for questions that look at nodes.

A domain tells how many devices are free on how many of its nodes, not on which. Steps per domain and device model:
1. The nodes are put in the order of what the shard itself leaves free on them, the told counts in theirs, the greatest first.
2. On each node, what is free beyond the told count is held by others. So the numbers of nodes with so many free devices are
   right whatever the others are, if both are of the same time; where the shard knows of less room, that stands.
3. What is told of CPUs and memory is taken off the nodes in the proportion of what is free there.
Nobody tells a shard when others end: what they hold, they hold for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, PlacedRank, UnitKey
from services.scheduler.core.table import Floats
from services.scheduler.core.two_level import DomainSummary
from services.scheduler.core.waiting_unit import PendingUnit

OTHERS = "(others)"
"""The job and the tenant of what others hold; no tenant can be named so."""


def lay_over(cluster: Cluster, told: Mapping[str, DomainSummary], now_s: float) -> None:
    """Let others hold on the cluster what its own units leave free and its domains do not tell to be. Domains that have told
    nothing stay as they are."""
    for place, name in enumerate(cluster.table.domain_ids):
        summary = told.get(name)
        if summary is not None:
            _lay_over_domain(cluster, cluster.table.domain_slice[place], summary, now_s)


def _lay_over_domain(cluster: Cluster, part: slice, summary: DomainSummary, now_s: float) -> None:
    view, table = cluster.view, cluster.table
    rows = [row for row in range(part.start, part.stop) if view.up[row]]
    devices: dict[int, list[int]] = {row: [] for row in rows}
    for column, model in enumerate(table.models):
        counts = summary.blocks.get(model)
        if counts is None:
            continue
        free = {row: int(view.free_devices[row, column]) for row in rows}
        ordered = sorted((row for row in rows if table.devices[row, column]), key=lambda row: (-free[row], row))
        told = [size for size in range(len(counts) - 1, -1, -1) for _ in range(counts[size])]
        for number, row in enumerate(ordered):
            left = told[number] if number < len(told) else 0
            taken = free[row] - min(left, free[row])
            devices[row] += _free_devices(cluster, row, column)[:taken]
    cpus = _beyond(view.free_cpus[rows], summary.free_cpus)
    memory = _beyond(view.free_memory_bytes[rows].astype(np.float64), float(summary.free_memory_bytes))
    for number, row in enumerate(rows):
        demand = Demand(1, float(cpus[number]), int(memory[number]), len(devices[row]))
        if demand.cpus > 0 or demand.memory_bytes > 0 or devices[row]:
            node_id = table.nodes[row].node_id
            unit = PendingUnit(UnitKey(OTHERS, row), OTHERS, 0, now_s, demand, preemptible=False)
            rank = PlacedRank(0, summary.domain_id, node_id, 0, tuple(devices[row]))
            cluster.occupy(RunningUnit(unit, (rank,), now_s))


def _free_devices(cluster: Cluster, row: int, column: int) -> list[int]:
    view = cluster.view
    return [
        index
        for place, (index, model) in enumerate(cluster.table.devices_of[row])
        if model == column and view.device_milli[row, place] == 1000
    ]


def _beyond(free: Floats, told: float) -> Floats:
    """What is free beyond what was told, on each node in proportion to what is free there."""
    whole = float(free.sum())
    part: Floats = free * (max(whole - told, 0.0) / whole) if whole > 0 else np.zeros(len(free))
    return part
