"""HTTP of administrators and auditors: identities, revocations, tenants, clients, join tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Header, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from meridian.database import Database
from meridian.errors import NotFoundError
from meridian.http import Moment
from meridian.ids import NewId
from services.identity import access_store, store
from services.identity.access import Access, check_scopes
from services.identity.api_registration import bearer
from services.identity.measures import IdentityMeasures
from services.identity.records import Identity, Kind, Status
from services.identity.revocation import Revocation
from services.identity.tenancy import Name, PlaceName, Tenancy, Text
from services.identity.token_keys import Grant

Reason = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True, pattern=r"^[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Filter = Annotated[Text | None, Query()]
Cursor = Annotated[Text, Query()]


class RevocationRequest(BaseModel):
    """Exactly one subject, and why."""

    model_config = ConfigDict(extra="forbid")

    compute_id: Text | None = None
    agent_id: Text | None = None
    tenant_id: Text | None = None
    client_id: Text | None = None
    token_id: Text | None = None
    join_token_id: Text | None = None
    reason: Reason

    @model_validator(mode="after")
    def one_subject(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError("name exactly one of compute_id, agent_id, tenant_id, client_id, token_id, join_token_id")
        return self

    def _given(self) -> list[tuple[str, str]]:
        names = ("compute_id", "agent_id", "tenant_id", "client_id", "token_id", "join_token_id")
        return [(name, value) for name in names if (value := getattr(self, name)) is not None]

    @property
    def subject(self) -> tuple[str, str]:
        """Kind and id of what is to be revoked."""
        return self._given()[0]


class ReasonRequest(BaseModel):
    """Why an identity leaves quarantine, or an agent key is retired."""

    reason: Reason


class TenantRequest(BaseModel):
    """A new tenant."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: Name
    name: Text = ""


