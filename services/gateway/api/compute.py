"""The compute index, results of probe runs, and what to rent for a workload."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from meridian.errors import FieldError, InvalidArgumentError
from services.gateway.api.answers import problems
from services.gateway.context import Operator, Parts, ResourceReader
from services.gateway.store import network as store
from services.gateway.store.jobs import devices_held

router = APIRouter(prefix="/v1", tags=["network"])

_Text = Annotated[str, Query(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
_ASKED = problems(400, 401, 403, 404, 409, 413, 422, 429, 503)
# States in which a node takes work.
_READY = frozenset({"healthy", "busy", "degraded"})


@router.get("/index", response_model=dict[str, Any], responses=problems(401, 403, 404, 409, 422, 429, 503))
async def get_index(
    parts: Parts,
    _caller: ResourceReader,
    chip: Annotated[list[Name] | None, Query(max_length=256)] = None,
    task: _Text = "gemm",
    precision: _Text = "bf16",
    n_accel: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> Any:
    """How fast chips are at a task relative to the reference chip, with band, version and evidence."""
    params = {"task": task, "precision": precision, "n_accel": n_accel, **({"chip": chip} if chip else {})}
    return await parts.telemetry.ask("GET", "/v1/index", params=params)


@router.post("/probes", status_code=201, response_model=dict[str, Any], responses=_ASKED)
async def post_probe(parts: Parts, caller: Operator, result: dict[str, Any]) -> Any:
    """The result of a probe run (`meridian probe --send`): it enters the next fit of the index."""
    return await parts.telemetry.ask(
        "POST", "/v1/probes", json=result | {"source": f"probe sent by {caller.tenant_id}"}
    )


class RecommendationQuestion(BaseModel):
    """What is to be done, and from where it is asked."""

    model_config = ConfigDict(extra="forbid")

    workload: dict[str, Any] = Field(
        description="kind: training, fine_tuning, batch_inference, realtime_inference, hpc, video; see docs/index.md"
    )
    from_domain: str | None = Field(
        default=None, pattern=r"^[^\x00-\x1f]{1,256}$", description="distances are counted from here"
    )


@router.post("/recommendations", response_model=dict[str, Any], responses=_ASKED)
async def recommend(parts: Parts, _caller: ResourceReader, question: RecommendationQuestion) -> Any:
    """What of the network suits a workload: its graded requirement, and all offers, best first, with reasons."""
    async with parts.kernel.database.reading() as connection:
        domains = {item["domain_id"]: item for item in await store.domains(connection)}
        nodes = await store.nodes(connection)
        links = await store.links(connection) if question.from_domain else []
        held = await devices_held(connection)
    if question.from_domain is not None and question.from_domain not in domains:
        # No distance would be known, and the ranking would not say why.
        detail = f"there is no domain {question.from_domain!r}"
        raise InvalidArgumentError(detail, errors=(FieldError("/from_domain", detail),))
    offers = _offers(domains, nodes, _round_trips(links, question.from_domain), held)
    return await parts.telemetry.ask(
        "POST", "/v1/recommendations", json={"workload": question.workload, "offers": offers}
    )


def _round_trips(links: list[dict[str, Any]], start: str | None) -> dict[str, float]:
    found = {start: 0.0} if start else {}
    for link in links:
        ends = {link["from_domain_id"], link["to_domain_id"]}
        if start in ends and link["rtt_s"] is not None and len(ends) == 2:
            other = (ends - {start}).pop()
            found[other] = min(found.get(other, link["rtt_s"]), link["rtt_s"])
    return found


@dataclass(slots=True)
class _Counted:
    """Accelerators of one type in one domain. ``memory_bytes``: of each; 0 where the inventory does not say."""

    free: int = 0
    ready: int = 0
    memory_bytes: set[int] = field(default_factory=set)


def _offers(
    domains: dict[str, dict[str, Any]],
    nodes: list[dict[str, Any]],
    round_trips: dict[str, float],
    held: Container[tuple[str, int]],
) -> list[dict[str, Any]]:
    """One offer per domain and type of accelerator; free are those that no run holds, of nodes that are not busy otherwise."""
    counts: dict[tuple[str, str], _Counted] = {}
    for node in nodes:
        # A recommendation is of whole accelerators.
        for accelerator in (item for item in node["accelerators"] if not item.get("partitioned")):
            count = counts.setdefault((node["domain_id"], accelerator["model"]), _Counted())
            unheld = (node["node_id"], accelerator["index"]) not in held
            count.free += node["state"] == "healthy" and unheld
            count.ready += node["state"] in _READY
            count.memory_bytes.add(accelerator["memory_bytes"])
    offers = []
    for (domain_id, model), count in sorted(counts.items()):
        domain = domains.get(domain_id)
        if domain is None or not model:
            continue
        price = domain["price_per_accelerator_hour"]
        offers.append(
            {
                "domain_id": domain_id,
                "accelerator": model,
                "available": count.free,
                "total": count.ready,
                "price_per_accelerator_hour": price["micro_units"] / 1e6 if price else None,
                "currency": price["currency"] if price else "",
                "round_trip_s": round_trips.get(domain_id),
                "reachable": domain["reachable"],
                "memory_bytes": min(count.memory_bytes) or None,
            }
        )
    return offers
