"""The network: domains, nodes, links, incidents, forecasts, identities; and questions about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from google.protobuf import json_format
from pydantic import Field

from meridian.errors import ConflictError, NotFoundError
from meridian.http import Moment
from services.gateway import cursor
from services.gateway.agents import Agent
from services.gateway.api import answers, network_answers
from services.gateway.api.answers import problems
from services.gateway.api.graph import held_version, newest, past
from services.gateway.api.paging import PageSize, PageToken, page, position
from services.gateway.context import JobReader, Operator, Parts, ResourceReader
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import JobFile, ModelSection, Section, TypeName
from services.gateway.store import network as store
from services.gateway.submission import check

router = APIRouter(prefix="/v1", tags=["network"])

Id = Annotated[str, Path(pattern=r"^[^/\x00-\x1f]{1,256}$")]
Name = Annotated[str | None, Query(pattern=r"^[^\x00-\x1f]{1,256}$")]
NodeStateName = Literal["healthy", "busy", "degraded", "failing", "unreachable", "asleep", "failed", "unspecified"]
_LIST = problems(401, 403, 429, 503)
_ONE = problems(401, 403, 404, 429, 503)


@router.get("/domains", response_model=answers.Page[network_answers.Domain], responses=_LIST)
async def list_domains(parts: Parts, _caller: ResourceReader) -> dict[str, Any]:
    """All domains with their totals."""
    async with parts.kernel.database.reading() as connection:
        return {"items": await store.domains(connection)}


@router.get("/domains/{domain_id}", response_model=network_answers.Domain, responses=_ONE)
async def get_domain(parts: Parts, _caller: ResourceReader, domain_id: Id) -> dict[str, Any]:
    """One domain."""
    async with parts.kernel.database.reading() as connection:
        found = await store.domains(connection, domain_id)
    if not found:
        raise NotFoundError(f"there is no domain {domain_id!r}")
    return found[0]


@router.get("/nodes", response_model=answers.Page[network_answers.Node], responses=_LIST)
async def list_nodes(
    parts: Parts,
    _caller: ResourceReader,
    domain: Name = None,
    state: Annotated[NodeStateName | None, Query()] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """Nodes by id."""
    skip = position("nodes", page_token) or 0
    async with parts.kernel.database.reading() as connection:
        found = await store.nodes(connection, domain_id=domain, state=state, skip=skip, limit=page_size + 1)
    more = len(found) > page_size
    return {"items": found[:page_size], "next_page_token": cursor.encode("nodes", skip + page_size) if more else None}


@router.get("/nodes/{node_id}", response_model=network_answers.Node, responses=_ONE)
async def get_node(parts: Parts, _caller: ResourceReader, node_id: Id) -> dict[str, Any]:
    """One node with its newest metrics."""
    async with parts.kernel.database.reading() as connection:
        found = await store.nodes(connection, node_id=node_id)
    if not found:
        raise NotFoundError(f"there is no node {node_id!r}")
    return found[0]


@router.post(
    "/nodes/{node_id}/kill",
    status_code=202,
    response_model=network_answers.Killed,
    responses=problems(401, 403, 404, 409, 413, 429, 503),
)
async def kill_node(parts: Parts, _caller: Operator, node_id: Id) -> dict[str, Any]:
    """Make a node of an emulated domain fail, to see the network recover."""
    async with parts.kernel.database.reading() as connection:
        found = await store.nodes(connection, node_id=node_id)
        if not found:
            raise NotFoundError(f"there is no node {node_id!r}")
        domain_id = found[0]["domain_id"]
        domain = await store.agent_of(connection, domain_id)
        if domain is None or not domain[1]:
            raise ConflictError(f"domain {domain_id!r} is not emulated, its nodes are not killed")
    requested_at = parts.kernel.clock.now()
    await Agent(parts.http, parts.settings.agent_token, domain_id, domain[0]).kill(node_id)
    return {"node_id": node_id, "domain_id": domain_id, "requested_at": requested_at}


@router.get("/graph", response_model=network_answers.Graph, responses=_ONE)
async def get_graph(parts: Parts, _caller: ResourceReader, as_of: Moment | None = None) -> dict[str, Any]:
    """Domains, nodes and links at one look, now or as they were known at a time."""
    if as_of is not None:
        return await past(parts, as_of)
    # Before the rows: what they lack of it is known then, and what comes later is streamed.
    told = await newest(parts)
    async with parts.kernel.database.reading() as connection:
        domains = await store.domains(connection)
        nodes = await store.nodes(connection)
        links = await store.links(connection)
    version = held_version(told, {domain["domain_id"]: domain["version"] for domain in domains})
    return {"version": version, "domains": domains, "nodes": nodes, "links": links}


@router.get("/incidents", response_model=answers.Page[network_answers.Incident], responses=_LIST)
async def list_incidents(
    parts: Parts,
    caller: ResourceReader,
    is_open: Annotated[bool | None, Query(alias="open")] = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """Failures and recoveries, newest first."""
    before = position("incidents", page_token)
    async with parts.kernel.database.reading() as connection:
        found = await store.incidents(
            connection, is_open=is_open, before=before, limit=page_size + 1, tenant_id=caller.sees
        )
    return page("incidents", found, page_size)


@router.get("/forecasts", response_model=answers.Page[network_answers.Forecast], responses=_LIST)
async def list_forecasts(parts: Parts, caller: ResourceReader, subject: Name = None) -> dict[str, Any]:
    """The newest forecast of demand per domain, and of one's own."""
    async with parts.kernel.database.reading() as connection:
        return {"items": await store.forecasts(connection, tenant_id=caller.sees, subject_id=subject)}


