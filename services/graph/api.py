"""HTTP: the graph now and in the past, its changes, and why a node is in its state."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from meridian.clock import Clock
from meridian.database import Database
from meridian.errors import FieldError, InvalidArgumentError, MeridianError, NotFoundError
from meridian.http import Moment
from services.graph import change_log, store, wire
from services.graph.image import DomainImage, applied
from services.graph.recognition.recogniser import Recogniser

Limit = Annotated[int, Query(ge=1, le=1000)]


class VersionGoneError(MeridianError):
    """The changes since that version are no longer in the log; take a snapshot."""

    code = "VERSION_GONE"
    status = 410
    title = "Version is gone"
    headers: ClassVar[dict[str, str]] = {"Link": '</v1/graph>; rel="latest-version"'}


def graph_router(database: Database, clock: Clock, recogniser: Recogniser) -> APIRouter:
    """All routes; they read only."""
    router = APIRouter()

    @router.get("/v1/graph")
    async def graph(as_of: Moment | None = None) -> dict[str, Any]:
        return await (_present() if as_of is None else _past(as_of))

    async def _present() -> dict[str, Any]:
        async with database.snapshot() as connection:
            found = await store.snapshot(connection)
        oldest = min(
            (found.oldest_reading_at_s[name] for name, image in found.images.items() if image.nodes), default=0.0
        )
        return {
            "version": found.version,
            "as_of": clock.now(),
            "oldest_reading_at": wire.time_of(oldest),
            "domains": [wire.domain_body(name, image) for name, image in found.images.items()],
        }

    async def _past(as_of: Moment) -> dict[str, Any]:
        if as_of > clock.now():
            detail = "the time lies in the future"
            raise InvalidArgumentError(detail, errors=(FieldError("query:as_of", detail),))
        async with database.reading() as connection:
            start = await change_log.log_start(connection)
            if start is None or as_of < start:
                raise NotFoundError(f"the log of changes does not reach back to {as_of.isoformat()}")
            log = await change_log.log_until(connection, as_of)
        newest = [changes[-1].update for changes in log.values()]
        times = [item.oldest_reading_at.ToNanoseconds() / 1e9 for item in newest]
        return {
            "version": max((item.version for item in newest), default=0),
            "as_of": as_of,
            "oldest_reading_at": wire.time_of(min(times, default=0.0)),
            "domains": [
                wire.domain_body(name, applied(DomainImage(), [item.update for item in changes]))
                for name, changes in log.items()
            ],
        }

    @router.get("/v1/graph/changes")
    async def changes(since: Annotated[int, Query(ge=0)], limit: Limit = 100) -> dict[str, Any]:
        async with database.reading() as connection:
            # The version first: what is committed between the two is among the changes then, and not missed from them.
            version = await store.version(connection)
            found = await change_log.changes_since(connection, since, limit)
        if since > version:
            detail = f"the graph is at version {version}"
            raise InvalidArgumentError(detail, errors=(FieldError("query:since", detail),))
        expected = range(since + 1, since + 1 + len(found))
        if [item.version for item in found] != list(expected) or (not found and since < version):
            raise VersionGoneError(f"the log does not hold all changes since version {since}; take a snapshot")
        version = max(version, *(item.version for item in found), 0)
        return {"version": version, "items": [wire.change_body(item) for item in found], "more": len(found) == limit}

    @router.get("/v1/graph/version")
    async def version() -> dict[str, Any]:
        async with database.reading() as connection:
            number = await store.version(connection)
            return {"version": number, "domains": await store.newest_versions(connection, number)}

    @router.get("/v1/node-states")
    async def node_state(node_id: Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]) -> dict[str, Any]:
        return await _node(node_id)

    @router.get("/v1/nodes/{node_id}")
    async def node(node_id: Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]) -> dict[str, Any]:
        return await _node(node_id)

    async def _node(node_id: str) -> dict[str, Any]:
        async with database.reading() as connection:
            view = await store.node(connection, node_id)
        if view is None:
            raise NotFoundError(f"there is no node {node_id!r} in the graph")
        opinion = recogniser.opinion(view.domain_id, node_id)
        return wire.explained_node(view) | {"model": wire.model_word(recogniser.name, opinion)}

    return router
