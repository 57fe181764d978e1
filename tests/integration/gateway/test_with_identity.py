"""The gateway beside the real identity service: a token is issued, used, revoked, and refused."""

from __future__ import annotations

import json

from tests.harness import environment
from tests.integration.gateway.conftest import task_file
from tests.integration.gateway.test_jobs import eventually

CLIENTS = [
    {"client_id": "app", "client_secret": "app-secret-1", "tenant_id": "acme", "scopes": ["jobs:read", "jobs:write"]},
    {"client_id": "root", "client_secret": "root-secret-1", "tenant_id": "ops", "scopes": ["operator", "admin"]},
]


async def test_a_real_token_from_issue_to_revocation(database_url: str, redis_url: str) -> None:
    async with environment(database_url, redis_url=redis_url) as env:
        bootstrap = env.data_dir / "bootstrap.json"
        bootstrap.write_text(json.dumps({"join_tokens": ["join-secret-1"], "clients": CLIENTS}))
        # Nested, because the gateway needs the address of the other.
        async with env.service("identity", {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap)}) as identity:  # noqa: SIM117
            async with env.service("gateway", identity_url=identity.base_url) as gateway:
                http = gateway.http

                async def sign_in(client_id: str, secret: str) -> dict[str, str]:
                    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
                    answer = await http.post("/v1/tokens", data=form)
                    assert answer.status_code == 200, answer.text
                    return {"Authorization": f"Bearer {answer.json()['access_token']}"}

                wrong = {"grant_type": "client_credentials", "client_id": "app", "client_secret": "wrong"}
                assert (await http.post("/v1/tokens", data=wrong)).status_code == 401
                app, root = await sign_in("app", "app-secret-1"), await sign_in("root", "root-secret-1")
                answer = await http.post("/v1/jobs", json=task_file(), headers=app)
                assert answer.status_code == 202, answer.text
                assert answer.json()["tenant_id"] == "acme"
                assert len((await http.get("/v1/jobs", headers=root)).json()["items"]) == 1
                assert (await http.get("/v1/domains", headers=app)).status_code == 403
                listed = await http.get("/v1/identities?kind=tenant", headers=root)
                assert listed.status_code == 200, listed.text
                assert (await http.get("/v1/identities", headers=app)).status_code == 403

                revoke = {"tenant_id": "acme", "reason": "left the network"}
                answer = await identity.http.post("/v1/revocations", json=revoke, headers=root)
                assert answer.status_code == 201, answer.text
                await eventually(lambda: http.get("/v1/jobs", headers=app), lambda got: got.status_code == 401)
                assert (await http.get("/v1/jobs", headers=root)).status_code == 200
