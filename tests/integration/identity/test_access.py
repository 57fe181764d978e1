"""Tokens, tenants and their revocation over HTTP."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import httpx
from joserfc import jwt
from joserfc.jwk import KeySet
from joserfc.jws import extract_compact

from meridian.contracts.identity.v1.identity_pb2 import IDENTITY_KIND_TENANT, IdentityIssued, IdentityRevoked
from services.identity import access_store, store
from tests.harness import Environment, RunningService
from tests.integration.identity.conftest import ADMIN, AgentSide, node, token_of

APP = {"client_id": "app", "client_secret": "app-secret-1"}


async def test_a_token_verifies_against_the_published_keys(identity: RunningService) -> None:
    http = identity.http
    token = await token_of(http, **APP, scope="jobs:read")
    configuration = (await http.get("/.well-known/openid-configuration")).json()
    keys = KeySet.import_key_set((await http.get(configuration["jwks_uri"])).json())
    decoded = jwt.decode(token, keys, algorithms=["EdDSA"])
    claims = decoded.claims
    assert claims["sub"] == "app"
    assert claims["tenant"] == "acme"
    assert claims["scope"] == "jobs:read"
    assert claims["aud"] == "meridian"
    assert claims["iss"] == configuration["issuer"]
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["jti"].startswith("tok-")
    assert decoded.header["kid"] in {key.kid for key in keys.keys}


async def test_credentials_by_form_json_and_basic(identity: RunningService) -> None:
    grant = {"grant_type": "client_credentials"}
    answers = [
        await identity.http.post("/v1/tokens", data=grant | APP),
        await identity.http.post("/v1/tokens", json=grant | APP),
        await identity.http.post("/v1/tokens", data=grant, auth=httpx.BasicAuth("app", "app-secret-1")),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].headers["cache-control"] == "no-store"
    assert {answer.json()["scope"] for answer in answers} == {"jobs:read jobs:write"}


async def test_token_requests_are_refused_with_the_oauth_error(identity: RunningService) -> None:
    async def error_of(body: dict[str, str]) -> tuple[int, str]:
        answer = await identity.http.post("/v1/tokens", data=body)
        return answer.status_code, answer.json()["error"]

    grant = {"grant_type": "client_credentials"}
    assert await error_of(grant | APP | {"client_secret": "wrong"}) == (401, "invalid_client")
    assert await error_of(grant | {"client_id": "nobody", "client_secret": "wrong"}) == (401, "invalid_client")
    assert await error_of(grant | {"client_id": "a\x00", "client_secret": "\x00"}) == (401, "invalid_client")
    assert await error_of(grant | APP | {"scope": "admin"}) == (400, "invalid_scope")
    assert await error_of(APP | {"grant_type": "password"}) == (400, "unsupported_grant_type")
    malformed = await identity.http.post("/v1/tokens", content=b"{", headers={"content-type": "application/json"})
    assert malformed.status_code == 400


async def test_administration_needs_the_scope(identity: RunningService) -> None:
    headers = {"Authorization": f"Bearer {await token_of(identity.http, **APP)}"}
    body = {"tenant_id": "mine", "name": "Mine"}
    assert (await identity.http.post("/v1/tenants", json=body, headers=headers)).status_code == 403
    assert (await identity.http.post("/v1/tenants", json=body)).status_code == 401
    broken = {"Authorization": headers["Authorization"][:-4] + "AAAA"}
    assert (await identity.http.post("/v1/tenants", json=body, headers=broken)).status_code == 401


async def test_who_may_administer_may_read_what_operators_may_and_not_the_other_way_round(
    identity: RunningService, admin: dict[str, str]
) -> None:
    http, headers = identity.http, {}
    for scope in ("admin", "operator"):
        body = {"tenant_id": "operators", "scopes": [scope]}
        made = (await http.post("/v1/clients", json=body, headers=admin)).json()
        client = {name: made[name] for name in ("client_id", "client_secret")}
        headers[scope] = {"Authorization": f"Bearer {await token_of(http, **client)}"}
    for scope, codes in (("admin", [200, 200, 200]), ("operator", [200, 200, 403])):
        routes = ("/v1/identities", "/v1/revocations", "/v1/tenants")
        answers = [await http.get(route, headers=headers[scope]) for route in routes]
        assert [answer.status_code for answer in answers] == codes, scope


async def test_life_of_a_tenant(stack: Environment, identity: RunningService, admin: dict[str, str]) -> None:
    http = identity.http
    body = {"tenant_id": "lab", "name": "A laboratory"}
    assert (await http.post("/v1/tenants", json=body, headers=admin)).status_code == 201
    assert (await http.post("/v1/tenants", json=body, headers=admin)).status_code == 409
    issued = await stack.bus.expect(IdentityIssued, lambda event: event.identity_id == "lab")
    assert issued.kind == IDENTITY_KIND_TENANT
    bad = await http.post("/v1/clients", json={"tenant_id": "lab", "scopes": ["fly"]}, headers=admin)
    assert bad.status_code == 422
    made = await http.post("/v1/clients", json={"tenant_id": "lab", "scopes": ["jobs:read"]}, headers=admin)
    assert made.status_code == 201
    client = {name: made.json()[name] for name in ("client_id", "client_secret")}
    await token_of(http, **client)
    listed = (await http.get("/v1/clients", params={"tenant_id": "lab"}, headers=admin)).json()
    assert [item["client_id"] for item in listed["items"]] == [client["client_id"]]
    assert "secret" not in str(listed)

    revoked = await http.post("/v1/revocations", json={"tenant_id": "lab", "reason": "unpaid"}, headers=admin)
    assert revoked.status_code == 201
    event = await stack.bus.expect(IdentityRevoked, lambda item: item.identity_id == "lab")
    assert (event.kind, event.token_id, event.reason) == (IDENTITY_KIND_TENANT, "", "unpaid")
    refused = await http.post("/v1/tokens", data={"grant_type": "client_credentials"} | client)
    assert refused.status_code == 401
    reasons = [item["reason"] for item in (await http.get("/v1/revocations", headers=admin)).json()["items"]]
    assert reasons == ["unpaid"]


async def test_a_revoked_token_and_client_are_no_longer_accepted(
    stack: Environment, identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    answer = await http.post("/v1/tokens", json={"grant_type": "client_credentials"} | ADMIN)
    token_id, token = answer.json()["token_id"], answer.json()["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert (await http.get("/v1/tenants", headers=headers)).status_code == 200
    await http.post("/v1/revocations", json={"token_id": token_id, "reason": "leaked"}, headers=admin)
    assert (await http.get("/v1/tenants", headers=headers)).status_code == 401
    event = await stack.bus.expect(IdentityRevoked, lambda item: item.token_id == token_id)
    assert event.identity_id == "operators"
    assert event.token_expires_at.ToNanoseconds() == json.loads(extract_compact(token.encode()).payload)["exp"] * 10**9

    await token_of(http, **APP)
    revoked = await http.post("/v1/revocations", json={"client_id": "app", "reason": "gone"}, headers=admin)
    assert len(revoked.json()["token_ids"]) == 1
    refused = await http.post("/v1/tokens", data={"grant_type": "client_credentials"} | APP)
    assert refused.status_code == 401
    two = {"client_id": "app", "token_id": "x", "reason": "both"}
    assert (await http.post("/v1/revocations", json=two, headers=admin)).status_code == 422
    gone = {"compute_id": "nothing", "reason": "x"}
    assert (await http.post("/v1/revocations", json=gone, headers=admin)).status_code == 404


async def test_identities_are_listed_page_by_page(identity: RunningService, admin: dict[str, str]) -> None:
    await AgentSide().register(identity.http, [node(f"beijing-{number}") for number in range(7)])
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        parameters = {"kind": "node", "limit": "3", "cursor": cursor}
        page = (await identity.http.get("/v1/identities", params=parameters, headers=admin)).json()
        seen += [item["node_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(seen) == [f"beijing-{number}" for number in range(7)]


async def test_a_join_token_made_for_a_domain_works_until_it_is_revoked(
    identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    made = (await http.post("/v1/join-tokens", json={"domain_ids": ["beijing"]}, headers=admin)).json()
    assert (await AgentSide().register(http, [], token=made["join_token"])).status_code == 201
    await http.post("/v1/revocations", json={"join_token_id": made["join_token_id"], "reason": "used"}, headers=admin)
    assert (await AgentSide().register(http, [], token=made["join_token"])).status_code == 401


async def test_bodies_have_a_limit(stack: Environment, bootstrap_file: Path) -> None:
    """Nobody needs a token to send one, so none is kept in memory beyond it."""
    settings = {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap_file), "MERIDIAN_IDENTITY_MAX_BODY_BYTES": "65536"}
    async with stack.service("identity", settings) as service:
        for path, size in (("/v1/tokens", 16_385), ("/v1/registrations", 65_537), ("/v1/revocations", 1_000_000)):
            answer = await service.http.post(path, content=b" " * size)
            assert (answer.status_code, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE"), path
        answer = await service.http.post("/v1/registrations", content=b" " * 65_536)
        assert answer.status_code in {400, 422}
        assert await token_of(service.http, **APP)


async def test_revocations_of_tokens_go_with_the_records_of_the_tokens(
    identity: RunningService, admin: dict[str, str]
) -> None:
    """Those of a client stay, and while a token may still be asked about its revocation does too."""
    http, kernel = identity.http, identity.kernel
    answer = await http.post("/v1/tokens", json={"grant_type": "client_credentials"} | APP)
    for body in ({"token_id": answer.json()["token_id"]}, {"client_id": "app"}):
        assert (await http.post("/v1/revocations", json=body | {"reason": "x"}, headers=admin)).status_code == 201
    later = kernel.clock.now() + timedelta(minutes=1)
    async with kernel.database.transaction() as connection:
        assert await store.forget_token_revocations(connection, later) == 0
        assert await access_store.forget_tokens(connection, later + timedelta(hours=2)) > 0
        assert await store.forget_token_revocations(connection, kernel.clock.now() - timedelta(minutes=1)) == 0
        assert await store.forget_token_revocations(connection, later) == 1
        assert [row["subject_kind"] for row in await store.list_revocations(connection, None, 10)] == ["client_id"]
