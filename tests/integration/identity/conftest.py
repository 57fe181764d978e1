"""A running identity service, and an agent's side of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.harness import Environment, RunningService, environment

JOIN_TOKEN = "join-token-for-tests"
ADMIN = {"client_id": "root", "client_secret": "root-secret-1"}
BOOTSTRAP = {
    "join_tokens": [JOIN_TOKEN, {"token": "only-for-hangzhou", "domain_ids": ["hangzhou"]}],
    "clients": [
        {**ADMIN, "tenant_id": "operators", "scopes": ["operator", "admin"]},
        {
            "client_id": "app",
            "client_secret": "app-secret-1",
            "tenant_id": "acme",
            "scopes": ["jobs:read", "jobs:write"],
        },
    ],
}


@dataclass(slots=True)
class AgentSide:
    """An agent with a key of its own."""

    domain_id: str = "beijing"
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def csr(self) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent")])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, hashes.SHA256())
        return request.public_bytes(Encoding.PEM).decode()

    async def register(
        self, http: httpx.AsyncClient, nodes: list[dict[str, Any]], token: str = JOIN_TOKEN
    ) -> httpx.Response:
        body = {"domain_id": self.domain_id, "agent_csr_pem": self.csr(), "nodes": nodes}
        return await http.post("/v1/registrations", json=body, headers={"Authorization": f"Bearer {token}"})


def node(node_id: str, *uuids: str, emulated: bool = False) -> dict[str, Any]:
    """A node with one accelerator per vendor id."""
    accelerators = [
        {"index": index, "vendor": "nvidia", "model": "H100", "emulated": emulated, "aliases": {"gpu-uuid": uuid}}
        for index, uuid in enumerate(uuids)
    ]
    return {"node_id": node_id, "emulated": emulated, "accelerators": accelerators}


async def token_of(http: httpx.AsyncClient, client_id: str, client_secret: str, scope: str = "") -> str:
    """An access token."""
    body = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
    answer = await http.post("/v1/tokens", data=body | ({"scope": scope} if scope else {}))
    answer.raise_for_status()
    return str(answer.json()["access_token"])


@pytest_asyncio.fixture
async def stack(database_url: str) -> AsyncIterator[Environment]:
    """A broker and a database."""
    async with environment(database_url) as found:
        yield found


@pytest_asyncio.fixture
async def bootstrap_file(stack: Environment) -> Path:
    """A file with join tokens and clients."""
    path = stack.data_dir / "bootstrap.json"
    path.write_text(json.dumps(BOOTSTRAP))
    return path


@pytest_asyncio.fixture
async def identity(stack: Environment, bootstrap_file: Path) -> AsyncIterator[RunningService]:
    """The service."""
    async with stack.service("identity", {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap_file)}) as service:
        yield service


@pytest_asyncio.fixture
async def admin(identity: RunningService) -> dict[str, str]:
    """Headers of an administrator."""
    return {"Authorization": f"Bearer {await token_of(identity.http, **ADMIN)}"}
