"""Plans: what a set of jobs would ask for and cost over time, and what the operator of a domain is advised."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from google.protobuf import json_format
from pydantic import Field

from meridian.errors import NotFoundError
from services.gateway.api.answers import problems
from services.gateway.api.network import Id
from services.gateway.context import JobReader, Operator, Parts
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import Identifier, JobFile, Name, Section, Time
from services.gateway.store import network as store
from services.gateway.submission import check

router = APIRouter(prefix="/v1", tags=["plans"])

_PROBLEMS = problems(400, 401, 403, 404, 409, 413, 429, 503)
Hours = Annotated[float, Query(gt=0, le=336, description="how far to look ahead")]


class PlannedJob(Section):
    """A job that is planned, not submitted: when it is to start, behind which others, how many like it."""

    job: JobFile
    start: Time | None = None
    after: list[Name] = Field(default=[], max_length=500)
    copies: int = Field(default=1, ge=1, le=100_000)


class WaveformRequest(Section):
    """A plan; jobs are told apart by their names. ``domain``: what is offered there only."""

    jobs: list[PlannedJob] = Field(min_length=1, max_length=500)
    domain: Identifier | None = None
    window_s: float | None = Field(default=None, ge=60, le=7 * 86_400)


class AdviceRequest(Section):
    """Planned jobs that are to be looked at with those that wait."""

    planned: list[PlannedJob] = Field(default=[], max_length=500)
    hours: float = Field(default=24.0, gt=0, le=336)


async def _offers(parts: Parts, domain_id: str | None) -> list[dict[str, Any]]:
    """What each domain has of each accelerator type, with its price."""
    async with parts.kernel.database.reading() as connection:
        domains = await store.domains(connection, domain_id)
        nodes = await store.nodes(connection, domain_id=domain_id)
    if domain_id is not None and not domains:
        raise NotFoundError(f"there is no domain {domain_id!r}")
    counts: dict[tuple[str, str], int] = {}
    for node in nodes:
        # A plan is of whole accelerators.
        for item in (item for item in node["accelerators"] if not item.get("partitioned")):
            place = node["domain_id"], item["model"]
            counts[place] = counts.get(place, 0) + 1
    prices = {item["domain_id"]: item["price_per_accelerator_hour"] for item in domains}
    return [
        {
            "domain_id": name,
            "accelerator_type": model,
            "accelerators": count,
            "price_micro_units": price["micro_units"] if (price := prices.get(name)) else None,
            "currency": price["currency"] if price else "",
        }
        for (name, model), count in sorted(counts.items())
    ]


def _wishes(planned: list[PlannedJob]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.job.name,
            "spec": json_format.MessageToDict(to_spec(item.job), preserving_proto_field_name=True),
            "start": item.start,
            "after": item.after,
            "copies": item.copies,
        }
        for item in planned
    ]


@router.post("/waveforms", response_model=dict[str, Any], responses=_PROBLEMS)
async def make_waveform(parts: Parts, _caller: JobReader, request: WaveformRequest) -> Any:
    """What a planned set of jobs asks for and costs over time, with bands, on every offer and on the best one."""
    check([(f"/jobs/{place}/job", item.job) for place, item in enumerate(request.jobs)], await parts.capacities.get())
    body = {
        "jobs": _wishes(request.jobs),
        "offers": await _offers(parts, request.domain),
        "window_s": request.window_s,
    }
    return await parts.forecast.ask("POST", "/v1/waveforms", json=body)


async def _advice(parts: Parts, domain_id: str, hours: float, planned: list[PlannedJob]) -> Any:
    offers = await _offers(parts, domain_id)
    most = max(offers, key=lambda offer: offer["accelerators"], default=None)
    body: dict[str, Any] = {"hours": hours, "planned": _wishes(planned)}
    if most is not None:
        body |= {name: most[name] for name in ("accelerator_type", "price_micro_units", "currency")}
    return await parts.forecast.ask("POST", f"/v1/domains/{quote(domain_id, safe='')}/advice", json=body)


@router.get("/domains/{domain_id}/advice", response_model=dict[str, Any], responses=_PROBLEMS)
async def get_advice(parts: Parts, _caller: Operator, domain_id: Id, hours: Hours = 24.0) -> Any:
    """A domain's peaks and valleys to come, which waiting jobs could shift, and what that saves."""
    return await _advice(parts, domain_id, hours, [])


@router.post("/domains/{domain_id}/advice", response_model=dict[str, Any], responses=_PROBLEMS)
async def make_advice(parts: Parts, _caller: Operator, domain_id: Id, request: AdviceRequest) -> Any:
    """The same with jobs that are planned."""
    check(
        [(f"/planned/{place}/job", item.job) for place, item in enumerate(request.planned)],
        await parts.capacities.get(),
    )
    return await _advice(parts, domain_id, request.hours, request.planned)