_SPLIT = Field(default=0, ge=0, le=1_000_000)


class TrainedModel(ModelSection):
    """The model section of a job file, with what else bears on time and memory; 0 is unknown."""

    name: str = Field(default="", max_length=200, description="a well-known model, instead of its shape")
    kv_heads: int = Field(default=0, ge=0, le=1_000_000)
    ffn_hidden: int = Field(default=0, ge=0, le=100_000_000)
    gated_ffn: bool = False
    experts: int = Field(default=0, ge=0, le=1_000_000)
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    expert_ffn_hidden: int = Field(default=0, ge=0, le=100_000_000)
    micro_batch: int = _SPLIT
    data_parallel: int = _SPLIT
    context_parallel: int = _SPLIT
    expert_parallel: int = _SPLIT
    virtual_stages: int = _SPLIT
    sequence_parallel: bool = False
    zero_stage: int = Field(default=0, ge=0, le=3)
    precision: Literal["", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"] = ""  # type: ignore[assignment]
    recompute: bool | Literal["none", "selective", "products", "full"] = False  # type: ignore[assignment]
    recompute_share: float = Field(default=1.0, ge=0, le=1, description="of the layers; the others keep everything")
    fused_attention: bool = True
    gradient_precision: Literal["fp32", "bf16+fp32", "bf16", "both"] | None = None
    stage_layers: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        default=[], max_length=10_000, description="layers of each pipeline stage; empty: as even as can be"
    )


class Nodes(Section):
    """What stands instead of the nodes that are usual for a chip."""

    fabric_gbps: float | None = Field(default=None, gt=0, le=1e6, description="GB/s per chip between nodes")
    node_size: int | None = Field(default=None, ge=1, le=1_000_000, description="chips that share the fast link")


class EstimateRequest(Nodes):
    """A model and the layout it is trained in."""

    model: TrainedModel
    accelerator_type: TypeName | None = None
    accelerators: int = Field(default=1, ge=1, le=1_000_000)
    memory_bytes_per_accelerator: int | None = Field(default=None, gt=0, le=10**15)


class LayoutsRequest(Nodes):
    """A model and a pool of equal chips, all of which are used; what is stated of a layout is not looked at."""

    model: TrainedModel
    accelerator_type: TypeName
    accelerators: int = Field(ge=1, le=100_000)
    count: int = Field(default=5, ge=1, le=100)


_ASKED = problems(400, 401, 403, 404, 409, 413, 429, 503)


@router.post("/estimates", response_model=dict[str, Any], responses=_ASKED)
async def estimate(parts: Parts, _caller: JobReader, request: EstimateRequest) -> Any:
    """What training a model needs, before any job is submitted: memory, FLOPs, traffic, and the time of a step."""
    return await parts.forecast.ask("POST", "/v1/estimates", json=request.model_dump(mode="json", exclude_none=True))


@router.post("/layouts", response_model=dict[str, Any], responses=_ASKED)
async def layouts(parts: Parts, _caller: JobReader, request: LayoutsRequest) -> Any:
    """The fastest layouts of a model on a pool of chips; only those that fit are told."""
    return await parts.forecast.ask("POST", "/v1/layouts", json=request.model_dump(mode="json", exclude_none=True))


class WhatIf(JobFile):
    """A job file, and a hypothetical ``change`` of the network or the policy."""

    change: dict[str, Any] = Field(
        default={}, description="nodes_down, nodes_up, domains, prices, weights, policy; see docs/explaining.md"
    )


@router.post("/what-if", response_model=dict[str, Any], responses=problems(400, 401, 403, 404, 409, 413, 429, 503))
async def what_if(parts: Parts, caller: JobReader, job: WhatIf) -> Any:
    """Where a job would go, when, and what it would displace, without submitting it."""
    plain = JobFile(**job.model_dump(exclude={"change"}))
    # What the network has now says nothing of what it would have with a change.
    check([("", plain)], {} if job.change else await parts.capacities.get())
    body = {"spec": json_format.MessageToDict(to_spec(plain), preserving_proto_field_name=True), "change": job.change}
    shard = parts.scheduler.of(caller.tenant_id)
    return await shard.ask("POST", "/v1/what-if", json=body, params={"tenant_id": caller.tenant_id})


@router.get(
    "/identities", response_model=answers.Page[dict[str, Any]], responses=problems(401, 403, 404, 409, 429, 503)
)
async def list_identities(
    request: Request,
    parts: Parts,
    _caller: Operator,
    kind: Annotated[Literal["agent", "node", "device", "tenant"] | None, Query()] = None,
    domain: Name = None,
    page_size: PageSize = 100,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """Identities of agents, nodes, devices and tenants, as identity keeps them."""
    given = {"kind": kind, "domain_id": domain, "cursor": page_token, "limit": page_size}
    found = await parts.identity.ask(
        "GET",
        "/v1/identities",
        params={name: value for name, value in given.items() if value is not None},
        headers={"Authorization": request.headers["authorization"]},
    )
    return {"items": found.get("items", []), "next_page_token": found.get("next_cursor")}
