"""Who may do what: tokens, scopes, revocation, limits, quota."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meridian.clock import VirtualClock
from meridian.contracts.identity.v1 import identity_pb2
from tests.harness import PATIENCE_S, environment
from tests.integration.gateway.conftest import Stack, task_file
from tests.integration.gateway.issuer import serving
from tests.integration.gateway.test_jobs import eventually


async def test_tokens_that_are_not_good_are_refused(stack: Stack) -> None:
    issuer = stack.issuer
    now = int(time.time())
    stranger = type(issuer)()
    foreign = stranger.add_key("key-1")
    unknown = stranger.add_key("key-unknown")
    good = issuer.token()
    for name, value in {
        "none": None,
        "empty": "Bearer",
        "basic": "Basic abc",
        "garbage": "Bearer abc",
        "no signature": "Bearer " + good.rsplit(".", 1)[0] + ".",
        "tampered": "Bearer " + good.replace(".", ".e", 1),
        "expired": "Bearer " + issuer.token(exp=now - 60),
        "not yet": "Bearer " + issuer.token(nbf=now + 600),
        "issued in the future": "Bearer " + issuer.token(iat=now + 600, exp=now + 900),
        "other audience": "Bearer " + issuer.token(aud="elsewhere"),
        "no audience": "Bearer " + issuer.token(aud=None),
        "no expiry": "Bearer " + issuer.token(exp=None),
        "expiry is text": "Bearer " + issuer.token(exp="later"),
        "no tenant": "Bearer " + issuer.token(tenant=""),
        "foreign key, known id": "Bearer " + issuer.token(key=foreign),
        "unknown key": "Bearer " + issuer.token(key=unknown),
        "not ascii": "Bearer tök",
    }.items():
        headers = {} if value is None else {b"Authorization": value.encode("utf-8")}
        answer = await stack.http.get("/v1/jobs", headers=headers)
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"].startswith("Bearer"), name
        assert answer.json()["code"] == "UNAUTHENTICATED", name
    assert (await stack.http.get("/v1/jobs", headers={"Authorization": f"bearer {good}"})).status_code == 200


async def test_a_new_signing_key_is_found_at_once(stack: Stack) -> None:
    assert (await stack.http.get("/v1/jobs", headers=stack.issuer.headers())).status_code == 200
    stack.issuer.add_key("key-2")
    headers = stack.issuer.headers()

    async def ask() -> Any:
        return await stack.http.get("/v1/jobs", headers=headers)

    # Keys are fetched at most once a second.
    await eventually(ask, lambda answer: answer.status_code == 200)
    stack.issuer.down = True
    assert (await ask()).status_code == 200


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("jobs:read", {"/v1/jobs"}),
        ("resources:read", {"/v1/domains", "/v1/nodes", "/v1/graph", "/v1/incidents", "/v1/forecasts"}),
        ("jobs:write", set()),
        ("", set()),
        ("operator", {"/v1/jobs", "/v1/domains", "/v1/nodes", "/v1/graph", "/v1/incidents", "/v1/forecasts"}),
        ("admin", {"/v1/jobs", "/v1/domains", "/v1/nodes", "/v1/graph", "/v1/incidents", "/v1/forecasts"}),
    ],
)
async def test_scopes(stack: Stack, scope: str, allowed: set[str]) -> None:
    headers = stack.issuer.headers(scope=scope)
    for path in ("/v1/jobs", "/v1/domains", "/v1/nodes", "/v1/graph", "/v1/incidents", "/v1/forecasts"):
        answer = await stack.http.get(path, headers=headers)
        assert answer.status_code == (200 if path in allowed else 403), path
    writes = await stack.http.post("/v1/jobs", json=task_file(), headers=headers)
    assert writes.status_code == (202 if scope in {"jobs:write", "operator", "admin"} else 403)
    kills = await stack.http.post("/v1/nodes/none-1/kill", headers=headers)
    assert kills.status_code == (404 if scope in {"operator", "admin"} else 403)


async def test_a_revoked_token_and_a_revoked_tenant_are_refused_within_a_second(stack: Stack) -> None:
    one = stack.issuer.headers(jti="tok-one")
    other = stack.issuer.headers(jti="tok-other")
    assert (await stack.http.get("/v1/jobs", headers=one)).status_code == 200
    event = identity_pb2.IdentityRevoked(
        identity_id="tenant-a", kind=identity_pb2.IDENTITY_KIND_TENANT, token_id="tok-one", reason="leaked"
    )
    event.revoked_at.GetCurrentTime()
    await stack.bus.publish(event)
    await eventually(lambda: stack.http.get("/v1/jobs", headers=one), lambda got: got.status_code == 401)
    assert (await stack.http.get("/v1/jobs", headers=other)).status_code == 200
    tenant = identity_pb2.IdentityRevoked(identity_id="tenant-a", kind=identity_pb2.IDENTITY_KIND_TENANT)
    tenant.revoked_at.GetCurrentTime()
    # A node of the same name is no tenant.
    node = identity_pb2.IdentityRevoked(identity_id="tenant-b", kind=identity_pb2.IDENTITY_KIND_NODE)
    node.revoked_at.GetCurrentTime()
    await stack.bus.publish(tenant, node)
    await eventually(lambda: stack.http.get("/v1/jobs", headers=other), lambda got: got.status_code == 401)
    assert (await stack.http.get("/v1/jobs", headers=stack.issuer.headers(tenant="tenant-b"))).status_code == 200


async def test_a_stream_ends_when_its_token_is_revoked(stack: Stack) -> None:
    headers = stack.issuer.headers(jti="tok-stream")
    async with stack.http.stream("GET", "/v1/events", headers=headers) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        event = identity_pb2.IdentityRevoked(
            identity_id="tenant-a", kind=identity_pb2.IDENTITY_KIND_TENANT, token_id="tok-stream"
        )
        event.revoked_at.GetCurrentTime()
        await stack.bus.publish(event)
        async with asyncio.timeout(PATIENCE_S):
            async for _ in lines:
                pass


def clock_of_next_minute() -> VirtualClock:
    """A clock that stands still where a minute begins: no limit begins anew before the test says so."""
    return VirtualClock(datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1))


async def test_limits_and_quota(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy Redis is waited for, else this process would count for itself.
    monkeypatch.setattr("services.gateway.rates._REDIS_TIMEOUT_S", PATIENCE_S)
    settings = {
        "MERIDIAN_GATEWAY_RATE_LIMIT": "6/minute",
        "MERIDIAN_GATEWAY_MAX_UNFINISHED_JOBS": "3",
        "MERIDIAN_GATEWAY_LOGIN_RATE_LIMIT": "1/minute",
    }
    clock = clock_of_next_minute()
    with serving() as issuer:
        issuer.time_s = lambda: clock.now().timestamp()
        async with (
            environment(database_url, redis_url=redis_url, identity_url=issuer.url) as env,
            env.service("gateway", settings, clock=clock) as service,
        ):
            headers = issuer.headers()
            batch = await service.http.post("/v1/jobs:batch", json={"jobs": [task_file()] * 4}, headers=headers)
            assert batch.status_code == 429
            assert batch.json()["code"] == "RESOURCE_EXHAUSTED"
            for status in (202, 202, 202, 429):
                answer = await service.http.post("/v1/jobs", json=task_file(), headers=headers)
                assert answer.status_code == status, answer.text
            assert "Retry-After" not in answer.headers
            assert answer.headers["RateLimit"].startswith('"default";r=1;t=')
            assert answer.headers["RateLimit-Policy"] == '"default";q=6;w=60'
            last = await service.http.get("/v1/jobs", headers=headers)
            assert len(last.json()["items"]) == 3
            over = await service.http.get("/v1/jobs", headers=headers)
            assert over.status_code == 429
            assert 1 <= int(over.headers["Retry-After"]) <= 60
            assert over.headers["RateLimit"].startswith('"default";r=0;t=')
            # Another tenant has a limit of its own.
            assert (await service.http.get("/v1/jobs", headers=issuer.headers(tenant="tenant-b"))).status_code == 200
            issuer.answers["POST", "/v1/tokens"] = (200, {"access_token": "t", "token_type": "Bearer", "expires_in": 1})
            form = {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}
            assert (await service.http.post("/v1/tokens", data=form)).status_code == 200
            assert (await service.http.post("/v1/tokens", data=form)).status_code == 429


async def test_without_redis_and_identity_the_gateway_says_what_it_cannot_do(database_url: str) -> None:
    with serving() as issuer:
        nowhere, clock = "redis://127.0.0.1:1/0", clock_of_next_minute()
        async with (
            environment(database_url, redis_url=nowhere, identity_url=issuer.url) as env,
            env.service("gateway", {"MERIDIAN_GATEWAY_RATE_LIMIT": "2/minute"}, clock=clock) as service,
        ):
            issuer.down = True
            issuer.time_s = lambda: clock.now().timestamp()
            headers = issuer.headers()
            answer = await service.http.get("/v1/jobs", headers=headers)
            assert answer.status_code == 503
            assert "identity" in answer.json()["detail"]
            issuer.down = False
            # Keys are fetched at most once a second.
            clock.advance(2.0)
            for status in (200, 200, 429):
                assert (await service.http.get("/v1/jobs", headers=headers)).status_code == status


async def test_tokens_are_issued_by_identity(stack: Stack) -> None:
    stack.issuer.answers["POST", "/v1/tokens"] = (
        200, {"access_token": "t", "token_type": "Bearer", "expires_in": 60, "scope": "jobs:read"},
    )  # fmt: skip
    form = {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}
    answer = await stack.http.post("/v1/tokens", data=form)
    assert answer.status_code == 200
    assert answer.json()["access_token"] == "t"
    assert answer.headers["cache-control"] == "no-store"
    method, path, _, body = stack.issuer.requests[-1]
    assert (method, path) == ("POST", "/v1/tokens")
    assert body == b"grant_type=client_credentials&client_id=a&client_secret=b"
    stack.issuer.answers["POST", "/v1/tokens"] = (401, {"error": "invalid_client"})
    answer = await stack.http.post("/v1/tokens", data=form, auth=("a", "b"))
    assert answer.status_code == 401
    assert "www-authenticate" in answer.headers
    assert stack.issuer.requests[-1][2]["authorization"].startswith("Basic ")
