"""Which partitions of the domains a cycle of EASY need look at, where units may use only some domains each.

A unit in one partition takes nothing from another, and no reservation for it is in the way of another's. So where no node was
touched, nobody came and no run outlived its estimate, each unit waits as it did: the reservation of the first is where it was,
and what could not pass it then ends even later now.
"""

from __future__ import annotations

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.pending import Lane
from services.scheduler.core.running_unit import SLACK_S


def changed_partitions(cluster: Cluster, estimate: str, now_s: float) -> list[Lane] | None:
    """The waiting lanes of the partitions in which something changed since the last cycle; None when all must be looked at:
    partitions overlap, there is but one, or it is not known what changed. ``estimate`` is what reservations rest on."""
    memory, table = cluster.memory, cluster.table
    rows = cluster.view.touched_since(memory.since) if memory is not None else None
    if memory is None or rows is None:
        return None
    lanes = list(cluster.pending.lanes.values())
    partitions = {lane.demand.domains for lane in lanes}
    if len(partitions) < 2 or not all(partitions):
        return None
    if len(frozenset().union(*partitions)) < sum(len(partition) for partition in partitions):
        return None
    soon_s = now_s + SLACK_S
    # What is estimated is one of two ends, but for the upper end of the band.
    banded = estimate == "high"
    for running in cluster.running.values():
        if not (banded or running.expected_end_s <= soon_s or running.limit_end_s <= soon_s):
            continue
        if running.said_end_s(estimate) <= soon_s and running.end_s(memory.at_s, estimate) <= soon_s:
            rows.update([row for row, _ in running.rows])
    domains = {table.domain_ids[table.node_domain.item(row)] for row in rows}
    changed = {partition for partition in partitions if not partition.isdisjoint(domains)}
    changed.update([lane.demand.domains for lane in lanes if lane.fresh])
    return [lane for lane in lanes if lane.demand.domains in changed]