class ClientRequest(BaseModel):
    """A new client; without an id one is made up."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: Name
    client_id: Name | None = None
    scopes: list[str] = Field(min_length=1)


class JoinTokenRequest(BaseModel):
    """A new join token; without domains it is good for every domain."""

    model_config = ConfigDict(extra="forbid")

    domain_ids: list[PlaceName] = []
    expires_at: AwareDatetime | None = None


class IdentityView(BaseModel):
    """An identity."""

    identity_id: str
    kind: Kind
    domain_id: str
    node_id: str
    accelerator_index: int | None
    agent_id: str
    spiffe_id: str
    status: Status
    reason: str
    evidence_level: int
    emulated: bool
    vendor: str
    model: str
    replaces: str
    created_at: datetime
    updated_at: datetime


def _view(item: Identity) -> IdentityView:
    return IdentityView.model_validate(item, from_attributes=True)


def _page(items: list[Any], limit: int, cursor_of: Callable[[Any], str]) -> dict[str, Any]:
    return {"items": items, "next_cursor": cursor_of(items[-1]) if len(items) == limit else None}


def _needs(access: Access, scope: str) -> Callable[..., Awaitable[Grant]]:
    async def check(authorization: Annotated[str | None, Header()] = None) -> Grant:
        return await access.authorize(bearer(authorization), scope)

    return check


def admin_router(
    access: Access,
    revocation: Revocation,
    tenancy: Tenancy,
    database: Database,
    new_id: NewId,
    measures: IdentityMeasures,
) -> APIRouter:
    """Every route needs the scope admin, reading identities and revocations ``operator``."""
    router = APIRouter()
    # Values of a function call, therefore no aliases for a type checker: FastAPI reads them from the defaults.
    admin = Depends(_needs(access, "admin"))
    operator = Depends(_needs(access, "operator"))

    @router.get("/v1/identities")
    async def identities(
        _grant: Grant = operator,
        kind: Kind | None = None,
        status: Status | None = None,
        domain_id: Filter = None,
        node_id: Filter = None,
        agent_id: Filter = None,
        cursor: Cursor = "",
        limit: Limit = 100,
    ) -> dict[str, Any]:
        given = {"kind": kind, "status": status, "domain_id": domain_id, "node_id": node_id, "agent_id": agent_id}
        filters = {name: str(value) for name, value in given.items() if value is not None}
        async with database.reading() as connection:
            items = await store.page(connection, filters, cursor, limit)
        return _page([_view(item) for item in items], limit, lambda item: str(item.identity_id))

    @router.get("/v1/identities/{identity_id}")
    async def identity(identity_id: Text, _grant: Grant = operator) -> dict[str, Any]:
        async with database.reading() as connection:
            item = await store.identity(connection, identity_id)
            if item is None:
                raise NotFoundError(f"there is no identity {identity_id!r}")
            found_aliases = await store.aliases_of(connection, identity_id)
            history = await store.history_of(connection, identity_id)
        return _view(item).model_dump() | {"aliases": found_aliases, "history": history}

    @router.post("/v1/identities/{identity_id}/release")
    async def release(identity_id: Text, request: ReasonRequest, grant: Grant = admin) -> IdentityView:
        return _view(await revocation.release(identity_id, request.reason, grant.client_id))

    @router.post("/v1/identities/{identity_id}/retire")
    async def retire(identity_id: Text, request: ReasonRequest, grant: Grant = admin) -> IdentityView:
        return _view(await revocation.retire_agent(identity_id, request.reason, grant.client_id))

    @router.post("/v1/revocations", status_code=201)
    async def revoke(request: RevocationRequest, grant: Grant = admin) -> dict[str, Any]:
        kind, subject = request.subject
        revoked = await revocation.revoke(kind, subject, request.reason, grant.client_id)
        measures.revocations.labels(kind).inc()
        return {
            "revocation_id": revoked.revocation_id,
            "subject_kind": kind,
            "subject_id": subject,
            "reason": request.reason,
            "revoked_at": revoked.revoked_at,
            "identity_ids": revoked.identity_ids,
            "token_ids": revoked.token_ids,
        }

    @router.get("/v1/revocations")
    async def revocations(_grant: Grant = operator, since: Moment | None = None, limit: Limit = 100) -> dict[str, Any]:
        async with database.reading() as connection:
            return {"items": await store.list_revocations(connection, since, limit)}

    @router.post("/v1/tenants", status_code=201)
    async def add_tenant(request: TenantRequest, _grant: Grant = admin) -> dict[str, Any]:
        name = request.name or request.tenant_id
        created_at = await tenancy.add_tenant(request.tenant_id, name)
        return {"tenant_id": request.tenant_id, "name": name, "created_at": created_at, "revoked_at": None}

    @router.get("/v1/tenants")
    async def tenants(_grant: Grant = admin, cursor: Cursor = "", limit: Limit = 100) -> dict[str, Any]:
        async with database.reading() as connection:
            items = await access_store.page_of_tenants(connection, cursor, limit)
        return _page(items, limit, lambda item: str(item["tenant_id"]))

    @router.post("/v1/clients", status_code=201)
    async def add_client(request: ClientRequest, _grant: Grant = admin) -> dict[str, Any]:
        check_scopes(request.scopes)
        client_id = request.client_id or new_id("cli")
        client = await tenancy.add_client(client_id, request.tenant_id, tuple(dict.fromkeys(request.scopes)))
        return {
            "client_id": client.client_id,
            "client_secret": client.client_secret,
            "tenant_id": client.tenant_id,
            "scopes": client.scopes,
            "created_at": client.created_at,
        }

    @router.get("/v1/clients")
    async def clients(
        _grant: Grant = admin, tenant_id: Filter = None, cursor: Cursor = "", limit: Limit = 100
    ) -> dict[str, Any]:
        async with database.reading() as connection:
            items = await access_store.page_of_clients(connection, tenant_id, cursor, limit)
        return _page(items, limit, lambda item: str(item["client_id"]))

    @router.post("/v1/join-tokens", status_code=201)
    async def add_join_token(request: JoinTokenRequest, _grant: Grant = admin) -> dict[str, Any]:
        join_token_id = new_id("jtk")
        token = await tenancy.add_join_token(join_token_id, tuple(request.domain_ids), request.expires_at)
        return {
            "join_token_id": join_token_id,
            "join_token": token,
            "domain_ids": request.domain_ids,
            "expires_at": request.expires_at,
        }

    return router
