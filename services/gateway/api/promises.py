"""What was promised: shares of domains, service levels; and what tenants weigh and may choose from. The scheduler answers."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from pydantic import Field

from meridian.errors import PermissionDeniedError
from services.gateway.api import promise_answers as answers
from services.gateway.api.answers import problems
from services.gateway.auth import Caller, Scope
from services.gateway.context import JobReader, JobWriter, Parts, ResourceReader
from services.gateway.jobfile import Section
from services.gateway.shards import service_levels_of_all, shares_of_all

router = APIRouter(prefix="/v1", tags=["promises"])

_NAME = r"^[^/\x00-\x1f]{1,200}$"
Tenant = Annotated[str, Path(pattern=_NAME)]
AskedTenant = Annotated[str | None, Query(pattern=_NAME, description="another tenant than one's own: operators only")]
_READ = problems(401, 403, 404, 409, 429, 503)
_CHANGE = problems(400, 401, 403, 404, 409, 413, 429, 503)
_SHARED = "default"
"""The tenant whose weights hold for all that have none."""


@router.get("/shares", response_model=answers.Shares, responses=_READ)
async def get_shares(
    parts: Parts, _caller: ResourceReader, windows: Annotated[int, Query(ge=1, le=49)] = 24
) -> dict[str, Any]:
    """Planned against given shares per domain and window (an hour), with deviations, the newest window first."""
    return shares_of_all(await parts.scheduler.ask_all("GET", "/v1/shares", params={"windows": windows}))


@router.get("/service-levels", response_model=answers.ServiceLevels, responses=_READ)
async def get_service_levels(parts: Parts, caller: JobReader, tenant: AskedTenant = None) -> dict[str, Any]:
    """How service-level objectives stand: one's own, or those of all for operators."""
    asked = caller.sees if tenant is None else _of(caller, tenant)
    if asked is None:
        return service_levels_of_all(await parts.scheduler.ask_all("GET", "/v1/service-levels"))
    return await parts.scheduler.of(asked).ask("GET", "/v1/service-levels", params={"tenant_id": asked})


@router.get("/front", response_model=answers.FrontAnswer, responses=_READ)
async def get_front(
    parts: Parts,
    caller: JobReader,
    tenant: AskedTenant = None,
    job: Annotated[
        list[Annotated[str, Field(pattern=_NAME)]] | None, Query(max_length=40, description="only these jobs")
    ] = None,
    index: Annotated[int | None, Query(ge=0, le=100_000, description="explain this point, with its weights")] = None,
) -> dict[str, Any]:
    """Where one's waiting jobs could go, as a front of points to pick from: completion, idle accelerators, money, energy."""
    params: dict[str, Any] = {"tenant_id": _of(caller, tenant or caller.tenant_id)}
    params |= {} if job is None else {"job_id": job}
    params |= {} if index is None else {"index": index}
    return await parts.scheduler.of(params["tenant_id"]).ask("GET", "/v1/front", params=params)


class Weights(Section):
    """What a tenant weighs, in any unit; objectives that are not named weigh nothing."""

    weights: dict[answers.ObjectiveName, Annotated[float, Field(ge=0, le=2**53)]] = Field(min_length=1)


@router.get("/tenants/{tenant}/objectives", response_model=answers.TenantObjectives, responses=_READ)
async def get_objectives(parts: Parts, caller: JobReader, tenant: Tenant) -> dict[str, Any]:
    """What a tenant weighs when a domain is chosen for its jobs."""
    return await parts.scheduler.of(tenant).ask("GET", _objectives(_of(caller, tenant)))


@router.put("/tenants/{tenant}/objectives", response_model=answers.TenantObjectives, responses=_CHANGE)
async def put_objectives(parts: Parts, caller: JobWriter, tenant: Tenant, weights: Weights) -> dict[str, Any]:
    """Weigh one's objectives so from the next scheduling cycle on; a new version of the policy holds them."""
    path, params = _objectives(_changed(caller, tenant)), _by(caller)
    # The policy holds the weights, and is the same in all shards.
    return await parts.scheduler.change("PUT", path, json=weights.model_dump(mode="json"), params=params)


@router.delete("/tenants/{tenant}/objectives", response_model=answers.TenantObjectives, responses=_CHANGE)
async def delete_objectives(parts: Parts, caller: JobWriter, tenant: Tenant) -> dict[str, Any]:
    """Weigh one's objectives as the policy says."""
    return await parts.scheduler.change("DELETE", _objectives(_changed(caller, tenant)), params=_by(caller))


def _of(caller: Caller, tenant: str) -> str:
    if tenant != caller.tenant_id and not caller.may(Scope.OPERATOR):
        raise PermissionDeniedError(f"tenant {tenant!r} is not yours")
    return tenant


def _changed(caller: Caller, tenant: str) -> str:
    if tenant == _SHARED and not caller.may(Scope.OPERATOR):
        raise PermissionDeniedError(f"the weights of {_SHARED!r} hold for all tenants; operators change them")
    return _of(caller, tenant)


def _objectives(tenant: str) -> str:
    return f"/v1/tenants/{quote(tenant, safe='')}/objectives"


def _by(caller: Caller) -> dict[str, str]:
    return {"changed_by": f"{caller.tenant_id}/{caller.client_id}"}
