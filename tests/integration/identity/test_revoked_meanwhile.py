"""A token is not issued to who is revoked while the secret is checked, which takes a while on purpose."""

from __future__ import annotations

import asyncio

import pytest

from services.identity import access
from services.identity.credentials import secret_matches
from tests.harness import RunningService
from tests.integration.identity.conftest import ADMIN, token_of

APP = {"grant_type": "client_credentials", "client_id": "app", "client_secret": "app-secret-1"}


@pytest.mark.parametrize("subject", [{"client_id": "app"}, {"tenant_id": "acme"}], ids=["client", "tenant"])
async def test_no_token_outlives_a_revocation(
    identity: RunningService, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch, subject: dict[str, str]
) -> None:
    loop = asyncio.get_running_loop()

    async def revoke() -> int:
        body = {**subject, "reason": "the secret was published"}
        return (await identity.http.post("/v1/revocations", json=body, headers=admin)).status_code

    def matches(secret: str, stored: str) -> bool:
        found = secret_matches(secret, stored)
        assert asyncio.run_coroutine_threadsafe(revoke(), loop).result() == 201
        return found

    monkeypatch.setattr(access, "secret_matches", matches)
    answer = await identity.http.post("/v1/tokens", data=APP)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


@pytest.mark.parametrize("body", [b'{"client_id": "\\ud800", "client_secret": "x"}', b"[" * 10_000])
async def test_what_is_no_text_is_a_malformed_request(identity: RunningService, body: bytes) -> None:
    sent = body.replace(b"{", b'{"grant_type": "client_credentials", ', 1)
    answer = await identity.http.post("/v1/tokens", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert await token_of(identity.http, **ADMIN)
