"""Registration over HTTP against the real database and bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from meridian.contracts.identity.v1.identity_pb2 import (
    IDENTITY_KIND_AGENT,
    IDENTITY_KIND_DEVICE,
    IDENTITY_KIND_NODE,
    IdentityIssued,
    IdentityRevoked,
)
from services.identity.x509_profile import verify_svid
from tests.harness import Environment, RunningService
from tests.integration.identity.conftest import JOIN_TOKEN, AgentSide, node

NODES = [node("beijing-1", "GPU-aaaa-1", "GPU-aaaa-2"), node("beijing-2", "GPU-aaaa-3", emulated=True)]


def ids_of(answer: dict[str, Any]) -> dict[tuple[str, int | None], str]:
    found: dict[tuple[str, int | None], str] = {}
    for item in answer["nodes"]:
        found[item["node_id"], None] = item["compute_id"]
        found |= {(item["node_id"], device["index"]): device["compute_id"] for device in item["accelerators"]}
    return found


async def test_an_agent_gets_a_valid_svid_and_lasting_ids(
    stack: Environment, identity: RunningService, bootstrap_file: Path
) -> None:
    agent = AgentSide()
    answer = await agent.register(identity.http, NODES)
    assert answer.status_code == 201, answer.text
    first = answer.json()
    chain = x509.load_pem_x509_certificates(first["certificate_chain_pem"].encode())
    roots = x509.load_pem_x509_certificates(first["ca_bundle_pem"].encode())
    spiffe_id = verify_svid(chain, roots, "meridian.local", datetime.now(UTC))
    assert str(spiffe_id) == first["spiffe_id"] == f"spiffe://meridian.local/cpn/beijing/agent/{first['agent_id']}"
    assert chain[0].public_key() == agent.key.public_key()
    assert len(set(ids_of(first).values())) == 5
    assert [item["evidence_level"] for item in first["nodes"]] == [1, 0]

    await stack.bus.expect(IdentityIssued, lambda event: event.domain_id == "beijing", count=6)
    issued = stack.bus.events(IdentityIssued, lambda event: event.domain_id == "beijing")
    kinds = [event.kind for event in issued]
    assert [kinds.count(kind) for kind in (IDENTITY_KIND_AGENT, IDENTITY_KIND_NODE, IDENTITY_KIND_DEVICE)] == [1, 2, 3]
    assert {event.serial for event in issued if event.kind == IDENTITY_KIND_AGENT} == {first["serial"]}

    again = await agent.register(identity.http, NODES)
    assert again.status_code == 200
    assert ids_of(again.json()) == ids_of(first)
    assert again.json()["agent_id"] == first["agent_id"]
    assert again.json()["serial"] != first["serial"]


async def test_ids_and_authority_survive_a_restart(stack: Environment, bootstrap_file: Path) -> None:
    env = {"MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(bootstrap_file)}
    agent = AgentSide()
    answers = []
    for _ in range(2):
        async with stack.service("identity", env) as service:
            answers.append((await agent.register(service.http, NODES)).json())
    assert ids_of(answers[0]) == ids_of(answers[1])
    assert answers[0]["ca_bundle_pem"] == answers[1]["ca_bundle_pem"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in (stack.data_dir / "identity").iterdir()}
    assert modes
    assert set(modes.values()) == {0o600}, modes


async def test_bad_requests_name_the_field_and_change_nothing(identity: RunningService, admin: dict[str, str]) -> None:
    http = identity.http
    agent = AgentSide()

    async def refused(response: Any, status: int, pointer: str) -> None:
        body = response.json()
        assert response.status_code == status, body
        assert response.headers["content-type"] == "application/problem+json"
        assert pointer in [error["pointer"] for error in body["errors"]], body

    await refused(await agent.register(http, NODES, token="wrong-token"), 401, "header:authorization")
    await refused(await agent.register(http, NODES, token="only-for-hangzhou"), 403, "/domain_id")
    wrong_curve = AgentSide(key=ec.generate_private_key(ec.SECP384R1()))
    await refused(await wrong_curve.register(http, NODES), 422, "/agent_csr_pem")
    await refused(await AgentSide(domain_id="Bei jing").register(http, NODES), 422, "/domain_id")
    await refused(await agent.register(http, [NODES[0], NODES[0]]), 422, "/nodes/1/node_id")
    await refused(
        await agent.register(http, [{"node_id": "a", "accelerators": [{"index": -1}]}]),
        422,
        "/nodes/0/accelerators/0/index",
    )
    der = bytearray(x509.load_pem_x509_csr(agent.csr().encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode()
    body = {"domain_id": "beijing", "agent_csr_pem": forged, "nodes": NODES}
    headers = {"Authorization": f"Bearer {JOIN_TOKEN}"}
    await refused(await http.post("/v1/registrations", json=body, headers=headers), 422, "/agent_csr_pem")

    listed = await http.get("/v1/identities", params={"domain_id": "beijing"}, headers=admin)
    assert listed.json()["items"] == []


async def test_another_live_key_cannot_take_a_node(identity: RunningService) -> None:
    assert (await AgentSide().register(identity.http, NODES)).status_code == 201
    answer = await AgentSide().register(identity.http, [node("beijing-2")])
    assert answer.status_code == 409
    assert answer.json()["errors"][0]["pointer"] == "/nodes/0/node_id"


async def test_a_vendor_id_claimed_twice_sets_both_aside_until_one_is_revoked(
    stack: Environment, identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    honest = (await AgentSide().register(http, [node("beijing-1", "GPU-twin")])).json()
    device = honest["nodes"][0]["accelerators"][0]["compute_id"]
    cloned = (await AgentSide(domain_id="hangzhou").register(http, [node("hangzhou-1", "GPU-TWIN")])).json()
    clone = cloned["nodes"][0]["accelerators"][0]
    assert (clone["status"], cloned["nodes"][0]["status"]) == ("quarantined", "issued")
    assert "two live agents" in clone["reason"]
    event = await stack.bus.expect(IdentityRevoked, lambda item: item.identity_id == device)
    assert event.reason.startswith("quarantined")

    release = f"/v1/identities/{device}/release"
    assert (await http.post(release, json={"reason": "checked"}, headers=admin)).status_code == 409
    body = {"compute_id": clone["compute_id"], "reason": "cloned"}
    assert (await http.post("/v1/revocations", json=body, headers=admin)).status_code == 201
    released = await http.post(release, json={"reason": "checked"}, headers=admin)
    assert released.json()["status"] == "issued"
    await stack.bus.expect(IdentityIssued, lambda item: item.identity_id == device, count=2)
    life = (await http.get(f"/v1/identities/{device}", headers=admin)).json()
    assert [entry["event"] for entry in life["history"]] == ["issued", "quarantined", "released"]
    assert life["aliases"][0]["value"] == "gpu-twin"


async def test_a_revoked_agent_falls_with_its_nodes_and_stays_out(
    stack: Environment, identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    agent = AgentSide()
    first = (await agent.register(http, NODES)).json()
    body = {"agent_id": first["agent_id"], "reason": "key stolen"}
    revoked = await http.post("/v1/revocations", json=body, headers=admin)
    assert revoked.status_code == 201, revoked.text
    assert len(revoked.json()["identity_ids"]) == 6
    await stack.bus.expect(IdentityRevoked, count=6)

    again = await agent.register(http, NODES)
    assert again.status_code == 403
    assert "key stolen" in again.json()["detail"]
    crl = x509.load_der_x509_crl((await http.get("/v1/crl")).content)
    assert crl.get_revoked_certificate_by_serial_number(int(first["serial"], 16)) is not None
    issuer = x509.load_pem_x509_certificates(first["certificate_chain_pem"].encode())[1]
    assert crl.is_signature_valid(issuer.public_key())

    other = (await AgentSide().register(http, NODES)).json()
    assert not set(ids_of(other).values()) & set(ids_of(first).values())


async def test_a_revoked_node_is_refused_and_the_rest_goes_on(identity: RunningService, admin: dict[str, str]) -> None:
    http = identity.http
    agent = AgentSide()
    first = (await agent.register(http, NODES)).json()
    body = {"compute_id": first["nodes"][0]["compute_id"], "reason": "tampered"}
    await http.post("/v1/revocations", json=body, headers=admin)
    again = (await agent.register(http, NODES)).json()
    assert [item["status"] for item in again["nodes"]] == ["revoked", "issued"]
    assert [item["status"] for item in again["nodes"][0]["accelerators"]] == ["revoked", "revoked"]
    assert ids_of(again) == ids_of(first)


async def test_a_retired_key_hands_its_nodes_to_the_next(
    stack: Environment, identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    old, new = AgentSide(), AgentSide()
    first = (await old.register(http, NODES)).json()
    retire = f"/v1/identities/{first['agent_id']}/retire"
    assert (await http.post(retire, json={"reason": "new machine"}, headers=admin)).status_code == 200
    assert (await http.post(retire, json={"reason": "again"}, headers=admin)).status_code == 409
    assert (await old.register(http, NODES)).status_code == 403
    second = await new.register(http, NODES)
    assert second.status_code == 201, second.text
    assert ids_of(second.json()) == ids_of(first)
    event = await stack.bus.expect(IdentityRevoked)
    assert (event.identity_id, event.serial) == (first["agent_id"], first["serial"])
    assert len(stack.bus.events(IdentityRevoked)) == 1


async def test_whose_token_does_not_stand_cannot_send_a_large_body(
    identity: RunningService, admin: dict[str, str]
) -> None:
    """Its body is not read to its end: the answer comes, or the connection ends, while most of it is still to come."""
    asked = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(64):
            asked += 1
            yield b" " * 2**20

    for headers in (
        {},
        {"Authorization": "Bearer guess"},
        {"Authorization": "Bearer guess", "Content-Length": str(2**26)},
    ):
        asked = 0
        try:
            answer = await identity.http.post("/v1/registrations", content=endless(), headers=headers)
        except httpx.TransportError:
            assert asked < 32
        else:
            assert (answer.status_code, asked < 32) == (401, True)
            assert answer.json()["errors"][0]["pointer"] == "header:authorization"

    # What is a little too large for it is read, so that the answer is too.
    large = AgentSide("beijing")
    nodes = [node(f"beijing-{number}", f"GPU-{number}") for number in range(3000)]
    refused = await large.register(identity.http, nodes, token="guess")
    assert refused.status_code == 401, refused.text
    assert refused.json()["code"] == "UNAUTHENTICATED"
    assert (await large.register(identity.http, nodes[:1500])).status_code == 201


async def test_a_revocation_list_is_signed_again_when_it_says_something_else(
    identity: RunningService, admin: dict[str, str]
) -> None:
    http = identity.http
    first = (await http.get("/v1/crl")).content
    assert (await http.get("/v1/crl")).content == first
    serials: set[int] = set()
    for domain_id in ("beijing", "hangzhou"):
        agent = (await AgentSide(domain_id).register(http, [])).json()
        before = (await http.get("/v1/crl")).content
        revoked = {"agent_id": agent["agent_id"], "reason": "test"}
        assert (await http.post("/v1/revocations", json=revoked, headers=admin)).status_code == 201
        serials.add(int(agent["serial"], 16))
        after = (await http.get("/v1/crl")).content
        assert after != before
        assert {item.serial_number for item in x509.load_der_x509_crl(after)} == serials
        assert (await http.get("/v1/crl")).content == after
    assert (await http.get("/v1/crl", params={"issuer": "abc"})).status_code == 404
