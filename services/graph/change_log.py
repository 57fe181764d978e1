"""SQL of the log of changes: what was told of the graph, by version, from which it can be had as of any moment that is kept."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.graph.v1 import graph_pb2


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """An entry of the log; the update carries its version."""

    version: int
    domain_id: str
    at: datetime
    kind: str
    update: graph_pb2.GraphUpdated


def _logged(row: Any) -> LoggedChange:
    update = graph_pb2.GraphUpdated.FromString(zlib.decompress(row.payload))
    return LoggedChange(row.version, row.domain_id, row.at, row.kind, update)


async def add_changes(connection: AsyncConnection, changes: Sequence[LoggedChange]) -> None:
    """Add to the log, in order."""
    if not changes:
        return
    sql = sa.text(
        "INSERT INTO change_log (version, domain_id, at, kind, whole, payload) "
        "VALUES (:version, :domain_id, :at, :kind, :whole, :payload)"
    )
    rows = [
        {
            "version": item.version,
            "domain_id": item.domain_id,
            "at": item.at,
            "kind": item.kind,
            "whole": item.update.full,
            "payload": zlib.compress(item.update.SerializeToString(), 1),
        }
        for item in changes
    ]
    await connection.execute(sql, rows)


async def changes_since(connection: AsyncConnection, since: int, limit: int) -> list[LoggedChange]:
    """Changes with a version greater than ``since``, in order; repeated images are not among them."""
    sql = (
        "SELECT version, domain_id, at, kind, payload FROM change_log WHERE version > :since AND kind <> 'image' "
        "ORDER BY version, seq LIMIT :limit"
    )
    return [_logged(row) for row in await connection.execute(sa.text(sql), {"since": since, "limit": limit})]


async def log_until(connection: AsyncConnection, at: datetime) -> dict[str, list[LoggedChange]]:
    """Per domain its newest logged image not later than ``at``, and the changes between the two, in order."""
    sql = """
        SELECT l.version, l.domain_id, l.at, l.kind, l.payload FROM change_log l
        JOIN LATERAL (
            SELECT max(seq) AS seq FROM change_log f WHERE f.domain_id = l.domain_id AND f.at <= :at AND f.whole
        ) image ON l.seq >= image.seq
        WHERE l.at <= :at ORDER BY l.domain_id, l.seq
    """
    found: dict[str, list[LoggedChange]] = {}
    for row in await connection.execute(sa.text(sql), {"at": at}):
        found.setdefault(row.domain_id, []).append(_logged(row))
    return found


async def log_start(connection: AsyncConnection) -> datetime | None:
    """Time of the oldest entry of the log."""
    found: datetime | None = (await connection.execute(sa.text("SELECT min(at) FROM change_log"))).scalar_one()
    return found


async def forget_log(connection: AsyncConnection, before: datetime, metrics_before: datetime) -> int:
    """Remove old entries, but keep for each domain the newest whole image before the limit; returns how many."""
    sql = """
        DELETE FROM change_log l WHERE (l.kind = 'metrics' AND l.at < :metrics_before) OR (l.at < :before AND l.seq < (
            SELECT max(seq) FROM change_log f WHERE f.domain_id = l.domain_id AND f.whole AND f.at < :before))
    """
    result = await connection.execute(sa.text(sql), {"before": before, "metrics_before": metrics_before})
    return result.rowcount
