"""What a domain tells about itself: totals, free blocks, and the ranks that fit per class (tally.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.state import Demand
from services.scheduler.core.two_level.messages import DomainSummary
from services.scheduler.core.two_level.tally import Tally

MOST_BLOCK = 256
"""Accelerators on a node at most, for the free blocks."""


def summarise(
    cluster: Cluster,
    classes: Sequence[Demand],
    *,
    sequence: int = 0,
    own_scheduler: bool = False,
    tally: Tally | None = None,
) -> DomainSummary:
    """The summary of a cluster that is one domain; ``tally`` is kept from one to the next. PolicyError when the cluster has
    no domain or several."""
    view, table = cluster.view, cluster.table
    if len(table.domain_ids) != 1:
        raise PolicyError(f"a domain's own cluster is wanted, not one of {len(table.domain_ids)} domains")
    tally = tally or Tally()
    ranks = tally.ranks(cluster, classes)
    up = view.up
    blocks, totals = {}, {}
    for column, model in enumerate(table.models):
        sizes = np.minimum(view.free_devices[up, column], MOST_BLOCK)
        blocks[model] = tuple(np.bincount(sizes, minlength=1).tolist())
        totals[model] = int(table.devices[up, column].sum())
    return DomainSummary(
        table.domain_ids[0],
        sequence,
        ranks,
        blocks,
        totals,
        float(view.domain_free_cpus[0]),
        float(table.cpus[up].sum()),
        int(view.free_memory_bytes[up].sum()),
        int(view.free_devices[up].max(initial=0)),
        len(cluster.running),
        own_scheduler=own_scheduler,
    )
