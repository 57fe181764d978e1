"""The policy over HTTP: look at it, change it, try a change, go back. Who may is decided by the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from meridian.database import Database
from meridian.errors import InvalidArgumentError, NotFoundError, PreconditionFailedError
from services.scheduler import store_policies
from services.scheduler.api import Json
from services.scheduler.core.policy import Policy
from services.scheduler.live import LiveScheduler
from services.scheduler.policy.changes import matches
from services.scheduler.policy.differences import differences
from services.scheduler.policy.file import parse
from services.scheduler.policy.warnings import warnings_of
from services.scheduler.times import rfc3339

MOST_BYTES = 256 * 1024
DryRun = Annotated[bool, Query(description="check and compare only")]
By = Annotated[str, Query(max_length=600, pattern=r"^[^\x00-\x1f]*$", description="who asks for the change")]
IfMatch = Annotated[str | None, Header(max_length=1000)]


def create_policy_router(database: Database, live: LiveScheduler) -> APIRouter:
    """The routes of the policy."""
    router = APIRouter(prefix="/v1/policy")

    @router.get("")
    async def policy(response: Response) -> Json:
        """The policy in force, with its version; ``follows`` says whether its planner for unlike rates decides now."""
        response.headers["etag"] = f'"{live.policy.version}"'
        follows = live.follows()
        return live.policy.as_json() | ({} if follows is None else {"follows": follows})

    @router.get("/versions")
    async def versions(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100, before: Annotated[int | None, Query(ge=1, lt=2**63)] = None
    ) -> Json:
        """Every change of the policy, newest first; ``before``: the changes before this number."""
        async with database.reading() as connection:
            found = await store_policies.policy_changes(connection, before=before, limit=limit + 1)
        more = found[limit - 1].change_id if len(found) > limit else None
        return {"items": [_change(item) for item in found[:limit]], "next_before": more}

    @router.get("/versions/{version}")
    async def one_version(version: Annotated[str, Path(max_length=200, pattern=r"^[^\x00-\x1f]+$")]) -> Json:
        """A policy that is or was in force, the document it was set by, and when it came into force."""
        async with database.reading() as connection:
            found = await store_policies.policy_changes(connection, version=version, limit=100)
        if not found:
            raise NotFoundError(f"no policy of version {version!r} was ever in force")
        return {
            "version": version,
            "in_force": version == live.policy.version,
            "policy": {**json.loads(found[0].body), "version": version},
            "source": next((item.source for item in found if item.source), None),
            "changes": [_change(item) for item in found],
        }

    @router.put("")
    async def put(
        request: Request, response: Response, dry_run: DryRun = False, changed_by: By = "", if_match: IfMatch = None
    ) -> Json:
        """Decide by this policy from the next cycle on. The body is YAML or JSON."""
        text = _text(await request.body())
        # Not in the event loop: a large document takes a while to read.
        wanted = await asyncio.to_thread(parse, text)
        return await _change_to(wanted, text, response, dry_run=dry_run, changed_by=changed_by, if_match=if_match)

    @router.delete("")
    async def delete(
        response: Response, dry_run: DryRun = False, changed_by: By = "", if_match: IfMatch = None
    ) -> Json:
        """Give up the policy that was set; that of the policy file applies."""
        wanted = live.file_policy
        return await _change_to(wanted, "", response, dry_run=dry_run, changed_by=changed_by, if_match=if_match)

    async def _change_to(
        wanted: Policy, source: str, response: Response, *, dry_run: bool, changed_by: str, if_match: str | None
    ) -> Json:
        wanted = live.tenants.over(wanted)
        live.try_policy(wanted)
        if dry_run:
            before, changed = live.policy, False
            if not matches(if_match, before.version):
                raise PreconditionFailedError(f"the policy in force is {before.version}, not {if_match}")
        else:
            before, changed = await live.change_policy(wanted, changed_by=changed_by, source=source, condition=if_match)
        response.headers["etag"] = f'"{live.policy.version}"'
        return {
            "applied": not dry_run,
            "changed": changed,
            "version": wanted.version,
            "previous_version": before.version,
            "changes": differences(before, wanted),
            "warnings": warnings_of(wanted, live.book.fleet.domains),
            "policy": wanted.as_json(),
        }

    return router


def _text(body: bytes) -> str:
    if len(body) > MOST_BYTES:
        raise InvalidArgumentError(f"a policy has at most {MOST_BYTES} bytes, not {len(body)}")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the policy is not UTF-8: byte {error.start}") from None


def _change(item: store_policies.PolicyChange) -> dict[str, Any]:
    return {
        "change": item.change_id,
        "version": item.version,
        "name": item.name,
        "origin": item.origin,
        "changed_by": item.changed_by,
        "changed_at": rfc3339(item.changed_at_s),
    }
