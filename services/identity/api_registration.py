"""HTTP of agents: registration, trust bundle, revocation list."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from meridian.clock import Clock
from meridian.errors import FieldError, MeridianError, UnauthenticatedError
from services.identity.authority import CertificateAuthority
from services.identity.enrolment import Enrolled, Enrolment
from services.identity.measures import IdentityMeasures
from services.identity.registration import ClaimedDevice, ClaimedNode, Decision
from services.identity.revocation_lists import RevocationLists
from services.identity.spiffe import compute_spiffe_id
from services.identity.tenancy import PlaceName, Text

Scheme = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Aliases = Annotated[dict[Scheme, Text], Field(max_length=32)]


class AcceleratorClaim(BaseModel):
    """An accelerator of the agent's inventory."""

    model_config = ConfigDict(extra="ignore")

    index: int = Field(ge=0, le=1023)
    vendor: Text = ""
    model: Text = ""
    emulated: bool = False
    aliases: Aliases = {}


class NodeClaim(BaseModel):
    """A node of the agent's inventory."""

    model_config = ConfigDict(extra="ignore")

    node_id: PlaceName
    emulated: bool = False
    aliases: Aliases = {}
    accelerators: list[AcceleratorClaim] = Field(default=[], max_length=1024)


class RegistrationRequest(BaseModel):
    """What an agent says of itself."""

    model_config = ConfigDict(extra="ignore")

    domain_id: PlaceName
    agent_csr_pem: str
    nodes: list[NodeClaim] = Field(default=[], max_length=10_000)


class AcceleratorIdentity(BaseModel):
    """The identity of an accelerator."""

    index: int
    compute_id: str
    spiffe_id: str
    status: str
    reason: str
    evidence_level: int


class NodeIdentity(BaseModel):
    """The identity of a node."""

    node_id: str
    compute_id: str
    spiffe_id: str
    status: str
    reason: str
    evidence_level: int
    accelerators: list[AcceleratorIdentity]


class RegistrationAnswer(BaseModel):
    """Certificate and compute ids."""

    agent_id: str
    domain_id: str
    spiffe_id: str
    serial: str
    certificate_chain_pem: str
    ca_bundle_pem: str
    not_before: datetime
    not_after: datetime
    rotate_at: datetime
    nodes: list[NodeIdentity]


def bearer(authorization: str | None) -> str:
    """The token of an ``Authorization: Bearer`` header; UnauthenticatedError when there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        detail = "an Authorization header with a bearer token is required"
        raise UnauthenticatedError(detail, errors=(FieldError("header:authorization", detail),))
    return token.strip()


def _claims(nodes: list[NodeClaim]) -> list[ClaimedNode]:
    return [
        ClaimedNode(
            node.node_id,
            node.emulated,
            node.aliases,
            tuple(
                ClaimedDevice(item.index, item.vendor, item.model, item.emulated, item.aliases)
                for item in node.accelerators
            ),
        )
        for node in nodes
    ]


def _answer(enrolled: Enrolled, trust_domain: str, now: datetime) -> RegistrationAnswer:
    domain_id = enrolled.agent.domain_id

    def common(decision: Decision) -> dict[str, Any]:
        return {
            "compute_id": decision.identity_id,
            "spiffe_id": compute_spiffe_id(trust_domain, domain_id, decision.kind, decision.identity_id),
            "status": decision.status.value,
            "reason": decision.reason,
            "evidence_level": decision.evidence_level,
        }

    return RegistrationAnswer(
        agent_id=enrolled.agent.identity_id,
        domain_id=domain_id,
        spiffe_id=enrolled.agent.spiffe_id,
        serial=enrolled.serial,
        certificate_chain_pem=enrolled.chain_pem,
        ca_bundle_pem=enrolled.bundle_pem,
        not_before=enrolled.not_before,
        not_after=enrolled.not_after,
        rotate_at=now + (enrolled.not_after - now) / 2,
        nodes=[
            NodeIdentity(
                node_id=entry.claim.node_id,
                accelerators=[
                    AcceleratorIdentity(index=claim.index, **common(decision)) for claim, decision in entry.devices
                ],
                **common(entry.node),
            )
            for entry in enrolled.nodes
        ],
    )


def registration_router(
    enrolment: Enrolment,
    authority: CertificateAuthority,
    lists: RevocationLists,
    clock: Clock,
    measures: IdentityMeasures,
) -> APIRouter:
    """The routes that agents call."""
    router = APIRouter()

    @router.post("/v1/registrations", status_code=201, response_model=RegistrationAnswer)
    async def register(
        request: RegistrationRequest, response: Response, authorization: Annotated[str | None, Header()] = None
    ) -> RegistrationAnswer:
        try:
            token = bearer(authorization)
            enrolled = await enrolment.register(token, request.domain_id, request.agent_csr_pem, _claims(request.nodes))
        except MeridianError as error:
            measures.registrations.labels(error.code.lower()).inc()
            raise
        measures.registrations.labels("new" if enrolled.new else "renewed").inc()
        response.status_code = 201 if enrolled.new else 200
        return _answer(enrolled, authority.trust_domain, clock.now())

    @router.get("/v1/ca-bundle")
    async def ca_bundle() -> Response:
        return Response(authority.bundle_pem, media_type="application/x-pem-file")

    @router.get("/v1/crl")
    async def crl(issuer: Annotated[str | None, Query(pattern="^[0-9a-f]{1,64}$")] = None) -> Response:
        return Response(await lists.der(issuer), media_type="application/pkix-crl")

    return router
