"""The agent's identity: a P-256 key that never leaves the data directory, and what the identity service certifies.

A stored registration that is still good lets the agent start while the identity service is away; it is renewed at every
start and at ``rotate_at``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.settings import AgentSettings
from meridian.clock import Clock
from meridian.errors import MeridianError, UnavailableError

_log = logging.getLogger(__name__)

ISSUED = "issued"


class RegistrationRefusedError(MeridianError):
    """The identity service does not certify this agent; the detail says why."""

    code = "REGISTRATION_REFUSED"
    status = 403
    title = "Registration refused"


@dataclass(frozen=True, slots=True)
class Registration:
    """What the identity service answered."""

    agent_id: str
    spiffe_id: str
    rotate_at: datetime
    not_after: datetime
    compute_ids: dict[tuple[str, int | None], str]
    body: dict[str, Any]


def read_answer(body: dict[str, Any]) -> Registration:
    """The registration of an answer; only issued compute ids are taken. KeyError, TypeError, ValueError when it is none."""
    compute_ids: dict[tuple[str, int | None], str] = {}
    for node in body["nodes"]:
        if node["status"] == ISSUED:
            compute_ids[node["node_id"], None] = node["compute_id"]
        for accelerator in node["accelerators"]:
            if accelerator["status"] == ISSUED:
                compute_ids[node["node_id"], accelerator["index"]] = accelerator["compute_id"]
    return Registration(
        agent_id=body["agent_id"],
        spiffe_id=body["spiffe_id"],
        rotate_at=datetime.fromisoformat(body["rotate_at"]),
        not_after=datetime.fromisoformat(body["not_after"]),
        compute_ids=compute_ids,
        body=body,
    )


def registration_request(settings: AgentSettings, csr_pem: str) -> dict[str, Any]:
    """The body of ``POST /v1/registrations``."""
    domain = settings.domain
    nodes = []
    for node in domain.nodes:
        units = [(group, number) for group in node.accelerators for number in range(group.count)]
        accelerators = [
            {
                "index": index,
                "vendor": group.vendor,
                "model": group.model,
                "emulated": domain.emulated,
                "aliases": {"uuid": group.uuids[number]} if number < len(group.uuids) else {},
            }
            for index, (group, number) in enumerate(units)
        ]
        nodes.append(
            {
                "node_id": node.node_id,
                "emulated": domain.emulated,
                "aliases": node.aliases,
                "accelerators": accelerators,
            }
        )
    return {"domain_id": domain.domain_id, "agent_csr_pem": csr_pem, "nodes": nodes}


class IdentityClient:
    """Registers the agent and keeps what it got in ``data_dir/identity``."""

    def __init__(
        self, settings: AgentSettings, clock: Clock, *, retry_s: float = 0.5, refused_retry_s: float = 5.0
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._folder = settings.data_dir / "identity"
        self._retry_s = retry_s
        self._refused_retry_s = refused_retry_s

    def stored(self) -> Registration | None:
        """The registration of an earlier start that names the same nodes and is still valid."""
        try:
            registration = read_answer(json.loads((self._folder / "registration.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        nodes = {node_id for node_id, index in registration.compute_ids if index is None}
        same = registration.body["domain_id"] == self._settings.domain.domain_id
        known = nodes >= {node.node_id for node in self._settings.domain.nodes}
        return registration if same and known and self._clock.now() < registration.not_after else None

    async def register(self) -> Registration:
        """Ask once.

        :raises UnavailableError: no answer, or one that says to come again.
        :raises RegistrationRefusedError: the token, the key or a node is not accepted.
        """
        body = registration_request(self._settings, self._csr_pem())
        headers = {"Authorization": f"Bearer {self._settings.token()}"}
        try:
            async with httpx.AsyncClient(base_url=self._settings.identity_url, timeout=10, trust_env=False) as client:
                answer = await client.post("/v1/registrations", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise UnavailableError(f"identity service: {error!r}") from None
        if (
            answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
            or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
        ):
            raise UnavailableError(f"identity service: status {answer.status_code}")
        if not answer.is_success:
            raise RegistrationRefusedError(f"status {answer.status_code}: {answer.text[:500]}")
        try:
            registration = read_answer(answer.json())
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"identity service: unreadable answer: {error!r}") from None
        self._store(registration)
        return registration

    async def register_until_done(self, on_problem: Callable[[str], None]) -> Registration:
        """Ask until there is an answer. A refusal is asked again too, slowly: a person may mend it."""
        wait_s = self._retry_s
        while True:
            try:
                return await self.register()
            except RegistrationRefusedError as error:
                _log.error("registration refused: %s", error.detail)
                on_problem(f"registration refused: {error.detail}")
                await asyncio.sleep(self._refused_retry_s)
            except UnavailableError as error:
                _log.warning("registration: %s", error.detail)
                on_problem(error.detail)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 1.5, 5.0)

    def _csr_pem(self) -> str:
        key = self._key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._settings.domain.domain_id)])
        csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
        return csr.public_bytes(serialization.Encoding.PEM).decode()

    def _key(self) -> ec.EllipticCurvePrivateKey:
        path = self._folder / "agent.key"
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            _write_private(path, pem)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def _store(self, registration: Registration) -> None:
        _write_private(self._folder / "agent.pem", registration.body["certificate_chain_pem"].encode())
        _write_private(self._folder / "ca.pem", registration.body["ca_bundle_pem"].encode())
        _write_private(self._folder / "registration.json", json.dumps(registration.body).encode())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
