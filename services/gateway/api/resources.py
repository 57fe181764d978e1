"""Resources that users define, without programming: everybody may see them, operators may change them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import Field

from meridian.resource_model import NAME, ResourceModel
from meridian.resource_model import Name as ResourceName
from services.gateway.api import answers
from services.gateway.api.answers import problems
from services.gateway.auth import Caller, Scope
from services.gateway.context import Operator, Parts, ResourceReader

router = APIRouter(prefix="/v1/resources", tags=["resources"])

Name = Annotated[str, Path(pattern=NAME)]
_READ = problems(401, 403, 404, 429, 503)
_CHANGE = problems(400, 401, 403, 404, 409, 413, 422, 429, 503)


class Definition(ResourceModel):
    """A resource; its name may be left out, as the path has it."""

    name: ResourceName = Field(default="")


@router.get("", response_model=answers.Page[dict[str, Any]], responses=_READ)
async def list_resources(parts: Parts, caller: ResourceReader) -> dict[str, Any]:
    """The definitions, by name. What each node has is shown with a single resource."""
    found = await parts.telemetry.ask("GET", "/v1/resources")
    return {"items": [_seen_by(caller, item) for item in found.get("items", [])], "next_page_token": None}


@router.get("/{name}", response_model=dict[str, Any], responses=_READ)
async def get_resource(parts: Parts, caller: ResourceReader, name: Name) -> dict[str, Any]:
    """A definition and what each node has of it; an amount that is not known is null, with its reason."""
    return _seen_by(caller, await parts.telemetry.ask("GET", f"/v1/resources/{name}"))


@router.put(
    "/{name}", response_model=dict[str, Any], responses={201: {"description": "the resource is new"}, **_CHANGE}
)
async def put_resource(
    parts: Parts, caller: Operator, name: Name, content: Definition, response: Response
) -> dict[str, Any]:
    """Define a resource, or change what was defined: name, description, dynamic, consumable, shareable, value or command,
    interval, scope."""
    answer = await parts.telemetry.send(
        "PUT",
        f"/v1/resources/{name}",
        json=content.model_dump(mode="json", exclude_none=True) | {"name": content.name or name},
        params={"changed_by": f"{caller.tenant_id}/{caller.client_id}"},
    )
    response.status_code = 201 if answer.status_code == 201 else 200
    return parts.telemetry.body_of(answer)


@router.delete("/{name}", response_model=dict[str, Any], responses=_CHANGE)
async def delete_resource(parts: Parts, caller: Operator, name: Name) -> dict[str, Any]:
    """Remove a definition; what an agent's own file declares stays."""
    params = {"changed_by": f"{caller.tenant_id}/{caller.client_id}"}
    return await parts.telemetry.ask("DELETE", f"/v1/resources/{name}", params=params)


def _seen_by(caller: Caller, item: dict[str, Any]) -> dict[str, Any]:
    """Who defined a resource, and the command that reads it, are for operators to see."""
    if caller.may(Scope.OPERATOR):
        return item
    return {name: value for name, value in item.items() if name not in {"defined_by", "command"}}
