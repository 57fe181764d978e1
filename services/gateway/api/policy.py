"""The scheduler's policy: everybody may see how is decided, operators may change it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from meridian.errors import FieldError, InvalidArgumentError, MalformedRequestError
from services.gateway import cursor
from services.gateway.api import answers
from services.gateway.api.answers import problems
from services.gateway.api.paging import PageSize, PageToken, position
from services.gateway.auth import Caller, Scope
from services.gateway.context import Operator, Parts, ResourceReader

router = APIRouter(prefix="/v1/policy", tags=["policy"])

Version = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
DryRun = Annotated[bool, Query(description="check the policy and compare it with the one in force, and change nothing")]
IfMatch = Annotated[
    str | None,
    Header(pattern=r'^(?:\*|"[!#-~]{1,200}")$', description="the ETag of the policy that is to be replaced"),
]
_LIST = "policies"
_READ = problems(401, 403, 404, 409, 429, 503)
_CHANGE = problems(400, 401, 403, 404, 409, 412, 413, 429, 503)
_ETAG = {"headers": {"ETag": {"description": "version of the policy in force", "schema": {"type": "string"}}}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/yaml": {"schema": {}}, "application/json": {"schema": {"type": "object"}}},
    }
}


@router.get("", response_model=dict[str, Any], responses={200: _ETAG, **_READ})
async def get_policy(parts: Parts, _caller: ResourceReader) -> Response:
    """The policy in force, with its version; it may be put back as it is."""
    return _tagged(await parts.scheduler.ask("GET", "/v1/policy"), "version")


@router.get("/versions", response_model=answers.Page[answers.PolicyChange], responses=_READ)
async def list_policy_versions(
    parts: Parts, caller: ResourceReader, page_size: PageSize = 100, page_token: PageToken = None
) -> dict[str, Any]:
    """Every change of the policy, newest first: the first one is in force."""
    params: dict[str, Any] = {"limit": page_size}
    if (before := position(_LIST, page_token)) is not None:
        params["before"] = before
    found = await parts.scheduler.ask("GET", "/v1/policy/versions", params=params)
    more = found.get("next_before")
    return {
        "items": _seen_by(caller, found.get("items", [])),
        "next_page_token": None if more is None else cursor.encode(_LIST, more),
    }


@router.get("/versions/{version}", response_model=dict[str, Any], responses=_READ)
async def get_policy_version(parts: Parts, caller: ResourceReader, version: Version) -> Any:
    """A policy that is or was in force: what decisions of this version were made by."""
    found = await parts.scheduler.ask("GET", f"/v1/policy/versions/{version}")
    return {**found, "changes": _seen_by(caller, found.get("changes", []))}


@router.put("", response_model=dict[str, Any], responses={200: _ETAG, **_CHANGE}, openapi_extra=_BODY)
async def put_policy(
    parts: Parts, caller: Operator, request: Request, dry_run: DryRun = False, if_match: IfMatch = None
) -> Response:
    """Decide by this policy from the next scheduling cycle on. The body is a policy file in YAML or JSON.

    Nothing is applied when anything in it is wrong; the problem names each place by JSON pointer and line.
    """
    body = await request.body()
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    _check(media_type, body)
    content_type = {"content-type": media_type or "application/yaml"}
    found = await parts.scheduler.change(
        "PUT",
        "/v1/policy",
        content=body,
        params=_params(caller, dry_run=dry_run),
        headers=content_type | ({"if-match": if_match} if if_match else {}),
    )
    return _tagged(found, "previous_version" if dry_run else "version")


@router.delete("", response_model=dict[str, Any], responses={200: _ETAG, **_CHANGE})
async def delete_policy(parts: Parts, caller: Operator, dry_run: DryRun = False, if_match: IfMatch = None) -> Response:
    """Give up what was put: the policy that the scheduler was started with applies again."""
    found = await parts.scheduler.change(
        "DELETE",
        "/v1/policy",
        params=_params(caller, dry_run=dry_run),
        headers={"if-match": if_match} if if_match else {},
    )
    return _tagged(found, "previous_version" if dry_run else "version")


def _params(caller: Caller, *, dry_run: bool) -> dict[str, Any]:
    return {"dry_run": dry_run, "changed_by": f"{caller.tenant_id}/{caller.client_id}"}


def _seen_by(caller: Caller, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who changed the policy is for operators to see."""
    return changes if caller.may(Scope.OPERATOR) else [{**item, "changed_by": ""} for item in changes]


def _check(media_type: str, body: bytes) -> None:
    """What shows without knowing policies; the scheduler checks the rest."""
    if not body.strip():
        raise MalformedRequestError("the body is empty")
    if media_type != "application/json":
        return
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedRequestError("the body is not valid JSON") from None
    if not isinstance(document, dict):
        raise InvalidArgumentError("a policy is an object", errors=(FieldError("", "a policy is an object"),))


def _tagged(body: dict[str, Any], field: str) -> Response:
    text = json.dumps(body, ensure_ascii=False)
    return Response(
        text, media_type="application/json", headers={"ETag": f'"{body.get(field, "")}"', "Cache-Control": "no-cache"}
    )
