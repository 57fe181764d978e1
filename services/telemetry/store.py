"""All SQL of telemetry. One statement for many rows: values travel as arrays, the series of a node as one row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.telemetry.issues import Issue
from services.telemetry.reading_check import PART_MARK, HistoryRow, SeriesOfNode
from services.telemetry.series_row import packed, unpacked

_TEXTS = postgresql.ARRAY(sa.Text)
_INTEGERS = postgresql.ARRAY(sa.Integer)
_BIGINTS = postgresql.ARRAY(sa.BigInteger)
_DOUBLES = postgresql.ARRAY(sa.Double)
_BYTES = postgresql.ARRAY(sa.LargeBinary)
_MAX_KEY_CHARACTERS = 200
_BEFORE = "CAST(NULLIF(series, '{}') AS text) AS before"
_SHOWN = ("value", "source", "statistic", "reason", "part_profile", "part_memory_bytes")


def _statement(sql: str, **arrays: sa.types.TypeEngine[Any]) -> sa.TextClause:
    return sa.text(sql).bindparams(*(sa.bindparam(name, type_=kind) for name, kind in arrays.items()))


def _storable(text: str) -> str:
    """PostgreSQL stores no NUL."""
    return text.replace("\x00", "\ufffd")


def _key(text: str) -> str:
    """What a report names may be longer than an index takes."""
    return _storable(text[:_MAX_KEY_CHARACTERS])


async def lock_domains(connection: AsyncConnection, domain_ids: Sequence[str]) -> None:
    """One writer per domain until the transaction ends (partitions move between processes)."""
    statement = _statement(
        "SELECT pg_advisory_xact_lock(hashtext('meridian.telemetry.' || id)) FROM unnest(:ids) AS id ORDER BY id",
        ids=_TEXTS,
    )
    await connection.execute(statement, {"ids": sorted(set(domain_ids))})


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is stored beside the series.

    ``versions``: how often the series of each domain were stored (one that is not there never was). ``incarnations``: the newest
    by domain and agent. ``owners``: which domain lists a node, and since when that is stored, seconds since 1970.
    """

    versions: dict[str, int]
    incarnations: dict[tuple[str, str], int]
    owners: dict[str, tuple[str, float]]


_REMEMBERED = _statement(
    """
    SELECT 0 AS kind, domain_id AS a, '' AS b, version AS n, CAST(0 AS double precision) AS t
        FROM domain_versions WHERE domain_id = ANY(:domain_ids)
    UNION ALL SELECT 1, domain_id, agent_id, incarnation, 0 FROM agents WHERE domain_id = ANY(:domain_ids)
    UNION ALL SELECT 2, node_id, domain_id, 0, CAST(extract(epoch FROM listed_at) AS double precision)
        FROM listed_nodes WHERE node_id = ANY(:node_ids) AND listed_at >= :since
    """,
    domain_ids=_TEXTS, node_ids=_TEXTS,
)  # fmt: skip


async def remembered(
    connection: AsyncConnection, domain_ids: Sequence[str], node_ids: Sequence[str], since: datetime
) -> Remembered:
    """What is stored of these domains and nodes; of nodes as of reports since ``since``."""
    found = Remembered({}, {}, {})
    parameters = {"domain_ids": list(domain_ids), "node_ids": list(node_ids), "since": since}
    for kind, a, b, number, at_s in await connection.execute(_REMEMBERED, parameters):
        if kind == 0:
            found.versions[a] = number
        elif kind == 1:
            found.incarnations[a, b] = number
        else:
            found.owners[a] = b, at_s
    return found


async def newest_of_domains(
    connection: AsyncConnection, domain_ids: Sequence[str]
) -> dict[str, dict[str, SeriesOfNode]]:
    """The series of each domain, by node."""
    statement = _statement(
        f"SELECT domain_id, node_id, names, numbers, {_BEFORE} FROM newest WHERE domain_id = ANY(:domain_ids)",  # noqa: S608 - all of it stands here
        domain_ids=_TEXTS,
    )
    found: dict[str, dict[str, SeriesOfNode]] = {domain_id: {} for domain_id in domain_ids}
    for row in await connection.execute(statement, {"domain_ids": list(domain_ids)}):
        found[row.domain_id][row.node_id] = unpacked(row.names, row.numbers, row.before)
    return found


