"""HTTP: newest values, history, the catalogue of metrics and the quality of what was reported."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from meridian.clock import Clock
from meridian.contracts.resource.v1 import resource_pb2
from meridian.database import Database
from meridian.errors import FieldError, InvalidArgumentError
from meridian.http import Moment
from services.telemetry import store
from services.telemetry.issues import WHOLE_NODE, IssueKind
from services.telemetry.metric_catalogue import METRICS, MetricSpec
from services.telemetry.reading_check import PART_MARK

_SOURCES = {number: name.removeprefix("READING_SOURCE_").lower() for name, number in resource_pb2.ReadingSource.items()}
_STATISTICS = {
    number: name.removeprefix("READING_STATISTIC_").lower() for name, number in resource_pb2.ReadingStatistic.items()
}
# PostgreSQL stores no NUL.
Text = Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=10_000)]


def _catalogue_entry(spec: MetricSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "core": spec.core or None,
        "dimension": spec.dimension,
        "unit": spec.unit,
        "minimum": spec.minimum,
        "maximum": spec.maximum if isfinite(spec.maximum) else None,
        "statistic": spec.statistic,
        "stale_after_s": spec.stale_after_s,
        "scopes": sorted(spec.scopes),
        "counter": spec.counter,
        "meaning": spec.meaning,
    }


def _index(value: int) -> int | None:
    return None if value == WHOLE_NODE else value


def _observation(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    """A row as people see it: what is too old to say anything about the present is unknown, and says so."""
    metric, _, part_id = row["metric"].partition(PART_MARK)
    part = {"id": part_id, "profile": row["part_profile"] or None, "memory_bytes": row["part_memory_bytes"] or None}
    spec = METRICS.get(metric)
    age_s = (now - row["observed_at"]).total_seconds()
    value, reason = row["value"], row["reason"]
    if reason:
        value = None
    elif spec is None or age_s > spec.stale_after_s:
        reason = f"stale: the last value, {value:g}, is {age_s:.0f} s old"
        value = None
    return {
        "domain_id": row["domain_id"],
        "node_id": row["node_id"] or None,
        "accelerator_index": _index(row["accelerator_index"]),
        "part": part if part_id else None,
        "metric": metric,
        "value": value,
        "unit": spec.unit if spec else "",
        "reason": reason,
        "source": _SOURCES.get(row["source"], "unspecified"),
        "statistic": _STATISTICS.get(row["statistic"], "unspecified"),
        "observed_at": row["observed_at"],
        "age_s": round(max(0.0, age_s), 3),
    }


def _known_metric(metric: str | None) -> None:
    if metric is not None and metric not in METRICS:
        detail = f"{metric!r} is not in the catalogue of metrics"
        raise InvalidArgumentError(detail, errors=(FieldError("query:metric", detail),))


def telemetry_router(database: Database, clock: Clock) -> APIRouter:
    """All routes; they read only."""
    router = APIRouter()

    @router.get("/v1/observations")
    async def observations(
        node: Text | None = None, domain: Text | None = None, metric: Text | None = None, limit: Limit = 1000
    ) -> dict[str, Any]:
        _known_metric(metric)
        async with database.reading() as connection:
            rows = await store.read_newest(connection, node_id=node, domain_id=domain, metric=metric, limit=limit)
        now = clock.now()
        return {"items": [_observation(row, now) for row in rows]}

    @router.get("/v1/observations/history")
    async def history(node: Text, metric: Text, since: Moment | None = None, limit: Limit = 1000) -> dict[str, Any]:
        _known_metric(metric)
        async with database.reading() as connection:
            start = since or clock.now() - timedelta(hours=1)
            rows = await store.read_history(connection, node, metric, start, limit)
        items = [row | {"accelerator_index": _index(row["accelerator_index"])} for row in rows]
        return {"node_id": node, "metric": metric, "unit": METRICS[metric].unit, "items": items}

    @router.get("/v1/metrics-catalogue")
    async def catalogue() -> dict[str, Any]:
        return {"items": [_catalogue_entry(spec) for spec in METRICS.values()]}

    @router.get("/v1/quality")
    async def quality(
        node: Text | None = None, domain: Text | None = None, since: Moment | None = None, limit: Limit = 1000
    ) -> dict[str, Any]:
        async with database.reading() as connection:
            rows = await store.read_quality(connection, node_id=node, domain_id=domain, since=since, limit=limit)
        items = [
            row
            | {
                "kind": IssueKind(row["kind"]).name.lower(),
                "accelerator_index": _index(row["accelerator_index"]),
                "node_id": row["node_id"] or None,
            }
            for row in rows
        ]
        return {"items": items}

    return router
