"""The graph over time: its changes as they happen, the graph of the past, and why a node is in its state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from meridian.errors import NotFoundError, UnavailableError
from services.gateway.api import network_answers
from services.gateway.api.answers import problems
from services.gateway.api.stream import still_good
from services.gateway.context import Gateway, Parts, ResourceReader
from services.gateway.wire import to_text

router = APIRouter(prefix="/v1", tags=["network"])

Id = Annotated[str, Path(pattern=r"^[^/\x00-\x1f]{1,256}$")]
_LARGEST = (1 << 63) - 1
Version = Annotated[int | None, Query(ge=0, le=_LARGEST, description="like Last-Event-ID")]
LastEventId = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=_LARGEST)]
# The graph is asked this often for each listener; its changes come in batches anyway.
POLL_S = 0.5
PAGE = 200


@router.get("/graph/stream", response_class=EventSourceResponse, responses=problems(401, 403, 429, 503))
async def follow_graph(
    parts: Parts, caller: ResourceReader, after: Version = None, last_event_id: LastEventId = None
) -> AsyncIterator[ServerSentEvent]:
    """Every change of the graph, in order: ``event: change``, ``id:`` its version. Goes on behind ``Last-Event-ID``, and else with
    what comes next. ``event: reset`` says that changes in between are no longer kept: read ``/v1/graph`` and go on from its id."""
    wanted = last_event_id if last_event_id is not None else after
    version = await _newest(parts)
    # A version that is not there yet is of another graph: asked for what comes behind it, the graph refuses.
    position = version if wanted is None else wanted
    yield ServerSentEvent(comment="listening", id=str(min(position, version)))
    while not parts.feed.closed and still_good(parts.authority, caller):
        try:
            answer = await parts.graph.send("GET", "/v1/graph/changes", params={"since": position, "limit": PAGE})
        except UnavailableError:
            await asyncio.sleep(POLL_S)
            continue
        if answer.status_code in {410, 422}:
            position = await _newest(parts)
            yield ServerSentEvent(raw_data=to_text({"version": position}), event="reset", id=str(position))
            continue
        found: list[dict[str, Any]] = answer.json()["items"] if answer.is_success else []
        for change in found:
            position = int(change["version"])
            yield ServerSentEvent(raw_data=to_text(change), event="change", id=str(position))
        if len(found) < PAGE:
            await asyncio.sleep(POLL_S)


async def _newest(parts: Gateway) -> int:
    """The version of the graph; UnavailableError when nobody knows it."""
    return int((await parts.graph.ask("GET", "/v1/graph/version"))["version"])


@router.get(
    "/nodes/{node_id}/state", response_model=network_answers.NodeStateView, responses=problems(401, 403, 404, 429, 503)
)
async def explain_node(parts: Parts, _caller: ResourceReader, node_id: Id) -> Any:
    """Why a node is in its state: the rule or model that decided, since when, and the readings behind it."""
    return await parts.graph.ask("GET", "/v1/node-states", params={"node_id": node_id})


async def newest(parts: Gateway) -> tuple[int, dict[str, int]] | None:
    """The version of the graph, and of the newest change of each domain; None when nobody knows them."""
    try:
        answer = await parts.graph.ask("GET", "/v1/graph/version")
        return int(answer["version"]), {name: int(version) for name, version in answer["domains"].items()}
    except (UnavailableError, NotFoundError, KeyError):
        # Nobody answers, or a graph service that does not tell of domains yet.
        return None


def held_version(told: tuple[int, dict[str, int]] | None, held: dict[str, int]) -> int:
    """The version behind which a stream misses nothing of a graph that holds the domains' changes up to ``held``.

    Changes of different domains come on ways of their own, so a domain may lack one that is older than the newest of another.
    ``told``: what there was before the graph was read, as `newest` gives it; without it only the oldest of the domains is sure.
    """
    if told is None:
        return min(held.values(), default=0)
    version, domains = told
    behind = [held.get(name, 0) for name, number in domains.items() if held.get(name, 0) < number]
    return min([version, *behind])


async def past(parts: Gateway, as_of: datetime) -> dict[str, Any]:
    """The graph as it was known at a time, in the form of the present one."""
    return flattened(await parts.graph.ask("GET", "/v1/graph", params={"as_of": as_of.isoformat()}))


def flattened(found: dict[str, Any]) -> dict[str, Any]:
    """From domains that hold their nodes and links to three lists, with the totals of each domain."""
    domains, nodes, links = [], [], []
    for item in found["domains"]:
        inside = item["nodes"]
        by_state: dict[str, int] = {}
        for node in inside:
            by_state[node["state"]] = by_state.get(node["state"], 0) + 1
        totals = {
            "nodes": len(inside),
            "nodes_by_state": by_state,
            "accelerators": sum(len(node["accelerators"]) for node in inside),
            "cpus": sum(node["cpus"] for node in inside),
            "memory_bytes": sum(node["memory_bytes"] for node in inside),
            "reachable": not inside or by_state.get("unreachable", 0) < len(inside),
            "version": found["version"],
            "updated_at": found["as_of"],
        }
        domains.append({**item, **totals})
        nodes += [{**node, "updated_at": found["as_of"]} for node in inside]
        links += item["links"]
    return {"version": found["version"], "domains": domains, "nodes": nodes, "links": links}