# One statement, because each waits for the database and its answer.
_SAVE = _statement(
    """
    WITH reporting AS (
        INSERT INTO agents (domain_id, agent_id, incarnation, reported_at)
        SELECT d, a, i, :now FROM unnest(:agent_domains, :agent_ids, :incarnations) AS x (d, a, i)
        ON CONFLICT (domain_id, agent_id) DO UPDATE SET incarnation = greatest(agents.incarnation, excluded.incarnation),
            reported_at = excluded.reported_at
    ), listing AS (
        INSERT INTO listed_nodes (node_id, domain_id, listed_at)
        SELECT n, d, :now FROM unnest(:listed, :listed_by) AS x (n, d) ORDER BY n
        ON CONFLICT (node_id) DO UPDATE SET domain_id = excluded.domain_id, listed_at = excluded.listed_at
    ), reading AS (
        INSERT INTO newest (domain_id, node_id, names, numbers, observed_at)
        SELECT d, n, s, v, to_timestamp(t) FROM unnest(:domain_ids, :node_ids, :names, :numbers, :times) AS x (d, n, s, v, t)
        ON CONFLICT (domain_id, node_id) DO UPDATE SET names = excluded.names, numbers = excluded.numbers,
            series = excluded.series, observed_at = excluded.observed_at
    )
    INSERT INTO domain_versions (domain_id, version) SELECT d, v FROM unnest(:stored, :versions) AS x (d, v)
    ON CONFLICT (domain_id) DO UPDATE SET version = excluded.version
    """,
    agent_domains=_TEXTS, agent_ids=_TEXTS, incarnations=_BIGINTS, listed=_TEXTS, listed_by=_TEXTS, domain_ids=_TEXTS,
    node_ids=_TEXTS, names=_TEXTS, numbers=_BYTES, times=_DOUBLES, stored=_TEXTS, versions=_BIGINTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch of reports changes.

    ``incarnations`` by domain and agent; ``listed``: node -> domain; ``series`` of the nodes that changed, by domain and node;
    ``versions`` of the domains whose series these are.
    """

    incarnations: Mapping[tuple[str, str], int]
    listed: Mapping[str, str]
    series: Mapping[str, Mapping[str, SeriesOfNode]]
    versions: Mapping[str, int]


async def save(connection: AsyncConnection, batch: Batch, now: datetime, since_s: float) -> None:
    """Store a batch; series that were not read since ``since_s`` are left out."""
    rows: list[tuple[str, str, str, bytes, float]] = []
    for domain_id, nodes in batch.series.items():
        for node_id, series in nodes.items():
            observed = [item.observed_at_s for item in series.values()]
            kept = series
            if min(observed) < since_s:
                kept = {key: item for key, item in series.items() if item.observed_at_s >= since_s}
            if kept:
                rows.append((domain_id, node_id, *packed(kept), max(observed)))
    parameters = {
        "now": now,
        "agent_domains": [domain_id for domain_id, _ in batch.incarnations],
        "agent_ids": [agent_id for _, agent_id in batch.incarnations],
        "incarnations": list(batch.incarnations.values()),
        "listed": list(batch.listed),
        "listed_by": list(batch.listed.values()),
        "domain_ids": [row[0] for row in rows],
        "node_ids": [row[1] for row in rows],
        "names": [row[2] for row in rows],
        "numbers": [row[3] for row in rows],
        "times": [row[4] for row in rows],
        "stored": list(batch.versions),
        "versions": list(batch.versions.values()),
    }
    await connection.execute(_SAVE, parameters)


async def add_history(connection: AsyncConnection, reports: Sequence[tuple[str, Sequence[HistoryRow]]]) -> None:
    """Add the values of reports ``(domain id, values)`` to the history: one row a node and report."""
    found: dict[tuple[str, str, float], dict[str, dict[int, list[float]]]] = {}
    for domain_id, rows in reports:
        nodes: dict[str, list[HistoryRow]] = {}
        for row in rows:
            nodes.setdefault(row.node_id, []).append(row)
        for node_id, of_node in nodes.items():
            readings = found.setdefault((domain_id, node_id, max(row.observed_at_s for row in of_node)), {})
            for _, index, metric, observed_at_s, value in of_node:
                readings.setdefault(metric, {})[index] = [value, observed_at_s]
    if not found:
        return
    statement = _statement(
        "INSERT INTO history (domain_id, node_id, observed_at, readings) "
        "SELECT d, n, to_timestamp(t), CAST(r AS jsonb) FROM unnest(:domain_ids, :node_ids, :times, :readings) AS x (d, n, t, r) "
        "ON CONFLICT (domain_id, node_id, observed_at) DO UPDATE SET readings = history.readings || excluded.readings",
        domain_ids=_TEXTS, node_ids=_TEXTS, times=_DOUBLES, readings=_TEXTS,
    )  # fmt: skip
    parameters = {
        "domain_ids": [domain_id for domain_id, _, _ in found],
        "node_ids": [node_id for _, node_id, _ in found],
        "times": [at_s for _, _, at_s in found],
        "readings": [json.dumps(readings) for readings in found.values()],
    }
    await connection.execute(statement, parameters)


async def add_issues(connection: AsyncConnection, issues: Sequence[tuple[str, Issue]], now: datetime) -> None:
    """Count issues ``(domain id, issue)``; each kind of each series has one row with its newest detail."""
    if not issues:
        return
    counted: dict[tuple[str, str, int, str, int], tuple[str, int]] = {}
    for domain_id, issue in issues:
        key = (
            domain_id,
            _key(issue.node_id),
            issue.accelerator_index,
            _key(issue.metric),
            issue.kind.value,
        )
        counted[key] = (_storable(issue.detail), counted.get(key, ("", 0))[1] + 1)
    statement = _statement(
        "INSERT INTO quality (domain_id, node_id, accelerator_index, metric, kind, detail, first_at, last_at, occurrences) "
        "SELECT d, n, a, m, k, t, :now, :now, c "
        "FROM unnest(:domain_ids, :node_ids, :indices, :metrics, :kinds, :details, :counts) AS x (d, n, a, m, k, t, c) "
        "ON CONFLICT (domain_id, node_id, accelerator_index, metric, kind) DO UPDATE SET detail = excluded.detail, "
        "last_at = excluded.last_at, occurrences = quality.occurrences + excluded.occurrences",
        domain_ids=_TEXTS, node_ids=_TEXTS, indices=_INTEGERS, metrics=_TEXTS, kinds=_INTEGERS, details=_TEXTS,
        counts=_BIGINTS,
    )  # fmt: skip
    columns = list(zip(*counted, strict=True))
    names = ("domain_ids", "node_ids", "indices", "metrics", "kinds")
    parameters = dict(zip(names, map(list, columns), strict=True)) | {
        "now": now,
        "details": [detail for detail, _ in counted.values()],
        "counts": [count for _, count in counted.values()],
    }
    await connection.execute(statement, parameters)


# -- retention and reading -------------------------------------------------------------------------------------------


async def forget(
    connection: AsyncConnection, *, history_before: datetime, quality_before: datetime, series_before: datetime
) -> int:
    """Remove what is older than its retention; returns the number of rows."""
    removed = 0
    for sql, limit in (
        ("DELETE FROM history WHERE observed_at < :limit", history_before),
        ("DELETE FROM quality WHERE last_at < :limit", quality_before),
        ("DELETE FROM newest WHERE observed_at < :limit", series_before),
        ("DELETE FROM listed_nodes WHERE listed_at < :limit", series_before),
        ("DELETE FROM resource_amounts WHERE observed_at < :limit", series_before),
        ("DELETE FROM agents WHERE reported_at < :limit", quality_before),
    ):
        removed += (await connection.execute(sa.text(sql), {"limit": limit})).rowcount
    return removed


async def last_reports(connection: AsyncConnection) -> list[tuple[str, datetime]]:
    """When each domain reported last."""
    rows = await connection.execute(sa.text("SELECT domain_id, max(reported_at) FROM agents GROUP BY domain_id"))
    return [(row[0], row[1]) for row in rows]


async def read_newest(
    connection: AsyncConnection, *, node_id: str | None, domain_id: str | None, metric: str | None, limit: int
) -> list[dict[str, Any]]:
    """Newest values by place and metric; a ``metric`` with those of parts."""
    # Each row that is read has one of the series that are asked for at least.
    sql = f"""
        SELECT domain_id, node_id, names, numbers, {_BEFORE} FROM newest
        WHERE (CAST(:node_id AS text) IS NULL OR node_id = :node_id)
            AND (CAST(:domain_id AS text) IS NULL OR domain_id = :domain_id)
            AND (CAST(:metric AS text) IS NULL OR strpos(names, :whole) > 0 OR strpos(names, :parts) > 0
                OR strpos(CAST(series AS text), :whole) > 0 OR strpos(CAST(series AS text), :parts) > 0)
        ORDER BY domain_id, node_id LIMIT :limit
    """  # noqa: S608 - all of it stands here
    quoted = json.dumps(metric)
    parameters = {
        "node_id": node_id, "domain_id": domain_id, "metric": metric, "whole": quoted, "parts": f"{quoted[:-1]}#",
        "limit": limit,
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    for row in await connection.execute(sa.text(sql), parameters):
        for (index, name), series in sorted(unpacked(row.names, row.numbers, row.before).items()):
            if metric is None or name.partition(PART_MARK)[0] == metric:
                found.append(
                    {
                        "domain_id": row.domain_id,
                        "node_id": row.node_id,
                        "accelerator_index": index,
                        "metric": name,
                        "observed_at": datetime.fromtimestamp(series.observed_at_s, UTC),
                        **{field: getattr(series, field) for field in _SHOWN},
                    }
                )
        if len(found) >= limit:
            break
    return found[:limit]


async def read_history(
    connection: AsyncConnection, node_id: str, metric: str, since: datetime, limit: int
) -> list[dict[str, Any]]:
    """Values of a metric of a node and its accelerators since a time, oldest first."""
    sql = """
        SELECT CAST(i.key AS integer) AS accelerator_index,
            to_timestamp(CAST(i.value ->> 1 AS double precision)) AS observed_at,
            CAST(i.value ->> 0 AS double precision) AS value
        FROM history h, jsonb_each(h.readings -> :metric) i
        WHERE h.node_id = :node_id AND h.observed_at >= :since
        ORDER BY h.observed_at, accelerator_index LIMIT :limit
    """
    parameters = {"node_id": node_id, "metric": metric, "since": since.astimezone(UTC), "limit": limit}
    return [dict(row._mapping) for row in await connection.execute(sa.text(sql), parameters)]  # noqa: SLF001


async def read_quality(
    connection: AsyncConnection, *, node_id: str | None, domain_id: str | None, since: datetime | None, limit: int
) -> list[dict[str, Any]]:
    """Issues, newest first."""
    sql = (
        "SELECT domain_id, node_id, accelerator_index, metric, kind, detail, first_at, last_at, occurrences FROM quality "
        "WHERE (CAST(:node_id AS text) IS NULL OR node_id = :node_id) "
        "AND (CAST(:domain_id AS text) IS NULL OR domain_id = :domain_id) "
        "AND (CAST(:since AS timestamptz) IS NULL OR last_at >= :since) "
        "ORDER BY last_at DESC, domain_id, node_id, accelerator_index, metric LIMIT :limit"
    )
    parameters = {"node_id": node_id, "domain_id": domain_id, "since": since, "limit": limit}
    return [dict(row._mapping) for row in await connection.execute(sa.text(sql), parameters)]  # noqa: SLF001
