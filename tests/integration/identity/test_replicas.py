"""Two processes of identity share one authority, its keys and the compute ids."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.harness import Environment
from tests.integration.identity.conftest import AgentSide, node, token_of


async def test_processes_share_authority_keys_and_ids(stack: Environment, bootstrap_file: Path) -> None:
    env = {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap_file)}
    async with stack.service("identity", env) as one, stack.service("identity", env) as two:
        agent, nodes = AgentSide(), [node("beijing-1", "GPU-a", "GPU-b")]
        answers = await asyncio.gather(*(agent.register(side.http, nodes) for side in (one, two, one, two)))
        bodies = [answer.json() for answer in answers]
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
        assert len({body["ca_bundle_pem"] for body in bodies}) == 1
        assert len({body["nodes"][0]["compute_id"] for body in bodies}) == 1
        assert len({body["agent_id"] for body in bodies}) == 1
        assert len({body["serial"] for body in bodies}) == 4
        token = await token_of(one.http, "root", "root-secret-1")
        listed = await two.http.get("/v1/identities", headers={"Authorization": f"Bearer {token}"})
        assert listed.status_code == 200
        rivals = await asyncio.gather(*(AgentSide().register(side.http, nodes) for side in (one, two)))
        assert [answer.status_code for answer in rivals] == [409, 409]
