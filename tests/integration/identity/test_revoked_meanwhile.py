"""Who is revoked while a request waits gets nothing by it: the secret is checked, which takes a while on purpose, or its turn comes."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from services.identity import access, store, tables
from services.identity.credentials import secret_matches
from tests.harness import PATIENCE_S, RunningService
from tests.integration.identity.conftest import ADMIN, AgentSide, node, token_of

WAITING = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
)

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


async def test_nobody_joins_by_a_token_that_was_revoked_while_registrations_waited(identity: RunningService) -> None:
    """Registrations are one after the other; what was looked at before the wait may not hold after it."""
    database, agent = identity.kernel.database, AgentSide()
    async with database.transaction() as connection:
        await store.lock_registrations(connection)
        joining = asyncio.create_task(agent.register(identity.http, [node("beijing-1", "GPU-a")]))
        async with asyncio.timeout(PATIENCE_S):
            while not joining.done():
                async with database.reading() as looking:
                    if await looking.scalar(WAITING):
                        break
                await asyncio.sleep(0.01)
        await connection.execute(tables.join_tokens.update().values(revoked_at=identity.kernel.clock.now()))
    answer = await joining
    assert answer.status_code == 401, answer.text
    async with database.reading() as connection:
        assert await connection.scalar(sa.select(sa.func.count()).select_from(tables.certificates)) == 0


@pytest.mark.parametrize("body", [b'{"client_id": "\\ud800", "client_secret": "x"}', b"[" * 10_000])
async def test_what_is_no_text_is_a_malformed_request(identity: RunningService, body: bytes) -> None:
    sent = body.replace(b"{", b'{"grant_type": "client_credentials", ', 1)
    answer = await identity.http.post("/v1/tokens", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert await token_of(identity.http, **ADMIN)
