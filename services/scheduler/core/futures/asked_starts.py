"""Which waiting units are predicted though nobody asks, so that the track record of predicted starts has something to go by."""

from __future__ import annotations

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.core.waiting_unit import PendingUnit

EVERY_S = 60.0
"""At most one unit is predicted in so many seconds: a burst of equal jobs counts once and not a thousand times."""


def next_asked(cluster: Cluster, last_s: float, now_s: float) -> PendingUnit | None:
    """The unit that began to wait last, if it did since ``last_s``, which is at least `EVERY_S` ago; else None."""
    if now_s < last_s + EVERY_S:
        return None
    newest = max(cluster.pending, key=lambda unit: (unit.queued_at_s, unit.key), default=None)
    return newest if newest is not None and newest.queued_at_s > last_s else None


def follow(record: TrackRecord, cluster: Cluster, now_s: float) -> None:
    """Tell a record what became of the units that were predicted: those that hold nodes started when they were given them,
    those that neither wait nor run have left."""
    for key in sorted(record.open):
        running = cluster.running.get(key)
        if running is not None:
            record.started(key, min(running.since_s, now_s))
        elif key not in cluster.pending:
            record.left(key)
    record.advance(now_s)
